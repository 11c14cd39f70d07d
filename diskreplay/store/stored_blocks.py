"""Rows on their way to another process, in the blocks that a store has them in."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from diskreplay.errors import CorruptSegmentError
from diskreplay.store import codec
from diskreplay.store.column import Column, scratch
from diskreplay.store.field import Field
from diskreplay.store.segment_table import (
    BLOCK_ROWS,
    ENVS,
    FIGURES,
    LIVE,
    PACKED,
    ROW_BYTES,
    SEGMENT_ROWS,
    SLOTS,
    STEP,
    STRIDE,
)


def blocks_of(field: Field, spans: np.ndarray) -> np.ndarray:
    """How many blocks have the rows of each span, see `StoredBlocks.of`."""
    size = field.block_rows
    counts: np.ndarray = (spans[:, 2] - 1) // size - spans[:, 1] // size + 1
    return counts


class StoredBlocks(NamedTuple):
    """The blocks that have the rows of some spans, those of each span in their order.

    Attributes
    ----------
    data : ndarray of uint8
        The blocks, each with its CRC-32C behind it.
    lengths : ndarray of int64, shape (blocks,)
        Of each, in bytes.
    """

    field: Field
    data: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(
        cls, column: Column[Any], spans: np.ndarray, most: int, advice: np.ndarray,
        rusage: np.ndarray,
    ) -> Self | None:  # fmt: skip
        """Copy the blocks of a packed column that have the rows of some spans. The caller holds
        `rwlock`.

        Parameters
        ----------
        spans : ndarray of int64, shape (spans, 3)
            Env, first row, and the row behind the last one; retained ones, and one at least.
        most : int
            Bytes.
        advice, rusage : ndarray of int64
            See `batch_kernels.note_faults`; `rusage` is room for what the system says.

        Returns
        -------
        StoredBlocks or None
            None where they have more than `most` bytes, or might have: a block that is in no shard
            yet counts with all of its rows.
        """
        from diskreplay.store import block_kernels

        field, table = column.field, column.table.array
        sources, lengths = np.empty((2, int(blocks_of(field, spans).sum())), np.int64)
        failed = block_kernels.find(table, spans, sources, lengths)
        if not failed:
            room = int(lengths.sum()) + codec.most_bytes(field, int((lengths == 0).sum()))
            if room > most:
                return None
            data = np.empty(room, np.uint8)
            rows = np.empty(field.block_bytes, np.uint8)
            failed = block_kernels.copy(
                table, spans, sources, lengths, codec.NAMES["lz4"], rows, column.scratch(1),
                advice, rusage, data,
            )  # fmt: skip
        if failed < 0:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        return cls(field, data[:failed], lengths)

    @property
    def layout(self) -> tuple[tuple[int, ...], np.dtype, int]:
        """What parts have to have in common that are read together; stores may differ otherwise."""
        return self.field.shape, self.field.dtype, self.field.block_rows

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.lengths.nbytes


class BlockColumn:
    """What is read from blocks that came, as from a column: each span is an env of its own, whose
    rows begin with its first block.

    Parameters
    ----------
    parts : sequence of StoredBlocks
        Of one field and layout. They are not copied: this keeps them.
    spans : sequence of ndarray of int64, shape (spans, 3)
        Of each part.

    Attributes
    ----------
    num_envs : int
        How many spans all parts have; those of the first one come first.
    table
        With what kernels are given in the place of a `SegmentTable`'s ``array``.
    """

    def __init__(self, parts: Sequence[StoredBlocks], spans: Sequence[np.ndarray]) -> None:
        self.field = field = parts[0].field
        self.num_envs = count = sum(map(len, spans))
        self._parts = parts
        self._indexes = []
        entries = np.empty((count, 2), np.int64)
        start = 0
        for part, mine in zip(parts, spans, strict=True):
            blocks, stop = blocks_of(field, mine), start + len(mine)
            self._check(part, int(blocks.sum()))
            index = np.empty((len(part.lengths), 2), np.int64)
            index[:, 1] = part.lengths
            np.cumsum(part.lengths, out=index[:, 0])
            index[:, 0] -= part.lengths
            entries[start:stop, 0] = part.data.ctypes.data
            entries[start:stop, 1] = index.ctypes.data + 16 * (np.cumsum(blocks) - blocks)
            self._indexes.append(index)  # the table has its address
            start = stop
        rows = np.concatenate([each[:, 2] - each[:, 1] for each in spans]).max(initial=1)
        # Room for any span wherever it begins in its first block.
        segment_rows = (int(rows) // field.block_rows + 2) * field.block_rows
        self._packed = np.full(count, segment_rows, np.int64)  # none is in a tail
        table = np.zeros(FIGURES + 2 * count, np.int64)
        table[SLOTS], table[SEGMENT_ROWS], table[ENVS] = 1, segment_rows, count
        table[ROW_BYTES] = table[STRIDE] = field.row_bytes
        table[BLOCK_ROWS], table[STEP] = field.block_rows, 16
        table[[PACKED, LIVE]] = self._packed.ctypes.data
        table[FIGURES:] = entries.reshape(-1)
        self.table = SimpleNamespace(array=table)

    def _check(self, part: StoredBlocks, blocks: int) -> None:
        """Kernels ask nobody what memory they may read."""
        fits = len(part.lengths) == blocks and part.lengths.min(initial=4) >= 4
        if part.layout != self._parts[0].layout or not fits or part.lengths.sum() != len(part.data):
            raise CorruptSegmentError(f"field {self.field.name!r}: other blocks came than expected")

    def scratch(self, reads: int, threads: int = 1) -> np.ndarray:
        """As `Column.scratch`."""
        return scratch(self.field, reads, threads)

    def complain(self, _row: int, env: int) -> NoReturn:
        """Raise the error for a block that a kernel could not decode."""
        raise CorruptSegmentError(
            f"field {self.field.name!r}: a block cannot be decoded, of span {env} of "
            f"{self.num_envs} that were sent: it was damaged on its way; draw again"
        )
