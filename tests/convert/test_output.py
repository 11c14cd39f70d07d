"""What is written beside its place, and what of it others may have left there."""

import subprocess

import pytest

from diskreplay.convert.output import new_directory, new_file, new_files
from tests import processes

HALF_DONE = """
import contextlib, sys
from pathlib import Path
from diskreplay.convert.output import new_directory, new_file
held = contextlib.ExitStack()
for path in map(Path, sys.argv[1:]):
    if path.suffix:
        held.enter_context(new_file(path)).write_text("half")
    else:
        half = held.enter_context(new_directory(path))
        (half / "c").mkdir(parents=True)
        (half / "c" / "half").write_text("half")
print("half", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def half_done():
    """Begins to write files and directories; the process is killed when it is told to be."""
    running = []

    def start(*paths):
        process = processes.Process(
            HALF_DONE, *paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.append(process)
        assert process.stdout.readline() == "half\n"
        return process

    yield start
    for process in running:
        with process:
            process.kill()


@pytest.mark.parametrize("name", ["out.npz", "out[1].npz"])
def test_leftovers_of_dead_processes_go(tmp_path, half_done, name):
    dying = half_done(tmp_path / name, tmp_path / "directory")
    half_done(tmp_path / name)
    killed = half_done(*(tmp_path / other for other in ("out1.npz", f"my{name}", f"{name}.npz")))
    theirs = set(tmp_path.iterdir())
    assert len(theirs) == 6
    with new_file(tmp_path / name) as beside:
        beside.write_text("whole")
    assert set(tmp_path.iterdir()) == theirs | {tmp_path / name}, "those that live keep theirs"
    for process in (dying, killed):
        process.kill()
        process.wait()
    with new_files(tmp_path / f"{name}.d", ".txt") as beside:  # of another name
        (beside / "a.txt").write_text("whole")
    assert set(tmp_path.iterdir()) == theirs | {tmp_path / name, tmp_path / f"{name}.d"}
    with new_file(tmp_path / name, overwrite=True) as beside:
        beside.write_text("newer")
    assert len([path for path in theirs if path.exists()]) == 5
    with new_directory(tmp_path / "directory") as beside:
        beside.mkdir()
    assert list((tmp_path / "directory").iterdir()) == []
    assert len([path for path in theirs if path.exists()]) == 4
    assert (tmp_path / name).read_text() == "newer"


def test_a_directory_made_elsewhere(tmp_path, half_done):
    out, instead = tmp_path / "deep" / "out", tmp_path / "deep+out"
    half = half_done(instead)
    half.kill()
    half.wait()
    (left,) = tmp_path.iterdir()
    with new_directory(out, instead=instead) as beside:
        assert not left.exists()
        assert beside.parent.parent == tmp_path
        beside.mkdir()
        (beside / "a").write_text("whole")
        out.parent.mkdir()
    assert (out / "a").read_text() == "whole"
    interrupted = new_directory(out, instead=instead)
    interrupted.__enter__().mkdir()
    assert not interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [*tmp_path.iterdir()] == [out.parent]


@pytest.mark.parametrize("new", [new_file, new_directory])
def test_what_fails_leaves_no_empty_directory(tmp_path, new):
    (tmp_path / "there").mkdir()
    for directory in (tmp_path / "there", tmp_path / "deep" / "er"):
        with pytest.raises(ZeroDivisionError), new(directory / "out"):
            raise ZeroDivisionError
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
