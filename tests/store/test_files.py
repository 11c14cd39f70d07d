"""The one module that touches the disk: what it promises, and how it says that it failed."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from diskreplay import errors
from diskreplay.store import commit_page, files
from tests.disks import alone, can_mount


def test_allocate(tmp_path):
    fd = files.allocate(tmp_path / "a", 8192)
    try:
        assert os.fstat(fd).st_size == 8192
        assert os.fstat(fd).st_blocks * 512 >= 8192
        assert os.pread(fd, 8192, 0) == bytes(8192)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_allocate_leaves_no_file_behind_when_it_fails(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    closed, close = [], os.close

    def note(fd):
        closed.append(os.path.realpath(f"/proc/self/fd/{fd}"))
        close(fd)

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "close", note)
    with pytest.raises(errors.DiskFullError):
        files.allocate(tmp_path / "a", 8192)
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path / "a") in closed or not os.path.isdir("/proc/self/fd")


@pytest.mark.parametrize("size", [1, 3 << 20, (1 << 20) + 7])
def test_blank(tmp_path, size):
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    files.seal(path)
    inode = path.stat().st_ino
    files.blank(path, size)
    assert path.read_bytes() == bytes(size)
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o644


def test_write_and_its_hole(tmp_path):
    files.write(tmp_path / "a", [b"one", memoryview(b"two")], length=10)
    assert (tmp_path / "a").read_bytes() == b"onetwo" + bytes(4)


def test_replace_is_all_or_nothing_for_each_file(tmp_path, monkeypatch):
    target = tmp_path / "below" / "a"
    files.replace({target: b"old"})

    def fails(*_arguments):
        raise errors.StorageError(errno.EIO, "no", "x")

    for name in ("write", "sync", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, fails)
            with pytest.raises(errors.StorageError):
                files.replace({target: b"new"})
        assert target.read_bytes() == b"old"
        assert [p.name for p in target.parent.iterdir()] == ["a"]
    files.replace({target: b"new", tmp_path / "b": b"b"})
    assert target.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "below"]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 40])
def test_sync(tmp_path, count):
    paths = [tmp_path / str(i) for i in range(count)]
    for path in paths:
        path.write_text("x")
    files.sync(paths)
    files.sync_dirs({tmp_path})


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("count", [3, 100])
def test_every_file_is_synced_and_one_that_fails_is_named(tmp_path, monkeypatch, count, in_memory):
    """On threads, or one after the other."""
    monkeypatch.setattr(files, "is_in_memory", lambda path: in_memory)
    paths = [tmp_path / str(i) for i in range(count)]
    for path in paths:
        path.write_text("x")
    rotten = paths[-2].stat().st_ino
    synced, original = [], os.fsync

    def fsync(fd):
        inode = os.fstat(fd).st_ino
        if inode == rotten:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(fd)
        synced.append(inode)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(errors.StorageError, match=str(paths[-2])):
        files.sync(paths)
    synced.clear()
    good = [path for path in paths if path != paths[-2]]
    files.sync(good)
    assert sorted(synced) == sorted(path.stat().st_ino for path in good)


def test_files_on_disks_are_synced_on_threads_and_those_in_memory_are_not(tmp_path, monkeypatch):
    """Each of those on a disk waits for the others: one after the other they would never end."""
    paths = {tmp_path / where / name for where in ("disk", "memory") for name in "abcd"}
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.setattr(files, "is_in_memory", lambda path: path.endswith("memory"))
    together, synced, original = threading.Barrier(4, timeout=300), [], files._sync_one

    def sync_one(path):
        original(path)
        synced.append((path, threading.get_ident()))
        if path.parent.name == "disk":
            together.wait()

    monkeypatch.setattr(files, "_sync_one", sync_one)
    files.sync(sorted(paths))
    assert {path for path, _ in synced} == paths
    here = threading.get_ident()
    assert all(thread == here for path, thread in synced if path.parent.name == "memory")
    assert len({thread for path, thread in synced if path.parent.name == "disk"}) == 4


@pytest.mark.skipif(not can_mount(), reason="may not mount")
def test_what_is_in_memory(tmp_path):
    code = """
import sys
from tests.disks import mount
from diskreplay.store.paths import is_in_memory
assert is_in_memory("/proc") is is_in_memory("/nowhere") is False
mount(sys.argv[1])
assert is_in_memory(sys.argv[1])
"""
    command, options = alone("-c", code, tmp_path)
    subprocess.run(command, check=True, **options)


def test_sync_of_a_missing_file_names_it(tmp_path):
    with pytest.raises(errors.StorageError, match="gone"):
        files.sync([tmp_path / "gone"])
    with pytest.raises(errors.StorageError, match="gone"):
        files.sync_dirs([tmp_path / "gone"])


@pytest.mark.parametrize("by_hand", [False, True])
def test_exchange(tmp_path, monkeypatch, by_hand):
    """Also where the system cannot do it in one step."""
    if by_hand:
        monkeypatch.setattr(sys, "platform", "other")
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.mkdir()
        (path / path.name).touch()
    files.exchange(one, other, tmp_path / "aside")
    assert [p.name for p in one.iterdir()] == ["other"]
    assert [p.name for p in other.iterdir()] == ["one"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "other"]
    with pytest.raises(errors.StorageError):
        files.exchange(tmp_path / "gone", other, tmp_path / "aside")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "other"]


def test_link(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("x")
    assert files.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").stat().st_nlink == 2
    with pytest.raises(errors.StorageError, match="cannot link"):
        files.link(tmp_path / "a", tmp_path / "b")
    for code, answer in (
        (errno.EXDEV, False), (errno.EPERM, False), (errno.ENOTSUP, False), (errno.EMLINK, False),
        (errno.ENOSPC, errors.DiskFullError), (errno.EIO, errors.StorageError),
    ):  # fmt: skip

        def refuses(*_arguments, code=code):
            raise OSError(code, "no")

        monkeypatch.setattr(os, "link", refuses)
        if answer is False:
            assert files.link(tmp_path / "a", tmp_path / "c") is False
        else:
            with pytest.raises(answer):
                files.link(tmp_path / "a", tmp_path / "c")


def test_remove(tmp_path):
    (tmp_path / "a").touch()
    (tmp_path / "full" / "x").mkdir(parents=True)
    for _ in range(2):
        files.remove(tmp_path / "a")
        assert not files.remove_empty_dir(tmp_path / "full")
    files.remove_tree(tmp_path / "full" / "x")
    assert files.remove_empty_dir(tmp_path / "full")
    assert files.remove_empty_dir(tmp_path / "full")
    files.remove_tree(tmp_path / "full")
    assert list(tmp_path.iterdir()) == []


def test_copy_seal_rename(tmp_path):
    (tmp_path / "a").write_text("x")
    files.copy(tmp_path / "a", tmp_path / "b")
    files.seal(tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o444
    files.rename(tmp_path / "b", tmp_path / "a")
    for call in (
        lambda: files.copy(tmp_path / "gone", tmp_path / "c"),
        lambda: files.rename(tmp_path / "gone", tmp_path / "c"),
        lambda: files.seal(tmp_path / "gone"),
        lambda: files.make_dirs(tmp_path / "a" / "b"),
    ):
        with pytest.raises(errors.StorageError):
            call()


def test_boot_id():
    assert commit_page.boot_id() == commit_page.boot_id()
    assert 0 < len(commit_page.boot_id()) <= 48


def test_what_is_there(tmp_path):
    """As `Path.exists` and `Path.is_file` have it, where these agree from version to version."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nothing")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (
        tmp_path,
        file,
        link,
        loop,
        loop / "below",
        file / "below",
        tmp_path / "no",
        tmp_path / "a\0b",
    ):
        assert files.is_there(path) == path.exists()
        assert files.is_file(path) == path.is_file()
        assert files.is_dir(path) == path.is_dir()


def test_what_is_in_a_directory(tmp_path):
    for name in ("b.x", "a.x", ".x", "c.y"):
        (tmp_path / name).touch()
    assert files.listed(tmp_path) == [tmp_path / name for name in (".x", "a.x", "b.x", "c.y")]
    assert files.listed(tmp_path, "[!.]*.x") == [tmp_path / "a.x", tmp_path / "b.x"]
    for missing in ("none", "a.x"):
        with pytest.raises(errors.StorageError, match="cannot list the directory"):
            files.listed(tmp_path / missing)


def test_the_nearest_that_is_there(tmp_path):
    (tmp_path / "file").touch()
    for given, found in (("", ""), ("a/b/c", ""), ("file", "file"), ("file/x", "file")):
        assert files.nearest(tmp_path / given) == tmp_path / found
