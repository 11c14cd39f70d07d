"""The files of one checkpoint beside gzip, NumPy and lists."""

import errno
import gzip
import os
import pickle
import subprocess

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskreplay.convert import gz_files
from diskreplay.convert.gz_files import STORE_PREFIX, GzFiles
from diskreplay.convert.npy_gz import npy_pieces
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    LockedError,
    StorageError,
    SuffixError,
)
from diskreplay.store import file_locks
from diskreplay.store import files as file_calls
from tests import processes
from tests.convert.gz_rings import load_array, save_array


def test_names_are_those_of_the_suffix(tmp_path):
    found = GzFiles(tmp_path, 3)
    assert found.path("add_count") == tmp_path / "add_count_ckpt.3.gz"
    assert GzFiles(tmp_path / "nothing", 3).columns() == []
    for name, suffix in (("b", 3), ("a.b", 3), ("c", 13), ("d", 30), ("e", "3.gz")):
        save_array(tmp_path, STORE_PREFIX + name, np.zeros(2), suffix)
    save_array(tmp_path, "add_count", np.array(7), 3)
    (tmp_path / f"{STORE_PREFIX}f_ckpt.3.gz.tmp").touch()
    assert found.columns() == ["a.b", "b"]
    assert found.has("add_count")
    assert not found.has("sum_tree")
    found.check_present(["add_count", f"{STORE_PREFIX}b"])
    with pytest.raises(CheckpointNotFoundError, match=r"sum_tree_ckpt\.3\.gz: missing"):
        found.check_present(["add_count", "sum_tree", "other"])
    for suffix in ("../x", "", "a b"):
        with pytest.raises(SuffixError):
            GzFiles(tmp_path, suffix)


@pytest.mark.parametrize(
    ("array", "count"),
    [(np.array(0), 0), (np.array([2**62 - 1]), 2**62 - 1), (np.array(5, np.uint8), 5),
     (np.array(-1), None), (np.array(2**62), None), (np.array(5.0), None), (np.arange(2), None),
     (np.zeros(0, int), None)],
)  # fmt: skip
def test_how_many_rows_there_were(tmp_path, array, count):
    save_array(tmp_path, "add_count", array)
    if count is None:
        with pytest.raises(CorruptCheckpointError, match="one number from 0 on expected"):
            GzFiles(tmp_path, 1).add_count()
    else:
        assert GzFiles(tmp_path, 1).add_count() == count


def test_arrays_values_and_what_a_column_is(tmp_path):
    save_array(tmp_path, "invalid_range", np.arange(5))
    save_array(tmp_path, f"{STORE_PREFIX}x", np.zeros((4, 3), np.int16))
    with gzip.open(tmp_path / "ends_ckpt.1.gz", "wb") as file:
        pickle.dump({1, 2}, file)
    found = GzFiles(tmp_path, 1)
    assert found.array("invalid_range").tolist() == list(range(5))
    assert found.spec("x") == ((4, 3), np.dtype(np.int16))
    assert found.value("ends") == {1, 2}


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(slots=st.integers(1, 9), count=st.integers(0, 25), at_once=st.integers(1, 40))
def test_rows_come_oldest_first(tmp_path_factory, monkeypatch, slots, count, at_once):
    """Slots as the original fills them, beside the last rows of a list."""
    directory = tmp_path_factory.mktemp("files")
    ring = np.zeros((slots, 2), np.int16)
    for row in range(count):
        ring[row % slots] = row, -row
    save_array(directory, f"{STORE_PREFIX}x", ring)
    save_array(directory, f"{STORE_PREFIX}y", 2 * ring[:, 0])
    monkeypatch.setattr(gz_files, "_CHUNK_BYTES", at_once)
    found = list(GzFiles(directory, 1).in_time_order(["x", "y"], count, slots))
    rows = [row for part in found for row in part["x"][:, 0].tolist()]
    assert rows == list(range(max(count - slots, 0), count))
    assert [row for part in found for row in part["y"].tolist()] == [2 * row for row in rows]
    most = max(1, at_once // 6)  # three int16 a row
    assert all(len(part["x"]) <= most for part in found)


@pytest.mark.parametrize("cut", [1, 9])
def test_a_file_is_read_to_its_end_and_checked(tmp_path, cut):
    save_array(tmp_path, f"{STORE_PREFIX}x", np.arange(8))
    path = tmp_path / f"{STORE_PREFIX}x_ckpt.1.gz"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptCheckpointError):
        list(GzFiles(tmp_path, 1).in_time_order(["x"], 3, 8))  # three rows of eight


def test_all_files_are_written_or_none(tmp_path, monkeypatch):
    directory = tmp_path / "deep" / "er"
    found = GzFiles(directory, "s")

    def contents(number):
        return {name: npy_pieces((2,), np.dtype(int), [np.full(2, number)]) for name in "ab"}

    found.write(contents(1))
    assert sorted(path.name for path in directory.iterdir()) == ["a_ckpt.s.gz", "b_ckpt.s.gz"]

    def broken():
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        found.write(contents(2) | {"b": broken()})
    assert [load_array(directory, name, "s").tolist() for name in "ab"] == [[1, 1], [1, 1]]
    assert len(list(directory.iterdir())) == 2
    synced, link = [], file_calls.link
    monkeypatch.setattr(file_calls, "sync", lambda paths: synced.append(sorted(paths)))

    def noted(source, target):
        assert synced  # before any is put in its place
        return link(source, target)

    monkeypatch.setattr(file_calls, "link", noted)
    found.write(contents(3))
    assert [load_array(directory, name, "s").tolist() for name in "ab"] == [[3, 3], [3, 3]]
    synced.clear()
    monkeypatch.setattr(file_calls, "link", lambda *_paths: False)  # as FAT says
    found.write(contents(4))
    assert [load_array(directory, name, "s").tolist() for name in "ab"] == [[4, 4], [4, 4]]
    assert [directory / "a_ckpt.s.gz"] in synced
    assert sorted(path.name for path in directory.iterdir()) == ["a_ckpt.s.gz", "b_ckpt.s.gz"]
    found.remove(["a", "c"])
    assert [path.name for path in directory.iterdir()] == ["b_ckpt.s.gz"]


def test_what_cannot_be_written_leaves_no_empty_directory(tmp_path):
    (tmp_path / "there").mkdir()
    for directory in (tmp_path / "there", tmp_path / "deep" / "er"):
        with pytest.raises(ZeroDivisionError):
            GzFiles(directory, "s").write({"a": (1 // 0 for _ in "b")})
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


NAMES = [*(STORE_PREFIX + name for name in ("observation", "action", "q")), "add_count", "sum_tree"]

KILLED = """
import os, signal, sys
import numpy as np
from diskreplay.convert.gz_files import GzFiles
from diskreplay.convert.npy_gz import npy_pieces
from diskreplay.store import files

made, at = [], int(sys.argv[2])

def cut(call):
    def cut_call(*arguments):
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(arguments)
        return call(*arguments)
    return cut_call

for name in ("rename", "remove", "link", "remove_tree", "write", "make_dirs"):
    setattr(files, name, cut(getattr(files, name)))
number = np.full(2, 2)
GzFiles(sys.argv[1], "s").write(
    {name: npy_pieces((2,), number.dtype, [number]) for name in sys.argv[3:]}
)
print("whole")
"""


def written(directory, names, number):
    array = np.full(2, number)
    GzFiles(directory, "s").write({name: npy_pieces((2,), array.dtype, [array]) for name in names})


def test_files_of_other_names_do_not_stay_beside_those_that_are_written(tmp_path):
    """They would be read as if they were of the same checkpoint."""
    (tmp_path / "ckpt.s").touch()
    (tmp_path / f"{STORE_PREFIX}q_ckpt.t.gz").touch()
    written(tmp_path, NAMES, 1)
    (tmp_path / ".ckpt.s.new").mkdir()  # of a process that was killed
    (tmp_path / ".ckpt.s.new" / f"{STORE_PREFIX}q_ckpt.s.gz").touch()
    written(tmp_path, [*NAMES[:2], "add_count"], 2)
    there = {path.name for path in tmp_path.iterdir()}
    names = {f"{name}_ckpt.s.gz" for name in [*NAMES[:2], "add_count"]}
    assert there == names | {"ckpt.s", f"{STORE_PREFIX}q_ckpt.t.gz"}


def killed(directory, names, at):
    """Export and be killed before file operation `at`; whether there are fewer, and it ended."""
    with processes.Process(KILLED, directory, at, *names, stdout=subprocess.PIPE) as process:
        return process.stdout.read() == "whole\n"


def test_a_kill_leaves_the_old_files_or_the_new_ones(tmp_path):
    """Never none, and never new columns beside old ones; the originals read those, or none."""
    old, new, found = NAMES, [*NAMES[:2], "add_count"], []
    for at in range(60):
        written(tmp_path, old, 1)
        is_whole = killed(tmp_path, new, at)
        files = GzFiles(tmp_path, "s")
        there = {name: files.array(name)[0] for name in NAMES if files.has(name)}
        assert there in (dict.fromkeys(old, 1), dict.fromkeys(new, 2))
        files.check_present(new)
        assert len(files.columns()) == len(there) - 1 - ("sum_tree" in there)
        in_place = (tmp_path / "add_count_ckpt.s.gz").exists()
        if in_place:
            theirs = {n: load_array(tmp_path, n, "s")[0] for n in NAMES if files.has(n)}
            assert theirs == there
        found.append((int(there["add_count"]), in_place))
        if is_whole:
            break
    assert is_whole
    assert set(found) == {(1, True), (2, False), (2, True)}
    assert found == [*sorted(found[:-1]), (2, True)]
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}_ckpt.s.gz" for name in new}


def first_kill_amid_the_placing(directory):
    for at in range(60):
        written(directory, NAMES, 1)
        assert not killed(directory, NAMES, at)
        if not (directory / "add_count_ckpt.s.gz").exists():
            return
    raise AssertionError("none found")


def test_the_next_export_ends_one_that_was_killed(tmp_path):
    first_kill_amid_the_placing(tmp_path)

    def refused():
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        GzFiles(tmp_path, "s").write({"add_count": refused()})
    assert [load_array(tmp_path, name, "s")[0] for name in NAMES] == [2] * len(NAMES)
    written(tmp_path, NAMES, 3)
    assert [load_array(tmp_path, name, "s")[0] for name in NAMES] == [3] * len(NAMES)


def test_what_the_originals_write_counts_more_than_what_a_killed_export_has_left(tmp_path):
    first_kill_amid_the_placing(tmp_path)
    for name in NAMES:
        save_array(tmp_path, name, np.full(2, 4), "s")
    assert [GzFiles(tmp_path, "s").array(name)[0] for name in NAMES] == [4] * len(NAMES)
    with pytest.raises(ZeroDivisionError):
        GzFiles(tmp_path, "s").write({"add_count": (1 // 0 for _ in "b")})
    assert [load_array(tmp_path, name, "s")[0] for name in NAMES] == [4] * len(NAMES)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}_ckpt.s.gz" for name in NAMES}


def test_what_a_killed_export_has_left_is_found_and_removed(tmp_path):
    first_kill_amid_the_placing(tmp_path)
    os.rename(tmp_path / ".ckpt.s.whole", tmp_path / ".ckpt.12.whole")
    (tmp_path / "add_count_ckpt.7.gz").touch()
    (tmp_path / ".ckpt.30.new").mkdir()
    assert sorted(gz_files.numbers(tmp_path)) == [7, 12]
    assert gz_files.numbers(tmp_path / "nothing") == []
    GzFiles(tmp_path, 12).remove([])
    assert gz_files.numbers(tmp_path) == [7]


def test_files_without_a_count_are_refused(tmp_path):
    written(tmp_path, NAMES, 1)
    (tmp_path / "add_count_ckpt.s.gz").unlink()  # as who copies a directory without hidden names
    with pytest.raises(CheckpointNotFoundError, match=r"killed: export it again$"):
        GzFiles(tmp_path, "s").check_present(NAMES)


def test_two_exports_to_one_suffix_at_once(tmp_path):
    """The second one is refused; the first one ends as if it had been alone."""
    array = np.full(2, 1)

    def amid():
        yield from npy_pieces((2,), array.dtype, [array])
        with pytest.raises(LockedError, match=r"another export .* suffix s is under way there"):
            written(tmp_path, NAMES, 2)
        GzFiles(tmp_path, "t").write({"add_count": npy_pieces((2,), array.dtype, [array])})

    GzFiles(tmp_path, "s").write({"add_count": amid()})
    assert load_array(tmp_path, "add_count", "s").tolist() == [1, 1]
    names = {"add_count_ckpt.s.gz", "add_count_ckpt.t.gz"}
    assert {path.name for path in tmp_path.iterdir()} == names
    written(tmp_path, NAMES, 3)
    assert load_array(tmp_path, "add_count", "s").tolist() == [3, 3]


def test_an_export_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def refused(path):
        raise StorageError(errno.ENOLCK, "refuses locks", str(path))

    monkeypatch.setattr(file_locks, "try_lock", refused)
    written(tmp_path, NAMES, 1)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}_ckpt.s.gz" for name in NAMES}


def test_a_suffix_with_the_end_of_names_in_it_is_another_one(tmp_path):
    written_by = GzFiles(tmp_path, "x_ckpt.1")
    array = np.full(2, 7)
    written_by.write({n: npy_pieces((2,), array.dtype, [array]) for n in NAMES})
    before = {path.name for path in tmp_path.iterdir()}
    other = GzFiles(tmp_path, 1)
    assert other.columns() == []
    other.write({"add_count": npy_pieces((2,), array.dtype, [array])})
    assert {path.name for path in tmp_path.iterdir()} == before | {"add_count_ckpt.1.gz"}
