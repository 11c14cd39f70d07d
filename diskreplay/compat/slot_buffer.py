"""Rows in numbered slots: the ground that the older APIs stand on."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import fork
from diskreplay.errors import FormatError, PriorityError, SchemaError
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Options
from diskreplay.owned_store_kind import OwnedStoreKind
from diskreplay.row_buffer import RowBuffer
from diskreplay.sampling.sum_tree import SumTree
from diskreplay.schema import Schema
from diskreplay.store import numbers, tempfiles
from diskreplay.store.listing import Checkpoint
from diskreplay.store.priorities import MAIN, Unsaved
from diskreplay.store.store import Store
from diskreplay.store_kind import saved_next_step

# Of an owner's notes those that belong to the leaves: what made them, the largest priority, and the
# leaf that it makes.
_LEAF_NOTES = ("alpha", "eps", "max_priority", "newest_weight")


class SlotStore(IndexedStore):
    """The rows of a store that has slots. No index: what is drawn is for the owner to say."""

    base: int  # the number of the first row
    notes: dict[str, Any]
    weights: SumTree | None  # a leaf for each slot


class SlotStoreKind(OwnedStoreKind):
    """What the stores of a `SlotBuffer` hold; see there."""

    def __init__(
        self, schema: Schema, options: Options, *, capacity: int, weighted: bool, base: int,
        resume_episodes: bool, **owned: Any,
    ) -> None:  # fmt: skip
        super().__init__(schema, options, **owned)
        self.capacity, self.weighted, self.base = capacity, weighted, base
        self._resumes = resume_episodes

    def _check_bookkeeping(self, store: Store) -> None:
        count = int(store.count[0])
        numbers.integer("base", store.meta.get("base"), 0, numbers.MOST_ROWS - count)

    def check_saved(self, saved: Store) -> None:
        super().check_saved(saved)
        if self.weighted:
            self._restored(saved, 0)

    def attach(self, store: Store, *, resume_episodes: bool | None = None) -> SlotStore:
        base = int(store.meta["base"])
        notes, weights = self._restored(store, base)
        rows = SlotStore(store, self.schema, self.options, self.distribution.make_sampler)
        rows.base, rows.notes, rows.weights = base, notes, weights
        if resume_episodes:
            rows.next_step[:] = saved_next_step(store)
        newest = int(store.count[0]) - 1
        if self._resumes and resume_episodes is None and newest >= int(store.first[0]):
            # Opened. What the metadata say of the next step is as old as the last flush.
            rows.episodes.resume(0)
        return rows

    def state(self, rows: Any) -> dict[str, Any]:
        return super().state(rows) | {"base": self.base if rows is None else rows.base}

    def leaves(self, rows: Any) -> np.ndarray | None:
        if rows.weights is None:
            return None
        numbered = np.arange(int(rows.store.first[0]), int(rows.store.count[0]))
        return rows.weights.get((numbered + rows.base) % self.capacity)[:, None]

    def unsaved(self, rows: Any) -> Unsaved | None:
        leaves = self.leaves(rows)
        if leaves is None:
            return None
        return Unsaved(leaves, None, {n: rows.notes[n] for n in _LEAF_NOTES if n in rows.notes})

    def _restored(self, store: Store, base: int) -> tuple[dict[str, Any], SumTree | None]:
        """The notes of the record, and the leaves. Of what made the leaves, the notes are those
        that were saved with the leaves: a flush that was killed between the two has left older ones
        in the record."""
        notes = dict(store.meta["notes"])
        if not self.weighted:
            return notes, None
        first, count = int(store.first[0]), int(store.count[0])
        weights = np.full(count - first, np.nan)
        saved = store.read_priorities()
        if saved is not None:
            self._check_notes(saved.notes, store.path / MAIN / "zarr.json")
            notes |= {name: saved.notes[name] for name in _LEAF_NOTES if name in saved.notes}
            known = saved.leaves[max(first - saved.start, 0) :, 0][: len(weights)]
            weights[: len(known)] = known
        weights[np.isnan(weights)] = notes.get("newest_weight", 1.0)
        tree = SumTree(self.capacity, track_min=True)
        try:
            tree.set((np.arange(first, count) + base) % self.capacity, weights)
        except PriorityError as error:
            raise FormatError(f"{store.path}/priority: damaged ({error})") from error
        return notes, tree


class SlotBuffer(RowBuffer):
    """A buffer of one env whose rows are addressed by slot, ``number % capacity``.

    A row's number counts all rows that were ever added, those of a buffer that this one continues
    (`base`) included. What can be sampled, and how it is drawn, is for the owner to say: an API of
    old that brings its own rules.

    Parameters
    ----------
    path : str or Path or None
        As for `ReplayBuffer`.
    facade : str
        The API that owns the rows; a store of another one is refused.
    observation_space, action_space : gymnasium.Space
    capacity : int
        Slots. A store that has more rows keeps the newest, as the older APIs have no word for it.
    weighted : bool
        Keep a `SumTree` with a leaf for each slot.
    notes : dict, optional
        What the owner wants kept beside the rows, as JSON. What an existing store holds wins.
    note_bounds : dict of str to (low, high), optional
        The least and the largest that each note may be, if it is there; an integer where `low` is
        one. A store or checkpoint with another one is refused.
    base : int
        The number of the first row of a new store.
    resume_episodes : bool
        Go on with the episode of the newest row, where a reopened store would begin another one.
    check : callable, optional
        Called with a `Store` that is to be opened or loaded, before anything is changed: raises if
        its owner cannot use it. No method of the owner: that would make a cycle of references.
    extras, compressor, stack_size, update_horizon, gamma, batch_size, segment_rows
        As for `ReplayBuffer`. What makes a transition is for those who open the store to sample.
    """

    _rows: SlotStore

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        facade: str,
        observation_space: gym_spaces.Space[Any],
        action_space: gym_spaces.Space[Any],
        capacity: int,
        weighted: bool = False,
        notes: Mapping[str, Any] | None = None,
        note_bounds: Mapping[str, tuple[float, float]] | None = None,
        base: int = 0,
        resume_episodes: bool = False,
        check: Callable[[Store], None] | None = None,
        extras: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        stack_size: int = 1,
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        segment_rows: int | None = None,
    ) -> None:
        self._closed, self._slots = True, capacity
        # What `rebuilding` makes another one with.
        self._made_with: dict[str, Any] = {
            "facade": facade, "observation_space": observation_space, "action_space": action_space,
            "capacity": capacity, "weighted": weighted, "note_bounds": note_bounds, "check": check,
            "extras": extras, "compressor": compressor, "stack_size": stack_size,
            "update_horizon": update_horizon, "gamma": gamma, "batch_size": batch_size,
            "segment_rows": segment_rows,
        }  # fmt: skip
        options = Options.checked(1, stack_size, "zero", update_horizon, gamma, batch_size)
        schema = Schema.of(observation_space, action_space, extras, compressor)
        self._blank: dict[str, Any] = dict.fromkeys(schema.names)  # in their order
        kind = SlotStoreKind(
            schema, options, owner=facade,
            capacity=capacity, weighted=weighted, base=base, notes=notes or {},
            note_bounds=note_bounds or {}, resume_episodes=resume_episodes, owner_check=check,
        )  # fmt: skip
        super().__init__(
            kind, path, capacity=capacity, segment_rows=segment_rows, env_group=None, seed=None,
            name="replay", shrink=True, metadata=None,
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        """Slots."""
        return self._slots

    @property
    def base(self) -> int:
        """The number of the first row."""
        return self._rows.base

    @property
    def notes(self) -> dict[str, Any]:
        """The owner's, by name; written by `flush`, `close` and `save`, restored by reopening and
        `load`."""
        return self._rows.notes

    @notes.setter
    def notes(self, notes: dict[str, Any]) -> None:
        self._rows.notes = notes

    def forget_note(self, name: str) -> None:
        """Remove one of `notes`, if it is there, and flush. Where that fails it stays."""
        notes = self.notes
        if name in notes:
            self.notes = {other: value for other, value in notes.items() if other != name}
            try:
                self.flush()
            except BaseException:
                self.notes = notes
                raise

    # -- where rows are

    @property
    def count(self) -> int:
        """The number of the next row."""
        rows = self._rows
        return rows.base + int(rows.store.count[0])

    @property
    def stored(self) -> int:
        """Rows that are retained, at most `capacity`."""
        store = self._rows.store
        return int(store.count[0] - store.first[0])

    @property
    def retained(self) -> np.ndarray:
        """The numbers of the retained rows, oldest first."""
        return np.arange(self.count - self.stored, self.count)

    @property
    def cursor(self) -> int:
        """The slot of the next row."""
        return self.count % self.capacity

    @property
    def next_step(self) -> int:
        """The step of the next row: 0 where it begins an episode."""
        return self._rows.next_step.item(0)

    def slots(self, rows: np.ndarray) -> np.ndarray:
        """The slots of rows as the store numbers them (ids of `add` and `take`)."""
        return (np.asarray(rows) + self.base) % self.capacity

    def ids(self, slots: np.ndarray) -> np.ndarray:
        """The row in each slot (taken modulo the capacity), as the store numbers them; -1 for a
        negative slot and for one that no retained row is in."""
        slots = np.asarray(slots, np.int64)
        store, base, capacity = self._rows.store, self.base, self.capacity
        count, first = int(store.count[0]), int(store.first[0])
        rows = (slots - (base + count)) % capacity + (count - capacity)
        if first > count - capacity:  # not full: some slots have no row
            rows[rows < first] = -1
        if slots.size and slots.min() < 0:
            rows[slots < 0] = -1
        return rows

    # -- adding

    def _addable(self) -> IndexedStore:
        return self._rows  # nobody draws by a row index here

    def put(self, row: dict[str, Any]) -> int:
        """Add one row whose values its owner has checked already: `add`, and twice as fast.

        Parameters
        ----------
        row : dict
            Values of `fields` by name, of their shapes and dtypes; ``reward`` a float,
            ``terminated`` a bool. Zeros where there is none, or None. ``truncated``, ``step`` and
            ``is_final`` are not looked at.

        Returns
        -------
        int
            The row, as the store numbers it.

        Raises
        ------
        NotFiniteError
            The reward is not finite as float32; nothing was recorded.
        StorageError
        """
        if self._closed or fork.pid != self._pid:  # a ring is never a reader
            self._check_open()
        with self._turn():
            rows = self._rows
            if rows.store.mode != "a":  # closed meanwhile
                self._check_open()
            return rows.put_row([*(self._blank | row).values()])

    # -- what is in them

    def check_open(self) -> None:
        """For an owner that answers from memory: a ClosedError or ForkedError, as of `read`."""
        self._check_open()

    def read(self, field: str | Sequence[str], slots: np.ndarray) -> Any:
        """The values of fields at these slots; zeros where `ids` says -1.

        Parameters
        ----------
        field : str or sequence of str
        slots : array_like of int, any shape

        Returns
        -------
        ndarray, shape (*slots.shape, *shape), or a list of them
            Copies. Slots that follow each other along the last axis are read in one go.
        """
        return self.take(field, self.ids(slots))

    def column(self, field: str) -> np.ndarray:
        """One field of all retained rows, oldest first; a copy of shape ``(stored, *shape)``."""
        return self.take(field, np.arange(*self.bounds[0]))

    @property
    def weights(self) -> SumTree:
        """One leaf a slot, the owner's to set; 0 at first, and for rows that came after the last
        flush when the process was killed, ``notes["newest_weight"]`` or 1."""
        if self._rows.weights is None:
            raise SchemaError(f"{self.path}: these slots have no weights")
        return self._rows.weights

    # -- starting over

    @contextlib.contextmanager
    def rebuilding(self, base: int = 0) -> Iterator["SlotBuffer"]:
        """An empty ring of the same kind, which takes this one's place when the block ends well.

        After an exception this ring is as it was. The exchange is one step, as in `load`.
        """
        with tempfiles.Workspace(self.path, "load") as room:
            fresh = SlotBuffer(room.path / "ring", base=base, **self._made_with)
            try:
                yield fresh
                fresh.save(room.path, "rebuilt")
            finally:
                fresh.close()
            self.load(room.path, "rebuilt")

    def load(
        self,
        checkpoint_dir: str | os.PathLike[str],
        suffix: int | str | None = None,
        *,
        resume_episodes: bool = True,
    ) -> Checkpoint:
        """As `ReplayBuffer.load`; an open episode is continued, as the older APIs do."""
        return super().load(checkpoint_dir, suffix, resume_episodes=resume_episodes)
