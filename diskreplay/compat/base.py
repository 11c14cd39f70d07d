"""What the facades without files of their own share: a ring that may come later, and its disk."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.closing import Closing
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import ClosedError, FormatError
from diskreplay.locks import one_call
from diskreplay.opening import open as open_buffer
from diskreplay.store import files, numbers, private
from diskreplay.store.paths import resolved
from diskreplay.store.store import Store

_ROWS_AT_ONCE = 1024
_LARGEST_IN_MEMORY, _MOST_IN_MEMORY = 1 << 10, 1 << 27  # bytes of a row, and of all rows


def in_memory(row_bytes: Mapping[str, int], rows: int) -> set[str]:
    """Which columns are kept in memory too, where a batch of small rows is read twice as fast: the
    smallest, of at most 1 KiB a row each and 128 MiB together."""
    names, left = set(), _MOST_IN_MEMORY
    for name, size in sorted(row_bytes.items(), key=lambda item: item[1]):
        left -= size * rows
        if left < 0 or size > _LARGEST_IN_MEMORY:
            break
        names.add(name)
    return names


def is_kind(thing: Any, name: str) -> bool:
    """Whether it is of a class with this name: gym's and gymnasium's spaces have nothing else in
    common."""
    return name in (kind.__name__ for kind in type(thing).__mro__)


class Facade(Closing):
    """A facade over a `SlotBuffer`, which is made when the shapes of its rows are known.

    Parameters
    ----------
    path : path or None
        The store's directory; None: a temporary one, removed when the process ends.
    capacity : int
        Slots.
    facade : str
    **options
        Of the `SlotBuffer`, where they do not depend on the rows.

    Notes
    -----
    A derived class overrides `_recall`, to take over what the ring holds, and `_hand_over`, to hand
    over what it has in memory. `_row_notes` names its notes that are row numbers, `_note_bounds`
    the bounds of its other numbers, as a `SlotBuffer` takes them. `_lost` says which rows are to
    leave the ring when it is opened.
    """

    _row_notes: ClassVar[tuple[str, ...]] = ()
    _note_bounds: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init__(
        self, path: str | os.PathLike[str] | None, capacity: int, facade: str, **options: Any
    ):
        self._path = None if path is None else resolved(path)
        rows = dict.fromkeys(self._row_notes, (-numbers.MOST_ROWS, numbers.MOST_ROWS))
        self._options = {
            "capacity": int(capacity), "facade": facade, "note_bounds": self._note_bounds | rows,
            **options,
        }  # fmt: skip
        self._ring: SlotBuffer = None  # type: ignore[assignment] # until its rows are known
        self._is_closed = False

    def _reopen(self) -> None:
        """Take up the store at `path`, if there is one; it knows the shapes of its rows.

        Raises
        ------
        FormatError
            Something else is there. The first row would find it out too, but hours later.
        """
        if self._path is None:
            return
        Store.sweep(self._path)
        if Store.is_at(self._path):
            with open_buffer(self._path) as reader:
                spaces, extras = (reader.observation_space, reader.action_space), reader.extras
            self._make_ring(*spaces, extras)
        elif files.is_there(self._path) and not self._is_free(self._path):
            raise FormatError(
                f"{self._path}: holds something else and no store; choose an empty or a new "
                "directory"
            )

    @staticmethod
    def _is_free(path: Path) -> bool:
        """Whether a store can be made there. What a killed creation left is replaced by it."""
        names = {part.name for part in files.listed(path)} if files.is_dir(path) else {""}
        return files.is_there(private.directory(path)) or names <= {private.PLACE.parts[0]}

    def _make_ring(
        self,
        observation_space: gym_spaces.Space[Any],
        action_space: gym_spaces.Space[Any],
        extras: dict[str, tuple[tuple[int, ...], Any]],
    ) -> None:
        if self._is_closed:
            raise ClosedError("the buffer was closed before its first row; make another one")
        try:
            self._ring = SlotBuffer(
                self._path, observation_space=observation_space, action_space=action_space,
                extras=extras, **self._options,
            )  # fmt: skip
            self._align(self._ring)
            self._recall(self._ring)
        except BaseException:
            ring, self._ring = self._ring, None  # type: ignore[assignment]
            if ring is not None:  # Ctrl-C, say: the next row opens it again
                ring.close()
            raise

    def _recall(self, ring: SlotBuffer) -> None:
        """Take over what `ring` holds, which was opened just now."""

    def _hand_over(self, ring: SlotBuffer, *, closing: bool) -> None:
        """Hand over to `ring` what it is to write."""

    def _commit(self, row: dict[str, Any], took: Callable[..., None], *values: Any) -> None:
        """Put a row, and then have memory know of it: also if Ctrl-C comes amid either.

        `took` is called with the row's number and `values`; once more if it was interrupted, so
        what it does has to depend on nothing else that it changes.
        """
        ring = self._ring
        number = ring.count
        try:
            ring.put(row)
            took(number, *values)
        except BaseException:
            if ring.count > number:  # Ctrl-C after the commit: the row stays
                took(number, *values)
            raise

    @contextlib.contextmanager
    def _replacing(self, recall: Callable[[], None], base: int = 0) -> Iterator[SlotBuffer]:
        """An empty ring for other rows, which takes the place of this one's at the end. Memory
        knows of it then by `recall`: also if Ctrl-C comes amid either."""
        ring, notes = self._ring, self._ring.notes
        try:
            with ring.rebuilding(base) as fresh:
                yield fresh
            recall()
        except BaseException:
            if ring.notes is not notes:  # Ctrl-C after the exchange: the rows of before are gone
                recall()
            raise

    @property
    def path(self) -> Path | None:
        """The store's directory; None for a temporary one that the first row has yet to make."""
        return self._ring.path if self._ring is not None else self._path

    @one_call
    def flush(self) -> None:
        """Make everything durable, also against a power cut; rows outlive a kill without it."""
        if self._ring is not None:
            self._hand_over(self._ring, closing=False)
            self._ring.flush()

    @one_call
    def close(self) -> None:
        """Flush and release the store. A temporary store is removed. Closing twice is fine."""
        self._is_closed = True
        if self._ring is not None and not self._ring.closed:
            self._hand_over(self._ring, closing=True)
            self._ring.close()

    def _lost(self, ring: SlotBuffer) -> np.ndarray:
        """Which of the retained rows a repair set aside, where others do not need their places:
        bool."""
        return np.zeros(ring.stored, np.bool_)

    def _align(self, ring: SlotBuffer) -> None:
        """Where the capacity has grown since, or a repair has set rows aside, put the rows into the
        slots from 0 on: as long as a ring is not full, the older APIs take it that its first slots
        are the used ones."""
        count, lost = ring.count, self._lost(ring)
        if not lost.any() and (count == ring.stored or ring.stored == ring.capacity):
            return
        rows = ring.retained[~lost]
        stored = len(rows)
        with ring.rebuilding() as fresh:
            for start in range(0, stored, _ROWS_AT_ONCE):
                slots = rows[start : start + _ROWS_AT_ONCE] % ring.capacity
                fresh.extend({field: ring.read(field, slots) for field in ring.fields})
            fresh.notes = dict(ring.notes)
            for name in self._row_notes:
                if name in fresh.notes:
                    fresh.notes[name] += fresh.count - count
            if self._options.get("weighted", False):
                fresh.weights.set(np.arange(stored), ring.weights.get(rows % ring.capacity))
        if not self._options.get("resume_episodes", False):
            ring.end_episode()  # reopened, as it was
