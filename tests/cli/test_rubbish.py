"""Every command that takes a path, given what is no store: one rule for the exit code.

2: a URL where a path is expected, or the other way round. 3: what is there is not what the command
reads, or nothing is there. 4: the system does not let it be read. 7: a package is missing. Nobody
gets a traceback or an output that is half made.
"""

import importlib.util
import json
import shutil
import stat
import subprocess
import sys

import pytest
import zarr
from typer.main import get_command
from typer.testing import CliRunner

from diskreplay.cli.app import app
from tests.cli.conftest import make_run
from tests.processes import Process

PATH, GOOD, OUT, PAGE, BUCKET = (object() for _ in range(5))
STORES = {
    "info": ["info", PATH],
    "stats": ["stats", PATH],
    "bench": ["bench", PATH, "--seconds", "0"],
    "episodes": ["episodes", PATH],
    "show": ["show", PATH, "7"],
    "frames": ["frames", PATH, "--out", OUT],
    "video": ["video", PATH, "--episode", "0", "--out", OUT],
    "plot": ["plot", PATH, "--out", OUT],
    "report": ["report", PATH, "--out", PAGE],
    "verify": ["verify", PATH],
    "verify --repair": ["verify", PATH, "--repair"],
    "verify --from": ["verify", GOOD, "--repair", "--from", PATH],
    "diff one": ["diff", PATH, GOOD],
    "diff other": ["diff", GOOD, PATH],
    "export": ["export", PATH, "--format", "csv", "--out", OUT],
    "convert": ["convert", PATH, "--out", OUT],
    "merge": ["merge", GOOD, PATH, "--out", OUT],
    "trim": ["trim", PATH, "--capacity", "10", "--out", OUT],
}
CHECKPOINTS = {
    "checkpoints": ["checkpoints", PATH],
    "prune": ["prune", PATH, "--keep", "1", "--yes"],
    "push": ["push", PATH, BUCKET],
}
IMPORTS = {
    f"import {kind}": ["import", PATH, "--format", kind, "--suffix", "1", "--out", OUT]
    if kind == "dopamine"
    else ["import", PATH, "--format", kind, "--out", OUT]
    for kind in ("parquet", "csv", "npz", "lerobot", "dopamine")
}
LOOKS = {"view": ["view", PATH, "--port", "0"]}
COMMANDS = STORES | CHECKPOINTS | IMPORTS | LOOKS
NEEDS = {
    "frames": "matplotlib", "plot": "matplotlib", "report": "matplotlib", "video": "PIL",
    "import parquet": "pyarrow", "import lerobot": "pyarrow", "push": "obstore", "view": "uvicorn",
}  # fmt: skip
# Which take no path that must be there, and which take URLs: see the last two tests.
WITHOUT = {"size", "warmup", "pull", "collect"}


def test_no_command_is_left_out():
    assert {words[0] for words in COMMANDS.values()} | WITHOUT == set(get_command(app).commands)


@pytest.fixture
def give(tmp_path, monkeypatch):
    """Run a command of `COMMANDS` with a path: its exit code, and its one line."""

    def run(name, path):
        if module := NEEDS.get(name):
            pytest.importorskip(module)
        known = {
            PATH: str(path), GOOD: str(tmp_path / "run" / "replay"), OUT: str(tmp_path / "out"),
            PAGE: str(tmp_path / "out.html"),
            BUCKET: f"file://{tmp_path}/bucket",
        }  # fmt: skip
        if name == "view":
            # It would serve until Ctrl-C.
            monkeypatch.setattr("uvicorn.Server.run", lambda *_args, **_named: None)
        done = CliRunner().invoke(app, [known.get(word, word) for word in COMMANDS[name]])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert not [*tmp_path.glob("*out*")]
        return done.exit_code, done.stderr

    return run


def make_rubbish(directory):
    """What is no store, each in its own way."""
    make_run(directory)
    (directory / "file").write_text("rubbish\n")
    (directory / "empty").mkdir()
    (directory / "other" / "sub").mkdir(parents=True)
    (directory / "other" / "notes.txt").write_text("bread, milk")
    zarr.create_group(directory / "foreign").create_array("x", shape=(3,), dtype="f4")
    shutil.copytree(directory / "run" / "replay", directory / "newer")
    metadata = directory / "newer" / "zarr.json"
    document = json.loads(metadata.read_text())
    document["attributes"]["diskreplay"]["format_version"] = 99
    metadata.write_text(json.dumps(document))


@pytest.fixture
def rubbish(filled, tmp_path):
    filled(make_rubbish)
    return tmp_path


@pytest.mark.costly(52)
@pytest.mark.parametrize("what", ["missing", "file", "file/below", "empty", "other", "foreign"])
@pytest.mark.parametrize("name", [*STORES, *CHECKPOINTS, *IMPORTS])
def test_what_is_no_store_is_3(rubbish, give, name, what):
    code, said = give(name, rubbish / what)
    assert code == 3, said
    assert said.startswith(f"error: {rubbish / what}")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("what", ["missing", "file", "file/below", "foreign", "newer"])
def test_a_page_of_nothing_is_3(rubbish, give, what):
    code, said = give("view", rubbish / what)
    assert code == 3, said
    assert said.startswith(f"error: {rubbish / what}: ")


def test_a_page_waits_for_the_first_store(rubbish, give):
    for what in ("empty", "other"):
        assert give("view", rubbish / what) == (
            0, "there is no store yet; the page shows it when it comes\n",
        )  # fmt: skip
    assert give("view", rubbish / "run") == (0, "")


@pytest.mark.parametrize("name", STORES)
def test_a_newer_format_is_3(rubbish, give, name):
    code, said = give(name, rubbish / "newer")
    assert code == 3
    assert "format version 99; this diskreplay reads up to 2: upgrade it" in said


TAKE_URLS = ("verify", "verify --repair", "checkpoints")


@pytest.mark.parametrize("name", ["verify", "checkpoints"])
def test_a_url_of_no_object_store(rubbish, monkeypatch, give, name):
    """Commands that take URLs say which; the URL is not repeated, since it may hold a password."""
    pytest.importorskip("obstore")
    monkeypatch.chdir(rubbish)
    code, said = give(name, "https://me:secret@example.com/replay")
    assert code == 2, said
    assert said.startswith("error: url: https found, one of s3, ")
    assert "secret" not in said
    assert not (rubbish / "https:").exists()


@pytest.mark.costly(24)
@pytest.mark.parametrize(
    ("name", "url"),
    [
        (name, url)
        for name in COMMANDS
        for url in ("s3://bucket/run", "https://example.com/replay", "file:///tmp/x")
        if name not in TAKE_URLS
    ],
)
def test_a_url_is_no_path(rubbish, monkeypatch, give, name, url):
    """Nor one to write to: `--out s3://bucket/run` was a directory `s3:` here."""
    monkeypatch.chdir(rubbish)
    scheme = url.partition(":")[0]
    code, said = give(name, url)
    assert code == 2, said
    assert said.startswith(f"error: {scheme}://")
    assert ": a URL; a path on this machine expected" in said
    assert not (rubbish / f"{scheme}:").exists()


@pytest.mark.parametrize(
    "name", [name for name, words in COMMANDS.items() if {OUT, PAGE} & set(words)]
)
def test_a_url_is_nothing_to_write_to(store, tmp_path, monkeypatch, cli, name):
    monkeypatch.chdir(tmp_path)
    known = {
        PATH: "run/replay",
        GOOD: "run/replay",
        OUT: "s3://bucket/run",
        PAGE: "s3://bucket/run",
    }
    before = sorted(tmp_path.iterdir())
    done = cli(*(known.get(word, word) for word in COMMANDS[name]), code=2)
    assert done.stderr.startswith("error: s3://bucket/run: a URL; a path on this machine expected")
    assert sorted(tmp_path.iterdir()) == before


def test_a_directory_of_that_name_is_a_path(store, tmp_path, monkeypatch, cli_json):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").rename("s3:")
    assert cli_json("episodes", "s3:/replay") == cli_json("episodes", tmp_path / "s3:" / "replay")


ONLY_URLS = {
    "verify": ["verify"], "checkpoints": ["checkpoints"], "pull": ["pull"],
    "collect": ["collect", "--keep", "1"],
}  # fmt: skip


@pytest.mark.parametrize("words", ONLY_URLS.values(), ids=ONLY_URLS)
def test_a_url_without_the_package_is_7(cli, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = cli(*words, "s3://bucket/run", code=7)
    assert 'pip install "diskreplay[cloud]"' in done.stderr
    done = cli("push", ".", "s3://bucket/run", code=7)
    assert 'pip install "diskreplay[cloud]"' in done.stderr


@pytest.mark.parametrize("words", [ONLY_URLS["pull"], ONLY_URLS["collect"]])
def test_a_path_is_no_url(cli, tmp_path, words):
    assert "s3://bucket/runs/pong or the like expected" in cli(*words, tmp_path, code=2).stderr


def test_whose_directory_is_not_there_collects_nothing(cli, tmp_path):
    """It wrote the name of a new run first, and failed at that with 4."""
    pytest.importorskip("obstore")
    (tmp_path / "file").write_text("")
    for what in ("missing", "file"):
        given = tmp_path / what
        done = cli("collect", f"file://{tmp_path}/b", "--keep", "1", "--from", given, code=3)
        assert f"{given}: " in done.stderr
        assert "the directory that checkpoints are saved in expected" in done.stderr


class TestToldFromThePath:
    """`import` without `--format`."""

    def test_what_is_not_there(self, cli, tmp_path):
        done = cli("import", tmp_path / "none", "--out", tmp_path / "out", code=3)
        assert "no such file or directory" in done.stderr
        assert "--format minari" in done.stderr

    def test_a_store(self, cli, tmp_path, store):
        done = cli("import", store, "--out", tmp_path / "out", code=3)
        assert "`diskreplay convert` copies it" in done.stderr

    def test_what_does_not_say(self, cli, tmp_path):
        (tmp_path / "table").write_text("")
        for given in (tmp_path / "table", tmp_path):
            done = cli("import", given, "--out", tmp_path / "out", code=2)
            assert "its name does not say which format" in done.stderr


# In a process of its own, since root reads everything: what allows that is given up first.
UNREADABLE = """
import ctypes, json, sys
from typer.testing import CliRunner
from diskreplay.cli.app import app

sets = (ctypes.c_uint32 * 6)()  # no capability is effective, permitted or inherited
head = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
assert ctypes.CDLL(None).capset(head, sets) == 0
said = {}
for name, words in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(app, words)
    error = None if isinstance(done.exception, SystemExit) else repr(done.exception)
    said[name] = [done.exit_code, done.output, error]
print(json.dumps(said))
"""
LISTED = {"import csv": 3, "import npz": 3}  # a directory is none of these, whatever is in it


@pytest.mark.skipif(sys.platform != "linux", reason="capset is Linux's")
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.costly(1)
def test_what_may_not_be_read_is_4(rubbish, below):
    closed = rubbish / "closed"
    shutil.copytree(rubbish / "run", closed)
    given = closed / "replay" if below else closed
    known = {
        PATH: str(given), GOOD: str(rubbish / "run" / "replay"), OUT: str(rubbish / "out"),
        PAGE: str(rubbish / "out.html"),
        BUCKET: f"file://{rubbish}/bucket",
    }  # fmt: skip
    orders = {
        name: [known.get(word, word) for word in words]
        for name, words in COMMANDS.items()
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name])
    }
    closed.chmod(0)
    try:
        with Process(UNREADABLE, json.dumps(orders), stdout=subprocess.PIPE) as process:
            said = json.loads(process.stdout.read())
    finally:
        closed.chmod(stat.S_IRWXU)
    assert said.keys() == orders.keys()
    for name, (code, output, error) in said.items():
        assert error is None, (name, error)
        assert code == (4 if below else LISTED.get(name, 4)), (name, code, output)
        assert str(closed) in output, (name, output)
        assert "ermission denied" in output or name in LISTED, (name, output)
    assert not [*rubbish.glob("*out*")]
