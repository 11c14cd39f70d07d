"""Exit codes, messages and what is loaded."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

import diskreplay
from diskreplay import errors
from diskreplay.cli import app
from diskreplay.store.system_errors import translated

ROOT = Path(__file__).resolve().parent.parent.parent
READING = ("info", "stats", "episodes", "bench")


def run(*arguments, code="from diskreplay.cli.app import main; main()", **environment):
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.argv[0] = 'diskreplay'; {code}",
         *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def only_line(result):
    """The one line on stderr, and nothing on stdout."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("command", READING)
def test_no_store(cli, tmp_path, command):
    assert "no such directory" in only_line(cli(command, tmp_path / "nothing", code=3))


@pytest.mark.parametrize("command", READING)
def test_a_file(cli, tmp_path, command):
    (tmp_path / "file").write_text("rubbish")
    assert "a file; the directory" in only_line(cli(command, tmp_path / "file", code=3))


def test_a_directory_without_a_store(cli, tmp_path):
    assert "no zarr.json" in only_line(cli("info", tmp_path, code=3))


def test_a_directory_of_stores(cli, store):
    (store.parent / "other").mkdir()
    assert only_line(cli("info", store.parent, code=3)).endswith("stores in it: replay")
    checkpoints = store.parent / "checkpoints"
    assert only_line(cli("stats", checkpoints, code=3)).endswith("stores in it: replay_ckpt.7")


def test_a_foreign_zarr_group(cli, tmp_path):
    zarr.create_group(tmp_path / "foreign").create_array("x", shape=(3,), dtype="f4")
    assert "not a diskreplay store" in only_line(cli("info", tmp_path / "foreign", code=3))


@pytest.mark.parametrize("command", ["info", "stats", "verify"])
def test_hints_are_the_same_for_all_commands(cli, store, command):
    (store.parent / "text").write_text("rubbish")
    assert "a file; the directory" in only_line(cli(command, store.parent / "text", code=3))
    assert only_line(cli(command, store.parent, code=3)).endswith("stores in it: replay")
    checkpoints = store.parent / "checkpoints"
    assert only_line(cli(command, checkpoints, code=3)).endswith("stores in it: replay_ckpt.7")
    line = only_line(cli(command, store / "observation", code=3))
    assert line == (
        f"error: {store / 'observation'}: an array or a group of the store {store}; "
        "give the path of the store"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "{}/nothing"], ["info", "{}"], ["stats", "{}/replay/observation"],
        ["checkpoints", "{}/nothing"], ["diff", "{}/replay", "{}/nothing"],
        ["merge", "{}/replay", "{}/nothing", "--out", "{}/both"],
        ["export", "{}/replay", "--out", "{}/x"], ["import", "{}/x.npz", "--out", "{}/y"],
        ["plot", "{}/replay", "--out", "{}/x.txt"], ["convert", "{}/replay", "--out", "{}/replay"],
        ["prune", "{}/nothing", "--keep", "2"],
        ["verify", "{}/replay", "--repair", "--from", "{}/nothing"],
    ],
    ids=str,
)  # fmt: skip
def test_a_path_is_named_in_one_form_however_it_was_given(cli, store, monkeypatch, arguments):
    monkeypatch.chdir(store.parent.parent)
    said = []
    for given in (store.parent, store.parent.name, f"../{store.parent.parent.name}/run"):
        result = CliRunner().invoke(app.app, [each.format(given) for each in arguments])
        assert result.exit_code not in (0, 70)
        said.append(only_line(result))
    assert said[1:] == said[:1] * 2
    assert str(store.parent) in said[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "x"],
        ["export", "STORE", "--out", "x.npz"],
        ["export", "STORE", "--out", "x", "--format", "dopamine", "--suffix", "1"],
        ["import", "x.npz", "--out", "STORE"],
    ],
    ids=str,
)
def test_a_relative_path_where_the_working_directory_is_gone(
    cli, store, tmp_path, monkeypatch, arguments
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = cli(*(each.replace("STORE", str(store)) for each in arguments), code=4)
    assert "the working directory of this process is gone" in only_line(result)


def test_checkpoints_of_a_foreign_zarr_group(cli, tmp_path):
    zarr.create_group(tmp_path / "foreign").create_array("x", shape=(3,), dtype="f4")
    for path in (tmp_path / "foreign", tmp_path / "foreign" / "x"):
        line = only_line(cli("checkpoints", path, code=3))
        assert line.startswith(f"error: {path}: no checkpoints; give")


def test_a_newer_format(cli, store):
    document = json.loads((store / "zarr.json").read_text())
    document["attributes"]["diskreplay"]["format_version"] = 3
    (store / "zarr.json").write_text(json.dumps(document))
    assert "format version 3" in only_line(cli("info", store, code=3))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"attributes": {"diskreplay": {}}}'])
def test_damaged_metadata(cli, store, content):
    (store / "zarr.json").write_bytes(content)
    unreadable = not content.endswith(b"}}}")
    line = only_line(cli("info", store, code=6 if unreadable else 3))
    assert str(store) in line
    assert ("restore the file from a backup" in line) == unreadable


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("kind"),
        lambda a: a.update(kind=3),
        lambda a: a.update(fields=[f for f in a["fields"] if f["name"] != "step"]),
        lambda a: a.update(fields=[f for f in a["fields"] if f["name"] != "observation"]),
        lambda a: next(f for f in a["fields"] if f["name"] == "step").update(dtype="float32"),
        lambda a: a.pop("observation_space"),
        lambda a: a.update(fields=7),
    ],
)
@pytest.mark.parametrize("command", ["info", "stats"])
def test_damaged_attributes(cli, store, change, command):
    document = json.loads((store / "zarr.json").read_text())
    change(document["attributes"]["diskreplay"])
    (store / "zarr.json").write_text(json.dumps(document))
    assert str(store) in only_line(cli(command, store, code=3))


@pytest.mark.parametrize("gone", ["is_final", "step/c.0.0"])
def test_half_a_store(cli, store, gone):
    (shutil.rmtree if (store / gone).is_dir() else os.unlink)(store / gone)
    line = only_line(cli("info", store, code=6))
    assert f"{store / gone}" in line
    assert f"diskreplay verify {store}" in line


@pytest.mark.parametrize("gone", ["reward", "action", "reward/c.0.0"])
def test_info_of_a_store_without_a_file_that_it_does_not_need(cli, store, gone):
    """It refused such a store, of which it reads four small fields only."""
    whole = json.loads(cli("info", store, "--json").stdout)
    assert all(field["missing"] == [] for field in whole["fields"].values())
    (shutil.rmtree if (store / gone).is_dir() else os.unlink)(store / gone)
    shown = cli("info", store).stdout
    assert f"{gone.split('/')[0]}/c.0.0" in shown
    assert f"diskreplay verify {store}" in " ".join(shown.split())
    found = json.loads(cli("info", store, "--json").stdout)
    missing = {name: field["missing"] for name, field in found["fields"].items()}
    field = gone.split("/")[0]
    assert [name for name in missing if missing[name]] == [field]
    assert len(missing[field]) == whole["fields"][field]["segments"]
    assert found["rows"] == whole["rows"]
    assert found["episodes"] == whole["episodes"]


def test_a_cut_segment(cli, store):
    (chunk,) = (store / "reward").glob("c.*")
    os.truncate(chunk, 100)
    line = only_line(cli("stats", store, code=6))
    assert "100 bytes found" in line
    assert f"`diskreplay verify {store} --repair`" in line


def test_a_rotten_block(cli, store):
    checkpoint = store.parent / "checkpoints" / "replay_ckpt.7"
    (shard,) = (checkpoint / "observation").glob("c.*")
    content = bytearray(shard.read_bytes())
    content[20] ^= 255  # in the first block
    shard.chmod(0o644)
    shard.write_bytes(content)
    assert "rotten" in only_line(cli("stats", checkpoint, code=6))
    assert "rotten" in cli("show", checkpoint, 3, code=6).stderr


def test_no_permission(cli, store, monkeypatch):
    """As the system refuses it to others; tests may run as root, whom nothing is refused."""
    real = os.stat

    def refused(path, *arguments, **options):
        if not isinstance(path, int) and Path(path).name == "zarr.json":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refused)
    line = only_line(cli("info", store, code=4))
    assert str(store / "zarr.json") in line
    assert "Permission denied" in line


def test_no_permission_for_a_segment(cli, store, monkeypatch):
    def refused(path, *_arguments, **_options):
        raise translated(PermissionError(13, "Permission denied"), path, "cannot open it")

    monkeypatch.setattr("diskreplay.store.mapping.Mapping.open", refused)
    assert "Permission denied" in only_line(cli("info", store, code=4))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LockedError("who"), 5),
        (errors.CorruptSegmentError("what"), 6),
        (errors.IncompleteCheckpointError("what"), 6),
        (errors.SchemaError("what"), 3),
        (errors.CheckpointNotFoundError("what"), 3),
        (errors.DiskFullError(28, "full", "there"), 4),
        (errors.EmptyBufferError("nothing"), 2),
        (errors.UnknownIdError("nobody"), 2),
        (OSError(5, "Input/output error"), 4),
        (ImportError('pandas is missing: pip install "diskreplay[pandas]"'), 7),
        (MemoryError(), 4),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(cli, store, monkeypatch, error, code):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(diskreplay, "open", fail)
    result = cli("episodes", store, code=code)
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "error: not enough memory"),
        (MemoryError("Unable to allocate 8 GiB"), "error: not enough memory; Unable to allocate 8"),
    ],
)
def test_too_little_memory(cli, store, monkeypatch, error, says):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(diskreplay, "open", fail)
    assert only_line(cli("stats", store, code=4)).startswith(says)


def test_a_missing_package(cli, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    error = cli("show", store, "--episode", 0, "--out", store.parent / "x.png", code=7).stderr
    assert 'pip install "diskreplay[' in error


def test_a_mistake_of_ours_is_not_hidden(cli, store, monkeypatch):
    def fail(*_arguments, **_options):
        raise ImportError("cannot import name 'this' from 'that'")

    monkeypatch.setattr(diskreplay, "open", fail)
    result = cli("episodes", store, code=1)
    assert isinstance(result.exception, ImportError)


@pytest.mark.parametrize("arguments", [["--debug", "info"], ["info", "--debug"]])
def test_debug_shows_the_traceback(cli, tmp_path, arguments):
    result = cli(*arguments, tmp_path, code=3)
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_debug_after_two_dashes_is_an_argument(cli):
    assert "--debug: not a diskreplay store" in cli("info", "--", "--debug", code=3).stderr.replace(
        f"{Path.cwd()}/", ""
    )


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["info"], ["info", "a", "b"], ["info", "a", "--bogus"], ["bench", "a", "--seconds",
     "x"], ["episodes", "a", "--sort", "bogus"], ["show", "a", "1", "-e", "1"]],
)  # fmt: skip
def test_usage(cli, arguments):
    result = cli(*arguments, code=2)
    assert "Usage: " in result.stderr
    assert "Traceback" not in result.output


def test_the_version(cli):
    assert cli("--version").stdout == f"diskreplay {diskreplay.__version__}\n"


def test_the_version_is_said_without_loading_anything():
    code = (
        "from diskreplay.__main__ import main; main()\n"
        "assert not {'numpy', 'typer', 'rich', 'gymnasium'} & sys.modules.keys()"
    )
    done = run("--version", code=code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"diskreplay {diskreplay.__version__}\n"


def test_every_command_has_help_and_an_example():
    import typer

    from diskreplay.cli.app import app

    group = typer.main.get_command(app)
    assert {"info", "stats", "episodes", "show", "bench"} <= set(group.commands)
    for name, command in group.commands.items():
        assert command.help, name
        assert f"diskreplay {name} " in (command.epilog or "") + command.help, name
        for parameter in command.params:
            assert parameter.help, (name, parameter.name)


def test_help_names_the_exit_codes(cli):
    text = " ".join(cli("--help").stdout.split())
    assert "130: interrupted" in text
    assert "diskreplay info runs/pong/replay" in text


def test_help_is_plain_and_nothing_in_it_is_broken(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    import typer

    group = typer.main.get_command(app.app)
    for name, command in group.commands.items():
        text = cli(name, "--help").stdout
        assert not set("│╭{}") & set(text), name
        assert not re.search(r"<\w+( range)?>|<list|<bool>|\.\.\.\.", text), name
        for example in re.findall(r"diskreplay [^`\n]+", command.epilog):
            assert re.search(rf"^    (RUN )?{re.escape(example)}$", text, re.MULTILINE), name
        assert max(map(len, text.splitlines())) <= 80, name
    text = cli("episodes", "--help").stdout
    assert text.startswith("Usage: diskreplay episodes [OPTIONS] PATH\n")
    assert "newest|oldest|return|length" in text
    assert "  --json " in text
    text = cli("merge", "--help").stdout
    assert text.startswith("Usage: diskreplay merge [OPTIONS] PATH...\n")
    text = " ".join(cli("--help").stdout.split())
    for command in group.commands.values():
        assert " ".join(command.help.split("\n\n")[0].split()) in text


def test_info_is_light(store):
    heavy = ("numba", "pandas", "matplotlib", "torch", "zarr", "PIL", "pyarrow")
    done = run("info", store, code=(
        "from diskreplay.cli.app import app; app(standalone_mode=False); "
        f"print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)"
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "live store" in done.stdout
    assert done.stderr.split() == []


def test_a_process_of_its_own(tmp_path, store):
    done = run("info", store)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    done = run("info", tmp_path)
    assert done.returncode == 3
    only_line(done)
    assert "\x1b" not in done.stderr


def test_shell_completion(store):
    done = run(
        _DISKREPLAY_COMPLETE="complete_bash", COMP_WORDS="diskreplay ep", COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="diskreplay ep",
    )  # fmt: skip
    assert done.stdout.split() == ["episodes"]


def test_as_a_module(store):
    code = "import runpy; runpy.run_module('diskreplay', run_name='__main__')"
    assert run("--version", code=code).stdout == f"diskreplay {diskreplay.__version__}\n"


@pytest.mark.parametrize("module", ["numpy", "typer", "diskreplay.cli.look"])
def test_an_interrupt_while_modules_are_imported(store, module):
    code = f"""
import runpy, sys
class Interrupting:
    def find_spec(self, name, *_more):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
runpy.run_module("diskreplay", run_name="__main__")
"""
    done = run("info", store, code=code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_while_arguments_are_parsed(store):
    code = """
import typer.core
from diskreplay.__main__ import main
def interrupted(*_arguments):
    raise KeyboardInterrupt
typer.core.TyperGroup.parse_args = interrupted
main()
"""
    done = run("info", store, code=code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_is_the_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"diskreplay": "diskreplay.__main__:main"}


def test_no_line_ends_in_blanks(cli, store):
    for command in (*READING[:3], "verify"):
        lines = cli(command, store).stdout.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_checkpoint_without_its_manifest(cli_json, store):
    saved = store.parent / "checkpoints" / "replay_ckpt.7"
    (saved / "is_final/saved/manifest.json").unlink()
    assert cli_json("info", saved)["what"] == "checkpoint without its manifest"
    found = cli_json("info", store)
    assert (found["what"], found["rows"], found["retained"]) == ("live store", 115, 105)


def test_a_closed_pipe_is_no_error(store):
    code = (
        "import os, errno; from diskreplay.cli import common; from diskreplay.cli.app import main; "
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1); main()"
    )
    done = run("episodes", store, "--json", code=code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_reference_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/cli_reference.py", "--check"], cwd=ROOT, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_defect_has_a_code_of_its_own(monkeypatch, capsys):
    def broken(**_how):
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(app, "app", broken)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 70
    assert "nobody thought of this" in capsys.readouterr().err
