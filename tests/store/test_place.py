"""Whether the directory that was opened is still at its path."""

import os
import shutil

import pytest

from diskreplay.errors import FormatError, StorageError, StoreMovedError
from diskreplay.store import place
from diskreplay.store.place import Place, read_steadily


@pytest.fixture
def path(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path.resolve() / "store"


def test_it_holds_whatever_is_done_inside(path):
    held = Place(path)
    assert held.holds()
    (path / "x").touch()
    (path / "x").unlink()
    held.check()
    held.close()


@pytest.mark.parametrize("with_another", [False, True])
def test_one_that_was_moved(path, with_another):
    held, there = Place(path), path.with_name("there")
    path.rename(there)
    if with_another:
        path.mkdir()
    assert not held.holds()
    with pytest.raises(StoreMovedError, match=f"was moved to {there}, .*; move it back") as caught:
        held.check()
    assert caught.value.filename == str(path)
    if with_another:
        path.rmdir()
    there.rename(path)
    held.check()
    held.close()


def test_one_that_was_deleted(path):
    held = Place(path)
    shutil.rmtree(path)
    assert not held.holds()
    with pytest.raises(StoreMovedError, match="was deleted; load a checkpoint"):
        held.check()
    path.mkdir()  # another directory
    assert not held.holds()
    held.close()


def test_a_file_in_its_place(path):
    held = Place(path)
    path.rename(path.with_name("there"))
    path.touch()
    assert not held.holds()
    held.close()


def test_where_there_is_none_it_holds_nothing(tmp_path):
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))
    for missing in (tmp_path / "gone", tmp_path / "file", tmp_path / "file" / "below"):
        held = Place(missing)
        assert not held.holds()
        with pytest.raises(StoreMovedError, match="was moved elsewhere"):
            held.check()
        held.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_whose_number_changes_is_known_by_its_path(path, monkeypatch):
    """As on some file systems in user space."""
    held = Place(path)
    monkeypatch.setattr(place.os.path, "samestat", lambda one, other: False)
    assert held.holds()
    path.rename(path.with_name("there"))
    path.mkdir()
    assert not held.holds()
    held.close()


def test_what_cannot_be_looked_at_is_an_error(path, monkeypatch):
    held = Place(path)

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(place.os, "stat", refuse)
        with pytest.raises(StorageError, match="cannot look at the directory"):
            held.holds()
    held.close()


# -- reading while somebody replaces


def record(path, text):
    new = path / "new"
    new.write_text(text)
    new.replace(path / "zarr.json")


def test_what_is_read_is_returned(path):
    record(path, "1")
    assert read_steadily(path, lambda: 5) == 5


def test_an_error_of_what_stays_is_the_readers(path):
    record(path, "1")
    calls = []

    def read():
        calls.append(1)
        raise FormatError("damaged")

    for _ in range(2):
        with pytest.raises(FormatError):
            read_steadily(path, read)
    assert len(calls) == 2


@pytest.mark.parametrize("how", ["record", "directory", "removed"])
def test_it_begins_again_where_another_one_took_its_place(path, how):
    record(path, "1")
    calls = []

    def read():
        calls.append(1)
        if len(calls) > 3:
            return len(calls)
        if how == "record":
            record(path, "x" * len(calls))
        elif how == "directory":
            path.rename(path.with_name(f"old{len(calls)}"))
            path.mkdir()
            record(path, "1")
        else:
            (path / "zarr.json").unlink(missing_ok=True)
            if len(calls) > 1:
                raise ValueError("no error of ours goes through at once")
        raise FormatError("as if it were damaged")

    before = len(os.listdir("/proc/self/fd"))
    if how == "removed":
        with pytest.raises(ValueError, match="no error of ours"):
            read_steadily(path, read)
        assert len(calls) == 2
    else:
        assert read_steadily(path, read) == 4
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_does_not_try_for_ever(path):
    calls = []

    def read():
        calls.append(1)
        record(path, "x" * len(calls))
        raise FormatError("damaged")

    with pytest.raises(FormatError):
        read_steadily(path, read)
    assert len(calls) == place._TRIES + 1
