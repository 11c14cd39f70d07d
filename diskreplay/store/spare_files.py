"""Files that are ready before a field has rows for them."""

import contextlib
import itertools
from pathlib import Path

from diskreplay.errors import StorageError
from diskreplay.store import files
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.mapping import Mapping

WORTH_A_SPARE = 1 << 16  # bytes of a file that is made ready before it is opened
_LARGE = 1 << 20  # bytes


class SpareFiles:
    """Files for the next segments of a raw field: to open one that is in its place already touches
    no file, to open another one is a rename.

    Attributes
    ----------
    ready : list of Mapping
        Among the private files.
    placed : dict of (number, group) to Mapping
        In the places of segments to come.
    """

    def __init__(self, of: ColumnFiles, size: int) -> None:
        self._files, self._size = of, size
        self._numbers = itertools.count(1)  # of two threads none gets the same one
        self._ended = False
        self.ready: list[Mapping] = []
        self.placed: dict[tuple[int, int], Mapping] = {}

    def keep(self, wanted: int, *, prepared: bool) -> None:
        """Have that many ready, `prepared` for writing to their mappings."""
        while len(self.ready) < wanted and not self._ended:
            self.ready.append(self._made(prepared=prepared))

    def _made(self, *, prepared: bool) -> Mapping:
        path = self._files.paths.spare(next(self._numbers))
        return Mapping.create(path, self._size, prepared=prepared)

    def place(self, key: tuple[int, int], path: Path) -> None:
        """Put a file that is ready, if one is, in the place of a segment to come."""
        if self.ready:
            self.placed[key] = self.take(path)

    def take(self, path: Path) -> Mapping:
        """A file at `path`: one that was ready, or else a new one.

        It takes the place of what is there. That is never written to: it may be a file that has
        left, and could not be deleted, and checkpoints may share it.
        """
        try:
            mapping = self.ready.pop()
        except IndexError:  # none was, or another thread has just taken it
            # Pages of a long file come when they are touched: an `add` does not wait for them all.
            mapping = self._made(prepared=self._size < _LARGE)
        try:
            files.rename(mapping.path, path)
        except BaseException:
            self.ready.append(mapping)
            raise
        mapping.path = path
        return mapping

    @property
    def mappings(self) -> list[Mapping]:
        return [*self.ready, *self.placed.values()]

    def forget(self) -> None:
        """Their files are somebody else's to remove."""
        self.ready.clear()
        self.placed.clear()

    def remove(self) -> None:
        """There are none from here on."""
        self._ended = True
        while self.ready or self.placed:
            # Taken out first: Ctrl-C may come behind the removal, and rows be added after all.
            spare = self.ready.pop() if self.ready else self.placed.popitem()[1]
            with contextlib.suppress(StorageError):  # the next opening removes it
                files.remove(spare.path)
