"""What an export or a copy leaves behind: there whole, or not at all."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from diskreplay.errors import FormatError, InvalidInputError, StorageError
from diskreplay.store import files, format, manifest, private, tempfiles
from diskreplay.store.outside import check_holds_none, check_outside
from diskreplay.store.paths import resolved
from diskreplay.store.system_errors import explained


@contextlib.contextmanager
def new_file(out: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """A path beside `out` to write a file at, which takes its place when the block ends well. An
    `InvalidInputError` if there is something at `out`, and it is no file or `overwrite` is not
    given."""
    out = resolved(out)
    check_wanted(out, overwrite)
    if files.is_there(out) and not files.is_file(out):
        raise InvalidInputError(f"{out}: a directory, where a file is to be written")
    with _workspace(out) as room:
        beside = room.path / out.name
        with written(out):
            yield beside
        files.sync([beside])
        files.rename(beside, out)
        files.sync_dirs([out.parent])


@contextlib.contextmanager
def new_files(
    out: str | os.PathLike[str], suffix: str, *, overwrite: bool = False
) -> Iterator[Path]:
    """The same for a directory of files; one that has anything else in it is never replaced."""
    out = resolved(out)
    if files.is_there(out):
        check_wanted(out, overwrite)
        if not files.is_dir(out) or not all(
            path.suffix == suffix and files.is_file(path) for path in files.listed(out)
        ):
            raise not_replaced(out, f"holds other things than {suffix} files")
    with new_directory(out) as beside:
        files.make_dirs(beside)
        with written(out):
            yield beside
        files.sync([*files.listed(beside), beside])


@contextlib.contextmanager
def new_store(out: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """The same for a store, which the block has to close. A `LockedError` if the store at `out` is
    to be replaced, and a writer has it open."""
    out = resolved(out)
    with contextlib.ExitStack() as held:
        if files.is_there(out):
            check_wanted(out, overwrite)
            try:
                format.read_attributes(out)
            except FormatError:
                raise not_replaced(out, "no store") from None
            if manifest.is_checkpoint(out):
                raise InvalidInputError(f"{out}: a checkpoint, which is never replaced")
            check_holds_none(out)
            held.enter_context(private.held(out))
        with new_directory(out) as beside:
            yield beside


@contextlib.contextmanager
def new_directory(out: Path, *, instead: Path | None = None) -> Iterator[Path]:
    """The same for any directory, which the block has to make and to sync; it replaces what is
    there. With `instead`, a path on the same file system, it is made beside that, and replaces
    nothing."""
    with _workspace(instead or out) as room:
        beside = room.path / out.name
        yield beside
        if instead is None:
            room.put_in_place(beside)
        else:
            files.rename(beside, out)
            files.sync_dirs([out.parent])


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
