"""What is made and what is deleted of the files of one field."""

import errno

import numpy as np
import pytest

from diskreplay.errors import StorageError, StoreMovedError
from diskreplay.store import files
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.field import Field
from diskreplay.store.place import Place


@pytest.fixture
def of(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    return ColumnFiles(Place(store), 2, Field("a/b", (3,), np.dtype("u1"), "raw", 8, 1))


def test_a_file_that_is_made_anew_is_not_deleted(of):
    one, other = of.paths.chunk(0, 0), of.paths.chunk(1, 0)
    one.parent.mkdir(parents=True)
    one.write_bytes(b"left")
    of.pending_deletes += [one, other, one]
    with open(one, "rb") as mapped:
        assert of.make_way(one) == one
        assert not one.exists()
        assert of.pending_deletes == [other]
        one.write_bytes(b"new")
        assert mapped.read() == b"left"  # by a reader in another process
    other.write_bytes(b"old")
    of.delete_pending()
    assert one.read_bytes() == b"new"
    assert not other.exists()
    assert of.pending_deletes == []


def test_what_cannot_be_deleted_is_tried_again(of, monkeypatch):
    paths = [of.make_way(of.paths.chunk(number, 0)) for number in range(3)]
    for path in paths:
        path.write_bytes(b"x")
    of.pending_deletes += paths
    remove, calls = files.remove, []

    def fail_once(path):
        calls.append(path)
        if len(calls) == 2:
            raise StorageError(errno.EIO, "no", str(path))
        remove(path)

    monkeypatch.setattr(files, "remove", fail_once)
    with pytest.raises(StorageError):
        of.delete_pending()
    left = [path for path in paths if path.exists()]
    assert sorted(of.pending_deletes) == left
    assert len(left) == 2
    assert not of.changing._is_owned()
    of.delete_pending()
    assert not any(path.exists() for path in paths)


def test_no_file_is_made_in_another_directory(of):
    of.root.rename(of.root.with_name("away"))
    of.root.mkdir()
    with pytest.raises(StoreMovedError):
        of.make_way(of.paths.chunk(0, 0))
    assert list(of.root.iterdir()) == []


def test_after_a_move_all_paths_are_of_the_new_place(of):
    before = of.root
    of.new.append(of.make_way(of.paths.chunk(0, 0)))
    after = before.with_name("after")
    before.rename(after)
    of.place.path = after
    of.move(before)
    assert of.new == [of.paths.chunk(0, 0)] == [after / "a" / "b" / "c.0.0.0"]
    assert of.make_way(of.paths.tail).parent == after / "is_final" / "live"
