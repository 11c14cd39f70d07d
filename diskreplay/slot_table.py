"""Which row is in which slot of a store, and the fields that are in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.errors import NotFiniteError
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Options
from diskreplay.runs import Run
from diskreplay.slot_fields import BACK, SLOT, SlotFields
from diskreplay.slot_frames import FRAMES_ONLY, SlotFrames
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store

_EMPTIED = -1  # in the field `SLOT`: all slots of the lane are empty from this row on
_AT_ONCE = 1 << 14  # rows that are taken in at a time
_AGAIN = 64  # rows with frames in common that are added once more at a time


class SlotTable(IndexedStore):
    """The rows of a store as a log: the newest row of each slot is what the slot shows.

    The oldest rows leave as new ones come. One that a slot still shows is added once more before,
    so that a slot keeps its row for as long as nothing else is put there.

    Attributes
    ----------
    row_of : ndarray of int64, shape (slots,)
        The row of each slot in its lane; -1 where there is none.
    columns : dict of str to ndarray, each of shape (slots, *shape)
        The fields in memory.
    weights : ndarray of float64, shape (slots,), or None
        The owner's, saved with a record; NaN where nothing was saved.
    frames : SlotFrames or None
        Of fields that share frames.
    """

    def __init__(
        self, store: Store, fields: SlotFields, options: Options, make_sampler: Any
    ) -> None:
        super().__init__(store, fields.schema, options, make_sampler)
        self.fields = fields
        self.weights: np.ndarray | None = None
        self.notes: dict[str, Any] = dict(store.meta["notes"])
        self.row_of = np.full(fields.total, -1, np.int64)
        self.columns = {
            name: np.zeros((fields.total, *shape), dtype)
            for name, (shape, dtype) in fields.specs.items()
            if name in fields.resident
        }
        self._kept = fields.sizes + fields.slack  # rows of each lane
        # So many may be looked through, and added once more, at a time.
        self._step = fields.slack // 4
        # Where they are, the store lets go of the oldest rows by its capacity.
        self._are_even = bool((self._kept == self._kept[0]).all())
        self.frames = SlotFrames(fields) if fields.chains else None
        self._taken_in = store.first.copy()
        self._looked_through = store.first.copy()  # no slot shows a row before these
        # While a lane has fewer rows, a new one makes none leave that was not looked through.
        self._room_until = self._looked_through + self._kept - self._step
        self._envs = np.arange(store.num_envs)
        self.catch_up()

    # -- what is there

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """The ids of the rows in these slots; negative for an empty one."""
        rows, lanes = self.row_of[slots], self.store.num_envs
        return rows if lanes == 1 else rows * lanes + self.fields.lanes(slots)

    def ids_of(self, names: Sequence[str], slots: np.ndarray) -> list[np.ndarray]:
        """The ids of the rows that have these fields of slots: of each stack all frames."""
        ids = self.ids(slots)
        if not self.frames:
            return [ids] * len(names)
        return [self.frames.ids(name, slots, ids) for name in names]

    def catch_up(self) -> None:
        """Take in what the store has and memory does not know of."""
        for lane in np.flatnonzero(self._taken_in < self.store.first).tolist():
            # A reader far behind: of the rows that it never saw one may have emptied the lane.
            first, size = int(self.fields.offsets[lane]), int(self.fields.sizes[lane])
            left = self.row_of[first : first + size] < self.store.first[lane]
            self._clear(first + np.flatnonzero(left))
            self._taken_in[lane] = self.store.first[lane]
        for lane in np.flatnonzero(self._taken_in < self.store.count).tolist():
            start, stop = int(self._taken_in[lane]), int(self.store.count[lane])
            for row in range(start, stop, _AT_ONCE):
                self._take_in_rows(lane, row, min(row + _AT_ONCE, stop))

    def _take_in_rows(self, lane: int, start: int, stop: int) -> None:
        slots = self.store.columns[SLOT].read(lane, start, stop)
        first = int(self.fields.offsets[lane])
        size = int(self.fields.sizes[lane])
        outside = (slots < first) | (slots >= first + size)
        # A row of a slot is no final one, but where a repair set it aside: its slot shows nothing.
        aside = (slots >= 0) & self.store.columns["is_final"].read(lane, start, stop)
        # 0 is also what a slot reads as whose column was lost. That row may have been a newer one
        # of any slot, or what emptied the lane: what came before may have been there no more.
        unknown = aside & (outside | (slots == 0))
        bad = outside & ~unknown & (slots != _EMPTIED)
        if self.frames:
            bad &= slots != FRAMES_ONLY
        if bad.any():
            self.store.columns[SLOT].complain(start + int(bad.argmax()), lane)
        emptied = np.flatnonzero((slots == _EMPTIED) | unknown)
        if len(emptied):
            self._clear(slice(first, first + size))
            if self.frames:
                self.frames.forget(lane, slice(first, first + size))
            begin = int(emptied[-1]) + 1
            start, slots, aside = start + begin, slots[begin:], aside[begin:]
        own: Any = slice(None)
        if self.frames:
            back = None
            if self.fields.chains.has_back:
                back = self.store.columns[BACK].read(lane, start, stop)
            own = self.frames.take_in(lane, slots, back, aside)
            slots, aside = slots[own], aside[own]
        # Of several rows for a slot the last one counts: as NumPy assigns.
        self.row_of[slots] = np.where(aside, -1, np.arange(start, stop)[own])
        for name, column in self.columns.items():
            values = self.store.columns[self.fields.stored[name]].read(lane, start, stop)[own]
            values[aside] = 0
            column[slots] = values
        self._taken_in[lane] = stop

    def _clear(self, slots: Any) -> None:
        self.row_of[slots] = -1
        for column in self.columns.values():
            column[slots] = 0

    def recall(self, slots: np.ndarray) -> None:
        """Have the fields in memory of these slots as their rows have them."""
        ids = self.ids(slots)
        for name, column in self.columns.items():
            values = np.empty((len(slots), *column.shape[1:]), column.dtype)
            self._take(self.fields.stored[name], ids, values)
            column[slots] = values

    def follow(self) -> None:
        super().follow()
        self.catch_up()

    def order(self, lane: int) -> np.ndarray:
        """The slots of a lane that have a row, as they were written."""
        first, size = int(self.fields.offsets[lane]), int(self.fields.sizes[lane])
        rows = self.row_of[first : first + size]
        used = np.flatnonzero(rows >= 0)
        return first + used[np.argsort(rows[used])]

    # -- adding

    def put(self, slots: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Put a row into each of these slots; of several for a slot the last one stays.

        Parameters
        ----------
        slots : ndarray of int64, shape (n,)
            All below `total`.
        values : mapping of str to ndarray, each of shape (n, *shape)
            Contiguous, of the fields' dtypes. Fields that are not named stay as they are.
        """
        if self.fields.stored.get("reward") == "reward":
            if "reward" in values:
                _check_finite(slots, values["reward"])
            elif "reward" in self.columns:  # its owner may have set anything there
                _check_finite(slots, self.columns["reward"][slots])
        before = self.store.count.copy()
        try:
            self._put(self.fields.lanes(slots), slots, values)
        except BaseException as error:
            self._mend_slots(before, error)
            raise

    def _put(self, lanes: np.ndarray, slots: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        if len(slots) == 1 or len(np.unique(lanes)) == len(lanes):
            whole = self._whole(slots, values)
            put = self._put_step_of_frames if self.frames else self._put_step
            put(lanes, slots, whole)
            return
        for lane in np.unique(lanes).tolist():
            at = np.flatnonzero(lanes == lane)
            step = int(self._step[lane])
            for start in range(0, len(at), step):
                some = at[start : start + step]
                part = {name: value[some] for name, value in values.items()}
                self._put_many(lane, slots[some], self._whole(slots[some], part))

    def _whole(self, slots: np.ndarray, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Values of all fields: those given, the others as the slots have them."""
        missing = [name for name in self.fields.specs if name not in values]
        if not missing:
            return dict(values)
        return {**values, **dict(zip(missing, self.read(missing, slots), strict=True))}

    def read(self, names: Sequence[str], slots: np.ndarray) -> list[np.ndarray]:
        """The values of fields in slots, without the lock of the caller being let go of."""
        found = []
        for name in names:
            if name in self.columns:
                found.append(self.columns[name][slots])
                continue
            shape, dtype = self.fields.specs[name]
            found.append(np.empty((len(slots), *shape), dtype))
            self._take(self.fields.stored[name], self.ids_of([name], slots)[0], found[-1])
        return found

    def _take(self, stored: str, ids: np.ndarray, out: np.ndarray) -> None:
        guard = ReadGuard()
        try:
            self.store.rwlock.acquire_read(guard)
            self.store.columns[stored].take(ids, out)
            guard.release()
        finally:
            guard.release()  # twice is fine: Ctrl-C may come as the one before begins

    def _put_step_of_frames(
        self, lanes: np.ndarray, slots: np.ndarray, values: dict[str, np.ndarray]
    ) -> None:
        """A row for each of some lanes: in one go for those that need no more than one."""
        assert self.frames is not None
        for lane in lanes[self.store.count[lanes] >= self._room_until[lanes]].tolist():
            self._make_room(lane, 1)
        goes_on = self.frames.goes_on(lanes, values, self.store.count)
        for at in np.flatnonzero(~goes_on).tolist():
            one = {name: value[at : at + 1] for name, value in values.items()}
            self._put_many(int(lanes[at]), slots[at : at + 1], one)
        if goes_on.all():
            self._put_step(lanes, slots, values)
        elif goes_on.any():
            some = {name: value[goes_on] for name, value in values.items()}
            self._put_step(lanes[goes_on], slots[goes_on], some)

    def _put_step(
        self, lanes: np.ndarray, slots: np.ndarray, values: dict[str, np.ndarray]
    ) -> None:
        """A row for each of some lanes, in one go."""
        columns = self.fields.columns(slots, values)
        if self.frames:
            self.frames.set_newest(columns, values)
        if (self.store.count[lanes] >= self._room_until[lanes]).any():
            for lane in lanes.tolist():
                self._make_room(lane, 1)
        at = self._reward_at
        ended = columns[at + 1] | columns[at + 2]
        columns[at + 3][:] = self.next_step[lanes]
        rows = self.store.count[lanes]
        if self.store.num_envs == 1:
            row = [column[0] for column in columns]
            row[at : at + 3] = float(row[at]), bool(row[at + 1]), bool(row[at + 2])
            self._append(int(row[at + 3]), row, None)
        else:
            self._append_step(lanes, columns)
            self.next_step[lanes] = np.where(ended, 0, self.next_step[lanes] + 1)
            self.add_count += len(lanes)
        if self.frames:
            self.frames.went_on(lanes, slots, values, rows)
        self._note(lanes, slots, rows, values)

    def _append_step(self, lanes: np.ndarray, columns: list[np.ndarray]) -> None:
        if not np.array_equal(lanes, self._envs):
            spread = []
            for column in columns:
                spread.append(np.zeros((len(self._envs), *column.shape[1:]), column.dtype))
                spread[-1][lanes] = column
            columns, lanes = spread, np.sort(lanes)
        self.store.writer.append(lanes, columns, lanes[:0], [])
        self.store.writer.evict()

    def _put_many(self, lane: int, slots: np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Rows of one lane, one behind the other; at most `_step` of it."""
        columns = self.fields.columns(slots, values)
        self._make_room(lane, len(slots))
        at = self._reward_at
        ended = columns[at + 1] | columns[at + 2]
        columns[at + 3][:] = _steps(ended, int(self.next_step[lane]))
        rows = self._append_many(lane, slots, columns, values)
        self._note(np.full(len(slots), lane), slots, rows, values)

    def _append_many(
        self, lane: int, slots: np.ndarray, columns: list[np.ndarray], values: Mapping[str, Any]
    ) -> np.ndarray:
        """Rows of one lane, and before those that need them rows of frames; returns their
        numbers."""
        first = int(self.store.count[lane])
        if not self.frames:
            self.extend([Run(lane, columns)])
            return first + np.arange(len(slots))
        columns, placed = self.frames.place(lane, columns, values, first)
        self.extend([Run(lane, columns)])
        self.frames.placed(lane, slots, values, placed, first)
        return first + placed.at

    def _note(
        self, lanes: np.ndarray, slots: np.ndarray, rows: np.ndarray, values: Mapping[str, Any]
    ) -> None:
        """Memory learns of rows that are there."""
        self.row_of[slots] = rows
        for name, column in self.columns.items():
            column[slots] = values[name]
        self._taken_in[lanes] = self.store.count[lanes]
        self._let_go()

    def _mend_slots(self, before: np.ndarray, error: BaseException) -> None:
        """After a call that stopped short, at any place: rows that are there count, and memory is
        told of those that it may know of in part.

        Parameters
        ----------
        before : ndarray of int64, shape (lanes,)
            What `store.count` was.
        """
        self._mend(before, error)
        # The newest row may be one that was added once more: nothing follows it.
        self.next_step[self.store.count > before] = 0
        if self.frames:
            self.frames.recount()
        self.catch_up()

    def empty(self, lane: int) -> None:
        """From now on the slots of a lane have no rows."""
        before = self.store.count.copy()
        try:
            self._make_room(lane, 1)
            columns = [np.zeros((1, *s), d) for s, d in self.fields.schema.shapes.values()]
            names = self.fields.schema.names
            columns[names.index(SLOT)][:] = _EMPTIED
            columns[names.index("is_final")][:] = True
            columns[names.index("step")][:] = self.next_step[lane]
            self.extend([Run(lane, columns)])
            self.catch_up()
            self._let_go()
        except BaseException as error:
            self._mend_slots(before, error)
            raise

    def _let_go(self) -> None:
        """Of rows that the capacity of the store, which is for the largest lane, would keep."""
        if not (self._are_even or self.frames):
            self.store.first = np.maximum(self.store.first, self.store.count - self._kept)

    def _make_room(self, lane: int, rows: int) -> None:
        """See to it that `rows` more rows of a lane make none leave that a slot shows.

        The oldest rows are looked through, some at a time; those that a slot shows are added once
        more. There is always room for these, as what is looked through next are no more rows than
        stay free here.
        """
        step, most = int(self._step[lane]), int(self._step[lane])
        if self.frames:
            # How many it will be is not known yet; the store has room for the most.
            rows, most = 1, _AGAIN
        while True:
            kept = int(self._kept[lane]) + (int(self.frames.leads[lane]) if self.frames else 0)
            start, count = int(self._looked_through[lane]), int(self.store.count[lane])
            self._room_until[lane] = start + kept - step
            if count + rows <= start + kept - step:
                break
            stop = min(start + step, count)
            slots = self.store.columns[SLOT].read(lane, start, stop)
            numbers = np.arange(start, stop)
            shown = (slots >= 0) & (self.row_of[np.maximum(slots, 0)] == numbers)
            slots, numbers = slots[shown], numbers[shown]
            for at in range(0, len(slots), most):
                self._add_again(lane, slots[at : at + most], numbers[at : at + most])
            self._looked_through[lane] = stop
        if self.frames:
            # Rows of slots may have frames in so many rows before them.
            first = self.store.first.copy()
            first[lane] = max(self._looked_through[lane] - self.fields.chains.reach, first[lane])
            self.evict(first)

    def _add_again(self, lane: int, slots: np.ndarray, rows: np.ndarray) -> None:
        columns = []
        for stored, (shape, dtype) in self.fields.schema.shapes.items():
            columns.append(np.empty((len(rows), *shape), dtype))
            self._take(stored, rows * self.store.num_envs + lane, columns[-1])
        columns[self._reward_at + 3][:] = 0  # they follow nothing, and nothing follows them
        names = self.frames.names if self.frames else []
        values = dict(zip(names, self.read(names, slots), strict=True))
        self.row_of[slots] = self._append_many(lane, slots, columns, values)
        self.next_step[lane] = 0
        self._taken_in[lane] = self.store.count[lane]


def _check_finite(slots: np.ndarray, rewards: np.ndarray) -> None:
    if not np.isfinite(rewards).all():
        at = int(np.isfinite(rewards).argmin())
        raise NotFiniteError(
            f"reward: {rewards[at]} for slot {slots[at]}, a finite float32 expected; give a "
            "field of another name what need not be"
        )


def _steps(ended: np.ndarray, step: int) -> np.ndarray:
    """The steps of rows that follow each other, from this one on; 0 behind each that ended."""
    at = np.arange(len(ended))
    begins = np.concatenate([[-step], np.where(ended[:-1], at[1:], -step)])
    return at - np.maximum.accumulate(begins)
