"""What an export or a copy leaves behind: there whole, or not at all."""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from diskreplay import signals
from diskreplay.errors import FormatError, InvalidInputError, LockedError, StorageError
from diskreplay.store import file_locks, files, format, manifest, private, tempfiles
from diskreplay.store.outside import check_holds_none, check_outside
from diskreplay.store.paths import identity, resolved
from diskreplay.store.system_errors import explained


@contextlib.contextmanager
def new_file(out: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """A path beside `out` to write a file at, which takes its place when the block ends well. An
    `InvalidInputError` if there is something at `out`, and it is no file or `overwrite` is not
    given; also if it came while the block ran."""
    out = resolved(out)
    check_wanted(out, overwrite)
    if files.is_there(out) and not files.is_file(out):
        what = "a directory" if files.is_dir(out) else "no regular file (a pipe or device)"
        raise InvalidInputError(f"{out}: {what}, where a file is to be written")
    with _workspace(out) as room:
        beside = room.path / out.name
        with written(out):
            yield beside
        files.sync([beside])
        if overwrite or not _linked(beside, out):
            check_wanted(out, overwrite)
            files.rename(beside, out)
        files.sync_dirs([out.parent])


def _linked(made: Path, out: Path) -> bool:
    """Give a file a name that nothing has, which a rename would replace; False where the file
    system has no links."""
    try:
        return files.link(made, out)
    except StorageError as error:
        if error.errno == errno.EEXIST:
            check_wanted(out, False)
        raise


@contextlib.contextmanager
def new_files(
    out: str | os.PathLike[str], suffix: str, *, overwrite: bool = False
) -> Iterator[Path]:
    """The same for a directory of files; one that has anything else in it is never replaced."""
    out = resolved(out)

    def may_replace() -> bool:
        if not files.is_there(out):
            return False
        check_wanted(out, overwrite)
        if not files.is_dir(out) or not all(
            path.suffix == suffix and files.is_file(path) for path in files.listed(out)
        ):
            raise not_replaced(out, f"holds other things than {suffix} files")
        return True

    with new_directory(out, may_replace=may_replace) as beside:
        files.make_dirs(beside)
        with written(out):
            yield beside
        files.sync([*files.listed(beside), beside])


@contextlib.contextmanager
def new_store(out: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """The same for a store, which the block has to close. A `LockedError` if the store at `out` is
    to be replaced, and a writer has it open."""
    out = resolved(out)
    ours: set[tuple[int, ...] | None] = set()
    with contextlib.ExitStack() as held:

        def may_replace() -> bool:
            if not files.is_there(out):
                return False
            check_wanted(out, overwrite)
            try:
                format.read_attributes(out)
            except FormatError:
                raise not_replaced(out, "no store") from None
            if manifest.is_checkpoint(out):
                raise InvalidInputError(f"{out}: a checkpoint, which is never replaced")
            check_holds_none(out)
            if identity(private.lock_file(out)) not in ours:  # another one came meanwhile, say
                held.enter_context(private.held(out))
                ours.add(identity(private.lock_file(out)))
            return True

        with new_directory(out, may_replace=may_replace) as beside:
            yield beside


@contextlib.contextmanager
def new_directory(
    out: Path, *, may_replace: Callable[[], bool] | None = None, instead: Path | None = None
) -> Iterator[Path]:
    """The same for any directory, which the block has to make and to sync. `may_replace` says
    whether something is at `out` that goes then, and raises where something is that has to stay:
    it is asked before the block and after it, since others may put something there meanwhile.
    Without it nothing is replaced. With `instead`, a path on the same file system, it is made
    beside that, and replaces nothing."""

    def nothing_there() -> bool:
        check_wanted(out, False)
        return False

    ask = may_replace or nothing_there
    if instead is None:
        ask()
    with _workspace(instead or out) as room:
        beside = room.path / out.name
        yield beside
        if instead is None:
            _take_place(room, beside, ask)
        else:
            files.rename(beside, out)
            files.sync_dirs([out.parent])


def _take_place(room: tempfiles.Workspace, made: Path, ask: Callable[[], bool]) -> None:
    for last in (False, True):
        if ask():
            room.put_in_place(made)
            return
        try:
            files.rename(made, room.place)  # which replaces no directory that has something in it
            files.sync_dirs([room.place.parent])
            return
        except StorageError:
            if last or not files.is_there(room.place):
                raise


@contextlib.contextmanager
def alone(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a file that is there only for the block; a `LockedError` with this text where another
    process does. Where the file system has no locks, nobody can tell."""
    held = None
    try:
        with signals.undisturbed():  # after Ctrl-C amid it nobody would know of the lock
            held = _hold(lock, refusal)
        yield
    finally:
        if held is not None:
            try:
                files.remove(lock)
            finally:
                file_locks.unlock(held)


def _hold(lock: Path, refusal: str) -> int | None:
    try:
        while (held := file_locks.try_lock(lock)) is not None:
            if files.is_at(held, lock):
                return held
            file_locks.unlock(held)  # of an export that has ended since
    except StorageError as error:
        if error.errno not in file_locks.NO_LOCKS:
            raise
        return None
    raise LockedError(refusal)


def written(out: Path) -> explained:
    """What other packages raise of a disk that is full, or refuses something, as ours: for a block
    that writes to `out` and opens nothing else."""
    return explained(out, "cannot write it")


def check_wanted(out: Path, overwrite: bool) -> None:
    """Refuse to replace what is at `out` unasked."""
    if files.is_there(out) and not overwrite:
        raise InvalidInputError(
            f"{out}: is there already; choose another path, or ask for it to be replaced "
            "(overwrite=True)"
        )


def not_replaced(out: Path, what: str) -> InvalidInputError:
    """Says why what is at `out` stays, asked for or not."""
    return InvalidInputError(
        f"{out}: {what}, so it is not replaced; choose another path, or remove it yourself"
    )


@contextlib.contextmanager
def making(directory: Path) -> Iterator[None]:
    """A directory and those around it, for a block that puts something there. Those that were made
    for it do not stay empty where it fails."""
    missing = [each for each in (directory, *directory.parents) if not files.is_there(each)]
    try:
        files.make_dirs(directory)
        yield
    except BaseException:
        with contextlib.suppress(StorageError):  # what failed is told, not this
            for each in missing:
                files.remove_empty_dir(each)
        raise


@contextlib.contextmanager
def _workspace(out: Path) -> Iterator[tempfiles.Workspace]:
    check_outside(out)
    with making(out.parent):
        tempfiles.sweep(out.parent, re.escape(out.name))
        with tempfiles.Workspace(out, "tmp") as room:
            yield room
