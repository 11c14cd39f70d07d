"""Locks of whole files (``flock``): who writes to a store, to a ring, to a directory of work.

A lock is held by an open descriptor, so it goes with the process, however that ends. As in
`files`, ``OSError`` leaves this module as a `StorageError` that names the path.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from diskreplay.errors import LockedError, StorageError, StorePermissionError
from diskreplay.store import files
from diskreplay.store.paths import file_system
from diskreplay.store.system_errors import explained, translated

# What a file system says that has no locks, or has them switched off.
NO_LOCKS = frozenset([errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])


# A child that is forked just before its parent is killed has the parent's lock until it first runs
# (`_drop_locks_of_parent`), and a program that it starts until `exec`: seconds on a busy machine.
LAST_CHILD_S = 5.0


def try_lock(
    path: Path, *, make: bool = True, holder: Callable[[], int | None] | None = None
) -> int | None:
    """Hold `path`, which is made if it is missing, unless told otherwise; the descriptor keeps it
    held. None if another has it.

    `holder` gives the number of the process that took the lock, None if it is not known. If that
    process has ended, the lock is tried for up to `LAST_CHILD_S`.

    Raises
    ------
    StorageError
        Its errno is one of `NO_LOCKS` where the file system refuses locks.
    """
    with explained(path, "cannot open the lock file"):
        fd = files.open_plain(path, os.O_RDWR | os.O_CREAT * make)
    until = time.monotonic() + LAST_CHILD_S
    try:
        while not _is_locked_now(fd):
            if holder is None or not has_ended(holder()) or time.monotonic() > until:
                os.close(fd)
                return None
            time.sleep(0.001)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, StorageError) or not isinstance(error, OSError):
            raise
        if error.errno not in NO_LOCKS:
            raise translated(error, path, "cannot lock it") from error
        raise StorageError(
            error.errno,
            f"cannot lock it: {file_system(path)} refuses locks (flock): {error.strerror}; put "
            "the store on a file system that has them, or mount this one with them",
            str(path),
        ) from error
    _held.add(fd)
    return fd


def _is_locked_now(fd: int) -> bool:
    """Lock an open file; False if another has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_ended(pid: int | None) -> bool:
    """Whether no process of this number is there. Of another machine's, or another container's,
    this says nothing that can be relied on."""
    if pid is None or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no process has such a number
        return True
    except OSError:  # it is there, and another user's
        return False
    return False


def lock(path: Path, *, of: Path) -> int:
    """Hold `path`, the lock of the store `of`, for this writer, as `try_lock` does.

    The holder's process number is inside.

    Raises
    ------
    LockedError
        Another writer has it.
    StorageError
    """
    try:
        while (fd := try_lock(path, holder=lambda: _noted_holder(path))) is not None:
            try:
                is_there = files.is_at(fd, path)
            except BaseException:
                unlock(fd)
                raise
            if is_there:
                break
            # A load has put another store, with a lock of its own, here since the file was opened:
            # this is the lock of a store that is being removed.
            unlock(fd)
    except StorePermissionError as error:
        raise StorePermissionError(
            error.errno,
            f"this user may not write to the store: {os.strerror(error.errno or 0)} ({path}); "
            "check the owner and mode of the directory. To read it, call diskreplay.open(path)",
            os.fspath(of),
        ) from error
    if fd is None:
        holder = files.read(path, 32).decode(errors="replace").strip() or "unknown"
        raise LockedError(
            f"{of}: already open for writing by process {holder}; "
            'close it there, or read along with diskreplay.open(path, mode="r")'
        )
    try:
        with explained(path, "cannot write to the lock file"):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        unlock(fd)
        raise
    return fd


def _noted_holder(path: Path) -> int | None:
    """The number of the process that the lock file of a store names."""
    noted = files.read(path, 32).decode(errors="replace").strip()
    return int(noted) if noted.isdecimal() and len(noted) < 10 else None


def is_held(path: Path) -> bool:
    """Whether some process holds `path`. Whoever wants to hold it in the microseconds that this
    takes has to try again."""
    with explained(path, "cannot look at the lock"):
        try:
            fd = files.open_plain(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def unlock(fd: int) -> None:
    """Let go of a lock."""
    _held.discard(fd)
    with contextlib.suppress(OSError):  # closing it will do, unless a child has it too
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


_held: set[int] = set()


def _drop_locks_of_parent() -> None:
    # A forked child shares its parent's lock: closing its copy does not free it, and without that
    # a child that outlives its parent (an environment's worker, say) would keep the store locked.
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_drop_locks_of_parent)
