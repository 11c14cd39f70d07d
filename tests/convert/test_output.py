"""What is written beside its place, and what of it others may have left there."""

import os
import subprocess
import sys

import pytest

from diskreplay.convert.output import new_directory, new_file, new_files


@pytest.fixture
def gone():
    """The id of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("name", ["out.npz", "out[1]"])
def test_leftovers_of_dead_processes_go(tmp_path, gone, name):
    living = tmp_path / f".{name}.tmp-{os.getppid()}"
    others = [tmp_path / f".{other}.tmp-{gone}" for other in ("out1", f"my{name}", f"{name}x")]
    for path in (living, *others):
        path.write_text("theirs")
    (tmp_path / f".{name}.tmp-{gone}").write_text("half")
    with new_file(tmp_path / name) as beside:
        beside.write_text("whole")
    left = tmp_path / f".{name}.tmp-{gone}" / "c"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    with new_files(tmp_path / f"{name}.d", ".txt") as beside:  # of another name
        (beside / "a.txt").write_text("whole")
    assert left.exists()
    with new_file(tmp_path / name, overwrite=True) as beside:
        beside.write_text("newer")
    assert sorted(tmp_path.iterdir()) == sorted(
        [living, *others, tmp_path / name, tmp_path / f"{name}.d"]
    )
    assert (tmp_path / name).read_text() == "newer"


def test_a_directory_made_elsewhere(tmp_path, gone):
    out, instead = tmp_path / "deep" / "out", tmp_path / "deep+out"
    (tmp_path / f".deep+out.tmp-{gone}").mkdir()
    with new_directory(out, instead=instead) as beside:
        assert [*tmp_path.iterdir()] == []
        assert beside.parent == tmp_path
        beside.mkdir()
        (beside / "a").write_text("whole")
        out.parent.mkdir()
    assert (out / "a").read_text() == "whole"
    interrupted = new_directory(out, instead=instead)
    interrupted.__enter__().mkdir()
    assert not interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [*tmp_path.iterdir()] == [out.parent]
