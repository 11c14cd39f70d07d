"""Files that somebody else has, by a descriptor, a mapping or another name."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from diskreplay import errors
from diskreplay.store import files, leases
from diskreplay.store.mapping import Mapping
from tests.disks import ROOT, needs_leases


@pytest.fixture
def used(tmp_path, monkeypatch):
    """A sealed file, as on a file system that has leases, wherever the tests have theirs."""
    monkeypatch.setattr(leases, "is_of_one_machine", lambda path: True)
    (tmp_path / "used").write_bytes(USED)
    files.seal(tmp_path / "used")
    return tmp_path / "used"


USED = bytes(range(1, 101))


def is_untouched(path):
    return path.read_bytes() == USED and path.stat().st_mode & 0o777 == 0o444


@needs_leases
def test_a_file_that_nobody_else_has(used):
    for _ in range(2):  # nothing of it is held
        assert leases.nobody_else_has(used, len(USED))
    assert is_untouched(used)


@needs_leases
@pytest.mark.parametrize("written", [False, True])
def test_one_that_is_open_somewhere_is_not(used, written):
    with open(used, "r+b" if written else "rb"):
        assert not leases.nobody_else_has(used, len(USED))
        assert is_untouched(used)
    assert leases.nobody_else_has(used, len(USED))


@needs_leases
def test_one_that_is_mapped_somewhere_is_not(used):
    """A reader has its descriptor closed; a child has what its parent had mapped."""
    ours = Mapping.open(used)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        assert not leases.nobody_else_has(used, len(USED))
        seen = ours.array[:3].tolist()
        del ours
        assert not leases.nobody_else_has(used, len(USED))
        assert is_untouched(used)
        assert seen == [1, 2, 3]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert leases.nobody_else_has(used, len(USED))


@needs_leases
def test_one_that_is_linked_is_not(used):
    os.link(used, used.with_name("checkpoint"))
    assert not leases.nobody_else_has(used, len(USED))
    assert is_untouched(used)
    used.with_name("checkpoint").unlink()
    assert leases.nobody_else_has(used, len(USED))


@needs_leases
def test_no_lease_is_asked_for_of_a_file_that_others_open_by_another_name(used, monkeypatch):
    """Who opens a checkpoint without waiting would be refused meanwhile."""
    asked, ask = [], fcntl.fcntl

    def noted(fd, command, argument=0):
        asked.append(command)
        return ask(fd, command, argument)

    monkeypatch.setattr(leases.fcntl, "fcntl", noted)
    assert leases.nobody_else_has(used, len(USED))
    assert fcntl.F_SETLEASE in asked
    os.link(used, used.with_name("checkpoint"))
    asked.clear()
    assert not leases.nobody_else_has(used, len(USED))
    assert asked == []


@needs_leases
def test_one_of_another_length_is_not(used):
    assert not leases.nobody_else_has(used, len(USED) + 1)
    assert not leases.nobody_else_has(used, len(USED) - 1)
    assert is_untouched(used)


def test_one_that_another_machine_may_have_is_not(used, monkeypatch):
    monkeypatch.setattr(leases, "is_of_one_machine", lambda path: False)
    assert not leases.nobody_else_has(used, len(USED))
    assert is_untouched(used)


@needs_leases
def test_where_the_system_grants_no_lease(used, monkeypatch):
    def refused(_fd, command, argument=0):
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EACCES, "of another user")

    monkeypatch.setattr(leases.fcntl, "fcntl", refused)
    assert not leases.nobody_else_has(used, len(USED))
    assert is_untouched(used)


def test_what_is_no_file(used):
    used.with_name("link").symlink_to(used)
    with pytest.raises(errors.StorageError, match="no regular file"):
        leases.nobody_else_has(used.with_name("link"), len(USED))
    assert is_untouched(used)


@needs_leases
def test_who_opens_the_file_meanwhile_does_not_end_this_process(used):
    """The kernel tells who holds a lease by a signal: SIGIO, if nothing else is asked for."""
    code = """
import os, subprocess, sys
from pathlib import Path
from diskreplay.store import leases

path, look, looks = Path(sys.argv[1]), os.fstat, []
other = [sys.executable, "-c", f"import os; os.open({sys.argv[1]!r}, os.O_NONBLOCK)"]

def fstat(fd):
    looks.append(fd)
    if len(looks) == 3:  # when it was opened, its names, and now, with the lease
        tried = subprocess.run(other, capture_output=True, text=True)
        assert "BlockingIOError" in tried.stderr, tried.stderr
    return look(fd)

leases.is_of_one_machine, os.fstat = lambda path: True, fstat
assert leases.nobody_else_has(path, look(os.open(path, os.O_PATH)).st_size)
assert len(looks) >= 3
"""
    subprocess.run([sys.executable, "-c", code, used], check=True, cwd=ROOT)
    assert is_untouched(used)
