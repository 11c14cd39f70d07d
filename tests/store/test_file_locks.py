"""Locks of files: who has one, when it is free again, and what is said of the one who has it."""

import errno
import os
import warnings

import pytest

from diskreplay import errors
from diskreplay.store import file_locks, files
from tests import processes


def test_lock(tmp_path):
    path = tmp_path / "store" / "lock"
    path.parent.mkdir()
    fd = file_locks.lock(path, of=path.parent)
    assert path.read_text() == f"{os.getpid()}\n"
    with pytest.raises(errors.LockedError, match=f"process {os.getpid()}"):
        file_locks.lock(path, of=path.parent)
    file_locks.unlock(fd)
    file_locks.unlock(file_locks.lock(path, of=path.parent))


def test_the_lock_of_a_process_that_died_is_free(tmp_path):
    code = "import os, sys; from pathlib import Path; from diskreplay.store import file_locks\n"
    code += "file_locks.lock(Path(sys.argv[1]), of=Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    assert processes.run(code, tmp_path / "lock").returncode == -9
    assert int((tmp_path / "lock").read_text()) != os.getpid()
    file_locks.unlock(file_locks.lock(tmp_path / "lock", of=tmp_path))


LAST_CHILD = """
import os, subprocess, sys
from pathlib import Path
from diskreplay.store import file_locks, files
fd = file_locks.lock(Path(sys.argv[1]), of=Path(sys.argv[1]))
subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[fd], stdout=subprocess.DEVNULL)
os.kill(os.getpid(), 9)
"""


def test_a_lock_that_a_last_child_still_has_is_waited_for(tmp_path):
    """As a child has it that was forked just before its parent was killed, until it first runs."""
    assert processes.run(LAST_CHILD, tmp_path / "lock", "0.5").returncode == -9
    file_locks.unlock(file_locks.lock(tmp_path / "lock", of=tmp_path))


def test_a_lock_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(file_locks, "LAST_CHILD_S", 0.05)
    assert processes.run(LAST_CHILD, tmp_path / "lock", "5").returncode == -9
    with pytest.raises(errors.LockedError):
        file_locks.lock(tmp_path / "lock", of=tmp_path)


@pytest.mark.parametrize("noted", [b"", b"-1", b"0", b"1e3", b"9" * 40, b"\xff\n"])
def test_a_holder_that_is_not_known_is_not_waited_for(tmp_path, monkeypatch, noted):
    monkeypatch.setattr(file_locks, "LAST_CHILD_S", 600)
    fd = file_locks.lock(tmp_path / "lock", of=tmp_path)
    (tmp_path / "lock").write_bytes(noted)
    with pytest.raises(errors.LockedError, match="by process"):
        file_locks.lock(tmp_path / "lock", of=tmp_path)
    file_locks.unlock(fd)


def test_a_lock_is_free_though_somebody_has_a_copy_of_the_descriptor(tmp_path):
    """A program that was started with it, say."""
    fd = file_locks.try_lock(tmp_path / "lock")
    copy = os.dup(fd)
    try:
        assert file_locks.try_lock(tmp_path / "lock") is None
        file_locks.unlock(fd)
        assert not file_locks.is_held(tmp_path / "lock")
        file_locks.unlock(file_locks.try_lock(tmp_path / "lock"))
    finally:
        os.close(copy)


def test_who_does_not_get_it_keeps_nothing_open(tmp_path):
    fd = file_locks.try_lock(tmp_path / "lock")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert file_locks.try_lock(tmp_path / "lock") is None
    assert sorted(os.listdir("/proc/self/fd")) == before
    file_locks.unlock(fd)


def test_the_lock_of_a_store_that_was_put_elsewhere_is_not_held(tmp_path, monkeypatch):
    """A load exchanges two stores while another writer opens one of them."""
    path, opened = tmp_path / "lock", []
    path.write_text("")
    open_plain = files.open_plain

    def exchanged(place, flags):
        fd = open_plain(place, flags)
        if not opened:
            path.rename(tmp_path / "away")
            path.write_text("")
        opened.append(fd)
        return fd

    monkeypatch.setattr(files, "open_plain", exchanged)
    fd = file_locks.lock(path, of=tmp_path)
    assert len(opened) == 2
    assert files.is_at(fd, path)
    assert not file_locks.is_held(tmp_path / "away")
    file_locks.unlock(fd)


def test_a_forked_child_does_not_have_it(tmp_path):
    """It may outlive its parent."""
    fd = file_locks.try_lock(tmp_path / "lock")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            os.fstat(fd)
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert file_locks.is_held(tmp_path / "lock")
    file_locks.unlock(fd)


def test_a_number_that_no_process_can_have_is_of_none():
    assert file_locks.has_ended(10**20)
    assert not file_locks.has_ended(os.getpid())


def test_what_the_system_says_while_it_is_asked_who_holds_a_lock_is_an_error_of_ours(tmp_path):
    path = tmp_path / "taker"
    assert not file_locks.is_held(path)
    fd = file_locks.try_lock(path)
    assert file_locks.is_held(path)
    file_locks.unlock(fd)
    assert not file_locks.is_held(path)
    with pytest.raises(errors.StorageError, match="cannot look at the lock") as refused:
        file_locks.is_held(path / "below")  # a file, and no directory
    assert refused.value.errno == errno.ENOTDIR
