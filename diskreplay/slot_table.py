"""Which row is in which slot of a store, and the fields that are in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, FormatError, NotFiniteError, SchemaError
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Options
from diskreplay.owned_store_kind import OwnedStoreKind
from diskreplay.runs import Run
from diskreplay.slot_fields import SLOT, SlotFields
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store

_EMPTIED = -1  # in the field `SLOT`: all slots of the lane are empty from this row on
_AT_ONCE = 1 << 14  # rows that are taken in at a time
_LEAST_SLACK, _SLACK = 64, 8


def slack(sizes: Any) -> Any:
    """So many rows of a lane of so many slots may be in no slot any more."""
    return np.maximum(sizes // _SLACK, _LEAST_SLACK)


class SlotTable(IndexedStore):
    """The rows of a store as a log: the newest row of each slot is what the slot shows.

    The oldest rows leave as new ones come. One that a slot still shows is added once more before,
    so that a slot keeps its row for as long as nothing else is put there.

    Parameters
    ----------
    store : Store
    fields : SlotFields
    options : Options
    make_sampler : callable
        As for `IndexedStore`.
    weighted : bool

    Attributes
    ----------
    row_of : ndarray of int64, shape (slots,)
        The row of each slot in its lane; -1 where there is none.
    columns : dict of str to ndarray, each of shape (slots, *shape)
        The fields in memory.
    weights : ndarray of float64, shape (slots,), or None
        The owner's, saved with a record; NaN where nothing was saved. None if not `weighted`.
    notes : dict
    """

    def __init__(
        self, store: Store, fields: SlotFields, options: Options, make_sampler: Any,
        *, weighted: bool,
    ) -> None:  # fmt: skip
        super().__init__(store, fields.schema, options, make_sampler)
        self.fields = fields
        self.notes: dict[str, Any] = dict(store.meta["notes"])
        self.row_of = np.full(fields.total, -1, np.int64)
        self.columns = {
            name: np.zeros((fields.total, *shape), dtype)
            for name, (shape, dtype) in fields.specs.items()
            if name in fields.resident
        }
        self._kept = fields.sizes + slack(fields.sizes)  # rows of each lane
        # So many may be looked through, and added once more, at a time.
        self._step = slack(fields.sizes) // 4
        self._are_even = bool((self._kept == self._kept[0]).all())
        self._taken_in = store.first.copy()
        self._looked_through = store.first.copy()  # no slot shows a row before these
        # While a lane has fewer rows, a new one makes none leave that was not looked through.
        self._room_until = self._looked_through + self._kept - self._step
        self._envs = np.arange(store.num_envs)
        self.catch_up()
        self.weights = self._saved_weights() if weighted else None

    # -- what is there

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """The ids of the rows in these slots; negative for an empty one."""
        rows, lanes = self.row_of[slots], self.store.num_envs
        return rows if lanes == 1 else rows * lanes + self.fields.lanes(slots)

    def catch_up(self) -> None:
        """Take in what the store has and memory does not know of."""
        np.maximum(self._taken_in, self.store.first, out=self._taken_in)
        for lane in np.flatnonzero(self._taken_in < self.store.count).tolist():
            start, stop = int(self._taken_in[lane]), int(self.store.count[lane])
            for row in range(start, stop, _AT_ONCE):
                self._take_in_rows(lane, row, min(row + _AT_ONCE, stop))

    def _take_in_rows(self, lane: int, start: int, stop: int) -> None:
        slots = self.store.columns[SLOT].read(lane, start, stop)
        first = int(self.fields.offsets[lane])
        size = int(self.fields.sizes[lane])
        bad = (slots != _EMPTIED) & ((slots < first) | (slots >= first + size))
        if bad.any():
            self.store.columns[SLOT].complain(start + int(bad.argmax()), lane)
        emptied = np.flatnonzero(slots == _EMPTIED)
        if len(emptied):
            self.row_of[first : first + size] = -1
            for column in self.columns.values():
                column[first : first + size] = 0
            start += int(emptied[-1]) + 1
            slots = slots[int(emptied[-1]) + 1 :]
        # Of several rows for a slot the last one counts: as NumPy assigns.
        self.row_of[slots] = np.arange(start, stop)
        for name, column in self.columns.items():
            column[slots] = self.store.columns[self.fields.stored[name]].read(lane, start, stop)
        self._taken_in[lane] = stop

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
        lanes = self.fields.lanes(slots)
        if len(slots) == 1 or len(np.unique(lanes)) == len(lanes):
            self._put_step(lanes, slots, self._whole(slots, values))
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
            self._take(self.fields.stored[name], self.ids(slots), found[-1])
        return found

    def _take(self, stored: str, ids: np.ndarray, out: np.ndarray) -> None:
        guard = ReadGuard()
        try:
            self.store.rwlock.acquire_read(guard)
            self.store.columns[stored].take(ids, out)
        finally:
            guard.release()

    def _stored(self, slots: np.ndarray, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """An array for each of the store's fields, in their order."""
        rows = []
        for stored, name in zip(self.fields.schema.names, self.fields.given, strict=True):
            if name is not None:
                rows.append(values[name])
            elif stored == SLOT:
                rows.append(slots)
            else:
                shape, dtype = self.fields.schema.shapes[stored]
                rows.append(np.zeros((len(slots), *shape), dtype))
        rewards = rows[self._reward_at]
        if not np.isfinite(rewards).all():
            at = int(np.isfinite(rewards).argmin())
            raise NotFiniteError(
                f"reward: {rewards[at]} for slot {slots[at]}, a finite float32 expected; give a "
                "field of another name what need not be"
            )
        return rows

    def _put_step(
        self, lanes: np.ndarray, slots: np.ndarray, values: dict[str, np.ndarray]
    ) -> None:
        """A row for each of some lanes, in one go."""
        columns = self._stored(slots, values)
        if (self.store.count[lanes] >= self._room_until[lanes]).any():
            for lane in lanes.tolist():
                self._make_room(lane, 1)
        at = self._reward_at
        ended = columns[at + 1] | columns[at + 2]
        columns[at + 3][:] = self.next_step[lanes]
        rows = self.store.count[lanes]
        try:
            if self.store.num_envs == 1:
                row = [column[0] for column in columns]
                row[at : at + 3] = float(row[at]), bool(row[at + 1]), bool(row[at + 2])
                self._append(int(row[at + 3]), row, None)
            else:
                self._append_step(lanes, columns)
                self.next_step[lanes] = np.where(ended, 0, self.next_step[lanes] + 1)
                self.add_count += len(lanes)
        except BaseException as error:
            self._mend_slots(rows, lanes, error)
            raise
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
        columns = self._stored(slots, values)
        self._make_room(lane, len(slots))
        at = self._reward_at
        ended = columns[at + 1] | columns[at + 2]
        columns[at + 3][:] = _steps(ended, int(self.next_step[lane]))
        first = int(self.store.count[lane])
        self._extend_lane(lane, slots, columns)
        rows = first + np.arange(len(slots))
        self._note(np.full(len(slots), lane), slots, rows, values)

    def _extend_lane(self, lane: int, slots: np.ndarray, columns: list[np.ndarray]) -> None:
        before = self.store.count[[lane]]
        try:
            self.extend([Run(lane, columns)])
        except BaseException as error:
            self._mend_slots(before, np.array([lane]), error)
            raise

    def _note(
        self, lanes: np.ndarray, slots: np.ndarray, rows: np.ndarray, values: Mapping[str, Any]
    ) -> None:
        """Memory learns of rows that are there."""
        self.row_of[slots] = rows
        for name, column in self.columns.items():
            column[slots] = values[name]
        self._taken_in[lanes] = self.store.count[lanes]
        if not self._are_even:
            oldest = self.store.count - self._kept
            self.store.first = np.maximum(self.store.first, oldest)

    def _mend_slots(self, before: np.ndarray, lanes: np.ndarray, error: BaseException) -> None:
        """After a call that stopped short: rows that are there count."""
        counts = self.store.count.copy()
        counts[lanes] = before
        if (self.store.count > counts).any():
            self._mend(counts, error)
            self.catch_up()

    def empty(self, lane: int) -> None:
        """From now on the slots of a lane have no rows."""
        self._make_room(lane, 1)
        columns = [np.zeros((1, *s), d) for s, d in self.fields.schema.shapes.values()]
        names = self.fields.schema.names
        columns[names.index(SLOT)][:] = _EMPTIED
        columns[names.index("is_final")][:] = True
        columns[names.index("step")][:] = self.next_step[lane]
        self._extend_lane(lane, np.array([_EMPTIED]), columns)
        self.catch_up()
        if not self._are_even:
            self.store.first = np.maximum(self.store.first, self.store.count - self._kept)

    def _make_room(self, lane: int, rows: int) -> None:
        """See to it that `rows` more rows of a lane make none leave that a slot shows.

        The oldest rows are looked through, some at a time; those that a slot shows are added once
        more. There is always room for these, as what is looked through next are no more rows than
        stay free here.
        """
        kept, step = int(self._kept[lane]), int(self._step[lane])
        while True:
            start, count = int(self._looked_through[lane]), int(self.store.count[lane])
            self._room_until[lane] = start + kept - step
            if count + rows <= start + kept - step:
                return
            stop = min(start + step, count)
            slots = self.store.columns[SLOT].read(lane, start, stop)
            numbers = np.arange(start, stop)
            shown = (slots >= 0) & (self.row_of[slots] == numbers)
            if shown.any():
                self._add_again(lane, slots[shown], numbers[shown])
            self._looked_through[lane] = stop

    def _add_again(self, lane: int, slots: np.ndarray, rows: np.ndarray) -> None:
        columns = []
        for stored, (shape, dtype) in self.fields.schema.shapes.items():
            columns.append(np.empty((len(rows), *shape), dtype))
            self._take(stored, rows * self.store.num_envs + lane, columns[-1])
        columns[self._reward_at + 3][:] = 0  # they follow nothing, and nothing follows them
        first = int(self.store.count[lane])
        self._extend_lane(lane, slots, columns)
        self.next_step[lane] = 0
        self.row_of[slots] = first + np.arange(len(slots))
        self._taken_in[lane] = self.store.count[lane]

    # -- weights

    def leaves(self, weights: np.ndarray) -> np.ndarray:
        """The weights of all rows from the oldest on, NaN for those in no slot."""
        store = self.store
        start = int(store.first.min())
        found = np.full((int(store.count.max()) - start, store.num_envs), np.nan)
        used = np.flatnonzero(self.row_of >= 0)
        found[self.row_of[used] - start, self.fields.lanes(used)] = weights[used]
        return found

    def _saved_weights(self) -> np.ndarray:
        weights = np.full(self.fields.total, np.nan)
        saved = self.store.read_priorities()
        if saved is not None:
            start, leaves, _alpha = saved
            used = np.flatnonzero(self.row_of >= start)
            used = used[self.row_of[used] < start + len(leaves)]
            weights[used] = leaves[self.row_of[used] - start, self.fields.lanes(used)]
        return weights


def _steps(ended: np.ndarray, step: int) -> np.ndarray:
    """The steps of rows that follow each other, from this one on; 0 behind each that ended."""
    at = np.arange(len(ended))
    begins = np.concatenate([[-step], np.where(ended[:-1], at[1:], -step)])
    return at - np.maximum.accumulate(begins)


class SlotTableKind(OwnedStoreKind):
    """What the stores of `Slots` hold; see there."""

    def __init__(self, fields: SlotFields, options: Options, *, weighted: bool, **owned: Any):
        super().__init__(fields.schema, options, **owned)
        self.fields, self.weighted = fields, weighted

    def check(self, store: Store) -> None:
        super().check(store)
        try:
            found = SlotFields.parse(store.meta)
        except FormatError as error:
            raise FormatError(f"{store.path}/zarr.json: {error}") from error
        for what, here, there in (
            ("slots", self.fields.sizes.tolist(), found.sizes.tolist()),
            ("fields", self.fields.stored, found.stored),
        ):
            if here != there:
                raise SchemaError(
                    f"{store.path}: {what} are {there!r:.200} in the store and {here!r:.200} here; "
                    "open it as it was made, or choose another directory"
                )

    def attach(self, store: Store, *, resume_episodes: bool | None = None) -> SlotTable:
        try:
            make = self.distribution.make_sampler
            return SlotTable(store, self.fields, self.options, make, weighted=self.weighted)
        except IndexError as error:
            raise CorruptSegmentError(
                f"{store.path}: rows in slots are damaged: {error}"
            ) from error

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.fields.describe()

    def leaves(self, rows: SlotTable) -> np.ndarray | None:  # type: ignore[override]
        return None if rows.weights is None else rows.leaves(rows.weights)
