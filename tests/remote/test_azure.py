"""Azure's object store, as Azurite is one: URLs, accounts, and what is refused."""

import datetime
import errno
import traceback

import pytest
from typer.testing import CliRunner

from diskreplay import errors
from diskreplay.cli.app import app
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.bucket import Bucket
from tests.remote import servers
from tests.remote.test_checkpoints import same

ONCE = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=5)}
WRONG_KEY = "d3Jvbmcta2V5LW9mLWEtdGVzdA=="
SIGNATURE = "c2lnbmF0dXJlLW9mLWEtdGVzdA"


def given(azurite, **changes):
    """Options with these changes; None leaves one out."""
    options = servers.azure_options(azurite) | {"retry_config": ONCE} | changes
    return {key: value for key, value in options.items() if value is not None}


def test_by_the_environment(run, azurite, monkeypatch, tmp_path):
    for name, value in servers.azure_environment(azurite).items():
        monkeypatch.setenv(name, value)
    run.add(300)
    path = run.save(1)
    number = path.stat().st_ino
    RemoteCheckpoints(f"az://bucket/{number}").push(path)
    for start in ("az://bucket", "azure://bucket", "abfs://bucket", "abfss://bucket"):
        pulled = RemoteCheckpoints(f"{start}/{number}").pull(1, tmp_path / start[:5])
        assert same(path, pulled)


@pytest.mark.parametrize(
    "start", ["az://bucket", f"https://{servers.ACCOUNT}.blob.core.windows.net/bucket"]
)
def test_the_command_line(run, azurite, monkeypatch, tmp_path, start):
    for name, value in servers.azure_environment(azurite).items():
        monkeypatch.setenv(name, value)
    run.add(70)
    url = f"{start}/{servers.own(tmp_path)}"
    said = ""
    for words in (
        ("push", run.save(1)), ("checkpoints", url), ("verify", url, "--deep"),
        ("pull", url, "--out", tmp_path / "pulled"),
    ):  # fmt: skip
        words = (*words, url) if words[0] == "push" else words
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        said += done.output
    assert f"published 1 at {url}" in said
    assert "sound" in said
    assert same(run.place / "checkpoints/replay_ckpt.1", tmp_path / "pulled/replay_ckpt.1")


@pytest.mark.parametrize(
    ("start", "account"),
    [
        ("abfss://bucket@devstoreaccount1.dfs.core.windows.net", None),
        ("https://devstoreaccount1.blob.core.windows.net/bucket", None),
        ("az://bucket", servers.ACCOUNT),
    ],
)
def test_the_account_in_the_url(run, azurite, tmp_path, start, account):
    run.add(100)
    path = run.save(1)
    options = given(azurite, account_name=account)
    remote = RemoteCheckpoints(f"{start}/{servers.own(tmp_path)}", storage_options=options)
    remote.push(path)
    assert same(path, remote.pull(1, tmp_path / "pulled"))


@pytest.mark.parametrize(
    ("url", "changes", "code", "says"),
    [
        ("az://no-such-box/x", {}, errno.ENOENT, "no such bucket or container"),
        ("az://No_Name!/x", {}, errno.EINVAL, "InvalidResourceName.*check the URL"),
        ("az://bucket/x", {"account_key": WRONG_KEY}, errno.EACCES, "check the credentials"),
        ("az://bucket/x", {"account_name": "other"}, errno.EACCES, "check the credentials"),
        (
            "az://bucket/x", {"account_key": None, "sas_key": f"sv=2021-12-02&sig={SIGNATURE}"},
            errno.EACCES, "check the credentials",
        ),
        (
            "az://bucket/x", {"account_key": None, "token": SIGNATURE},
            errno.EACCES, "check the credentials",
        ),
        ("az://bucket/x", {"client_options": None}, errno.EINVAL, "AZURE_ALLOW_HTTP=true"),
    ],
)  # fmt: skip
def test_what_is_refused(run, azurite, tmp_path, url, changes, code, says):
    """By each kind of request alike, and it is not called a store that does not answer."""
    run.add(50)
    path = run.save(1)
    options = given(azurite, **changes)
    remote, bucket = RemoteCheckpoints(url, storage_options=options), Bucket(url, options)
    for request in (
        remote.list, lambda: remote.push(path), lambda: remote.pull(1, tmp_path / "pulled"),
        lambda: bucket.create("a", b"1"), lambda: bucket.put("a", b"1"),
        lambda: list(bucket.list("packs/")),
    ):  # fmt: skip
        with pytest.raises(errors.RemoteError, match=says) as refused:
            request()
        assert refused.value.errno == code
        assert not isinstance(refused.value, errors.RemoteUnavailableError)
        assert url in str(refused.value)
        assert "xml" not in str(refused.value)
        text = "".join(traceback.format_exception(refused.value))
        for secret in (servers.ACCOUNT_KEY, WRONG_KEY, SIGNATURE):
            assert secret not in text
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": f"http://127.0.0.1:1/{servers.ACCOUNT}"},  # nobody is there
        {"account_key": None, "msi_endpoint": "http://127.0.0.1:1/token"},  # nor who gives tokens
    ],
)
def test_what_does_not_answer(run, azurite, changes):
    run.add(50)
    remote = RemoteCheckpoints("az://bucket/x", storage_options=given(azurite, **changes))
    with pytest.raises(errors.RemoteUnavailableError, match="call again later") as refused:
        remote.push(run.save(1))
    assert ("no credentials were found" in str(refused.value)) == ("msi_endpoint" in changes)
    assert servers.ACCOUNT_KEY not in "".join(traceback.format_exception(refused.value))
