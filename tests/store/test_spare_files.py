"""Files that are made before they are needed."""

import errno
import os

import numpy as np
import pytest

from diskreplay.errors import DiskFullError, StorageError
from diskreplay.store import files
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.field import Field
from diskreplay.store.place import Place
from diskreplay.store.spare_files import SpareFiles

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
