"""What is written beside its place, and what of it others may have left there."""

import os
import shutil
import subprocess

import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.convert.output import new_directory, new_file, new_files, new_store
from diskreplay.errors import InvalidInputError, LockedError
from diskreplay.store import files
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


def put(place):
    """What others put at a place: a file, or a directory with one in it."""
    if place.suffix:
        place.write_text("theirs")
    else:
        place.mkdir()
        put(place / "a.txt")


def write(new, *theirs):
    """Make what is to be made, while others put something at these places."""
    with new as beside:
        if beside.suffix:
            beside.write_text("ours")
        else:
            beside.mkdir(exist_ok=True)
            (beside / "ours.txt").touch()
        for place in theirs:
            put(place)


def test_what_comes_meanwhile_stays(tmp_path):
    """Nobody has asked for it to be replaced."""
    with pytest.raises(InvalidInputError, match="is there already"):
        write(new_file(tmp_path / "file.txt"), tmp_path / "file.txt")
    assert (tmp_path / "file.txt").read_text() == "theirs"
    out = tmp_path / "directory"
    for new in (new_directory(out), new_files(out, ".txt")):
        with pytest.raises(InvalidInputError, match="is there already"):
            write(new, out)
        (there,) = out.iterdir()
        assert there.read_text() == "theirs"
        shutil.rmtree(out)
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_between_the_last_look_and_the_rename(tmp_path, monkeypatch):
    real = files.rename

    def rename(source, target):
        if not target.exists():
            put(target)
        real(source, target)

    monkeypatch.setattr(files, "rename", rename)
    out = tmp_path / "out"
    with pytest.raises(InvalidInputError, match="is there already"):
        write(new_directory(out))
    assert (out / "a.txt").read_text() == "theirs"
    shutil.rmtree(out)
    write(new_files(out, ".txt", overwrite=True))
    assert [path.name for path in out.iterdir()] == ["ours.txt"], "the last one's stays"


def test_other_things_that_come_into_a_directory_that_is_replaced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").touch()
    with pytest.raises(InvalidInputError, match=r"holds other things than \.txt files"):
        write(new_files(out, ".txt", overwrite=True), out / "theirs.csv")
    assert {path.name for path in out.iterdir()} == {"old.txt", "theirs.csv"}


def test_a_file_where_the_file_system_has_no_links(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "link", lambda source, target: False)
    write(new_file(tmp_path / "a.txt"))
    with pytest.raises(InvalidInputError, match="is there already"):
        write(new_file(tmp_path / "b.txt"), tmp_path / "b.txt")
    assert [(tmp_path / f"{name}.txt").read_text() for name in "ab"] == ["ours", "theirs"]


def made_store(path):
    return diskreplay.ReplayBuffer(
        path, observation_space=Discrete(3), action_space=Discrete(3), capacity=10
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_comes_meanwhile_keeps_its_rows(tmp_path, overwrite):
    refused = pytest.raises(LockedError if overwrite else InvalidInputError)
    with refused, new_store(tmp_path / "out", overwrite=overwrite) as beside:
        made_store(beside).close()
        theirs = made_store(tmp_path / "out")
        theirs.add(0, 1, 2.0, False, False)
    theirs.add(0, 1, 3.0, False, False)
    theirs.close()
    with diskreplay.open(tmp_path / "out") as there:
        assert there.take("reward", [0, 1]).tolist() == [2.0, 3.0]
    with new_store(tmp_path / "out", overwrite=True) as beside:  # which it holds all the time
        made_store(beside).close()
    with diskreplay.open(tmp_path / "out") as there:
        assert there.add_count == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pipe_is_told_from_a_directory(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name, words in (("pipe", "a pipe or device"), ("directory", "directory: a directory,")):
        with pytest.raises(InvalidInputError, match=words):
            write(new_file(tmp_path / name, overwrite=True))
