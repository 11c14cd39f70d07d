"""The directory that a store was opened in, whatever its path leads to later."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from diskreplay.errors import DiskReplayError, StoreMovedError
from diskreplay.store.held_file import Held
from diskreplay.store.paths import identity
from diskreplay.store.system_errors import explained

Found = TypeVar("Found")
_TRIES = 20


class Place(Held):
    """A directory that is held open, so that it can be told whether it is still at its path.

    Files of a store are named by path. Somebody may move the directory, and another store may come
    to its path: records would then be written to that one. So whoever is about to touch files asks
    first.

    Parameters
    ----------
    path : Path
        Without links.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # If nothing is there, whoever looks for a store finds that out, and says what it means.
        with (
            explained(path, "cannot open the directory"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            # O_PATH asks for no permission to list it.
            flags = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
            self._fd = os.open(path, flags)

    def holds(self) -> bool:
        """Whether the directory is at its path. Two system calls."""
        with explained(self.path, "cannot look at the directory"):
            try:
                there = os.stat(self.path)
                if self._fd is not None and os.path.samestat(there, os.fstat(self._fd)):
                    return True
            except (FileNotFoundError, NotADirectoryError):
                return False
        # Some file systems in user space give a directory another number each time that they are
        # asked. The kernel knows the path of what is held open.
        return self._now() == os.fspath(self.path)

    def check(self) -> None:
        """Refuse to go on where `holds` says no, with a `StoreMovedError`."""
        if self.holds():
            return
        now = self._now()
        if now is not None and now.endswith(" (deleted)"):
            what = "was deleted; load a checkpoint into a new store"
        else:
            where = "elsewhere" if now is None else f"to {now}"
            what = (
                f"was moved {where}, with all rows that were added; move it back, or close this "
                "buffer and open it there"
            )
        raise StoreMovedError(
            errno.ESTALE,
            f"the directory of the store that is open here {what}. What is at this path now was "
            "not touched",
            os.fspath(self.path),
        )

    def _now(self) -> str | None:
        """The path of the directory, where the system tells it."""
        try:
            return os.readlink(f"/proc/self/fd/{self._fd}")
        except OSError:
            return None


def read_steadily(path: Path, read: Callable[[], Found]) -> Found:
    """What `read` returns of a directory; begun again if another one takes its place meanwhile, or
    it gets another record, and `read` fails by that.

    A save replaces and retires checkpoints whoever reads them. A writer that opens a store with
    another capacity deletes files, but none that the record names.
    """
    for _ in range(_TRIES):
        place, record = Place(path), identity(path / "zarr.json")
        try:
            return read()
        except DiskReplayError:
            if place.holds() and identity(path / "zarr.json") == record:
                raise
        finally:
            place.close()
    return read()
