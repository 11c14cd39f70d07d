"""Directories in which something is being made, beside the place that it is made for.

::

    .<name>.<kind>-<16 hex digits>/    made for the place <name>, in the same directory
        lock                           held (flock) by the writer as long as it lives
        aside                          what was at <name>, while renames stand in for an exchange
        ...                            what is being made

The digits are random, so no two writers share such a directory, whatever their process numbers are:
in two containers both may be 1. Whose directory it is, the lock in it says, and nothing else:

- A directory belongs to whoever holds the lock on the file that is named ``lock`` in it. Nobody
  else changes it, and only its owner removes that file, last.
- A sweeping process takes the lock if it can. If it can, the writer is dead, and the directory is
  the sweeping one's to remove. If not, it leaves the directory alone.
- A writer that has made the directory, and not yet the lock, may lose both to a sweeping process.
  It sees that the lock is not to be had, or is not there any more, and begins again elsewhere.
- Where the file system refuses locks, nobody can tell whether a writer lives. A directory is
  removed there when it is a day old.
"""

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from diskreplay import fork, signals
from diskreplay.errors import StorageError, StorePermissionError
from diskreplay.store import file_locks, files
from diskreplay.store.system_errors import explained, translated

_NAME = re.compile(r"\.(.+)\.(tmp|old|load|repair)-([0-9a-f]{16})")
_LOCK, _ASIDE = "lock", "aside"
_TRIES = 100
_OLD = 24 * 3600.0  # seconds; nothing is under construction for that long
# What opening the lock of a leftover says when another process has removed it meanwhile, when it
# is no directory of ours, or when it is another user's, who has to remove it.
_NOT_OURS = frozenset([errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS])
# What the system says where nothing may be made.
_REFUSED = frozenset([errno.EACCES, errno.EPERM, errno.EROFS])
# What renaming to a place says when another writer has put something there, or taken it away,
# since we looked.
_OVERTAKEN = frozenset([errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR])


class Workspace:
    """A directory of one's own beside a place; use it as a context manager, or `remove` it.

    Parameters
    ----------
    place : Path
        What is made gets this path; its directory is there.
    kind : {"tmp", "old", "load", "repair"}
        Part of the name, for people.
    takes_place : bool
        Whether something that is made here may be put at `place`, which a place that a file system
        is mounted at refuses.

    Attributes
    ----------
    path : Path
        The directory. Names in it are free but for ``lock`` and ``aside``.
    """

    path: Path
    place: Path
    _lock: int | None = None
    _pid = 0  # whose lock it is: a forked child has no copy of it, and another file by its number

    def __init__(self, place: Path, kind: str, *, takes_place: bool = True) -> None:
        if takes_place:
            _check_no_mount(place)  # before gigabytes are copied beside it
        for last in [False] * _TRIES + [True]:
            path = place.with_name(f".{place.name}.{kind}-{secrets.token_hex(8)}")
            try:
                files.make_dirs(path)
            except StorageError as error:
                if error.errno not in _REFUSED:
                    raise
                # Of the working name nobody knows; whose place it is for, and where, they do.
                plain = OSError(error.errno, os.strerror(error.errno))
                doing = f"nothing can be made in {place.parent}"
                raise translated(plain, place, doing) from error
            try:
                claimed = self._claim(path, place)
            except StorageError as error:
                # A sweeping process may have removed the directory since: then it is not there.
                if error.errno != errno.ENOENT or last:
                    with contextlib.suppress(StorageError):  # the next sweep removes it
                        files.remove_tree(path)
                    raise
                continue
            if claimed:
                return
        raise StorageError(errno.EAGAIN, "others remove what is to be made there", str(path))

    def _claim(self, path: Path, place: Path) -> bool:
        """Become the owner of a directory; False if it is another's, or was removed meanwhile."""
        try:
            self._take_lock(path / _LOCK)
        except StorageError as error:
            if error.errno not in file_locks.NO_LOCKS:
                raise
        else:
            if self._lock is None:
                return False
            if not files.is_at(self._lock, path / _LOCK):
                self.release()
                return False
        self.path, self.place = path, place
        return True

    def _take_lock(self, path: Path) -> None:
        with signals.undisturbed():  # a Ctrl-C in between would lose the lock, and leave it held
            self._lock, self._pid = file_locks.try_lock(path), fork.pid

    def put_in_place(self, made: Path) -> None:
        """Give a directory that was made in here the path `place`, durably.

        What was there, a directory or a link to one, is in its stead then, and goes with the rest.
        At each moment one of the two is at `place`; where the system cannot exchange two
        directories none is for a moment, and after a kill in that moment `sweep` puts the old one
        back. Other writers may do the same at the same time: the last one's stays.

        Raises
        ------
        StorageError
            Also where something else than a directory is at `place`.
        """
        place, aside = self.place, self.path / _ASIDE
        for last in [False] * _TRIES + [True]:
            try:
                if files.is_dir(place) or place.is_symlink():
                    self.exchange(made)
                else:
                    files.rename(made, place)
                break
            except StorageError as error:
                overtaken = error.errno in _OVERTAKEN and files.is_dir(made) and not last
                if not overtaken or files.is_file(place):
                    raise
                if os.path.lexists(aside):  # and another's is at `place`: so this one is replaced
                    _remove(aside)
        files.sync_dirs([place.parent])

    def exchange(self, made: Path) -> None:
        """Swap a directory that was made in here with what is at `place`, which has to be there.
        Not synced."""
        files.exchange(made, self.place, self.path / _ASIDE)

    def put_back(self) -> None:
        """Undo an exchange that was cut, or failed, between its renames."""
        aside = self.path / _ASIDE
        if os.path.lexists(aside) and not os.path.lexists(self.place):
            files.rename(aside, self.place)
            files.sync_dirs([self.place.parent])

    def end_exchange(self, made: Path) -> None:
        """Do the last rename of an exchange that was cut, or failed, before it."""
        aside = self.path / _ASIDE
        if os.path.lexists(aside) and not os.path.lexists(made):
            files.rename(aside, made)

    def remove(self) -> None:
        """Remove it with all that is in it. What cannot be removed now is left to a later sweep."""
        try:
            with contextlib.suppress(StorageError):
                self.put_back()
                with explained(self.path, "cannot list the directory"):
                    names = os.listdir(self.path)
                for name in names:
                    if name != _LOCK:
                        _remove(self.path / name)
                files.remove(self.path / _LOCK)  # last: until then it is ours
                self.release()  # NFS and most of FUSE keep a removed file there while it is open
                files.remove_empty_dir(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Let go of it, and leave it as it is."""
        lock, self._lock = self._lock, None
        if lock is not None and self._pid == fork.pid:
            file_locks.unlock(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def __del__(self) -> None:  # Ctrl-C may come before it is in anybody's hands
        self.release()


def _check_no_mount(place: Path) -> None:
    """Refuse a place that no other directory can take, which the exchange would find out last."""
    if os.path.ismount(place):
        raise StorageError(
            errno.EBUSY,
            "a file system is mounted at this very directory (a container's volume, say), so no "
            "other directory can take its place; nothing was changed. Keep the store in a "
            "directory inside it: close this one, move all that is in it there and open it there",
            os.fspath(place),
        )


def _remove(path: Path) -> None:
    """Remove whatever is there; of a link not what it points to."""
    if files.is_dir(path) and not path.is_symlink():
        files.remove_tree(path)
    else:
        files.remove(path)


def _found(directory: Path, names: str) -> Iterator[tuple[Path, Path, str]]:
    """Workspaces in a directory, with the place that each is for, and their kinds; `names` is a
    pattern of the places' names."""
    wanted = re.compile(names)
    with explained(directory, "cannot list the directory"):
        try:
            with os.scandir(directory) as entries:
                found = [
                    (entry.name, match) for entry in entries
                    if (match := _NAME.fullmatch(entry.name)) and wanted.fullmatch(match[1])
                    and entry.is_dir(follow_symlinks=False)
                ]  # fmt: skip
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
    for name, match in sorted(found):
        yield directory / name, directory / match[1], match[2]


def _abandoned(path: Path, place: Path) -> Workspace | None:
    """The workspace at `path` as our own, if its writer is dead."""
    taken = Workspace.__new__(Workspace)
    try:
        if not taken._claim(path, place):
            return None
        if taken._lock is None and time.time() - os.lstat(path).st_mtime < _OLD:
            return None
    except FileNotFoundError:
        return None
    except StorageError as error:
        if error.errno not in _NOT_OURS:
            raise
        return None
    return taken


def left_behind(directory: Path, names: str, kind: str) -> Iterator[Workspace]:
    """Workspaces of one kind whose writers are dead; each is ours until the next is asked for."""
    for path, place, of_kind in _found(directory, names):
        taken = _abandoned(path, place) if of_kind == kind else None
        if taken is not None:
            try:
                yield taken
            finally:
                taken.release()


def sweep(directory: Path, names: str) -> None:
    """Finish or remove what dead writers left.

    An exchange that was cut between its renames is undone. Workspaces are removed, but those of
    repairs, which `check.repair` looks into.

    Parameters
    ----------
    directory : Path
    names : str
        A pattern (`re`) of the names of the places that the workspaces were made for.
    """
    for path, place, kind in _found(directory, names):
        taken = _abandoned(path, place)
        if taken is None:
            continue
        try:
            # What was exchanged or renamed stays so, before what it replaced is removed.
            files.sync_dirs([directory])
            taken.put_back()
            if kind != "repair":
                taken.remove()
        finally:
            taken.release()


def places(directory: Path, names: str) -> dict[Path, Path]:
    """Directories whose names match a pattern, and where each of them is: at its place, or aside,
    where an exchange by renames was killed or is under way.

    All comes from one listing, and what that names is returned, also if it has gone since. With
    two looks, at the names first and then at what each of them is, this would be lost: the listing
    names checkpoint 1; a save puts 2 there, and retires 1; then 1 is no directory any more, and
    the directory seems empty, which it never was. Who opens what is returned finds out.
    """
    wanted, found = re.compile(names), {}
    exchanged: dict[Path, list[Path]] = {}
    with explained(directory, "cannot list the directory"):
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    place, match = directory / entry.name, _NAME.fullmatch(entry.name)
                    if wanted.fullmatch(entry.name) and _was_directory(entry):
                        found[place] = place
                    elif match and wanted.fullmatch(match[1]):
                        exchanged.setdefault(directory / match[1], []).append(place / _ASIDE)
        except (FileNotFoundError, NotADirectoryError):
            return {}
    for place, asides in exchanged.items():
        # In this order: what is put aside after the first look was at its place until then, and
        # what has left it again before has been replaced there.
        there = None if place in found else next(filter(_is_dir, (*asides, place)), None)
        if there is not None:
            found[place] = there
    return found


def _is_dir(path: Path) -> bool:
    """Whether a directory is there, as far as this user may know: another user's workspace may be
    closed to all others, and what is in it is no checkpoint that they could read."""
    try:
        return files.is_dir(path)
    except StorePermissionError:
        return False


def _was_directory(entry: os.DirEntry[str]) -> bool:
    """Whether a listing names a directory, or a link to one; what is gone may have been one."""
    return entry.is_dir() or not (entry.is_file() or os.path.lexists(entry.path))


def discard(paths: Iterable[Path]) -> None:
    """Remove directories of one directory. By a rename first: none is ever seen half removed.

    Of a link only the link is removed. What another process has removed meanwhile is fine. One that
    stays (somebody may have mounted it, or made it immutable) keeps none of the others: the error
    comes when all were tried.
    """
    paths, refused = list(paths), None
    if not paths:
        return
    with Workspace(paths[0], "old") as room:
        for number, path in enumerate(paths):
            try:
                files.rename(path, room.path / f"{number}.{path.name}")
            except StorageError as error:
                if error.errno != errno.ENOENT and refused is None:
                    # Of the working name, which goes now, nobody knows.
                    plain = OSError(error.errno, os.strerror(error.errno or 0))
                    refused = translated(plain, path, "cannot remove it")
                    refused.__cause__ = error
        files.sync_dirs({path.parent for path in paths})  # before their files go
    if refused is not None:
        raise refused
