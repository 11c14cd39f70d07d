"""Paths: what they lead to, and which file system that is on. Nothing is changed here."""

import contextlib
import ctypes
import errno
import glob
import os
import re
import stat
import sys
from pathlib import Path

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError, StorageError
from diskreplay.store.system_errors import explained

_MEMORY = {0x01021994, 0x858458F6}  # Linux: a tmpfs, a ramfs
# Whose files no other machine can open: ext4, XFS, a tmpfs. Not overlayfs, where a lease does not
# see who has the file below.
_OF_ONE_MACHINE = {0xEF53, 0x58465342, 0x01021994}
_URL_AS_PATH = re.compile("([A-Za-z][A-Za-z0-9+.-]+:)/")  # what `Path` makes of one
_libc = ctypes.CDLL(None)


def is_remote(place: object) -> bool:
    """Whether a place for checkpoints is no path: a URL, or what pushes and pulls them."""
    return "://" in place if isinstance(place, str) else hasattr(place, "push")


def local(path: str | os.PathLike[str], argument: str) -> Path:
    """A path that somebody gave: what can be one. Links are not followed.

    Parameters
    ----------
    path : path
    argument : str
        What it was given as.

    Raises
    ------
    InvalidInputError
        It is no path: of another type, a URL, or with what no name can have.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidInputError(
            f"{argument}: a str or a Path expected, found {type(path).__name__} ({brief(path, 80)})"
        )
    try:
        is_name = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise InvalidInputError(
            f"{argument}: {text!r:.200}: no path, for no file can have such a name; choose another"
        )
    was_url = _URL_AS_PATH.match(text)  # with one slash: of a Path, or by mistake
    if is_remote(text) or (was_url and not os.path.lexists(was_url[1])):
        raise InvalidInputError(
            f"{argument}: {text!r:.200}: a URL, and a local path expected: live stores are on a "
            "local disk. Checkpoints can be pushed to a URL, save('s3://...', n), and loaded from "
            "there, load('s3://...')"
        )
    return Path(text)


def resolved(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """The absolute path without links; what it leads to need not be there yet.

    All that is done beside a store or a checkpoint is done beside the real directory: a link to it
    may be on another file system, and what is exchanged with it would be the link.

    Parameters
    ----------
    path, argument
        As for `local`, by which it is checked.

    Raises
    ------
    InvalidInputError
        As `local` says.
    StorageError
        The links go round in a circle, or one leads to what is not there, `path` itself included.
        Also where `path` is relative and the working directory is gone, and where this user may not
        look into a directory on the way.
    """
    path = local(path, argument)
    try:
        real = Path(os.path.realpath(path))
    except FileNotFoundError as error:
        raise StorageError(
            errno.ENOENT,
            "the working directory of this process is gone, and this path is relative to it; "
            "change to a directory that is there, or give an absolute path",
            os.fspath(path),
        ) from error
    with explained(path, "cannot follow the path"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if stat.S_ISLNK(os.lstat(real).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _check_links(path, real)
    return real


def _check_links(path: Path, real: Path) -> None:
    """Refuse a link to what is not there: a disk that is not mounted, say. A run that made the
    directory there would start anew, beside the rows that it has on that disk. Some systems remove
    the mount point too, so a link straight to one tells nothing either."""
    for part in [*reversed(path.parents), path]:
        try:
            os.stat(part)
        except FileNotFoundError:
            if not part.is_symlink():
                return  # to be made, with all that is below it
            aside = real.parent.glob(f".{glob.escape(real.name)}.*/aside")
            if part == path and any(aside):  # a kill between two renames: an opening puts it back
                return
            raise StorageError(
                errno.ENOENT,
                f"a link to {os.path.realpath(part)}, which is not there; mount the disk that it "
                "is on, or make that directory if it is to be new",
                os.path.abspath(part),
            ) from None
        except NotADirectoryError:
            return  # who opens or makes something there says so


def file_system(path: Path) -> str:
    """Where the file system that `path` is on is mounted, and its type; as far as is known."""
    real, longest, kind = os.path.realpath(path), "", ""
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        for line in os.fsdecode(Path("/proc/self/mounts").read_bytes()).splitlines():
            _device, point, its_kind, *_rest = line.split(" ")
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(longest):  # of two at one place the later one is on top
                longest, kind = point, its_kind
    return f"the file system at {longest} ({kind})" if longest else "its file system"


def is_in_memory(path: str | os.PathLike[str]) -> bool:
    """Whether the file system that `path` is on has no disk; False where that is not known."""
    return _kind(path) in _MEMORY


def is_of_one_machine(path: str | os.PathLike[str]) -> bool:
    """Whether the kernel knows of everybody who has a file open there; False where that is not
    known."""
    return _kind(path) in _OF_ONE_MACHINE


def _kind(path: str | os.PathLike[str]) -> int:
    """Which file system a path is on, by the number that Linux gives it; 0 if that is not known."""
    about = (ctypes.c_ulong * 32)()  # larger than any `struct statfs`, whose first word is the type
    found = sys.platform == "linux" and _libc.statfs(os.fsencode(path), about) == 0
    return about[0] & 0xFFFFFFFF if found else 0


def inode(path: Path) -> int | None:
    """The number of a file; None if it is missing, or a link to itself."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def identity(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced as a whole; None if it is missing."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size
