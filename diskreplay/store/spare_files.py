"""Files that are ready before a field has rows for them."""

import contextlib
from pathlib import Path

from diskreplay.errors import StorageError
from diskreplay.store import files
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.mapping import Mapping

WORTH_A_SPARE = 1 << 20  # bytes of a file that is made ready before it is opened


class SpareFiles:
    """Files for the next segments of a raw field: to open one is a rename.

    Attributes
    ----------
    ready : list of Mapping
    """

    def __init__(self, of: ColumnFiles, size: int) -> None:
        self._files, self._size = of, size
        self._made = 0
        self.ready: list[Mapping] = []

    def keep(self, wanted: int, *, prepared: bool) -> None:
        """Have that many ready, `prepared` for writing to their mappings."""
        while len(self.ready) < wanted:
            self._made += 1
            path = self._files.paths.spare(self._made)
            self.ready.append(Mapping.create(path, self._size, prepared=prepared))

    def take(self, path: Path) -> Mapping:
        """A file at `path`: one that was ready, or else a new one."""
        if not self.ready:
            # Pages of a long file come when they are touched: an `add` does not wait for them all.
            return Mapping.create(path, self._size, prepared=self._size < WORTH_A_SPARE)
        mapping = self.ready.pop()
        try:
            files.rename(mapping.path, path)
        except BaseException:
            self.ready.append(mapping)
            raise
        mapping.path = path
        return mapping

    def remove(self) -> None:
        """There are none from here on."""
        for spare in self.ready:
            with contextlib.suppress(StorageError):  # the next opening removes it
                files.remove(spare.path)
        self.ready.clear()
