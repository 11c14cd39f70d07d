"""What an export or a copy leaves behind: there whole, or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.store import files, format, leftovers


@contextlib.contextmanager
def new_file(out: str | os.PathLike, *, overwrite: bool = False) -> Iterator[Path]:
    """A path beside `out` to write a file at, which takes its place when the block ends well.

    Raises
    ------
    InvalidInputError
        There is something at `out`, and it is no file or `overwrite` is not given.
    StorageError
    """
    out = Path(out).absolute()
    check_wanted(out, overwrite)
    if out.exists() and not out.is_file():
        raise InvalidInputError(f"{out}: a directory, where a file is to be written")
    beside = _beside(out)
    try:
        yield beside
        files.sync([beside])
        files.rename(beside, out)
    except BaseException:
        files.remove(beside)
        raise
    files.sync_dirs([out.parent])


@contextlib.contextmanager
def new_files(out: str | os.PathLike, suffix: str, *, overwrite: bool = False) -> Iterator[Path]:
    """The same for a directory of files; one that holds anything else is never replaced."""
    out = Path(out).absolute()
    if out.exists():
        check_wanted(out, overwrite)
        if not out.is_dir() or any(path.suffix != suffix for path in out.iterdir()):
            raise InvalidInputError(
                f"{out}: holds other things than {suffix} files, so it is not replaced; choose "
                "another path, or remove it yourself"
            )
    with new_directory(out) as beside:
        files.make_dirs(beside)
        yield beside
        files.sync([*beside.iterdir(), beside])


@contextlib.contextmanager
def new_store(out: str | os.PathLike, *, overwrite: bool = False) -> Iterator[Path]:
    """The same for a store, which the block has to close.

    Raises
    ------
    LockedError
        The store at `out` is to be replaced, and a writer has it open.
    """
    out = Path(out).absolute()
    with contextlib.ExitStack() as held:
        if out.exists():
            check_wanted(out, overwrite)
            try:
                format.read_attributes(out)
            except FormatError:
                raise InvalidInputError(
                    f"{out}: no store, so it is not replaced; choose another path, or remove it "
                    "yourself"
                ) from None
            if (out / "manifest.json").exists():
                raise InvalidInputError(f"{out}: a checkpoint, which is never replaced")
            held.callback(files.unlock, files.lock(out / "lock"))
        with new_directory(out) as beside:
            yield beside


@contextlib.contextmanager
def new_directory(out: Path, *, instead: Path | None = None) -> Iterator[Path]:
    """The same for any directory, which the block has to make and to sync; it replaces what is
    there. With `instead`, a path on the same file system, it is made beside that."""
    beside = _beside(instead or out)
    files.remove_tree(beside)
    try:
        yield beside
        if out.exists():
            files.exchange(beside, out)
            files.sync_dirs([out.parent])  # else the old one may come back, and its files be gone
            files.remove_tree(beside)
        else:
            files.rename(beside, out)
    except BaseException:
        files.remove_tree(beside)
        raise
    files.sync_dirs([out.parent])


def check_wanted(out: Path, overwrite: bool) -> None:
    """Refuse to replace what is at `out` unasked.

    Raises
    ------
    InvalidInputError
    """
    if out.exists() and not overwrite:
        raise InvalidInputError(
            f"{out}: is there already; choose another path, or ask for it to be replaced "
            "(overwrite=True, --force)"
        )


def _beside(out: Path) -> Path:
    files.make_dirs(out.parent)
    leftovers.remove_leftovers(out.parent, out.name)
    return out.with_name(f".{out.name}.tmp-{os.getpid()}")
