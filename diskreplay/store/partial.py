"""Copies of segments that are not sealed, with the rows of one moment, for checkpoints.

One is made while nobody adds rows, and written when some may have come. Maintenance is kept out all
the while.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from diskreplay.store import codec, files
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.segment import RawSegment, Seal, Segment, Shard
from diskreplay.store.tail import Tail


class PartialSegment:
    """Of a raw segment, whose rows stay where they are, whatever comes behind them.

    The bytes that no row has are holes in the file, and zeros for its checksum.

    Parameters
    ----------
    count : ndarray of int64, shape (num_envs,)
        Rows of each env that there are.
    """

    def __init__(self, segment: RawSegment, count: np.ndarray) -> None:
        self._segment, self._field = segment, segment.field
        self._used = segment.used_of(count)
        self._pieces: list[tuple[int, np.ndarray]] | None = None

    def copy(self) -> None:
        """There is nothing to copy."""

    def copy_values(self) -> None:
        """Copy all rows: their values may be replaced."""
        self._pieces = [(offset, piece.copy()) for offset, piece in self._there()]

    def write(self, path: Path) -> Seal:
        """Write the segment to a new file."""
        pieces = self._there() if self._pieces is None else self._pieces
        size, crc, end = self._field.segment_bytes, 0, 0
        files.write(path, [], length=size)
        fd = files.open_to_write(path)
        try:
            for offset, piece in pieces:
                files.write_at(fd, path, piece.data, offset)
                crc = codec.crc32c(piece, start=codec.crc32c(b"", start=crc, zeros=offset - end))
                end = offset + len(piece)
        finally:
            files.close(fd)
        return Seal(size, codec.crc32c(b"", start=crc, zeros=size - end))

    def _there(self) -> list[tuple[int, np.ndarray]]:
        """The bytes of all rows that count: where each piece begins in the file, and a view or
        copy of it."""
        field, used, data = self._field, self._used, self._segment.mapping.array
        if field.env_group == 1 or field.env_major:
            starts = np.arange(len(used)) * field.segment_rows * field.row_bytes
            sizes = used * field.row_bytes
            return [
                (start, data[start : start + size])
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
                if size
            ]
        least, most = int(used.min(initial=0)), int(used.max(initial=0))
        of_all, end = least * field.stride, most * field.stride
        pieces = [(0, data[:of_all])] * (of_all > 0)
        if of_all < end:  # moments that only some envs have come to
            some = self._segment.every_row[least:most].copy()
            some[:, : len(used)][np.arange(least, most)[:, None] >= used] = 0
            pieces.append((of_all, some.reshape(-1)))
        return pieces


class PartialShard:
    """Of a shard: what is in it stays there, what is in the tail is copied, since other rows get
    its places, and compressed later.

    Parameters
    ----------
    count : ndarray of int64, shape (num_envs,)
        Rows of each env that there are.
    take : callable
        Given ids and memory: reads these rows, wherever they are by then.
    """

    def __init__(
        self,
        segment: Shard,
        tail: Tail,
        count: np.ndarray,
        take: Callable[[np.ndarray, np.ndarray], None],
    ) -> None:
        self._segment, self._index, self._end = segment, segment.index.copy(), segment.end
        self._envs, self._starts, self._used = tail.blocks_of(segment, count)
        self._places = segment.places_of(self._envs, self._starts)
        self._behind = codec.used_bytes(segment.field, segment.used_of(count))
        self._take, self._num_envs = take, len(count)
        self._copied: np.ndarray | None = None
        self._before = np.cumsum(self._used) - self._used

    def copy(self) -> None:
        """Copy the rows in the tail. Some may be in the shard by now. Call it before the segment
        is let go of: with `rwlock` held for reading, or while nobody adds rows."""
        used, field = self._used, self._segment.field
        rows = np.repeat(self._starts - self._before, used) + np.arange(used.sum())
        copied = np.empty((len(rows), *field.shape), field.dtype)
        if len(rows):
            self._take(rows * self._num_envs + np.repeat(self._envs, used), copied)
        self._copied = copied

    def write(self, path: Path) -> Seal:
        """Write the segment to a new file."""
        if self._copied is None:
            self.copy()
        assert self._copied is not None
        field, index = self._segment.field, self._index
        sources = self._copied.ctypes.data + self._before * field.row_bytes
        more, lengths = codec.encode(field, sources, self._used)
        codec.enter(index, self._places, self._end, lengths)
        pieces = self._segment.contents(index, self._end, more)
        written = np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces])
        written, named = codec.named_only(field, written, index)
        files.write(path, [written.data, self._behind])
        return Seal(len(written) + len(self._behind), codec.checksum(written, named))


Partial = PartialSegment | PartialShard
"""The first rows of each env in a segment."""


class NoShard(Shard):
    """A segment without a shard: all of its rows are in the tail."""

    def __init__(self, field: Field, number: int, group: int) -> None:
        Segment.__init__(self, field, number, group, cast(Mapping, None))
        self.index, self._fd = codec.blank_index(field), None
        self.end = field.index_bytes + 4

    def contents(self, index: np.ndarray, end: int, more: np.ndarray) -> list[Any]:
        return [codec.index_bytes(index), more.data]
