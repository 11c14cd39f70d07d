"""The commands push, pull and collect, and what others say of a URL."""

import json
from pathlib import Path

import pytest

pytest.importorskip("obstore")


@pytest.fixture
def saved(store):
    return store.parent / "checkpoints"


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/bucket"


def test_there_and_back(cli, cli_json, saved, url, tmp_path):
    assert "nothing is published there" in cli("checkpoints", url).stdout
    pushed = cli_json("push", saved, url)
    assert pushed["suffix"] == "7"
    assert pushed["bytes"] > 0
    assert "published 7 at" in cli("push", saved / "replay_ckpt.7", url).stdout
    (one,) = cli_json("checkpoints", url)
    assert (one["name"], one["suffix"], one["number"]) == ("replay", "7", 7)
    assert one["rows"] == cli_json("checkpoints", saved)[0]["rows"]
    assert one["run"] in cli("checkpoints", url).stdout
    assert "sound" in cli("verify", url, "--deep").stdout
    assert cli_json("verify", url)["clean"]
    assert str(tmp_path / "pulled") in cli("pull", url, "--out", tmp_path / "pulled").stdout
    cli("diff", saved / "replay_ckpt.7", tmp_path / "pulled" / "replay_ckpt.7")
    assert cli_json("pull", url, "--suffix", 7, "--out", tmp_path / "again")["path"] == str(
        tmp_path / "again" / "replay_ckpt.7"
    )


def test_urls_are_those_of_the_library():
    from diskreplay.cli.common import _OBJECT_STORES, absolute_or_url
    from diskreplay.remote.bucket import SCHEMES

    assert set(_OBJECT_STORES) == {*SCHEMES, "https"}
    for url in ("az://box/x", "abfss://box@a.dfs.core.windows.net/x", "https://a/box"):
        assert absolute_or_url(Path(url)) == url  # as Typer gives it


def test_another_run(cli, saved, url, tmp_path):
    cli("push", saved, url)
    said = cli("push", saved, url, "--run", "other", code=4).stderr
    assert "--takeover" in said
    cli("push", saved, url, "--run", "other", "--takeover")
    assert "publishes its checkpoints here" in cli("push", saved, url, code=4).stderr


def test_collect(cli, cli_json, saved, url):
    cli("push", saved, url)
    said = cli("collect", url, "--keep", 1, code=2).stderr  # who this is, nobody can know
    assert "Give --from DIR" in " ".join(said.replace("│", " ").split())
    assert "a URL of its own" in cli("collect", url, "--keep", 1, "--run", "x", code=4).stderr
    assert "removed 0 checkpoints" in cli("collect", url, "--keep", 1, "--from", saved).stdout
    done = cli_json("collect", url, "--keep", 1, "--grace", 0, "--from", saved)
    assert done == {"checkpoints": [], "objects": 0, "bytes": 0}
    assert "7d" in cli("collect", url, "--keep", 1, "--run", "x", "--grace", "soon", code=2).stderr


def test_damage(cli, saved, url, tmp_path):
    cli("push", saved, url)
    for pack in (tmp_path / "bucket" / "packs").iterdir():
        pack.unlink()
    said = cli("verify", url, code=1).stdout
    assert "missing (checkpoints 7)" in said
    assert "missing; pull another" in cli("pull", url, code=6).stderr
    (tmp_path / "bucket" / "checkpoints.json").write_text("{}")
    assert "damaged" in cli("checkpoints", url, code=6).stderr


def test_a_time_that_not_every_zone_has(cli, saved, url, tmp_path):
    cli("push", saved, url)
    catalog = tmp_path / "bucket" / "checkpoints.json"
    found = json.loads(catalog.read_text())
    found["checkpoints"][0][5] = "0001-01-01T00:00:00+14:00"
    catalog.chmod(0o644)
    catalog.write_text(json.dumps(found))
    assert "published_at is damaged" in cli("checkpoints", url, code=6).stderr


def test_looking_makes_nothing(cli, url, tmp_path):
    cli("checkpoints", url)
    cli("verify", url)
    cli("pull", url, "--out", tmp_path / "out", code=3)
    assert not (tmp_path / "bucket").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("push", "CHECKPOINTS", "bucket"), 2, "s3://bucket"),
        (("push", "CHECKPOINTS", "s3://id:word@bucket"), 2, "credentials"),
        (("pull", "URL"), 3, "no numbered checkpoint"),
        (("verify", "URL", "--repair"), 2, "push it again"),
        (
            ("collect", "URL", "--keep", "1", "--run", "x", "--grace", "99999999999d"),
            2,
            "1,000 years",
        ),
        (("checkpoints", "file:///dev/null/x"), 2, "/dev/null is a file"),
        (("push", "CHECKPOINTS", "file:///proc/x/y"), 4, "cannot create the directory"),
        (("push", "CHECKPOINTS", "file://"), 2, "names no directory"),
        (("verify", "CHECKPOINTS/replay_ckpt.7", "--deep"), 2, "--deep"),
    ],
)
def test_refusals(cli, saved, url, arguments, code, says):
    places = {"CHECKPOINTS": str(saved), "URL": url}
    given = []
    for one in arguments:
        for name, place in places.items():
            one = one.replace(name, place)
        given.append(one)
    said = cli(*given, code=code)
    assert says in said.output + said.stderr
    assert "word" not in said.output + said.stderr
