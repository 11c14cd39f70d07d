"""Files that are made before they are needed."""

import errno
import os
import shutil

import numpy as np
import pytest

from diskreplay.errors import DiskFullError, StorageError, StoreMovedError
from diskreplay.store import files, leases, spare_files
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.place import Place
from diskreplay.store.spare_files import SpareFiles
from tests.disks import needs_leases

SIZE = 8192


@pytest.fixture
def spares(tmp_path):
    (tmp_path / "is_final" / "live").mkdir(parents=True)
    field = Field("f", (2,), np.dtype("u1"), "raw", 4096, 1)
    return SpareFiles(ColumnFiles(Place(tmp_path), 3, field), SIZE)


def names(spares):
    return sorted(path.name for path in spares._files.root.glob("is_final/live/*"))


def test_they_are_files_of_zeros_and_one_that_is_taken_is_at_its_place(spares, tmp_path):
    spares.keep(2, prepared=True)
    spares.keep(2, prepared=False)  # there are two
    assert names(spares) == ["spare.3.1", "spare.3.2"]
    mapping = spares.take(tmp_path / "c.0")
    assert mapping.path == tmp_path / "c.0"
    assert not mapping.array.any()
    assert mapping.size == SIZE
    mapping.array[5] = 7
    assert (tmp_path / "c.0").read_bytes()[:6] == bytes(5) + b"\7"
    assert len(spares.ready) == len(names(spares)) == 1
    spares.keep(2, prepared=False)
    assert len(set(names(spares))) == 2  # under a name that no other one has


def test_without_one_a_new_file_is_made(spares, tmp_path):
    mapping = spares.take(tmp_path / "c.0")
    assert (tmp_path / "c.0").stat().st_size == mapping.size == SIZE
    assert not mapping.array.any()


@pytest.mark.parametrize("ready", [0, 1])
def test_what_is_at_its_place_stays_what_it_is(spares, tmp_path, ready):
    """It may have another name, in a checkpoint."""
    old, shared = tmp_path / "c.0", tmp_path / "checkpoint"
    old.write_bytes(b"old")
    os.link(old, shared)
    spares.keep(ready, prepared=False)
    spares.take(old).array[0] = 7
    assert old.stat().st_size == SIZE
    assert shared.read_bytes() == b"old"
    assert names(spares) == []


def test_one_that_cannot_be_taken_is_there_for_the_next(spares, tmp_path):
    spares.keep(1, prepared=False)
    with pytest.raises(StorageError):
        spares.take(tmp_path / "missing" / "c.0")
    (spare,) = spares.ready
    assert spare.path.exists()
    assert spares.take(tmp_path / "c.0") is spare


def test_as_many_as_fit(spares, monkeypatch):
    allocate, left = files.allocate, [1]

    def full(path, size):
        if not left.pop():
            raise DiskFullError(errno.ENOSPC, "full", str(path))
        left.append(0)
        return allocate(path, size)

    monkeypatch.setattr(files, "allocate", full)
    with pytest.raises(DiskFullError):
        spares.keep(2, prepared=False)
    assert len(spares.ready) == len(names(spares)) == 1


def test_removed_ones_are_gone_also_when_one_of_them_cannot_be(spares, monkeypatch):
    spares.keep(3, prepared=False)
    remove = files.remove

    def fail_once(path):
        monkeypatch.setattr(files, "remove", remove)
        raise StorageError(errno.EIO, "no", str(path))

    monkeypatch.setattr(files, "remove", fail_once)
    spares.remove()
    assert spares.ready == []
    assert len(names(spares)) == 1


# -- files of segments that have left


@pytest.fixture
def again(spares, tmp_path, monkeypatch):
    """Spares of a field whose files are used again, wherever the tests have theirs."""
    monkeypatch.setattr(spare_files, "_LARGE", SIZE)
    monkeypatch.setattr(leases, "is_of_one_machine", lambda path: True)
    return spares


def leave(spares, path, byte=9):
    """A segment's file is opened, sealed and left; its inode."""
    mapping = spares.take(path)
    mapping.array[:] = byte
    files.seal(path)
    return path.stat().st_ino


@needs_leases
@pytest.mark.parametrize("prepared", [False, True])
def test_the_file_of_a_segment_that_has_left_is_the_next_spare(again, tmp_path, prepared):
    inodes = {leave(again, tmp_path / f"c.{i}") for i in range(3)}
    for i in range(3):
        again.take_back(tmp_path / f"c.{i}")
    assert len(again.left) == len(names(again)) == 3
    again.keep(2, prepared=prepared)
    assert len(again.left) == 1
    again.take(tmp_path / "c.8")
    again.take(tmp_path / "c.9")
    mapping = again.take(tmp_path / "d.0")  # none is ready
    assert {path.stat().st_ino for path in tmp_path.glob("[cd].*")} == inodes
    assert names(again) == again.left == []
    assert not mapping.array.any()
    mapping.array[3] = 4
    assert (tmp_path / "d.0").read_bytes()[:4] == bytes(3) + b"\4"
    assert not any((tmp_path / "c.8").read_bytes())


@needs_leases
def test_one_that_somebody_has_is_removed_and_stays_what_it_was(again, tmp_path):
    leave(again, tmp_path / "c.0", 5)
    reader = Mapping.open(tmp_path / "c.0")
    again.take_back(tmp_path / "c.0")
    inode = leave(again, tmp_path / "c.1", 6)  # it is a new one
    assert names(again) == again.left == []
    os.link(tmp_path / "c.1", tmp_path / "checkpoint")
    again.take_back(tmp_path / "c.1")
    assert not again.take(tmp_path / "c.2").array.any()
    assert (tmp_path / "c.2").stat().st_ino != inode
    assert (reader.array == 5).all()
    assert (tmp_path / "checkpoint").read_bytes() == bytes([6]) * SIZE


@needs_leases
@pytest.mark.parametrize("name", ["open_plain", "blank", "write_at", "open_to_write"])
def test_where_one_cannot_be_used_again_a_new_file_is_made(again, tmp_path, monkeypatch, name):
    for i in range(2):
        leave(again, tmp_path / f"c.{i}")
        again.take_back(tmp_path / f"c.{i}")
    original, calls = getattr(files, name), []

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise StorageError(errno.EIO, "worn out", "it")
        return original(*arguments)

    monkeypatch.setattr(files, name, fail_once)
    again.keep(3, prepared=True)
    assert len(again.ready) == len(names(again)) == 3  # of what failed nothing is left
    assert not any(mapping.array.any() for mapping in again.ready)


def test_no_more_are_kept_than_were_used(again, tmp_path):
    for i in range(5):
        leave(again, tmp_path / f"c.{i}")
    again.used = 2  # the others are of long ago
    for i in range(5):
        again.take_back(tmp_path / f"c.{i}")
        assert not (tmp_path / f"c.{i}").exists()
    assert len(again.left) == len(names(again)) == 2


def test_one_that_is_gone_already_is_none(again, tmp_path):
    leave(again, tmp_path / "c.0")
    (tmp_path / "c.0").unlink()
    again.take_back(tmp_path / "c.0")
    assert again.left == names(again) == []


def test_one_that_cannot_be_renamed_is_removed(again, tmp_path, monkeypatch):
    """A full disk may have no room for another name: it would stay full."""
    leave(again, tmp_path / "c.0")

    def refused(source, target):
        raise DiskFullError(errno.ENOSPC, "no space left", str(target))

    monkeypatch.setattr(files, "rename", refused)
    again.take_back(tmp_path / "c.0")
    assert again.left == names(again) == []
    assert not (tmp_path / "c.0").exists()


def test_files_that_are_not_wanted_any_more_are_given_back(again, tmp_path):
    for i in range(9):
        leave(again, tmp_path / f"c.{i}")
    for i in range(8):
        again.take_back(tmp_path / f"c.{i}")
    left = []
    for _ in range(5):
        again.trim_left(1)
        left.append(len(again.left))
        assert len(names(again)) == len(again.left)
    assert left == [8, 4, 2, 1, 1]


@needs_leases
def test_ctrl_c_loses_none(again, tmp_path, monkeypatch):
    def interrupted(path, size):
        raise KeyboardInterrupt

    leave(again, tmp_path / "c.0")
    again.take_back(tmp_path / "c.0")
    with monkeypatch.context() as patched:
        patched.setattr(files, "blank", interrupted)
        with pytest.raises(KeyboardInterrupt):
            again.take(tmp_path / "d.0")
    assert len(again.left) == len(names(again)) == 1
    assert not again.take(tmp_path / "d.0").array.any()
    assert again.left == names(again) == []


@pytest.mark.parametrize("left", [0, 1])
def test_none_is_made_of_files_of_another_store(again, tmp_path, left, request):
    """Its private files have the same names."""
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    request.addfinalizer(lambda: shutil.rmtree(moved))
    directory = tmp_path / "is_final" / "live"
    for i in range(left):
        leave(again, tmp_path / f"c.{i}")
        again.take_back(tmp_path / f"c.{i}")
    tmp_path.rename(moved)
    directory.mkdir(parents=True)
    for i in range(1, 9):
        (directory / f"spare.3.{i}").write_bytes(b"theirs")
    with pytest.raises(StoreMovedError):
        again.keep(1, prepared=False)
    assert {path.read_bytes() for path in directory.iterdir()} == {b"theirs"}
    assert len(names(again)) == 8


def test_small_files_are_removed(spares, tmp_path):
    leave(spares, tmp_path / "c.0")
    spares.take_back(tmp_path / "c.0")
    assert spares.left == names(spares) == []
    assert not (tmp_path / "c.0").exists()


def test_none_is_kept_when_it_is_over(again, tmp_path):
    for i in range(3):
        leave(again, tmp_path / f"c.{i}")
    again.take_back(tmp_path / "c.0")
    again.take_back(tmp_path / "c.1")
    again.remove()
    again.take_back(tmp_path / "c.2")
    assert again.left == names(again) == []
    assert not list(tmp_path.glob("c.*"))
