"""cpprb's `ReplayBuffer`."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from diskreplay.brief import brief
from diskreplay.compat.base import Facade
from diskreplay.compat.cpprb import files
from diskreplay.compat.cpprb.columns import PRIORITIES, Arrays, Columns, names
from diskreplay.compat.cpprb.layout import Layout, all_fields
from diskreplay.compat.cpprb.nstep import NstepBuffer
from diskreplay.compat.cpprb.resident import Resident
from diskreplay.compat.cpprb.tracks import check_links
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import is_real
from diskreplay.locks import one_call

_ROWS_AT_ONCE = 1024
_MOST_SLOTS = 2**62 - 1


class ReplayBuffer(Facade):
    """Named columns in a ring; rows are drawn uniformly, with replacement.

    Parameters
    ----------
    size : int or float
        Capacity, in rows.
    env_dict : dict, optional
        Name to ``{"shape": int or sequence, "dtype": ...}``, by default 1 and `default_dtype`.
    next_of : str or iterable of str, optional
        Columns whose ``next_`` value usually is the next row's value. Both are given and returned;
        where rows have 1 KiB or more, what follows is stored once.
    stack_compress : str or iterable of str, optional
        Columns whose last axis is a stack of frames. Stacks of 1 KiB or more that move on by one
        frame a row are stored frame by frame.
    default_dtype : dtype, optional
        float32 if None.
    Nstep : dict, optional
        See `NstepBuffer`. The options above then save nothing.
    mmap_prefix : str, optional
        The store's directory, if `path` is None; ``{mmap_prefix}_{name}.dat`` links to a column.
    path : path, optional
        The store's directory: created, or reopened. None: a temporary one.
    compressor : {"auto", "raw", "lz4", "zstd"}
        As for `diskreplay.ReplayBuffer`, for all columns. "raw" frames are sampled in half the time
        and take ten times the space.
    **ignored
        Any other keyword, as in the original.

    Raises
    ------
    InvalidInputError
        An argument makes no sense.
    KeyError
        `next_of` or `stack_compress` names no column.
    SchemaError, FormatError, LockedError, StorageError
        For the store, as `diskreplay.ReplayBuffer` does.

    Notes
    -----
    When `add` returns, its rows survive the death of the process; steps that wait for their n-step
    window do not. A reopened store continues with its rows, the episode being over. Memory: the
    smallest columns, of at most 1 KiB a row and 128 MiB together, are kept in it too.
    """

    _weighted = False
    _note_bounds: ClassVar[dict[str, tuple[float, float]]] = {"size": (1, _MOST_SLOTS)}

    def __init__(
        self,
        size: int | float,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        next_of: str | Sequence[str] | None = None,
        stack_compress: str | Sequence[str] | None = None,
        default_dtype: Any = None,
        Nstep: Mapping[str, Any] | None = None,
        mmap_prefix: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        compressor: str = "auto",
        **ignored: Any,
    ) -> None:
        if not is_real(size) or not 1 <= size <= _MOST_SLOTS:
            raise InvalidInputError(f"size: a positive number expected, found {brief(size)}")
        self._size = int(size)
        self._columns = Columns(env_dict, names(next_of), default_dtype)
        self._nstep = None
        if Nstep:
            self._nstep = NstepBuffer(env_dict or {}, Nstep)
            self._nstep.columns = self._columns
            self._layout = Layout(self._columns, self._size)
        else:
            self._layout = Layout(self._columns, self._size, names(next_of), names(stack_compress))
        linked = path is None and mmap_prefix is not None
        # The engine keeps at least one whole transition of two rows.
        slots = max(self._size + self._layout.slack, 2)
        super().__init__(
            mmap_prefix if linked else path, slots, "cpprb", weighted=self._weighted,
            compressor=self._layout.compressors(compressor), notes=self._notes(),
            check=partial(check_links, self._layout.links),
        )  # fmt: skip
        self._make_ring(
            self._layout.observation_space, self._layout.action_space, self._layout.extras
        )
        if mmap_prefix is not None and linked:
            _link(os.fspath(mmap_prefix), self._layout.fields)

    # -- the ring

    def _align(self, ring: SlotBuffer) -> None:
        """`_recall` does."""

    def _recall(self, ring: SlotBuffer) -> None:
        """Slots are numbered by this buffer's size: rows of one of another size move, and so do
        those beside rows that a repair set aside."""
        before = ring.notes.get("size", self._size)
        lost = _lost(ring, self._layout.slack)
        if before != self._size or lost.any():
            kept = min(before, self._size, ring.stored)
            last = ring.retained[-kept:][~lost[-kept:]]
            with ring.rebuilding() as fresh:
                fresh.notes = {**ring.notes, "size": self._size}
                for start in range(0, len(last), _ROWS_AT_ONCE):
                    self._copy(ring, fresh, last[start : start + _ROWS_AT_ONCE])
        self._remember()

    def _remember(self) -> None:
        """Make what is in memory anew, from the ring. The next row follows none."""
        self._layout.forget()
        self._resident = Resident(self._layout, self._ring, self._size)
        self._ring.end_episode()
        self._episode_start = self._ring.count

    def _copy(self, ring: SlotBuffer, fresh: SlotBuffer, rows: np.ndarray) -> None:
        """Append rows of `ring` to an emptier one."""
        stored, states = self._layout.encode(self._layout.decode(ring.take, rows))
        stored["terminated"] = ring.take("terminated", rows)
        fields = all_fields(stored, ring.fields, len(rows), 0)
        fresh.extend({**fields, "step": ring.take("step", rows)})
        self._layout.keep(states)

    def _notes(self) -> dict[str, Any]:
        """Those of a ring without rows."""
        return {"size": self._size}

    # -- adding

    @one_call
    def add(self, /, **columns: Any) -> int | None:
        """Store one row, or several.

        Parameters
        ----------
        **columns
            A value of the column's shape, or of ``(rows, *shape)``, for every column and for the
            ``next_`` column of each `next_of`. Cast to the column's dtype; other names are ignored.

        Returns
        -------
        int or None
            The slot of the first row. None if all wait for their n-step window.

        Raises
        ------
        KeyError
            A column is missing. Nothing was stored.
        InvalidInputError
            A shape does not fit, the columns differ in length, or a float32 scalar ``rew`` is not
            finite, or its n-step sum would not be. Nothing was stored.
        StorageError
        """
        row = self._columns.row(columns) if self._nstep is None else None
        return self._take_in(self._columns.rows(columns)) if row is None else self._store_row(row)

    def _take_in(self, rows: Arrays) -> int | None:
        if self._nstep is None:
            return self._store(rows)
        whole, left = self._nstep.roll(rows)
        if self._layout.fields.get("rew") == "reward":
            self._nstep.check_finite("rew", left)
        if whole is not None:
            return self._store_whole(self._nstep, whole, left)
        self._nstep.keep(left)
        return None

    def _store_whole(self, nstep: NstepBuffer, whole: Arrays, left: Arrays) -> int:
        """Write rows whose n-step window is whole; the steps that are `left` go on waiting."""
        count = self._ring.count + len(next(iter(whole.values())))
        try:
            slot = self._store(whole)
            nstep.keep(left)
        except BaseException:
            if self._ring.count == count:  # Ctrl-C after the commit: the rows stay
                nstep.keep(left)
            raise
        return slot

    def _store(self, rows: Arrays) -> int:
        """Write whole rows; the slot of the first."""
        ring = self._ring
        count = len(next(iter(rows.values())))
        first = ring.count
        if count == 1:
            row = {name: values[0] for name, values in rows.items()}
            return self._store_row(row, rows.get(PRIORITIES))
        if not count:
            return first % self._size
        stored, states = self._layout.encode(rows)
        weigh = self._weigh if self._weighted else None
        try:
            ring.extend(all_fields(stored, ring.fields, count, ring.next_step))
            self._resident.took(first, count, rows, stored, states, weigh)
        except BaseException:
            added = ring.count - first
            if 0 < added < count:  # as many as there was room for, or as came before Ctrl-C
                self._layout.forget()
                ring.end_episode()
                states = []
            if added:
                self._resident.took(first, added, rows, stored, states, weigh)
            raise
        return first % self._size

    def _store_row(self, row: Arrays, priority: np.ndarray | None = None) -> int:
        """As `_store`, for one row without a leading axis: by far the most common."""
        number = self._ring.count
        stored, states = self._layout.encode_row(row)
        weigh = self._weigh if self._weighted else None
        self._commit(stored, self._resident.took_row, row, stored, states, priority, weigh)
        return number % self._size

    def _weigh(self, first: int, count: int, priorities: np.ndarray | None) -> None:
        """Rows from number `first` on were stored: the first `count` of those with `priorities`."""

    @one_call
    def on_episode_end(self) -> None:
        """The episode is over, terminated or not: store the steps that wait for their window.

        The caller's duty after each episode. Only n-step buffers need it; others merely start to
        count anew.
        """
        if self._nstep is not None and (rows := self._nstep.rest()) is not None:
            self._store_whole(self._nstep, rows, {})
        self._ring.end_episode()
        self._episode_start = self._ring.count

    @one_call
    def clear(self) -> None:
        """Forget all rows, and steps that wait; a largest priority is 1 again."""

        def recall() -> None:
            self._remember()
            if self._nstep:
                self._nstep.clear()

        notes = {**self._ring.notes, **self._notes()}
        with self._replacing(recall) as fresh:
            fresh.notes = notes

    # -- reading

    @one_call
    def sample(self, batch_size: int) -> Arrays:
        """Draw rows with `numpy.random.randint`.

        Returns
        -------
        dict of str to ndarray, each (batch_size, *shape)
            In the order of `env_dict`, then ``next_`` columns. Copies.

        Raises
        ------
        InvalidInputError
            There are no rows.
        """
        stored = self.get_stored_size()
        if not stored and batch_size:
            raise InvalidInputError("sample: there are no rows yet; add some first")
        drawn = np.random.randint(0, max(stored, 1), batch_size)  # noqa: NPY002 - as the original
        return self._resident.read(np.atleast_1d(drawn))

    def _encode_sample(self, idx: Any) -> Arrays:
        """The rows in these slots, as `sample` gives them; zeros for slots never written."""
        slots = np.array(idx, ndmin=1)
        if slots.dtype == np.bool_ and slots.shape == (self._size,):
            slots = np.flatnonzero(slots)
        if slots.size == 0:
            slots = slots.astype(np.int64)
        if slots.dtype.kind not in "iu":
            raise IndexError(f"slots: integers expected, found dtype {slots.dtype}")
        slots = slots.astype(np.int64)
        if ((slots < -self._size) | (slots >= self._size)).any():
            raise IndexError(f"slots: found {slots}, expected less than {self._size}")
        return self._resident.read(np.where(slots < 0, slots + self._size, slots))

    @one_call
    def get_all_transitions(self, shuffle: bool = False) -> Arrays:
        """All rows, in the order of their slots, or shuffled by `numpy.random.shuffle`."""
        slots = np.arange(self.get_stored_size())
        if shuffle:
            np.random.shuffle(slots)  # noqa: NPY002 - as the original
        return self._resident.read(slots)

    # -- files

    def save_transitions(self, file: Any, *, safe: bool = True) -> None:
        """Write all rows to a file that the original reads too.

        Parameters
        ----------
        file : path or writable binary file
            ``.npz`` is appended to a path without it.
        safe : bool
            Without effect: all files are of the safe kind.

        Notes
        -----
        Priorities, and steps that wait for their n-step window, are not in it.
        """
        files.save(file, self.get_all_transitions(), is_nstep=self.is_Nstep())

    @one_call
    def load_transitions(self, file: Any) -> None:
        """Append the rows of a file, of which the newest fit; also of one that the original wrote.

        Raises
        ------
        KeyError
            It lacks a column.
        InvalidInputError
            It is no such file or a damaged one, holds anything but arrays, numbers and names, or
            only one of file and buffer is n-step. In all cases nothing was stored.

        Notes
        -----
        The file's pickles are read by an unpickler that makes arrays and calls nothing.
        """
        rows = self._columns.rows(files.load(file, is_nstep=self.is_Nstep()))
        rows = {name: values[-self._size :] for name, values in rows.items()}
        self._store(rows)

    # -- looking

    def get_stored_size(self) -> int:
        """Rows there are."""
        return min(self._ring.count, self._size)

    def get_buffer_size(self) -> int:
        """Capacity, in rows."""
        return self._size

    def get_next_index(self) -> int:
        """The slot of the next row."""
        return self._ring.count % self._size

    def get_current_episode_len(self) -> int:
        """Rows stored since the last `on_episode_end`."""
        return self._ring.count - self._episode_start

    def is_Nstep(self) -> bool:
        """Whether rows are n-step rows."""
        return self._nstep is not None

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._ring.path


def _lost(ring: SlotBuffer, slack: int) -> np.ndarray:
    """Which of the retained rows a repair set aside, or may have frames in such rows: bool."""
    final = ring.column("is_final")  # no row of this buffer's is one
    lost = final.copy()
    for back in range(1, slack + 1):
        lost[back:] |= final[:-back]
    return lost


def _link(prefix: str, fields: Mapping[str, str]) -> None:
    """Names that the original's files have, for scripts that look for them."""
    for name, field in fields.items():
        target = os.path.join(os.path.basename(prefix) or ".", field)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, f"{prefix}_{name}.dat")
