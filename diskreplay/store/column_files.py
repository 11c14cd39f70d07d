"""Where the files of one field are: segments in their places, and those of its writer."""

import os
import threading
from pathlib import Path

from diskreplay.store import files, private
from diskreplay.store.field import Field
from diskreplay.store.place import Place


class ColumnFiles:
    """The files of one field.

    Attributes
    ----------
    place : Place
    number : int
        The field's place in the list of the group's attributes; names its private files.
    new : list of Path
        Of opened segments, whose names are not durable yet.
    pending_deletes : list of Path
        To be deleted after the next record.
    changing : threading.Lock
        Held by who makes, closes, puts in its place or deletes the file of a segment: the
        maintenance thread and adding threads. Taken before `rwlock`, never after it.
    """

    def __init__(self, place: Place, number: int, field: Field) -> None:
        self.place, self.number, self._field = place, number, field
        self.new: list[Path] = []
        self.pending_deletes: list[Path] = []
        self.changing = threading.Lock()

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self.place.path

    @property
    def directory(self) -> Path:
        """That of the field: a Zarr array."""
        return self.root / self._field.name

    def chunk(self, number: int, group: int) -> Path:
        """The Zarr chunk (or shard) of a segment, in its place."""
        return self.directory / self._field.chunk_key(number, group)

    @property
    def private_directory(self) -> Path:
        """Where all of `private` are."""
        return private.open_shards(self.root, self.number)

    def private(self, number: int, group: int) -> Path:
        """A segment's file while it has no place yet: a shard that blocks are appended to, or a
        copy that values are written to."""
        return private.open_shard(self.root, self.number, number, group)

    def live(self, number: int, group: int) -> Path:
        """The chunk of a raw segment as the writer has it who is at work."""
        copy = self.private(number, group)
        is_copied = self._field.mutable and os.path.lexists(copy)
        return copy if is_copied else self.chunk(number, group)

    def of(self, number: int, group: int) -> list[Path]:
        """All that go with a segment that has left."""
        chunk = self.chunk(number, group)
        has_private = self._field.packed or self._field.mutable
        return [self.private(number, group), chunk] if has_private else [chunk]

    @property
    def tail(self) -> Path:
        """Of a packed field."""
        return private.tail(self.root, self.number)

    def spare(self, made: int) -> Path:
        """A file made ready for a segment to come."""
        return private.spare(self.root, self.number, made)

    def unsealed(self, made: int = 0) -> Path:
        """A copy of a sealed segment, to go on in, that is not whole yet; several may be."""
        return private.unsealed(self.root, self.number, made)

    def make_way(self, path: Path) -> Path:
        """See to it that a file can be made at `path`, and is not deleted as one that has left.
        Call it with `changing` held.

        Raises
        ------
        StoreMovedError
            The store's directory was moved: the file would be in a new one, or in another store.
        """
        self.place.check()
        files.make_dirs(path.parent)
        if path in self.pending_deletes:
            self.pending_deletes.remove(path)
        return path

    def delete_pending(self) -> None:
        """Delete files of segments that have left."""
        while self.pending_deletes:
            with self.changing:  # else a file may be deleted that was just made anew
                if self.pending_deletes:
                    files.remove(self.pending_deletes[-1])
                    self.pending_deletes.pop()

    def move(self, before: Path) -> None:
        """The store's directory, which was `before`, is `root` now. Cannot fail."""
        self.new = [self.root / path.relative_to(before) for path in self.new]
