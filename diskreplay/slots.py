"""Rows in numbered slots, written in any order: what a framework's arrays are on disk."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from diskreplay import given_numbers, validation
from diskreplay.brief import brief
from diskreplay.errors import DtypeError, InvalidInputError, SchemaError, ShapeError
from diskreplay.metadata import as_json
from diskreplay.options import Options
from diskreplay.row_reader import RowReader
from diskreplay.slot_fields import SlotFields
from diskreplay.slot_table import SlotTable
from diskreplay.slot_table_kind import SlotTableKind
from diskreplay.slot_view import SlotView
from diskreplay.store.paths import local
from diskreplay.store.store import Store

OWNER = "Slots"


class Slots(RowReader):
    """Rows on disk that are addressed by slot, a number from 0 on, as a framework's storage is.

    What a framework keeps in arrays of so many elements is here a row for each element: put into a
    slot in any order, and again, and read by slot. The rows are a log: what is put is added to it,
    and the newest row of each slot is what it shows. A row is there, whatever kills the process,
    when `put` returns.

    Slots are divided into lanes, one for each env: the rows of a lane lie side by side on the disk,
    so that a stack of its frames is read in one go. Lane 0 has the first slots, and so on.

    Parameters
    ----------
    path : str or Path or None
        As for `ReplayBuffer`. A store that exists is reopened, with all its rows; fields and slots
        have to be those that it was made with.
    fields : mapping of str to (shape, dtype)
        What a row consists of. Any names, ``"obs/camera"`` too. Where they are those of a
        `ReplayBuffer` (``observation``, ``observation/KEY``, ``action``, ``reward`` of float32,
        ``terminated`` and ``truncated`` of bool), whatever reads stores of diskreplay understands
        them.
    slots : int or sequence of int
        How many there are in all, evenly divided; or those of each lane.
    lanes : int
        Only where `slots` is one number, of which each lane has the same share.
    next_of : mapping of str to str, optional
        Pairs of fields of one shape and dtype: ``{"next_frame": "frame"}`` says that ``next_frame``
        of a row usually is ``frame`` of the row that its lane gets next. It is stored once then.
        Where it is not, both are stored: what is read is what was put, always.
    stack : mapping of str to int, optional
        Fields that are stacks of so many frames along their first axis: ``{"frame": 4}``. The
        newest frame is stored where the others are those of the row that the lane got before, or
        with `next_of` what that led to. Of a pair of `next_of` it is enough to name one.
    min_bytes : int
        Fields of fewer bytes a row are in memory too, see `columns`. Those that share frames are
        not.
    weighted : bool
        Whether `weights` are kept.
    compressor : str or dict
        As for `ReplayBuffer`, by the names of `fields`.
    segment_rows : int, optional
    notes : mapping, optional
        As `notes` of a new store.
    name : str
        Prefix of checkpoint directories.

    Raises
    ------
    InvalidInputError
        An argument makes no sense.
    SchemaError
        `path` has other fields, or they share other frames, or another number of slots, or is no
        store of `Slots`.
    LockedError, FormatError, StorageError
        As for `ReplayBuffer`.

    Notes
    -----
    Memory: 8 bytes a slot, 8 more if they are weighted, and the fields of less than `min_bytes`.
    Disk: an eighth more rows than there are slots (at least 64 a lane). `put` writes a row once,
    and those that are still shown when the log comes round once more: none where slots are
    written in turn, some for each one that is put where they are written at random.

    With `next_of` or `stack`: a byte or two more of memory a slot, and the newest values of these
    fields for each lane. A row that does not go on from the one that its lane got before has up to
    ``2 * stack - 1`` rows before it that hold only frames, which other readers take for final
    ones. So do slots that are not put in the order of time: every row of theirs may need as many.
    Fields of a pair of `next_of` are extras, whatever their names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        fields: Mapping[str, tuple[Any, ...]],
        slots: int | Sequence[int],
        *,
        lanes: int = 1,
        next_of: Mapping[str, str] | None = None,
        stack: Mapping[str, int] | None = None,
        min_bytes: int = 1024,
        weighted: bool = False,
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        notes: Mapping[str, Any] | None = None,
        name: str = "replay",
    ) -> None:
        self._closed = True
        made = SlotFields(fields, _sizes(slots, lanes), min_bytes, compressor, next_of, stack)
        kind = _kind(made, weighted, {} if notes is None else as_json("notes", notes))
        super().__init__(
            kind, path, capacity=made.capacity, segment_rows=segment_rows, env_group=None,
            seed=0, name=name, shrink=False, metadata=None,
        )  # fmt: skip

    @classmethod
    def reader(cls, path: str | os.PathLike[str]) -> Self:
        """Read along with a store that another process writes to, or read a checkpoint.

        Parameters
        ----------
        path : path

        Returns
        -------
        Slots
            It shows what was put when it is asked. `columns` are those of the last call.

        Raises
        ------
        FormatError, SchemaError
            There is no store of `Slots`.
        """
        store = Store.open(local(path, "path"), mode="r")
        try:
            kind = _kind(SlotFields.parse(store.meta), False, {})
            kind.check_opened(store)
            return cls._over(store, kind, np.random.default_rng(0))
        except BaseException:
            store.close()
            raise

    @property
    def _table(self) -> SlotTable:
        rows = self._rows
        assert isinstance(rows, SlotTable)
        return rows

    # -- what there is

    @property
    def specs(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each of the fields that it was made with."""
        return dict(self._table.fields.specs)

    @property
    def next_of(self) -> dict[str, str]:
        """Which fields are what a row led to, as it was made; a copy."""
        return dict(self._table.fields.next_of)

    @property
    def stack(self) -> dict[str, int]:
        """Which fields are stacks of frames, as it was made; a copy."""
        return dict(self._table.fields.stack)

    @property
    def sizes(self) -> np.ndarray:
        """Slots of each lane, int64; a copy."""
        return self._table.fields.sizes.copy()

    @property
    def offsets(self) -> np.ndarray:
        """The first slot of each lane, int64; a copy."""
        return self._table.fields.offsets.copy()

    def __len__(self) -> int:
        """Slots, with or without a row."""
        return self._table.fields.total

    @property
    def used(self) -> np.ndarray:
        """Which slots have a row: bool of shape (slots,)."""
        with self._turn():
            self._current()
            return self._table.row_of >= 0

    def order(self, lane: int = 0) -> np.ndarray:
        """The slots of a lane that have a row, in the order in which they were put: what a
        framework has to know after a reopening.

        Parameters
        ----------
        lane : int
            The env.

        Returns
        -------
        ndarray of int64
            One that the log added once more counts as put then. Slots that are written in turn are
            in the order of that.
        """
        lane = self._lane(lane)
        with self._turn():
            self._current()
            return self._table.order(lane)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The fields in memory by name, of shape ``(slots, *shape)``; zeros where there is no row.

        Views of the arrays themselves, which show what is put later, until `load`. They can only
        be read: `put` writes.
        """
        return {name: _shown(column) for name, column in self._table.columns.items()}

    @property
    def memory(self) -> dict[str, np.ndarray]:
        """The arrays that `columns` are views of, for an owner that sets values in them itself.

        What is set shows at once, in `read` too, and is on the disk when `put` is given it.
        `recall` takes it back. `load` makes others.
        """
        return dict(self._table.columns)

    def recall(self, slots: np.ndarray) -> None:
        """Have `memory` in these slots as it is on the disk, where `put` has failed, say.

        Parameters
        ----------
        slots : ndarray of int, shape (n,)
        """
        with self._turn_when_drawn():
            self._check_open()
            self._table.recall(self._table.fields.within(slots))

    @property
    def weights(self) -> np.ndarray:
        """A number for each slot, the owner's to set: float64 of shape (slots,), the array itself.

        `flush`, `close` and `save` write it, and a reopening and `load` give it back, with NaN for
        rows that came after the last one of these, and for what is negative or above 1e297.
        """
        if self._table.weights is None:
            raise SchemaError(f"{self.path}: these slots have no weights")
        return self._table.weights

    @property
    def notes(self) -> dict[str, Any]:
        """The owner's, as JSON; written by `flush`, `close` and `save`, restored with the rows."""
        return self._table.notes

    @notes.setter
    def notes(self, notes: Mapping[str, Any]) -> None:
        self._table.notes = as_json("notes", notes)

    # -- writing

    def put(self, slots: np.ndarray, values: Mapping[str, Any]) -> None:
        """Put a row into each of these slots, in place of what is there.

        Parameters
        ----------
        slots : array_like of int, shape (n,), or int
            From 0 on. Of several rows for a slot the last one stays.
        values : mapping of str to array_like, each of shape (n, *shape)
            Without the first axis if `slots` is a number. Fields that are left out stay as the slot
            has them: zeros, if it had no row.

        Raises
        ------
        InvalidInputError
            There is no such slot or field. Nothing was changed, as after the following ones.
        ShapeError, DtypeError
        NotFiniteError
            A ``reward`` of the store's own is NaN or infinite.
        DiskFullError
            Each lane has the rows before the first that did not fit.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        One row for each of several lanes is the fastest, and many rows of one lane are. Each row is
        there as a whole or not at all after a kill; rows of several lanes, or more than a few
        hundred of one, are not all there together.
        """
        self._check_writable()
        fields = self._table.fields
        at = given_numbers.as_array("slots", slots)
        is_one = at.ndim == 0
        at = at.reshape(1) if is_one else at
        if at.ndim != 1 or (at.size and at.dtype.kind not in "iu"):
            raise ShapeError(f"slots: integers along one axis expected, found {brief(slots, 120)}")
        at = fields.within(at)
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"values: a dict by the names of fields expected, found {brief(values, 120)}"
            )
        fields.check(values)
        fitted = {}
        for name, value in values.items():
            whole = given_numbers.as_array(name, value)
            whole = whole[None] if is_one else whole
            fitted[name] = np.ascontiguousarray(
                validation.fit(fields.values[name], whole, at.shape)
            )
        if not len(at):
            return
        with self._turn_when_drawn():
            self._check_writable()
            self._table.put(at, fitted)

    def empty(self, lane: int = 0) -> None:
        """Take the rows out of all slots of a lane. It costs one row, and outlasts a kill.

        Parameters
        ----------
        lane : int
            The env.
        """
        self._check_writable()
        lane = self._lane(lane)
        with self._turn_when_drawn():
            self._check_writable()
            self._table.empty(lane)

    def _lane(self, lane: Any) -> int:
        return given_numbers.whole("lane", lane, least=0, most=self.num_envs - 1)

    # -- reading

    def read(self, field: str | Sequence[str], slots: np.ndarray) -> Any:
        """The values of fields in these slots; zeros where there is no row.

        Parameters
        ----------
        field : str or sequence of str
        slots : array_like of int, any shape
            From 0 on.

        Returns
        -------
        ndarray, shape (*slots.shape, *shape), or a list of them
            Copies. Slots that were put one after the other, and follow each other along the last
            axis, are read in one go.

        Raises
        ------
        InvalidInputError
            There is no such field or slot.
        DtypeError
        CorruptSegmentError, ClosedError, ForkedError
        """
        names = validation.field_names(field)
        fields = self._table.fields
        fields.check(names)
        at = given_numbers.as_array("slots", slots)
        if at.size and at.dtype.kind not in "iu":
            raise DtypeError(f"slots: integers expected, found dtype {at.dtype}")
        at = fields.within(at)
        flat = at.reshape(-1)
        specs = fields.specs
        found = {n: np.empty((*at.shape, *specs[n][0]), specs[n][1]) for n in names}
        read = list(found)
        if self.mode == "a":  # a reader's columns may be older than its rows
            self._check_open()
            columns = self._table.columns
            for name in columns.keys() & found.keys():
                np.take(
                    columns[name],
                    flat,
                    axis=0,
                    out=found[name].reshape(-1, *found[name].shape[at.ndim :]),
                )
                read.remove(name)
        if read:

            def take(store: Store, ids: Sequence[np.ndarray]) -> None:
                for name, rows in zip(read, ids, strict=True):
                    store.columns[fields.stored[name]].take(rows, found[name])

            self._read_rows(lambda table: table.ids_of(read, flat), take)
        return found[field] if isinstance(field, str) else [found[name] for name in names]

    def view(self, field: str) -> "SlotView | np.ndarray":
        """A field as an array of shape ``(slots, *shape)``.

        Parameters
        ----------
        field : str

        Returns
        -------
        ndarray or SlotView
            Of a field in memory what `columns` has. Of another one an array-like that reads what
            it is asked for and puts what is set, and whose slices are views.
        """
        fields = self._table.fields
        fields.check([field])
        if field in self._table.columns:
            return _shown(self._table.columns[field])
        shape, dtype = fields.specs[field]
        return SlotView(
            range(fields.total), shape, dtype, lambda slots: self.read(field, slots),
            lambda slots, values: self.put(slots, {field: values}),
        )  # fmt: skip

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{int(self.used.sum())} with a row"
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} slots, {state})"


def _sizes(slots: int | Sequence[int], lanes: int) -> list[int]:
    """Slots of each lane."""
    lanes = given_numbers.whole("lanes", lanes)
    # A text has no axes, and a dict has none.
    if isinstance(slots, Iterable) and given_numbers.as_array("slots", slots).ndim:
        sizes = list(slots)
        if lanes not in (1, len(sizes)):
            raise InvalidInputError(
                f"lanes: {len(sizes)} of them have slots, found lanes={lanes!r}"
            )
        return sizes
    total = given_numbers.whole("slots", slots, most=1 << 36)
    if total % lanes:
        raise InvalidInputError(f"slots: a multiple of {lanes} lanes expected, found {total}")
    return [total // lanes] * lanes


def _shown(column: np.ndarray) -> np.ndarray:
    """A view that can only be read."""
    view = column.view()
    view.flags.writeable = False
    return view


def _kind(fields: SlotFields, weighted: bool, notes: Mapping[str, Any]) -> SlotTableKind:
    options = Options.checked(len(fields.sizes), 1, "zero", 1, 0.99, 32)
    return SlotTableKind(
        fields, options, weighted=weighted, owner=OWNER, notes=notes, note_bounds={}
    )  # fmt: skip
