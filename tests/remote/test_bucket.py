"""Requests: URLs, secrets, and each request in turn fails."""

import datetime

import pytest

from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.bucket import Bucket, Missing, Overtaken
from tests.remote import servers
from tests.remote.test_checkpoints import same


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("bucket/runs", "no scheme"),
        ("ftp://bucket/runs", "ftp found"),
        ("s3:///runs", "no bucket"),
        ("s3://id:word@bucket/runs", "do not belong"),
        ("az://container/runs?sig=abc", "do not belong"),
        (3, "a text"),
        (None, "a text"),
    ],
)
def test_urls(url, says):
    with pytest.raises(errors.InvalidInputError, match=says) as refused:
        RemoteCheckpoints(url)
    assert "word" not in str(refused.value)
    assert "abc" not in str(refused.value)


def test_a_store_of_the_client(tmp_path):
    from obstore.store import LocalStore, MemoryStore

    assert RemoteCheckpoints(MemoryStore()).list() == []
    bucket = Bucket(LocalStore(str(tmp_path)))
    tag = bucket.create("a", b"1")
    newer = bucket.swap("a", b"2", tag)
    assert bucket.get("a", 9) == (b"2", newer)
    with pytest.raises(errors.InvalidInputError, match="only with a URL"):
        RemoteCheckpoints(MemoryStore(), storage_options={"region": "x"})


@pytest.mark.parametrize("kind", ["memory", "file", "s3"])
def test_conditions(kind, tmp_path, request):
    if kind == "s3":
        endpoint, faults = request.getfixturevalue("moto")
        faults.reset()
        bucket = Bucket(f"s3://bucket/{tmp_path.name}", servers.options(endpoint))
    else:
        bucket = Bucket(f"{kind}://{tmp_path}/bucket")
    with pytest.raises(Missing):
        bucket.get("a/b", 10)
    assert bucket.size("a/b") is None
    tag = bucket.create("a/b", b"one")
    with pytest.raises(Overtaken):
        bucket.create("a/b", b"two")
    newer = bucket.swap("a/b", b"two", tag)
    with pytest.raises(Overtaken):
        bucket.swap("a/b", b"three", tag)
    assert bucket.get("a/b", 10) == (b"two", newer)
    with pytest.raises(errors.RemoteError, match="3 bytes found, at most 2"):
        bucket.get("a/b", 2)
    assert bucket.get_range("a/b", 1, 2) == b"wo"
    assert b"".join(bucket.pieces("a/b")) == b"two"
    assert [(one.key, one.size) for one in bucket.list("a/")] == [("a/b", 3)]
    bucket.delete(["a/b", "a/never"])
    assert list(bucket.list("a/")) == []
    assert bucket.requests > 10


def test_a_missing_package(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "diskreplay\[cloud\]"'):
        RemoteCheckpoints("memory://x")


def test_no_secret_is_in_a_message(run, moto, tmp_path):
    endpoint, faults = moto
    run.add(50)
    path = run.save(1)
    remote = RemoteCheckpoints("s3://bucket/secret", storage_options=servers.options(endpoint))
    for what in ("403", "500", "412"):
        faults.reset(dict.fromkeys(range(100), what))
        with pytest.raises(errors.RemoteError) as refused:
            remote.push(path)
        assert servers.KEYS["secret_access_key"] not in str(refused.value)
        assert servers.KEYS["access_key_id"] not in str(refused.value)
    faults.reset()
    remote.push(path)
    stored = b"".join(
        b"".join(remote._bucket.pieces(one.key)) for one in remote._bucket.list("checkpoints/")
    )
    for secret in servers.KEYS.values():
        assert secret.encode() not in stored
        assert secret not in repr(remote)
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes()


@pytest.mark.parametrize("what", ["500", "503", "403", "412", "after", "cut"])
def test_each_request_in_turn_fails(run, moto, tmp_path, what):
    """The right result, or one of our errors and no half checkpoint; and the next push works."""
    endpoint, faults = moto
    quick = {
        "max_retries": 1, "retry_timeout": datetime.timedelta(seconds=5),
        "backoff": {
            "init_backoff": datetime.timedelta(milliseconds=1),
            "max_backoff": datetime.timedelta(milliseconds=2), "base": 2.0,
        },
    }  # fmt: skip
    options = {**servers.options(endpoint), "retry_config": quick}
    run.add(300)
    first = run.save(1)
    run.add(300)
    second = run.save(2)
    number, failed = 0, 0
    while True:
        url = f"s3://bucket/faults-{what}-{number}"
        faults.reset()
        RemoteCheckpoints(url, storage_options=options, concurrency=1).push(first)
        remote = RemoteCheckpoints(url, storage_options=options, concurrency=1)
        # That many requests are spoilt from this one on: the client's own repetition too.
        faults.reset(dict.fromkeys(range(number, number + 2), what))
        try:
            remote.push(second)
            pulled = remote.pull(2, tmp_path / f"pulled-{number}")
            assert same(second, pulled)
        except (errors.RemoteError, errors.CorruptCheckpointError):
            failed += 1
        done = len(faults.seen) <= number
        faults.reset()
        later = RemoteCheckpoints(url, storage_options=options)
        assert later.verify(deep=True).clean
        later.push(second)
        for path in (first, second):
            suffix = path.name.rpartition(".")[2]
            assert same(path, later.pull(suffix, tmp_path / f"again-{number}"))
        assert not list(tmp_path.glob("pulled-*/.*"))
        if done:
            break
        number += 1
    assert number > 5
    assert failed or what in ("after", "cut")
