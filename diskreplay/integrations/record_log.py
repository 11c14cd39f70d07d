"""Records in numbered slots that may be written again and in any order, over a store of rows.

Rows are only ever appended. A slot shows the row that was written to it last, and memory knows
which one that is; the store has the slot of each row, so that all of this is found again. Rows that
no slot shows any more leave with the oldest; those among the oldest that are still shown are
appended once more before.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from diskreplay import fork
from diskreplay.errors import (
    CorruptSegmentError,
    NotSampleableError,
    ReadOnlyError,
    UnknownIdError,
    UsageError,
)
from diskreplay.frame_chains import Columns
from diskreplay.integrations.read_memory import ReadMemory
from diskreplay.integrations.record_layout import BACK, SLOT, RecordLayout
from diskreplay.opening import open as open_buffer
from diskreplay.shared_buffer import shared
from diskreplay.store.listing import Checkpoint

Read = TypeVar("Read")

_CLEARED = -2  # the slot of a row that says: what came before is gone
_MOVED = 1 << 62  # added to the slot of a row that moved the cursor
_LEAST_SLACK = 64
_SCANNED = 1 << 16  # rows whose slots are read at a time


class RecordLog:
    """The records of one store, by slot; one writer, or a reader that follows it.

    Parameters
    ----------
    path : path or None
        Of the store, made or reopened; None is a temporary one.
    slots : int
        From 0 on.
    layout : RecordLayout
    compressor : str or dict
        As for `ReplayBuffer`.
    notes : dict, optional
        JSON, kept in the store's metadata under ``"records"``, with the layout.
    mode : {"a", "r"}

    Attributes
    ----------
    missing : ndarray of bool, shape (slots,)
        The slots whose newest row a repair set aside, or may have: they show nothing.
    lost : int
        How many these are: where there are none, nobody looks through `missing`.
    cursor : int or None
        The newest slot of those that were written with `moves`.

    Notes
    -----
    10 bytes of memory a slot, beside those of the buffer. Rows that no slot shows any more are at
    most an eighth of the slots, but 64 at least, and what is in segments with others.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        slots: int,
        layout: RecordLayout,
        compressor: str | Mapping[str, str] = "auto",
        notes: Mapping[str, Any] | None = None,
        *,
        mode: str = "a",
    ) -> None:
        self.slots, self.layout, self._mode = slots, layout, mode
        self._slack = max(slots // 8, _LEAST_SLACK)
        self._step = self._slack // 2
        self._pid = fork.pid
        self._memory = {name: ReadMemory() for name in layout.leaves}
        self._memory_of_both = {name: ReadMemory(2) for name in layout.leaves}
        if mode == "a":
            most = slots * layout.most_rows + self._slack + (2 * self._step + 1) * layout.most_rows
            self._handle = shared(
                path, capacity=most + layout.reach, compressor=compressor, seed=0,
                metadata={"records": {**layout.described(), **(notes or {})}}, **layout.options(),
            )  # fmt: skip
            self._claim = self._handle.claim()
        else:
            assert path is not None
            self._reader = open_buffer(path)
        self.look()

    @property
    def is_reader(self) -> bool:
        """Whether this reads along with a writer in another process, a parent's too."""
        if fork.pid != self._pid:  # the engine of the parent is of no use here
            self._reader, self._pid, self._mode = open_buffer(self.path), fork.pid, "r"
            self.look()
        return self._mode == "r"

    @property
    def buffer(self) -> Any:
        """The `ReplayBuffer` that has the rows.

        Raises
        ------
        UsageError
            Another log of this process has taken the store over.
        """
        if self.is_reader:
            return self._reader
        if not self._handle.has(self._claim):
            raise UsageError(
                f"{self._handle.path}: another storage of this process has this store now, made "
                "later with the same path; use that one, or another path"
            )
        return self._handle.buffer

    # -- which row is where

    def look(self) -> None:
        """Find out anew which rows the slots show, from the store alone."""
        buffer = self._reader if self._mode == "r" else self._handle.buffer
        self.path = Path(buffer.path)
        self._run = buffer.generation  # first: if another thread sees a load next, it is told again
        self._first, self._count = (int(n) for n in buffer.bounds[0])
        self._forget()
        self._known = self._scanned = self._first
        self._newest_lost = -1 - self.layout.reach  # the newest row that was set aside
        self._tip: dict[str, np.ndarray] | None = None
        self._take_in(buffer, self._count)
        if self._mode == "a" and self._count > self._first:
            # Rows that left may be back after a kill. They are the oldest, and no slot shows them.
            shown = self._shown[self._shown >= 0] >> 8
            self._scanned = int(shown.min()) if len(shown) else self._count - 1
            self._evict(buffer)

    def _forget(self) -> None:
        # The row that each slot shows, and in the lowest byte its `back`. In one number: else a
        # thread that reads while another one writes could have a row with another one's `back`.
        self._shown = np.full(self.slots, -1, np.int64)
        self.missing, self.lost = np.zeros(self.slots, np.bool_), 0
        self._cost = np.zeros(self.slots, np.uint8)  # rows that each record was appended with
        self._needed = 0
        self.cursor: int | None = None

    def _take_in(self, buffer: Any, count: int) -> None:
        """Take note of the slots of rows up to `count`."""
        fields = ["is_final", SLOT, BACK] if self.layout.has_back else ["is_final", SLOT]
        for start in range(self._known, count, _SCANNED):
            rows = np.arange(start, min(start + _SCANNED, count))
            # No record is a final row, but where a repair has set it aside.
            lost, *columns = buffer.take(fields, rows)
            if lost.any() or start <= self._newest_lost + self.layout.reach:
                self._note_lost(rows, lost, *columns)
            else:
                self._note(rows, *columns)
        self._known = count

    def _note_lost(
        self, rows: np.ndarray, lost: np.ndarray, slots: np.ndarray, back: np.ndarray | None = None
    ) -> None:
        """As `_note`, where some of the rows were set aside. Those behind may have frames there."""
        needed = self.layout.reach
        oldest = rows - (needed if back is None else back.astype(np.int64) + (needed - 1) // 2)
        newest = np.maximum.accumulate(np.where(lost, rows, self._newest_lost))
        aside, self._newest_lost = oldest <= newest, int(newest[-1])
        # 0 is also what a slot reads as that was lost itself: any slot may have been written then.
        breaks = np.flatnonzero((lost & (slots == 0)) | (slots == _CLEARED))
        if len(breaks):  # of what came before the last of these nothing is known, or needed
            self._forget()
            is_unknown = bool(slots[breaks[-1]] != _CLEARED)
            self.missing[:], self.lost = is_unknown, self.slots * is_unknown
            rest = slice(int(breaks[-1]) + 1, None)
            rows, slots, aside = rows[rest], slots[rest], aside[rest]
            back = None if back is None else back[rest]
        # One after the other: a slot may be among these twice.
        ends = [*(1 + np.flatnonzero(aside[1:] != aside[:-1])), len(rows)]
        for low, high in zip([0, *ends[:-1]], ends, strict=True) if len(rows) else ():
            part = slice(low, high)
            self._note(rows[part], slots[part], None if back is None else back[part])
            if aside[low]:
                own = slots[part][slots[part] >= 0]
                own = own - (own >= _MOVED) * _MOVED
                self._shown[own], self.missing[own] = -1, True
                self.lost = int(self.missing.sum())

    def _note(self, rows: np.ndarray, slots: np.ndarray, back: np.ndarray | None = None) -> None:
        """These rows, one behind the other, have what slots show now."""
        if (slots == _CLEARED).any():
            rest = slice(int(np.flatnonzero(slots == _CLEARED)[-1]), None)
            rows, slots, back = rows[rest], slots[rest], None if back is None else back[rest]
            self._forget()
        own = np.flatnonzero(slots >= 0)
        moved = slots[own] >= _MOVED
        written = slots[own] - moved * _MOVED
        self._shown[written] = rows[own] << 8 if back is None else rows[own] << 8 | back[own]
        if self.lost:
            self.lost -= len(np.unique(written[self.missing[written]]))
            self.missing[written] = False
        if len(written) == 1:  # by far the most common, and in no need of arrays
            at, cost = int(written[0]), int(own[0]) + 1
            self._needed += cost - int(self._cost[at])
            self._cost[at] = cost
        else:
            costs, known = np.diff(own, prepend=-1), np.unique(written)
            self._needed -= int(self._cost[known].sum(dtype=np.int64))
            self._cost[written] = costs
            self._needed += int(self._cost[known].sum(dtype=np.int64))
        if moved.any():
            self.cursor = int(written[np.flatnonzero(moved)[-1]])

    def follow(self) -> np.ndarray | None:
        """For a reader: take in what the writer did since. The slots that may show something else,
        or None where there is nothing new."""
        first, count = (int(n) for n in self.buffer.bounds[0])
        if self.buffer.generation != self._run:  # it loaded a checkpoint: other rows, same numbers
            self.look()
            return np.arange(self.slots)
        if count == self._known:
            return None
        before = self._shown.copy()
        if count < self._known or first > self._known:  # far ahead, or it went back
            self.look()
        else:
            self._take_in(self.buffer, count)
        return np.flatnonzero(before != self._shown)

    @property
    def rows(self) -> np.ndarray:
        """The row that each slot shows, int64 of shape (slots,); -1 where nothing was written."""
        return self._shown >> 8

    @property
    def state(self) -> tuple[int, np.ndarray]:
        """The same number, and the same array, as long as the slots show the same rows."""
        return self._known, self._shown

    # -- writing

    def put(
        self, slots: np.ndarray, columns: Mapping[str, np.ndarray], moves: bool = False
    ) -> None:
        """Write records, with a column of shape (records, *shape) for each leaf of the layout; of
        a slot that is named twice the last counts. `moves` is whether the last one is the `cursor`
        from now on.

        Raises
        ------
        ReadOnlyError
            This is a reader.
        DiskFullError, ...
            As for `ReplayBuffer.extend`. Of many records the first may have been written.
        """
        if self.is_reader:
            raise ReadOnlyError(
                f"{self.path}: this copy reads along; only the storage that made it writes"
            )
        buffer = self.buffer
        for start in range(0, len(slots), self._step):
            part = slice(start, start + self._step)
            # What is written over the record that moved the cursor says so in its stead: that row
            # may go now.
            moved = moves | (slots[part] == self.cursor)
            self._append(
                buffer, slots[part] + moved * _MOVED,
                {name: column[part] for name, column in columns.items()},
            )  # fmt: skip
            self._make_room(buffer)

    def _append(self, buffer: Any, slots: np.ndarray, columns: Columns) -> None:
        rows = self.layout.rows(slots, columns, self._tip)
        self._tip = None
        try:
            buffer.extend(rows)
            count = int(buffer.bounds[0, 1])
            self._note(np.arange(self._count, count), rows[SLOT], rows.get(BACK))
            self._count = self._known = count
        except BaseException:  # Ctrl-C at any place, or a full disk: the first ones may be there
            if buffer.bounds[0, 1] > self._known:
                self.look()
            raise
        self._tip = self.layout.tip(columns)

    def _make_room(self, buffer: Any) -> None:
        """Let the oldest rows go, and append those records once more that are still shown."""
        while self._count - self._scanned > self._needed + self._slack:
            oldest = np.arange(self._scanned, self._scanned + self._step)
            slots = buffer.take(SLOT, oldest)
            slots = np.where(slots >= _MOVED, slots - _MOVED, slots)
            shown = slots[(slots >= 0) & (self._shown[slots] >> 8 == oldest)]
            if len(shown):
                columns = {name: self.read(name, shown) for name in self.layout.leaves}
                self._append(buffer, shown + (shown == self.cursor) * _MOVED, columns)
            self._scanned += self._step
            self._evict(buffer)

    def _evict(self, buffer: Any) -> None:
        first = self._scanned - self.layout.reach  # which the next records may need
        if first > self._first:
            buffer.evict(np.array([first]))
            self._first = first

    def clear(self) -> None:
        """Nothing is in any slot."""
        if self._count > self._first:
            nothing = {
                name: np.zeros((1, *leaf.shape), leaf.stored)
                for name, leaf in self.layout.leaves.items()
            }
            buffer = self.buffer
            self._tip = None
            self._append(buffer, np.array([_CLEARED]), nothing)
            self._tip = None
            self._scanned = self._count - 1
            self._evict(buffer)

    # -- reading

    def check(self, slots: np.ndarray) -> None:
        """Refuse records that a repair has set aside, and in whose slots nothing was written
        since, by a `CorruptSegmentError`."""
        gone = np.unique(slots[self.missing[slots]])
        if len(gone):
            raise CorruptSegmentError(
                f"{self.path}: {len(gone)} of these records, such as {gone[:4].tolist()}, were set "
                f"aside by a repair, {self.lost} in all; write them again, or load a checkpoint"
            )

    def read(self, name: str, slots: np.ndarray) -> np.ndarray:
        """One leaf of the records in these slots, of shape (*slots.shape, *shape); a copy, with
        zeros where nothing was written."""
        leaf = self.layout.leaves[name]

        def read(rows: np.ndarray, back: np.ndarray | None) -> np.ndarray:
            field, frames = self.layout.window(name, rows, back)
            room = self._memory[name].room((*frames.shape, *leaf.frame_shape), leaf.stored)
            self.buffer.take(field, frames, out=room)
            return room.reshape((*slots.shape, *leaf.shape))

        return self._read(slots, read)

    def read_both(self, name: str, slots: np.ndarray) -> np.ndarray | None:
        """As `read`, of the two leaves of a `RecordLayout.pair`, of which `name` is the first: of
        shape (2, *slots.shape, *shape), each frame read once. None where they have to be read one
        by one."""
        leaf = self.layout.leaves[name]

        def read(rows: np.ndarray, back: np.ndarray | None) -> np.ndarray | None:
            windows = self.layout.both(
                name, rows.reshape(-1), None if back is None else back.reshape(-1)
            )
            if windows is None:
                return None
            count, width = windows.shape
            room = self._memory_of_both[name].room(
                (2, count, width - 1, *leaf.frame_shape), leaf.stored
            )
            self.buffer.take_both(name, windows, room)
            return room.reshape((2, *slots.shape, *leaf.shape))

        return self._read(slots, read) if slots.size else None

    def _read(
        self, slots: np.ndarray, read: Callable[[np.ndarray, np.ndarray | None], Read]
    ) -> Read:
        """What is read of the rows that slots show."""
        while True:
            shown = self._shown[slots]
            try:
                return read(shown >> 8, shown & 255 if self.layout.has_back else None)
            except (NotSampleableError, UnknownIdError):
                # They left since, for newer ones: another thread or the writer wrote to these.
                self.follow()
                if (self._shown[slots] == shown).all():
                    raise

    # -- saving

    def save(
        self, directory: Path, number: int | str, attachments: Mapping[str, Any], keep: int | None
    ) -> Path:
        """See `ReplayBuffer.save`."""
        return self.buffer.save(directory, number, attachments=attachments, keep=keep)

    def load(self, checkpoint: Path) -> Checkpoint:
        """Go back to a checkpoint; see `ReplayBuffer.load`."""
        found = self.buffer.load(checkpoint)
        self.look()
        return found

    def flush(self) -> None:
        """See `ReplayBuffer.flush`."""
        if not self.is_reader:
            self.buffer.flush()

    def close(self) -> None:
        """Close the store; whatever reads from it afterwards raises `ClosedError`."""
        if self._mode == "a":
            self._handle.close()
        else:
            self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """By its path: what comes out of a pickle reads along."""
        return _reader, (os.fspath(self.path), self.slots, self.layout)


def _reader(path: str, slots: int, layout: RecordLayout) -> RecordLog:
    return RecordLog(path, slots, layout, mode="r")
