"""The tail of a packed field: rows that are in no shard yet."""

import numpy as np

from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.segment import Segment
from diskreplay.store.segment_table import FIGURES, TAIL, SegmentTable

_AT_ONCE = 4 << 20  # bytes of rows that are compressed before others may do so


class Tail:
    """One mapped file, with places for some blocks of each env, which are used in turn.

    A full block is compressed and appended to its segment's shard, named in the index, and said to
    be there by `packed`; then its places may get other rows.

    Attributes
    ----------
    mapping : Mapping or None
        None where all rows are in shards.
    rows : int
        Rows of each env that it has room for.
    packed : ndarray of int64, shape (num_envs,)
        Rows of each env that are in shards, always whole blocks. Of a writer a view of the commit
        page; of a reader a copy, or all rows where there is no tail.
    """

    def __init__(self, field: Field, num_envs: int, table: SegmentTable) -> None:
        self._field, self._num_envs, self._table = field, num_envs, table
        self.rows = field.tail_rows(num_envs)
        self._wanted = np.zeros(num_envs, np.int64)
        self.bind(None, np.zeros(num_envs, np.int64), None)

    def bind(self, mapping: Mapping | None, packed: np.ndarray, live: np.ndarray | None) -> None:
        """Go by this file and these numbers from now on, and hold what is copied from the tail
        against `live` ones, if given."""
        self.mapping, self.packed, self._live = mapping, packed, live
        where = (0, 0) if mapping is None else (mapping.address, self.rows)
        checked = packed if live is None else live
        self._table.array[TAIL:FIGURES] = *where, packed.ctypes.data, checked.ctypes.data

    def follow(self, packed: np.ndarray, count: np.ndarray) -> None:
        """For a reader of `count` rows, whose indexes name all blocks of rows below `packed`."""
        self.packed[:], self._wanted = packed, count

    @property
    def is_passed(self) -> bool:
        """For a reader: whether rows that it looks for here are in a shard by now."""
        if self._live is None:
            return False
        return bool((np.minimum(self._live, self._wanted) > self.packed).any())

    @property
    def places(self) -> np.ndarray:
        """Its memory, shape ``(num_envs, rows, *field.shape)``: row ``t`` of an env is at ``t %
        rows``."""
        assert self.mapping is not None
        size = self._num_envs * self.rows * self._field.row_bytes
        flat = self.mapping.array[:size].view(self._field.dtype)
        return flat.reshape(self._num_envs, self.rows, *self._field.shape)

    def addresses(self, envs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Where these rows of these envs are in memory."""
        assert self.mapping is not None
        return self.mapping.address + (envs * self.rows + rows % self.rows) * self._field.row_bytes

    def oldest(self, envs: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The env and first row of the oldest full blocks of some envs, those of each env in their
        order, all of one segment; some megabytes at most."""
        field, size = self._field, self._field.block_rows
        packed = self.packed[envs]
        most = max(_AT_ONCE // field.block_bytes, 1)
        until = np.minimum(count[envs], (packed // field.segment_rows + 1) * field.segment_rows)
        ahead = np.minimum((until - packed) // size, max(most // max(len(envs), 1), 1))
        if len(envs) == 1:  # thrice as fast, and what a single env does
            steps = np.arange(max(int(ahead[0]), 0))
            return np.full(len(steps), envs[0]), packed[0] + steps * size
        where = np.flatnonzero(ahead > 0)[:most]
        if not len(where):
            return where, where
        numbers, groups = packed[where] // field.segment_rows, envs[where] // field.env_group
        where = where[(numbers == numbers[0]) & (groups == groups[0])]
        times = ahead[where]
        steps = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return np.repeat(envs[where], times), np.repeat(packed[where], times) + steps * size

    def blocks_of(
        self, segment: Segment, count: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The blocks of a segment with rows in here: their envs, first rows, and rows."""
        size = self._field.block_rows
        packed = np.maximum(self.packed[segment.envs], segment.start)
        rows = np.minimum(count[segment.envs], segment.stop) - packed
        blocks = np.maximum(-(-rows // size), 0)
        places = np.repeat(np.arange(len(rows)), blocks)
        step = np.arange(len(places)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        starts = packed[places] + step * size
        used = np.minimum(packed[places] + rows[places] - starts, size)
        return segment.envs.start + places, starts, used
