"""Where the files of one field of a store are."""

import os
from pathlib import Path
from typing import NamedTuple

from diskreplay.store import private
from diskreplay.store.field import Field


class FieldPaths(NamedTuple):
    """The files of one field: segments in their places, and the private ones of its writer.

    Attributes
    ----------
    root : Path
        The store's directory.
    number : int
        The field's place in the list of the group's attributes; names its private files.
    field : Field
    """

    root: Path
    number: int
    field: Field

    @property
    def directory(self) -> Path:
        """That of the field: a Zarr array."""
        return self.root / self.field.name

    def chunk(self, number: int, group: int) -> Path:
        """The Zarr chunk (or shard) of a segment, in its place."""
        return self.directory / self.field.chunk_key(number, group)

    @property
    def tail(self) -> Path:
        """Of a packed field."""
        return private.directory(self.root) / f"tail.{self.number}"

    @property
    def open_segments(self) -> Path:
        """The directory of all that `open_segment` names."""
        return private.directory(self.root) / f"open.{self.number}"

    def open_segment(self, number: int, group: int) -> Path:
        """A segment's file while it has no place yet: a shard that blocks are appended to, or a
        copy that values are written to."""
        return self.open_segments / f"{number}.{group}"

    def live_chunk(self, number: int, group: int) -> Path:
        """The chunk of a raw segment as the writer has it who is at work."""
        copy = self.open_segment(number, group)
        is_copied = self.field.mutable and os.path.lexists(copy)  # a link is for others to refuse
        return copy if is_copied else self.chunk(number, group)

    def spare(self, made: int) -> Path:
        """A file made ready for a segment to come."""
        return private.directory(self.root) / f"spare.{self.number}.{made}"

    def unsealed(self, made: int = 0) -> Path:
        """A copy of a sealed segment, to go on in, that is not whole yet; several may be. No two
        fields have one name: upkeep may copy one's while an adding thread copies another's."""
        return private.directory(self.root) / f"unsealed.{self.number}.{made}"

    def flushed(self, number: int, group: int) -> Path:
        """A shard for plain readers, of a segment that is not sealed, before it is in its place.
        Where it does not come there, closing the store removes it, or the next opening."""
        return private.directory(self.root) / f"unsealed.{self.number}.{number}.{group}"

    def of_segment(self, number: int, group: int) -> list[Path]:
        """All that go with a segment that has left."""
        chunk = self.chunk(number, group)
        has_private = self.field.packed or self.field.mutable
        return [self.open_segment(number, group), chunk] if has_private else [chunk]
