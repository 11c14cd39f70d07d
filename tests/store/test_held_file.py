"""Whether a file is still the one at its path."""

import os
import tempfile
from pathlib import Path

import pytest

from diskreplay.errors import StorageError
from diskreplay.store.held_file import HeldFile


@pytest.fixture
def path():
    """On a file system of a disk, where there is one: ext4 gives a number again at once."""
    with tempfile.TemporaryDirectory(dir="/var/tmp" if os.path.isdir("/var/tmp") else None) as made:
        (Path(made) / "record").write_bytes(b"0")
        yield Path(made) / "record"


def replace(path, content):
    new = path.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(1, 1))  # as on a file system whose times are coarse
    new.replace(path)


def test_the_next_files_at_its_path_are_others(path):
    replace(path, b"a")
    held = HeldFile(path)
    assert held.is_at_its_path()
    for content in (b"b", b"a", b"b", b"a"):
        replace(path, content)
        assert not held.is_at_its_path()
    newer = HeldFile(path)
    assert newer.is_at_its_path()
    path.write_bytes(b"c")  # the same file
    assert newer.is_at_its_path()
    for each in (held, newer, newer):
        each.close()


def test_a_file_that_is_not_there(path):
    held = HeldFile(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        held.is_at_its_path()
    with pytest.raises(StorageError):
        HeldFile(path)
    before = len(os.listdir("/proc/self/fd"))
    held.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_it_is_let_go_of_where_nobody_closes_it(path):
    before = len(os.listdir("/proc/self/fd"))
    held = HeldFile(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del held
    assert len(os.listdir("/proc/self/fd")) == before
