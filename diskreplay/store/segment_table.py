"""What the segment table of a field says: how its rows lie in memory, for kernels.

After the figures that have names here come, for each env and slot, two numbers of the segment in
that slot (of segment ``s`` the slot ``s % slots``), both 0 if there is none. Of a raw one they are
the address of the env's first row in it, and 0; of a packed one the address of the shard, and that
of the env's first entry in a copy of its index, which was checked.

Of a packed field the rows of env ``e`` from ``packed[e]`` on are in the tail. Its places are used
in turn: before one gets another row, the block of the row that is there was put into a shard, and
``packed[e]`` was raised past it. So what was copied from the tail holds if ``packed[e]`` has not
passed it afterwards, and nobody has to wait for anybody. A reader in another process goes by a
copy of these numbers, to which its copies of the indexes belong, and holds what it copied against
the live ones.
"""

from typing import Any

import numpy as np

from diskreplay.store.field import Field
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import Segment

SLOTS, SEGMENT_ROWS, ROW_BYTES, BLOCK_ROWS, ENVS = 0, 1, 2, 3, 4
STRIDE = 5  # bytes from a row of a raw segment to the next one of that env
STEP = 6  # bytes from the entry of a block in an index to that of the next block of that env
TAIL, TAIL_ROWS = 7, 8  # its address, and its rows of each env
PACKED, LIVE = 9, 10  # addresses of `packed`: of what is gone by, and of what is raised meanwhile
FIGURES = 11

_FIRST_SLOTS = 16  # of a table that grows

# Segments that may have left and not yet been let go of. While a record is being written none is.
_SPARE_SLOTS = 8


class SegmentTable:
    """The segment table of one field.

    Parameters
    ----------
    rows_per_env : int or None
        Rows that are kept. None keeps all: the table grows.

    Attributes
    ----------
    array : ndarray of int64
        What kernels are given. Replaced as a whole when the table grows, so that a reader without
        the lock never mixes two sizes.
    """

    def __init__(
        self, field: Field, num_envs: int, rows_per_env: int | None, rwlock: RWLock
    ) -> None:
        self._field, self._rwlock = field, rwlock
        self._grows = rows_per_env is None
        slots = _FIRST_SLOTS
        if rows_per_env is not None:
            slots = -(-rows_per_env // field.segment_rows) + 1
        self.array = np.zeros(FIGURES, np.int64)
        self.array[SEGMENT_ROWS], self.array[ROW_BYTES] = field.segment_rows, field.row_bytes
        self.array[ENVS], self.array[STRIDE] = num_envs, field.stride
        if field.packed:
            self.array[BLOCK_ROWS], self.array[STEP] = field.block_rows, 16 * field.env_group
        self._make(slots + _SPARE_SLOTS)

    def _make(self, slots: int) -> None:
        envs = int(self.array[ENVS])
        array = np.zeros(FIGURES + 2 * envs * slots, np.int64)
        array[:FIGURES] = self.array[:FIGURES]
        array[SLOTS] = slots
        # The segment that each env's entry in a slot is of, -1 if there is none.
        self._at = np.full((envs, slots), -1, np.int64)
        self._slots, self.array = slots, array
        self._entries = array[FIGURES:].reshape(envs, slots, 2)

    def _grow(self) -> None:
        at, entries = self._at, self._entries
        with self._rwlock:  # what the maintenance thread changes is not lost in the old table
            self._make(2 * self._slots)
            envs, slots = np.nonzero(at >= 0)
            numbers = at[envs, slots]
            self._entries[envs, numbers % self._slots] = entries[envs, slots]
            self._at[envs, numbers % self._slots] = numbers

    def point(self, segment: Segment, envs: np.ndarray) -> None:
        """Let kernels find the rows of these envs of its group in a segment."""
        number = segment.number
        if self._grows:
            while (self._at[envs] >= 0).any() and (
                number - np.where(self._at[envs] >= 0, self._at[envs], number).min() >= self._slots
            ):
                self._grow()
        slot = number % self._slots
        taken = envs[(self._at[envs, slot] >= 0) & (self._at[envs, slot] != number)]
        if len(taken):  # of a segment that these have left, and somebody may still be reading
            with self._rwlock:
                self._at[taken, slot] = -1
        entries = segment.addresses(envs - segment.envs.start)
        self._entries[envs, slot, 1] = entries[1]
        self._entries[envs, slot, 0] = entries[0]
        self._at[envs, slot] = number

    def point_new(self, segment: Segment, envs: np.ndarray) -> None:
        """`point`, for those of these envs that do not find it yet."""
        new = envs[self._at[envs, segment.number % self._slots] != segment.number]
        if len(new):
            self.point(segment, new)

    def pointed(self, segment: Segment) -> np.ndarray:
        """The envs that find a segment."""
        there = self._at[segment.envs, segment.number % self._slots] == segment.number
        return segment.envs.start + np.flatnonzero(there)

    def left(self, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(envs, slots)`` of entries with none but rows before `first`."""
        is_left = self._at < (first // self._field.segment_rows)[:, None]
        envs, slots = np.nonzero((self._at >= 0) & is_left)
        return envs, slots

    def is_crowded(self, first: np.ndarray) -> bool:
        """Whether an env has so many entries that have left that they should go soon."""
        envs, _slots = self.left(first)
        return len(envs) > 0 and int(np.bincount(envs).max()) >= _SPARE_SLOTS // 2

    def forget(self, first: np.ndarray) -> None:
        """Forget entries with none but rows before `first`. Call it with `rwlock` held."""
        self._clear(*self.left(first))

    def drop(self, segment: Segment) -> None:
        """Forget all entries of a segment. Call it with `rwlock` held."""
        self._clear(self.pointed(segment), segment.number % self._slots)

    def _clear(self, envs: np.ndarray, slots: Any) -> None:
        self._entries[envs, slots] = 0
        self._at[envs, slots] = -1
