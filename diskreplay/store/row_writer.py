"""Adding rows: into the mapped files of all columns first, and then into the counts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from diskreplay.signals import undisturbed
from diskreplay.store.column import Column
from diskreplay.store.commit_page import MOST_AT_ONCE, CommitPage, finals_in, finals_word
from diskreplay.store.maintenance import Maintenance
from diskreplay.store.mutable_column import MutableColumn
from diskreplay.store.numbers import MOST_ROWS
from diskreplay.store.open_store import OpenStore
from diskreplay.store.ordering import barrier
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.raw_column import RawColumn

_LAST = "reward", "terminated", "truncated", "step", "is_final"  # as in `row_commit`


class RowWriter:
    """Adds rows to a store. Belongs to one thread at a time; the buffer's lock sees to that.

    A row's fields are all written before its env's count is raised, which is one store to mapped
    memory: a killed process leaves whole rows only.
    """

    def __init__(self, store: OpenStore, maintenance: Maintenance) -> None:
        self._store, self._maintenance = store, maintenance
        # Below which row each env can be written to, in all columns and in the raw ones.
        self._ready, self._raw_ready = np.zeros((2, store.num_envs), np.int64)
        self._hand: list[tuple[np.ndarray | memoryview, int]] = []
        self._hand_until = 0
        # Whether an `append` has written parts of rows that do not count: a call that was refused
        # by then has changed something.
        self.is_amid = False
        self._ends: list[int] = []
        # Of these, what `place` writes, each with its place among the values; and, for the kernel
        # that writes the others, where row 0 of each would be, and where the count is.
        self._placed: list[tuple[np.ndarray | memoryview, int, int]] = []
        self._columns = np.zeros(len(_LAST) + 1, np.int64)
        self._columns_at = self._columns.ctypes.data

    @property
    def _page(self) -> CommitPage:
        assert self._store.page is not None
        return self._store.page

    def let_go(self) -> None:
        """Hold no mapped memory any more."""
        self._hand, self._ends, self._placed, self._hand_until = [], [], [], 0

    def reserve(self, envs: np.ndarray, stop: np.ndarray) -> None:
        """See to it that rows below ``stop[i]`` of ``envs[i]`` can be written; all or an error."""
        if (stop <= self._ready[envs]).all():
            return
        self._store.place.check()
        with undisturbed():
            if (stop > self._raw_ready[envs]).any():
                self._reserve_raw(envs, stop)
            ready = self._raw_ready[envs]
            for column in self._store.packed_columns:
                column.reserve(envs, stop - 1, self._store.count)
                ready = np.minimum(ready, column.tail.packed[envs] + column.tail.rows)
            self._ready[envs] = ready
            if self._store.num_envs > 1:
                self._maintenance.wake()

    def _reserve_raw(self, envs: np.ndarray, stop: np.ndarray) -> None:
        """`reserve` in columns whose rows go straight to the files."""
        columns = self._store.raw_columns
        # First: an env of this call may be in one of them, and takes it back below.
        for column in columns:
            for slow in column.hand_over(self._store.count, self._raw_ready):
                self._ready[slow] = 0
        late = stop > self._raw_ready[envs]
        envs, last = envs[late], stop[late] - 1
        ready = np.full(len(envs), MOST_ROWS)
        for column in columns:
            column.reserve(envs, np.maximum(self._store.count[envs], self._raw_ready[envs]))
            column.reserve(envs, last)
            size = column.field.segment_rows
            ready = np.minimum(ready, (last // size + 1) * size)
        self._raw_ready[envs] = ready
        self._maintenance.wake()

    def _reserve_only(self, last: int) -> None:
        """`reserve` for the only env, up to and including row `last`."""
        if last >= self._ready[0]:
            self.reserve(np.array([0]), np.array([last + 1]))

    def append_row(
        self, values: Sequence[Any], final: Sequence[Any] | None, *, is_final: bool = False
    ) -> None:
        """Add one row of the only env, and with `final` a second one, in one commit.

        Parameters
        ----------
        values, final : sequence
            A value for each column, in the order of `columns`; None for zeros.
        is_final : bool
            Whether `values` are a final row's.
        """
        row = self._store.count.item(0)
        rows = 1 if final is None else 2
        if row + rows > self._hand_until:
            self._reserve_only(row + rows - 1)
            if row >= self._hand_until:
                self._take_in_hand(row)
        try:
            for (rows_of, first), value in zip(self._hand, values, strict=True):
                rows_of[row - first] = 0 if value is None else value
            if final is not None:
                if row + 1 >= self._hand_until:
                    self._take_in_hand(row + 1)
                for (rows_of, first), value in zip(self._hand, final, strict=True):
                    rows_of[row + 1 - first] = 0 if value is None else value
            barrier()
            self._store.count[0] = row + rows  # the commit
        except BaseException:
            self._hand_until = 0  # the next row may go to the segment before
            raise
        if final is not None or is_final:
            self._count_finals(np.zeros(1, np.int64))

    def place(self, row: int, values: Sequence[Any]) -> int:
        """Write what `row_commit.commit` does not of the next row of the only env, `row`; it
        counts when that is done.

        Parameters
        ----------
        values : sequence
            As for `append_row`.

        Returns
        -------
        int
            The address of what the kernel goes by. It is of no use when another row was written.
        """
        if row >= self._hand_until:
            self._reserve_only(row)
            self._take_in_hand(row)
        for rows_of, first, at in self._placed:
            value = values[at]
            rows_of[row - first] = 0 if value is None else value
        return self._columns_at

    def _count_finals(self, envs: np.ndarray, more: Any = 1) -> None:
        barrier()  # behind the commit
        finals = finals_in(self._page.finals[envs]) + more
        self._page.finals[envs] = finals_word(finals, self._store.count[envs])

    def recount(self) -> None:
        """After a call that stopped short: clear what it wrote of rows that do not count, which may
        be sealed before rows come in their places. If it had committed rows, count the final ones
        among them, and let go of the rows that have left for them."""
        self._hand_until, self.is_amid = 0, False
        store = self._store
        count = store.count.copy()
        for column in store.raw_columns:
            for segment in column.segments.list_open():
                segment.clear_behind(count)
        self._page.finals[:] = finals_word(store.finals_at(count), count)
        store.first = store.first.copy()  # not that of an index which somebody still looks at
        self.evict()

    def evict(self) -> None:
        """Let go of the rows that have left for newer ones."""
        store = self._store
        if store.rows_per_env is None:
            return
        if store.num_envs > 1:
            store.first = np.maximum(store.first, store.count - store.rows_per_env)
        elif (oldest := store.count.item(0) - store.rows_per_env) > store.first.item(0):
            store.first[0] = oldest

    def note_first(self, envs: np.ndarray) -> None:
        """Tell readers, and whoever opens the store after a kill, which rows of these envs were let
        go of: before a file of them is deleted."""
        self._page.first[envs] = self._store.first[envs]

    def _take_in_hand(self, row: int) -> None:
        """Hold the places that `row` of the only env goes to: writing it is then an assignment for
        each column, until the first of them is full."""
        columns = self._store.columns
        if not self._hand_until:
            self._hand, self._ends = [(memoryview(b""), 0)] * len(columns), [0] * len(columns)
            self._columns[-1] = self._store.count.ctypes.data
        self._placed, until = [], []
        for at, (name, column) in enumerate(columns.items()):
            if row >= self._ends[at]:
                self._ends[at] = self._take_column(row, at, name, column)
            if name not in _LAST:
                self._placed.append((*self._hand[at], at))
            until.append(self._ends[at])
            if isinstance(column, PackedColumn):
                until.append(column.tail.packed.item(0) + column.tail.rows)
                if len(column.segments.open) > 1:  # the first of them is full
                    self._maintenance.wake()
        self._hand_until = min(until)

    def _take_column(self, row: int, at: int, name: str, column: Column[Any]) -> int:
        """Hold the places of one column; returns below which row they end."""
        if isinstance(column, PackedColumn):
            size = column.tail.rows
            self._hand[at] = column.tail.places[0], row // size * size
            return (row // size + 1) * size
        assert isinstance(column, RawColumn)
        number = row // column.field.segment_rows
        rows, first = column.rows(number, 0), number * column.field.segment_rows
        # Setting one number takes a memoryview half as long as an array.
        plain = column.field.shape == () and column.field.dtype != np.float16
        self._hand[at] = rows.data if plain else rows, first
        if name in _LAST:
            before = first * column.field.row_bytes
            self._columns[_LAST.index(name)] = rows.ctypes.data - before
        return first + column.field.segment_rows

    def append(
        self,
        envs: np.ndarray,
        values: Sequence[np.ndarray],
        final_envs: np.ndarray,
        final: Sequence[np.ndarray],
        *,
        is_final: bool = False,
    ) -> np.ndarray:
        """Add one row to each of `envs` and a final row to each of `final_envs` (a subset).

        Parameters
        ----------
        values, final : sequence of ndarray, each of shape (num_envs, *field.shape)
            An array for each column, in the order of `columns`, C-contiguous.
        is_final : bool
            Whether `values` are final rows; there are no `final_envs` then.

        Returns
        -------
        ndarray of int64
            The rows' numbers, in the order of `envs`.
        """
        store = self._store
        rows = store.count[envs]
        stop = store.count.copy()
        stop[envs] += 1
        final_rows = stop[final_envs]
        stop[final_envs] += 1
        self.reserve(envs, stop[envs])
        is_even = len(envs) == store.num_envs and bool((rows == rows[0]).all())
        row = int(rows[0]) if is_even else None
        self.is_amid = True
        for column, value in zip(store.columns.values(), values, strict=True):
            column.scatter(envs, rows, value, row)
        if len(final_envs):
            for column, value in zip(store.columns.values(), final, strict=True):
                column.scatter(final_envs, final_rows, value, None)
        barrier()
        store.count[:] = stop  # the commit: each env's count is raised by one store
        self.is_amid = False
        if is_final or len(final_envs):
            self._count_finals(envs if is_final else final_envs)
        return rows

    def extend(self, runs: Sequence[tuple[int, Sequence[np.ndarray]]]) -> None:
        """Add rows to some envs, at most `most_at_once` to each, all or an error.

        A kill may leave those of some envs and not of others: the commit is one store an env.

        Parameters
        ----------
        runs : sequence of (env, values)
            No env twice; and an array ``(rows, *field.shape)`` for each column, in the order of
            `columns`, of its dtype.
        """
        store = self._store
        envs = np.array([env for env, _ in runs])
        rows = store.count[envs]
        stop = rows + [len(values[0]) for _, values in runs]
        self.reserve(envs, stop)
        self._hand_until = 0
        for number, column in enumerate(store.columns.values()):
            for (env, values), row in zip(runs, rows.tolist(), strict=True):
                column.write(env, row, values[number])
        barrier()
        store.count[envs] = stop  # the commit
        at = list(store.columns).index("is_final")
        self._count_finals(envs, np.array([np.count_nonzero(v[at]) for _, v in runs]))

    def overwrite(self, name: str, ids: np.ndarray, values: np.ndarray) -> None:
        """Replace the values of a mutable field in rows that are retained; all or an error.

        Waits until batches that are being read are whole: they have what was there before. So what
        a batch has depends on the order of calls, and not on how its reader was scheduled.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
            Of duplicates the last counts.
        values : ndarray of shape (n, *field.shape)
            C-contiguous, of the field's dtype.
        """
        column = self._store.columns[name]
        assert isinstance(column, MutableColumn)
        self._store.place.check()
        with undisturbed():
            column.own(ids)
            with self._store.rwlock:
                column.put(ids, values)

    @property
    def most_at_once(self) -> int:
        """Rows of one env that one `extend` takes: not more than a segment of any column, so that
        there is always a place for the next one, nor than a tail has besides a block that is not
        full, nor than are kept."""
        rows = min(column.most_at_once for column in self._store.columns.values())
        return min(MOST_AT_ONCE, rows, self._store.rows_per_env or rows)
