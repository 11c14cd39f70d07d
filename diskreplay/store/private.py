"""The private files of a live store: what its writer has besides the rows that are sealed.

They are in one directory, below that of a field which every store has. Zarr does not look there: it
lists the members of a group, and warns of each that is none, but never the inside of an array. So
a reader of the group sees the fields and nothing else, whatever the writer is doing. Names in here
hold the number of a field, its place in the list of the group's attributes, and never its name:
`field_paths` has those of a field.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from diskreplay.errors import CorruptSegmentError, FormatError, SchemaError, StorageError
from diskreplay.store import file_locks, files

PLACE = Path("is_final", "live")
ASIDE = "~aside"  # no name of a set ends with it


def directory(root: Path) -> Path:
    """The directory that all of them are in; a checkpoint has none."""
    return root / PLACE


def _named(root: Path, pattern: str) -> list[Path]:
    """Those whose names match."""
    return files.listed(directory(root), pattern) if files.is_dir(directory(root)) else []


def lock_file(root: Path) -> Path:
    """Held by the one writer."""
    return root / PLACE / "lock"


def commit_page(root: Path) -> Path:
    """The page of committed counts."""
    return root / PLACE / "state"


def new_priorities(root: Path, name: str) -> Path:
    """A set of priorities that is still being written."""
    return root / PLACE / name


def old_priorities(root: Path, name: str) -> Path:
    """That which it replaces, while renames stand in for an exchange."""
    return root / PLACE / f"{name}{ASIDE}"


def all_old_priorities(root: Path) -> list[Path]:
    """Those of every set that are there."""
    return [path for path in _named(root, f"priority*{ASIDE}") if files.is_dir(path)]


def ring(root: Path, env: int) -> Path:
    """The rows that a process of its own adds to an env, until the writer takes them."""
    return root / PLACE / f"ring.{env}"


def ring_that_is_made(ring: Path) -> Path:
    """A ring before it is whole; among the spares, which the next opening removes."""
    return ring.with_name(f"spare.{ring.name}")


def rings(root: Path) -> list[Path]:
    """All that are there."""
    return sorted(path for path in _named(root, "ring.*") if path.suffix[1:].isdecimal())


def taker(root: Path) -> Path:
    """Held by the writer that takes rows from rings."""
    return root / PLACE / "taker"


def take_place_of(root: Path, build: Path) -> None:
    """Make the place of private files of a store that is to take another one's, with its rings: the
    same files, since actors have them mapped."""
    files.make_dirs(directory(build))
    for path in [*rings(root), taker(root)]:
        if files.is_there(path) and not files.link(path, directory(build) / path.name):
            raise StorageError(
                errno.ENOTSUP,
                "the file system cannot link files, which this needs while actors write to the "
                "store: let them end, and close the buffer",
                os.fspath(path),
            )


def check_no_rings(root: Path, name: str) -> None:
    """Refuse a new field while actors' rows, which do not have it, wait to be taken."""
    if there := rings(root):
        raise SchemaError(
            f"{there[0]}: an actor's rows, which have no {name!r}; open the store without "
            "new_extras, end the actors and close it, and then add the field"
        )


def begun(root: Path) -> list[Path]:
    """Spares, and copies that are not whole: of no use to the next writer."""
    return [*_named(root, "unsealed*"), *_named(root, "spare.*")]


def clear(root: Path) -> None:
    """Remove what is of use only while rows come: of a store that was closed, whose shards are all
    in their places."""
    for path in [*_named(root, "tail.*"), *begun(root)]:
        files.remove(path)
    for inside in _named(root, "open.*"):
        for path in files.listed(inside):
            files.remove(path)
        files.remove_empty_dir(inside)


def check_place(root: Path) -> None:
    """Refuse a directory of private files that is a link, with a `FormatError`: it may lead out of
    the store, and to a reader what is not there looks like a store that has no such files."""
    place = directory(root)
    if os.path.realpath(place) != os.path.join(os.path.realpath(root), PLACE):
        raise FormatError(
            f"{place}: it is, or is in, a link to another directory; move the files themselves "
            "there"
        )


def has_page(root: Path) -> bool:
    """Whether something is where the commit page is. A link to nowhere is refused as any other."""
    return os.path.lexists(commit_page(root))


def check_page(root: Path) -> None:
    """Refuse a live store without its commit page: the record alone may name fewer rows."""
    if not has_page(root):
        raise CorruptSegmentError(f"{commit_page(root)}: missing; {_restore(root)}")


def _restore(root: Path) -> str:
    return (
        "restore it, load a checkpoint, or go on with the rows that are recorded after "
        f"`diskreplay verify {root} --repair`"
    )


def hold(root: Path) -> int:
    """Hold the store's lock; returns the descriptor that keeps it held, for `file_locks.unlock`.

    Raises
    ------
    LockedError
    FormatError
        The place of the lock is a link and leads out of the store, which may come from a stranger.
    CorruptSegmentError
        There is no such place.
    StorageError
    """
    check_place(root)
    if not files.is_there(directory(root)):
        raise CorruptSegmentError(f"{directory(root)}: missing; {_restore(root)}")
    return file_locks.lock(lock_file(root), of=root)


@contextlib.contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold the store's lock, as `hold` does, for the block. Its place is made if it is missing."""
    check_place(root)
    files.make_dirs(directory(root))
    lock = hold(root)
    try:
        yield
    finally:
        file_locks.unlock(lock)
