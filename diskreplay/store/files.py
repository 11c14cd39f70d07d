"""The only place where diskreplay touches the disk in a way that must last.

Every durable operation (create, allocate, write, sync, link, rename, exchange, remove) is a
function here and is called as ``files.name(...)``, so that a test can replace any one of them to
fail, delay or lose it. ``OSError`` leaves this module as a `StorageError` that names the path.
"""

import contextlib
import ctypes
import errno
import fnmatch
import os
import shutil
import stat
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from diskreplay.errors import StorageError
from diskreplay.store import modes
from diskreplay.store.at_once import at_once
from diskreplay.store.paths import file_system, is_in_memory
from diskreplay.store.system_errors import explained, translated

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SYNCED_AT_ONCE = 16  # files
_MOST_LINKS = 40  # that a path may lead over
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_ZEROS = memoryview(bytes(1 << 20))
_libc = ctypes.CDLL(None, use_errno=True)


def make_dirs(path: Path) -> None:
    """Create a directory and its parents."""
    with explained(path, "cannot create the directory"):
        _make_dirs(os.fspath(path))


def _make_dirs(path: str, *, below_parent: bool = False) -> None:
    # Once for each segment: from the bottom up, as text, a third of what `Path.mkdir` takes.
    try:
        os.mkdir(path)
        modes.let_owner_use(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if below_parent or parent == path:  # /proc says so of whatever one makes in it
            where = file_system(Path(parent))
            raise StorageError(
                errno.ENOENT,
                f"cannot create the directory, and its parent is there: {where} may take no "
                "directories; choose another place",
                path,
            ) from None
        _make_dirs(parent)
        _make_dirs(path, below_parent=True)
    except (FileExistsError, NotADirectoryError):
        if not os.path.isdir(path):
            raise _no_directory(Path(path)) from None


def _no_directory(path: Path) -> StorageError:
    """What is wrong where a directory is to be, and a file is there, or is one of its parents."""
    there = next(part for part in [path, *path.parents] if os.path.lexists(part))
    return StorageError(
        errno.ENOTDIR, "a file; a directory expected: choose another path", os.fspath(there)
    )


def make_lasting_dirs(path: Path) -> None:
    """Create a directory and its parents, with names that last."""
    sync_dirs(make_named_dirs(path))


def make_named_dirs(path: Path) -> set[Path]:
    """Create a directory and its parents; returns the directories that have to be synced for their
    names to last, but for those that one may pass, and not read.

    The directory may be there already: made by a process that was killed before it could sync.
    """
    missing = [path]
    while not is_there(missing[-1].parent):
        missing.append(missing[-1].parent)
    make_dirs(path)
    return {one.parent for one in missing if os.access(one.parent, os.R_OK)}


def allocate(path: Path, size: int) -> int:
    """Create `path` with `size` bytes that the file system has promised; return its descriptor.

    A full disk is an error here, before a row is accepted, and never a SIGBUS later on.
    """
    with explained(path, "cannot allocate the segment"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            modes.let_owner_use(fd)
            os.ftruncate(fd, size)
            promise(fd, size)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return fd


def promise(fd: int, size: int) -> None:
    """Have the file system promise all of a file's `size` bytes, which stay what they are.

    Copies of a store (``cp``, ``rsync -S``) have holes where zeros were.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:  # macOS: writing is the one portable promise
        step = 1 << 20
        for start in range(0, size, step):
            os.pwrite(fd, os.pread(fd, min(step, size - start), start), start)


def blank(path: Path, size: int) -> None:
    """Overwrite a file of `size` bytes with zeros, and let it be written to again. Not synced.

    That costs less than a new file does: this one keeps its memory in the page cache and its place
    on the disk. What of it is not in the page cache is not read.
    """
    with explained(path, "cannot let the file be written to"):
        # To be written by those who may write to its directory: the umask that gave the directory
        # its mode gives a new file the same. To ask for the umask is to change it for a moment,
        # for all threads.
        modes.change(path, add=os.stat(path.parent).st_mode & _WRITE_BITS)
    fd = open_to_write(path)
    try:
        # By writing, and not through a mapping: where the file system has to find new room, since
        # a copy shares the old one, a full disk is an error here.
        for start in range(0, size, len(_ZEROS)):
            write_at(fd, path, _ZEROS[: size - start], start)
    finally:
        os.close(fd)


def is_there(path: Path) -> bool:
    """Whether there is a file or a directory; a link that leads to itself leads to none. From
    Python 3.14 on `Path.exists` says no of one that may not be looked at; this raises, as all here
    does, a `StorageError`."""
    return _mode(path) != 0


def nearest(path: Path) -> Path:
    """The path, or the nearest directory around it that is there."""
    return next(place for place in (path, *path.parents) if is_there(place))


def is_file(path: Path) -> bool:
    """As `Path.is_file`, but as `is_there` where it may not be looked at."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: Path) -> bool:
    """As `Path.is_dir`, but as `is_there` where it may not be looked at."""
    return stat.S_ISDIR(_mode(path))


def listed(directory: Path, pattern: str = "*") -> list[Path]:
    """What is in a directory and has a name like this, in order. In one that may be entered but not
    listed, `Path.iterdir` raises a bare error, and `Path.glob` finds nothing; this raises, as all
    here does, a `StorageError`."""
    with explained(directory, "cannot list the directory"):
        return [directory / name for name in sorted(fnmatch.filter(os.listdir(directory), pattern))]


def led_to(directory: Path, but: Collection[Path]) -> set[Path]:
    """What the links of a directory lead to in it, but for these links: each place on the way."""
    found, base = set(), os.path.realpath(directory)
    for link in listed(directory):
        at = str(link)
        for _hop in range(_MOST_LINKS if link not in but else 0):
            try:
                at = os.path.join(os.path.dirname(at), os.readlink(at)).rstrip("/")
            except OSError:  # no link, or no more
                break
            # A link may lead into what it needs: to `latest/.`, or to a file.
            place = os.path.join(os.path.realpath(os.path.dirname(at)), os.path.basename(at))
            if place.startswith(f"{base}{os.sep}"):
                found.add(directory / place[len(base) + 1 :].partition(os.sep)[0])
    return found


def _mode(path: Path) -> int:
    """The type and mode of what a path leads to; 0 if nothing is there."""
    with explained(path, "cannot look at it"):
        try:
            return os.stat(path).st_mode
        except ValueError:  # no path has a NUL in it
            return 0
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return 0


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file of a store; return its descriptor.

    Never a link, which may lead out of the store, and never a pipe or device, which may have no
    end: a store may come from a stranger.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a pipe
            raise _not_plain(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_plain(path)
    if flags & os.O_CREAT:
        modes.let_owner_use(fd)
    return fd


def _not_plain(path: Path) -> StorageError:
    return StorageError(
        errno.EINVAL,
        "no regular file (a link, pipe or device); put the file itself there",
        str(path),
    )


def read(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most`; of a longer one, one more than that."""
    with explained(path, "cannot read the file"):
        fd = open_plain(path, os.O_RDONLY)
        try:
            left = min(most, os.fstat(fd).st_size) + 1
            pieces = []
            while left and (piece := os.read(fd, left)):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)


def write(path: Path, pieces: Iterable[bytes | memoryview], *, length: int | None = None) -> None:
    """Write a new file in one go; `length` extends it with a hole of zeros. Not synced."""
    with explained(path, "cannot write the file"):
        with open(path, "wb") as file:
            modes.let_owner_use(file.fileno())
            for piece in pieces:
                file.write(piece)
            if length is not None:
                file.truncate(length)


def open_to_write(path: Path) -> int:
    """Open a regular file that is there, for `write_at`; return its descriptor."""
    with explained(path, "cannot open the file"):
        return open_plain(path, os.O_RDWR)


def write_at(fd: int, path: Path, data: memoryview, offset: int) -> None:
    """Write all of `data` into an open file. Not synced."""
    with explained(path, "cannot write to the file"):
        while len(data):
            done = os.pwrite(fd, data, offset)
            data, offset = data[done:], offset + done


def truncate(fd: int, path: Path, size: int) -> None:
    """Cut an open file to its first `size` bytes."""
    with explained(path, "cannot cut the file"):
        os.ftruncate(fd, size)


def close(fd: int) -> None:
    """Close what `open_to_write` opened."""
    os.close(fd)


def replace(contents: dict[Path, bytes], *, build: Path | None = None) -> None:
    """Replace each file as a whole and durably: write beside, sync, rename, sync the directory.

    One file is replaced or not; of several, any may be when a crash comes between. They are
    written in the directory `build`, if it is given, where a half written one is in nobody's way.
    Where it fails, none is left.
    """
    beside = {path: (build or path.parent) / (path.name + ".tmp") for path in contents}
    try:
        for path, data in contents.items():
            make_dirs(path.parent)
            write(beside[path], [data])
        sync(beside.values())
        for path in contents:
            rename(beside[path], path)
    except BaseException:
        for path in beside.values():
            with contextlib.suppress(OSError):  # not written, renamed already, or the disk refuses
                os.unlink(path)
        raise
    sync_dirs({path.parent for path in contents})


def _sync_one(path: Path) -> None:
    with explained(path, "cannot sync the file"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


_passing: set[str] = set()  # directories, with a slash behind them


def do_without_syncs(directory: Path) -> None:
    """From here on, nothing in this directory is synced: no power cut leaves anybody who would
    open it. For temporary stores."""
    for path in (os.path.abspath(directory), os.path.realpath(directory)):
        _passing.add(path + os.sep)


def is_synced(path: Path) -> bool:
    """Whether `sync` does anything for it."""
    return not os.fspath(path).startswith(tuple(_passing))


def sync(paths: Iterable[Path]) -> None:
    """Make the contents of files durable, memory-mapped writes included; not those of temporary
    stores.

    Several at a time, on threads of their own: the file system and the disk then do for many at
    once what they would do for each. A file system in memory does nothing, sooner than a thread
    begins. Not ``syncfs``: it would also write the tails, over and over, and whatever else lies on
    that file system.
    """
    at_disk, in_memory = [], dict[str, bool]()
    for path in filter(is_synced, paths) if _passing else paths:
        directory = os.path.dirname(path)
        if directory not in in_memory:
            in_memory[directory] = is_in_memory(directory)
        if in_memory[directory]:
            _sync_one(path)
        else:
            at_disk.append(path)
    at_once(_sync_one, at_disk, _SYNCED_AT_ONCE)


def sync_dirs(paths: Iterable[Path]) -> None:
    """Make the names in directories durable."""
    sync(sorted(paths))


def sync_tree(root: Path) -> None:
    """Make a directory durable, with all that is in it."""
    found = list(os.walk(root))
    sync([Path(base, name) for base, _dirs, names in found for name in names])
    sync_dirs(Path(base) for base, _dirs, _names in found)


def rename(source: Path, target: Path) -> None:
    """Rename over whatever is there."""
    with explained(target, f"cannot rename {source.name} to it"):
        os.rename(source, target)


def exchange(one: Path, other: Path, aside: Path) -> None:
    """Swap two directories in one step, or with three renames where the system has no such call.

    After a kill, or an error that is not about `one`, between these three `other` may be at `aside`
    only: the caller looks for it there. Nothing is at `aside` before and after.
    """
    with explained(other, f"cannot exchange it with {one.name}"):
        if sys.platform == "linux" and hasattr(_libc, "renameat2"):
            failed = _libc.renameat2(
                _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
            )
            if not failed:
                return
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOSYS):
                raise OSError(code, os.strerror(code))
        elif sys.platform == "darwin":
            if not _libc.renamex_np(os.fsencode(one), os.fsencode(other), 2):
                return
        os.rename(other, aside)
        try:
            os.rename(one, other)
        except BaseException:
            os.rename(aside, other)  # fails if another process has put something there meanwhile
            raise
        os.rename(aside, one)


def link(source: Path, target: Path) -> bool:
    """Hard-link a file; False where the file system cannot (the caller copies then)."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            return False
        raise translated(error, target, f"cannot link {source}") from error
    return True


def copy(source: Path, target: Path) -> None:
    """Copy a file's bytes. Not synced."""
    with explained(target, f"cannot copy {source} to it"):
        shutil.copyfile(source, target)
        modes.let_owner_use(target)


def seal(path: Path) -> None:
    """Make a file read-only: checkpoints share it from now on. Who could read it still can, and
    nobody else."""
    with explained(path, "cannot make the segment read-only"):
        modes.change(path, drop=_WRITE_BITS)


def remove(path: Path) -> None:
    """Remove a file that may be gone already."""
    with explained(path, "cannot remove the file"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_empty_dir(path: Path) -> bool:
    """Remove a directory if nothing is in it; says whether it is gone."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise translated(error, path, "cannot remove the directory") from error
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory that may be gone already."""
    with explained(path, "cannot remove the directory"), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    with explained(path, "cannot look at the file"):
        try:
            there = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))
