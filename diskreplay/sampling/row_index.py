"""The small per-step columns in memory: which rows are transitions, and what each one needs."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from diskreplay.errors import CapacityError, NotSampleableError, UnknownIdError

ENV, ROW, BEFORE, AHEAD, BEFORE_NEXT = range(5)  # columns of `Plan.rows`


class Plan(NamedTuple):
    """What a batch consists of before any frame is read.

    Attributes
    ----------
    rows : ndarray of int64, shape (batch, 5)
        Env, row, frames of the stack before it, rows ahead, frames before the next row (-1 when
        there is no next observation); see `row_index_kernels`.
    reward, discount : ndarray of float32, shape (batch,)
    terminated, truncated : ndarray of bool, shape (batch,)
    steps : ndarray of int32, shape (batch,)
    """

    rows: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    steps: np.ndarray


class RowIndex:
    """Steps, flags and rewards of the retained rows, and which of them can be sampled.

    A ring of ``rows_per_env * num_envs`` places; row ``t`` of env ``e``, which has the id
    ``t * num_envs + e``, sits in place ``id % size``.

    Parameters
    ----------
    rows_per_env : int or None
        None grows without end.
    num_envs, stack_size, update_horizon : int
    gamma : float
    transitions : int, optional
        Each env keeps its newest ones of this number, as far as its rows are kept.

    Attributes
    ----------
    count, first : ndarray of int64, shape (num_envs,)
        Rows ever, and the oldest retained row; views of one array.
    sampleable : int
        How many rows can be sampled.
    table : ndarray of int64
        Where the arrays are, see `row_index_kernels`.

    Notes
    -----
    16 bytes a row.
    """

    def __init__(
        self,
        rows_per_env: int | None,
        num_envs: int,
        stack_size: int,
        update_horizon: int,
        gamma: float,
        transitions: int | None = None,
    ) -> None:
        from diskreplay.sampling import row_index_kernels

        self._kernels = row_index_kernels
        self.growing = rows_per_env is None
        self.num_envs = num_envs
        self.bounds = np.zeros((num_envs, 2), np.int64)
        self.first, self.count = self.bounds[:, 0], self.bounds[:, 1]
        self.sampleable = 0
        self._powers = float(gamma) ** np.arange(update_horizon + 1)
        self.figures = np.zeros(row_index_kernels.OLDEST + 2 * num_envs, np.int64)
        self.figures[: row_index_kernels.OLDEST] = (
            0, num_envs, stack_size, update_horizon, transitions or 0,
        )  # fmt: skip
        self.ends = np.empty(num_envs, np.int64)  # for kernels that draw
        # A row can end the waiting of a horizon of rows, and the retention of a stack of them: as
        # the first transition of a later episode is the oldest one then, of two; and of one more
        # where it also takes the place of an old row.
        self._changes = 3 * stack_size + update_horizon + 1
        self.table = np.zeros(row_index_kernels.LEVELS + 1, np.int64)
        self.table[row_index_kernels.BOUNDS] = self.bounds.ctypes.data
        self.table[row_index_kernels.FIGURES] = self.figures.ctypes.data
        self.table[row_index_kernels.ENDS_AT] = self.ends.ctypes.data
        self.ring = np.empty((0, row_index_kernels.WIDTH), np.int32)
        self._make_places(rows_per_env or 1024)
        self._make_room(2 * num_envs)

    def _make_places(self, rows: int) -> None:
        """Have places for so many rows of each env, those that are there among them."""
        size = rows * self.num_envs
        try:
            ring = np.zeros((size, self._kernels.WIDTH), np.int32)
        except MemoryError as error:
            raise CapacityError(
                f"{size} rows need {16 * size} bytes of memory for their index; choose a smaller "
                "capacity"
            ) from error
        ring[: len(self.ring)] = self.ring
        self.figures[0], self.ring = rows, ring
        self._rewards = self.ring.view(np.float32)
        self.table[self._kernels.RING] = self.ring.ctypes.data

    def _make_room(self, rows: int) -> None:
        """Have room for what so many rows that are added change."""
        self.changed = np.empty((2, 1 + rows * self._changes), np.int64)
        self.table[self._kernels.CHANGED] = self.changed.ctypes.data
        self.table[self._kernels.ROOM] = self.changed.shape[1]

    @property
    def size(self) -> int:
        """Places in the ring."""
        return int(self.figures[0] * self.figures[1])

    @property
    def horizon(self) -> int:
        """The n of n-step returns: so many rows later a row can be sampled, or never."""
        return int(self.figures[3])

    @property
    def state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ring, bounds and figures, as the kernels take them."""
        return self.ring, self.bounds, self.figures

    def size_with(self, rows: int) -> int:
        """What `size` is after `grow` with so many rows: twice as much at least, if it grows."""
        kept = int(self.figures[0])
        return (max(rows, 2 * kept) if rows > kept else kept) * self.num_envs

    def grow(self, rows: int) -> None:
        """Make room for so many rows of each env; only while nothing ever wraps around."""
        if (size := self.size_with(rows)) > self.size:
            self._make_places(size // self.num_envs)

    def append(
        self, envs: np.ndarray, steps: np.ndarray, flags: np.ndarray, rewards: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add rows in order.

        Parameters
        ----------
        envs : ndarray of int64, shape (rows,)
        steps : ndarray of int32, shape (rows,)
        flags : ndarray of uint8, shape (rows,)
        rewards : ndarray of float32, shape (rows,)

        Returns
        -------
        left, entered : ndarray of int64
            Places that stopped, and that began, being sampleable: views, valid until the next
            call. Let go of the first before taking in the second: a new row may sit in an old
            one's place.
        """
        if len(envs) * self._changes >= self.changed.shape[1]:
            self._make_room(len(envs))
        changed = self.changed
        gone, came, more = self._kernels.index_append(
            *self.state, envs, steps, flags, rewards.view(np.int32), changed
        )
        self.sampleable += more
        return changed[0, 1 : 1 + gone], changed[1, 1 : 1 + came]

    def append_one(self, step: int, flags: int, reward: float, columns: int = 0) -> None:
        """`append` for one row of the only env, where nobody asks what changed.

        Parameters
        ----------
        columns : int
            Where the row is to be committed first: what `RowWriter.place` has returned. 0 if it
            is.
        """
        self.sampleable += self._kernels.index_append_one(self.table, columns, step, flags, reward)

    def evict(self, env: int, first: int) -> np.ndarray:
        """Let go of the rows of an env before `first`, which is none before its own.

        Returns
        -------
        ndarray of int64
            Places that stopped being sampleable. O(rows that leave).
        """
        left = min(first + int(self.figures[2]) - 1, int(self.count[env])) - int(self.first[env])
        places = np.empty(1 + max(left, 0), np.int64)
        gone = self._kernels.index_evict(self.ring, self.bounds, self.figures, env, first, places)
        self.sampleable -= gone
        return places[1 : 1 + gone]

    def load(
        self, column: int, row: int, envs: slice, values: np.ndarray, wanted: np.ndarray
    ) -> None:
        """Put what is known of consecutive rows in their places, which are zeros before; `validate`
        when all is there, which also numbers their episodes.

        Parameters
        ----------
        column : int
            Of the ring; see `row_index_kernels`.
        row : int
            The first row.
        envs : slice
        values : ndarray of int32, shape (rows, envs)
            Added bit by bit.
        wanted : ndarray of bool, shape (rows, envs)
            Which rows have places; those of others are not theirs.
        """
        ring = self.ring.reshape(-1, self.num_envs, self._kernels.WIDTH)[:, envs, column]
        every = bool(wanted.all())
        for at, place, rows in self.runs(row, row + len(values)):
            run, part = ring[place : place + rows], slice(at, at + rows)
            np.bitwise_or(run, values[part], out=run, where=every or wanted[part])

    def validate(self) -> None:
        """Find out which of the rows that were loaded can be sampled. O(rows)."""
        most = int((self.count - self.first).max())
        self.sampleable = self._kernels.index_validate(*self.state, most) if most else 0

    def sampleable_ids(self) -> np.ndarray:
        """The ids of all rows that can be sampled, env by env, oldest first. O(rows)."""
        return self.ids_with(self.ring[:, self._kernels.FLAGS], self._kernels.SAMPLEABLE)

    def ids_with(self, words: np.ndarray, bits: int) -> np.ndarray:
        """The ids of all retained rows that have any of these bits in their place of `words`, env
        by env, oldest first. O(rows)."""
        start = int(self.first.min())
        envs, rows = np.nonzero(self.rows_with(words, bits, start, int(self.count.max())).T)
        return (rows + start) * self.num_envs + envs

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The rows ``start..stop`` as runs that sit one after the other: how many rows come before
        a run, the number of its place among the rows of an env, and how many rows it has."""
        kept, row = self.size // self.num_envs, start
        while row < stop:
            place = row % kept
            rows = min(stop - row, kept - place)
            yield row - start, place, rows
            row += rows

    def sampleable_rows(self, start: int, stop: int) -> np.ndarray:
        """Whether the rows ``start..stop`` are retained and can be sampled, of shape
        ``(stop - start, num_envs)``."""
        kernels = self._kernels
        return self.rows_with(self.ring[:, kernels.FLAGS], kernels.SAMPLEABLE, start, stop)

    def rows_with(self, words: np.ndarray, bits: int, start: int, stop: int) -> np.ndarray:
        """The same for rows that have any of these bits in their place of `words`."""
        words = words.reshape(-1, self.num_envs)
        there = np.empty((stop - start, self.num_envs), np.bool_)
        for at, place, rows in self.runs(start, stop):
            np.not_equal(words[place : place + rows] & bits, 0, out=there[at : at + rows])
        for env in np.flatnonzero((self.first > start) | (self.count < stop)).tolist():
            there[: max(self.first[env] - start, 0), env] = False
            there[max(self.count[env] - start, 0) :, env] = False
        return there

    def episodes(self) -> int:
        """Episodes with at least one retained row. O(rows)."""
        numbers = self.ring[:, self._kernels.EPISODE].reshape(-1, self.num_envs)
        found = 0
        for env, (first, count) in enumerate(self.bounds.tolist()):
            last = None  # the number of the row before, with which any row begins one
            for _at, place, rows in self.runs(first, count):
                run = numbers[place : place + rows, env]
                found += int(run[0] != last) + int(np.count_nonzero(run[1:] != run[:-1]))
                last = run[-1]
        return found

    def newest_at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The env in each of these places of the ring, and the newest row of it that sits there."""
        rows, envs = np.divmod(places, self.num_envs)
        last = self.count[envs] - 1
        return envs, last - (last - rows) % (self.size // self.num_envs)

    def plan(self, ids: np.ndarray) -> Plan:
        """What to read for each id, and its n-step return.

        The return is ``sum_i gamma^i r[t+i]`` over the window, in float64; Sutton (1988).

        Raises
        ------
        UnknownIdError, NotSampleableError
        """
        size = len(ids)
        plan = Plan(
            np.empty((size, 5), np.int64),
            np.empty(size, np.float32),
            np.empty(size, np.float32),
            np.empty(size, np.bool_),
            np.empty(size, np.bool_),
            np.empty(size, np.int32),
        )
        bad = self._kernels.index_plan(
            self.ring, self._rewards, self.bounds, self.figures, self._powers, ids, *plan
        )
        if bad >= 0:
            self._complain(int(ids[bad]), bad)
        return plan

    def check_known(self, ids: np.ndarray) -> None:
        """Raise `UnknownIdError` if an id was never handed out."""
        unknown = (ids < 0) | (ids // self.num_envs >= self.count[ids % self.num_envs])
        if unknown.any():
            at = int(unknown.argmax())
            self._complain(int(ids[at]), at)

    def holds_transitions(self, ids: np.ndarray) -> np.ndarray:
        """Which of these rows are retained and no final rows, sampleable or not; bool.

        Raises
        ------
        UnknownIdError
        """
        self.check_known(ids)
        retained = ids // self.num_envs >= self.first[ids % self.num_envs]
        final = self.ring[ids % self.size, self._kernels.FLAGS] & self._kernels.FINAL
        return retained & (final == 0)

    def _complain(self, id_: int, at: int) -> None:
        row, env = divmod(id_, self.num_envs)
        if id_ < 0 or row >= self.count[env]:
            raise UnknownIdError(
                f"id {id_} at position {at} was never handed out: env {env} has "
                f"{self.count[env]} rows; ids are row * num_envs + env, and count anew after a "
                "`load` or `clear`, also one by another process"
            )
        if row < self.first[env]:
            why = f"evicted: env {env} keeps rows from {self.first[env]} on"
        elif self.ring[id_ % self.size, self._kernels.FLAGS] & self._kernels.FINAL:
            why = "a final row, which holds an observation and no transition"
        else:
            why = (
                "pending, cut or its stack is evicted: its n-step window or its stack is not whole"
            )
        raise NotSampleableError(f"id {id_} at position {at} cannot be sampled: {why}")
