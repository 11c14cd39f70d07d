"""Errors of the operating system, as ours: each says where, what failed and what to do."""

import errno
import os

from diskreplay.errors import DiskFullError, StorageError, StorePermissionError

# What the system says of a file that is lost: it is not there, is no file, or the disk does not
# give it. All else is said of the process or the machine, and the file may be whole.
_LOST = frozenset(
    getattr(errno, name)
    for name in (
        "ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENXIO", "ENODEV", "EINVAL", "EIO", "EBADMSG",
        "ENODATA", "EILSEQ", "EUCLEAN",
    )
    if hasattr(errno, name)
)  # fmt: skip

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWNER = "check the owner and mode of the directory"
_OPEN = "close other files, or allow more (ulimit -n), and call again"
_DENIED = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "mount the file system so that it can be written to, or choose another place",
}
_HINTS = {
    # A bind mount of the same file system is not seen before.
    errno.EBUSY: "if a file system is mounted at this very directory, keep the store in one inside "
    "it",
    # All renames are within one directory: what is refused is a directory of a lower layer.
    errno.EXDEV: "if it came with a container's image, copy the whole store to a volume, by "
    "`cp -a` say, and open it there",
    errno.EMFILE: _OPEN,
    errno.ENFILE: _OPEN,
}


def says_lost(error: BaseException) -> bool:
    """Whether an error says that a file is lost, or damaged; else nothing is known of it.

    What looks for damage must not take the one for the other: with too many open files a repair
    would set all rows aside.
    """
    return not isinstance(error, OSError) or error.errno is None or error.errno in _LOST


def check_lost(error: BaseException, path: str | os.PathLike[str], doing: str) -> None:
    """Raise what the system refused as ours; nothing where the error says that a file is lost."""
    if isinstance(error, OSError) and not says_lost(error):
        raise translated(error, path, doing) from error


def errno_if_full(
    error: BaseException, directory: str | os.PathLike[str], before: BaseException | None = None
) -> int | None:
    """What the system said if the disk of a directory, or a quota, is full and an error came of
    that; else None. Of what led to it, `before` and what is behind that count for nothing."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and found is not before and id(found) not in seen:
        if isinstance(found, OSError) and found.errno in _FULL and _is_beside(found, directory):
            return found.errno
        seen.add(id(found))
        found = found.__cause__ or _cut_off(found)
    return None


def _cut_off(error: BaseException) -> BaseException | None:
    """What an error came amid, if it may be no more than what that left: a file that cannot be
    closed since it could not be written. torch raises a RuntimeError then, and zipfile a
    ValueError. All other kinds say what is wrong themselves: what came before was dealt with."""
    if error.__suppress_context__:
        return None
    is_left = isinstance(error, OSError) or type(error) in (RuntimeError, ValueError)
    return error.__context__ if is_left else None


def _is_beside(error: OSError, directory: str | os.PathLike[str]) -> bool:
    """Whether an error may be of a file on the disk of a directory. Of another disk, with a log on
    it, say, nothing else is known; and mostly no file is named where one is written to."""
    if error.filename is None:
        return True
    try:
        disk, place = os.stat(directory).st_dev, error.filename
        if not isinstance(place, int) and not os.path.lexists(place):  # it was removed, say
            place = os.path.dirname(place) or os.curdir
        return os.stat(place).st_dev == disk
    except OSError:
        return True


class explained:
    """Turns an ``OSError`` raised inside into a `StorageError` that says where and what to do.

    Not a generator: since Python 3.12 an error that leaves one is part of a reference cycle, and
    keeps what its frames refer to, a locked store say, until the garbage is collected.
    """

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str | os.PathLike[str], doing: str) -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise translated(error, self._path, self._doing) from error


def translated(error: OSError, path: str | os.PathLike[str], doing: str) -> StorageError:
    """`error` as one of ours, with the same errno."""
    reason = error.strerror or str(error)
    kind: type[StorageError]
    if error.errno in _FULL:
        kind, hint = DiskFullError, "free some space and call again; nothing was lost"
    elif error.errno in _DENIED:
        kind, hint = StorePermissionError, _DENIED[error.errno]
    else:
        kind = StorageError
        hint = _HINTS.get(error.errno or 0, "mend the cause and call again")
    return kind(error.errno, f"{doing}: {reason} ({hint})", os.fspath(path))
