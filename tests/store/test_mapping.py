"""Files in memory: how long, who may write, and when the addresses go."""

import errno
import gc
import mmap
import os

import numpy as np
import pytest

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.store.mapping import Mapping

PAGE = mmap.PAGESIZE


def mapped(path):
    """The pages of a file that are mapped, and their permissions."""
    pages, found = 0, set()
    with open("/proc/self/maps") as file:
        for line in file:
            where, permissions, *_numbers, name = line.rstrip("\n").split(" ", 5)
            if name.strip() == os.fspath(path):
                start, stop = (int(part, 16) for part in where.split("-"))
                pages += (stop - start) // PAGE
                found.add(permissions)
    return pages, found


@pytest.mark.parametrize("prepared", [True, False])
def test_a_new_file_is_zeros_and_is_written_through_its_mapping(tmp_path, prepared):
    mapping = Mapping.create(tmp_path / "x", 3 * PAGE, prepared=prepared)
    assert mapping.size == len(mapping.array) == 3 * PAGE
    assert mapping.array.ctypes.data == mapping.address
    assert not mapping.array.any()
    mapping.array[[0, -1]] = 7, 8
    assert (tmp_path / "x").read_bytes() == b"\7" + bytes(3 * PAGE - 2) + b"\x08"
    assert os.stat(tmp_path / "x").st_blocks * 512 >= 3 * PAGE


def test_no_descriptor_is_kept(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    mapping = Mapping.create(tmp_path / "x", PAGE)
    others = [Mapping.copy_of(mapping, tmp_path / "y"), Mapping.open(tmp_path / "x")]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(others) == 2


def test_a_copy_is_a_file_of_its_own(tmp_path):
    source = Mapping.create(tmp_path / "x", PAGE)
    source.array[:] = np.arange(PAGE) % 251
    copy = Mapping.copy_of(source, tmp_path / "y")
    np.testing.assert_array_equal(copy.array, source.array)
    copy.array[0] = 99
    source.array[1] = 98
    assert (tmp_path / "y").read_bytes()[:2] == bytes([99, 1])
    assert (tmp_path / "x").read_bytes()[:2] == bytes([0, 98])


def test_one_to_be_read_is_not_written_to(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    mapping = Mapping.open(tmp_path / "x")
    assert mapping.array.tobytes() == b"abc"
    with pytest.raises(ValueError, match="read-only"):
        mapping.array[0] = 1
    assert mapped(tmp_path / "x") == (1, {"r--s"})


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize(("found", "size"), [(0, None), (0, 5), (4, 5), (6, 5)])
def test_a_file_of_another_length_is_refused(tmp_path, found, size, writable):
    (tmp_path / "x").write_bytes(bytes(found))
    with pytest.raises(CorruptSegmentError, match=f"{found} bytes found, {size or 'some'} expect"):
        Mapping.open(tmp_path / "x", size=size, writable=writable)
    assert os.stat(tmp_path / "x").st_size == found


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("gone", "directory", "link"):
        with pytest.raises(StorageError):
            Mapping.open(tmp_path / name)
    with pytest.raises(StorageError):
        Mapping.create(tmp_path / "gone" / "x", PAGE)


def test_what_the_system_refuses_to_map(tmp_path):
    (tmp_path / "x").write_bytes(bytes(PAGE))
    fd = os.open(tmp_path / "x", os.O_WRONLY)
    try:
        with pytest.raises(StorageError, match="cannot map the file") as caught:
            Mapping(tmp_path / "x", fd, PAGE, writable=True)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.EACCES


def test_one_that_is_going_to_grow(tmp_path):
    """Its memory is there before its bytes are."""
    (tmp_path / "x").write_bytes(b"abc")
    mapping = Mapping.open(tmp_path / "x", most=3 * PAGE)
    assert mapping.size == 3 * PAGE
    with open(tmp_path / "x", "r+b") as file:
        file.write(bytes(range(200)) * 50)
    assert mapping.array[9_999] == 199
    assert Mapping.open(tmp_path / "x", most=5).size == 10_000  # never less than there is


def test_whether_its_file_was_cut(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(5_000))
    for most in (None, 3 * PAGE):
        mapping = Mapping.open(path, most=most)
        assert not mapping.is_cut()
        os.truncate(path, 4_999)
        assert mapping.is_cut()
        os.truncate(path, 5_000)
        assert not mapping.is_cut()
    mapping.shrink(PAGE)
    os.truncate(path, PAGE)  # all that is mapped is there
    assert not mapping.is_cut()
    path.unlink()  # what is mapped stays
    assert not mapping.is_cut()
    assert not Mapping.create(path, PAGE).is_cut()


def test_one_to_be_written_to_is_allocated_and_made_as_long_as_asked(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(2 * PAGE)
    mapping = Mapping.open(tmp_path / "x", writable=True, grown=4 * PAGE)
    about = os.stat(tmp_path / "x")
    assert about.st_size == mapping.size == 4 * PAGE
    assert about.st_blocks * 512 >= 4 * PAGE
    assert Mapping.open(tmp_path / "x", writable=True, grown=PAGE).size == 4 * PAGE
    assert os.stat(tmp_path / "x").st_size == 4 * PAGE
    Mapping.open(tmp_path / "x", grown=9 * PAGE)  # to be read: the file stays as it is
    assert os.stat(tmp_path / "x").st_size == 4 * PAGE


@pytest.mark.parametrize(
    ("size", "kept"), [(3 * PAGE, 3), (2 * PAGE + 1, 3), (2 * PAGE, 2), (1, 1)]
)
def test_addresses_behind_its_end_are_given_back(tmp_path, size, kept):
    mapping = Mapping.create(tmp_path / "x", 3 * PAGE)
    mapping.shrink(size)
    assert mapped(tmp_path / "x") == (kept, {"rw-s"})
    assert mapping.size == kept * PAGE  # else the same addresses would be given back twice
    mapping.array[size - 1] = 3


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc")
def test_pages_that_leave_the_mapping_come_back_with_what_was_written(tmp_path):
    path = tmp_path / "x"
    mapping = Mapping.create(path, 64 * PAGE)
    written = np.arange(64 * PAGE) % 251
    mapping.array[:] = written
    assert resident(path) == 64
    mapping.let_go_of_pages()
    assert resident(path) == 0
    assert path.read_bytes() == written.astype(np.uint8).tobytes()
    np.testing.assert_array_equal(mapping.array, written)
    mapping.array[PAGE] = 252  # it may be written to, still
    assert path.read_bytes()[PAGE] == 252
    assert resident(path) == 64


def resident(path):
    """How many pages of a file are in this process's mapping of it."""
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        assert any(line.rstrip("\n").endswith(f" {path}") for line in lines)
        size = next(line.split()[1] for line in lines if line.startswith("Rss:"))
        return int(size) * 1024 // PAGE


def test_a_sealed_one_is_protected(tmp_path):
    mapping = Mapping.create(tmp_path / "x", PAGE)
    mapping.array[0] = 5
    mapping.protect()
    mapping.expect_random_access()
    assert mapped(tmp_path / "x") == (1, {"r--s"})
    assert mapping.array[0] == 5


def test_it_goes_with_the_last_view_of_it(tmp_path):
    mapping = Mapping.create(tmp_path / "kept", PAGE)
    view = mapping.array[5:].view(np.uint8)
    del mapping
    gc.collect()
    view[0] = 3
    assert mapped(tmp_path / "kept") == (1, {"rw-s"})
    del view
    gc.collect()
    assert mapped(tmp_path / "kept") == (0, set())
    assert (tmp_path / "kept").read_bytes()[5] == 3
