"""Files that are ready before a field has rows for them: new ones, and those of segments that have
left."""

import contextlib
import itertools
from pathlib import Path

from diskreplay.errors import StorageError
from diskreplay.store import files, leases
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
    left : list of int
        Numbers of private files that were those of segments which have left. Each becomes a spare
        before a new file is made.
    used : int
        How many files were taken lately. Not more are kept of those that have left: what `evict`
        lets go of is room on the disk.
    """

    def __init__(self, of: ColumnFiles, size: int) -> None:
        self._files, self._size = of, size
        self._numbers = itertools.count(1)  # of two threads none gets the same one
        self._ended = False
        self.ready: list[Mapping] = []
        self.placed: dict[tuple[int, int], Mapping] = {}
        self.left: list[int] = []
        self.used = 0

    def take_back(self, path: Path) -> None:
        """Keep the file of a segment that has left, or remove it. A record has let go of its rows:
        they are overwritten. It may be gone already."""
        if self._size < _LARGE or len(self.left) >= self.used or self._ended:
            files.remove(path)
            return
        number = next(self._numbers)
        try:
            files.rename(path, self._files.paths.spare(number))
        except StorageError:  # a full disk may have no room for a name; to remove one takes none
            files.remove(path)
        else:
            self.left.append(number)

    def trim_left(self, soon: int) -> None:
        """Remove the files that have left and are more than were taken lately, of which `soon` or
        more stay. To be called with each record."""
        self._remove_left(self.used)
        # Half, and not none: of two records one may come before a file is taken, or leaves.
        self.used = max(self.used // 2, min(self.used, soon))

    def _remove_left(self, kept: int) -> None:
        while len(self.left) > kept:
            with contextlib.suppress(IndexError, StorageError):  # the next opening removes it
                files.remove(self._files.paths.spare(self.left.pop(0)))

    def keep(self, wanted: int, *, prepared: bool) -> None:
        """Have that many ready, `prepared` for writing to their mappings."""
        while len(self.ready) < wanted and not self._ended:
            self.ready.append(self._made(prepared=prepared))

    def _made(self, *, prepared: bool) -> Mapping:
        self._files.place.check()  # else it may be another store's file that is taken
        mapping = self._made_of_left()
        if mapping is None:
            path = self._files.paths.spare(next(self._numbers))
            mapping = Mapping.create(path, self._size, prepared=False)
        if prepared:
            mapping.prepare()
        return mapping

    def _made_of_left(self) -> Mapping | None:
        """One of those that have left, unless somebody else has each of them."""
        while self.left:
            try:
                number = self.left.pop()
            except IndexError:  # another thread has just taken it
                break
            path = self._files.paths.spare(number)
            try:
                # What the system refuses is no error: a new file takes its place, if it can.
                with contextlib.suppress(StorageError):
                    if leases.nobody_else_has(path, self._size):
                        files.blank(path, self._size)
                        return Mapping.open(path, size=self._size, writable=True)
                with contextlib.suppress(StorageError):  # the next opening removes it
                    files.remove(path)
            except BaseException:  # Ctrl-C
                self.left.append(number)
                raise
        return None

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
        self.used += 1
        return mapping

    @property
    def mappings(self) -> list[Mapping]:
        return [*self.ready, *self.placed.values()]

    def forget(self) -> None:
        """Their files are somebody else's to remove."""
        self.ready.clear()
        self.placed.clear()
        self.left.clear()

    def remove(self) -> None:
        """There are none from here on."""
        self._ended = True
        self._remove_left(0)
        while self.ready or self.placed:
            # Taken out first: Ctrl-C may come behind the removal, and rows be added after all.
            spare = self.ready.pop() if self.ready else self.placed.popitem()[1]
            with contextlib.suppress(StorageError):  # the next opening removes it
                files.remove(spare.path)
