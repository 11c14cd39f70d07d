"""Rows in numbered slots: the ground that the older APIs stand on."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import process
from diskreplay.buffer import ReplayBuffer, _Prepared
from diskreplay.errors import FormatError, PriorityError, SchemaError
from diskreplay.indexed_store import IndexedStore
from diskreplay.sampling.sum_tree import SumTree
from diskreplay.store import checkpoint, numbers, tempfiles
from diskreplay.store.listing import Checkpoint
from diskreplay.store.priorities import LARGEST_LEAF
from diskreplay.store.store import Store


class SlotBuffer(ReplayBuffer):
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
    **options
        As for `ReplayBuffer`.

    Attributes
    ----------
    notes : dict
        Written by `flush`, `close` and `save`, restored by reopening and `load`.
    base : int
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        *,
        facade: str,
        observation_space: gym_spaces.Space,
        action_space: gym_spaces.Space,
        capacity: int,
        weighted: bool = False,
        notes: Mapping[str, Any] | None = None,
        note_bounds: Mapping[str, tuple[float, float]] | None = None,
        base: int = 0,
        resume_episodes: bool = False,
        check: Callable[[Store], None] | None = None,
        **options: Any,
    ) -> None:
        self._closed = True
        self._facade, self._weighted, self._check = facade, weighted, check
        self._resumes = resume_episodes
        self._note_bounds = {"newest_weight": (0.0, LARGEST_LEAF), **(note_bounds or {})}
        self.notes, self.base = dict(notes or {}), base
        self._weights: SumTree | None = None
        self._options = {
            "facade": facade, "observation_space": observation_space, "action_space": action_space,
            "capacity": capacity, "weighted": weighted, "note_bounds": note_bounds, "check": check,
            **options,
        }  # fmt: skip
        super().__init__(
            path, observation_space=observation_space, action_space=action_space,
            capacity=capacity, num_envs=1, shrink=True, **options,
        )  # fmt: skip

    # -- where rows are

    @property
    def count(self) -> int:
        """The number of the next row."""
        return self.base + int(self._rows.store.count[0])

    @property
    def stored(self) -> int:
        """Rows that are retained, at most `capacity`."""
        store = self._rows.store
        return int(store.count[0] - store.first[0])

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
        return self._rows  # nobody draws by a row index here: what is asked for once is enough

    def put(self, row: list[Any]) -> int:
        """Add one row whose values its owner has checked already: `add`, and twice as fast.

        Parameters
        ----------
        row : list
            A value for each of `fields`, in that order, of its shape and dtype; ``reward`` a float,
            ``terminated`` a bool. None for zeros. Those of ``truncated``, ``step`` and ``is_final``
            are replaced.

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
        if self._closed or process.pid != self._pid:  # a ring is never a reader
            self._check_open()
        if self._prefetchers:
            self._settle()
        with self._lock:
            if self._closed:  # meanwhile
                self._check_open()
            return self._rows.put_row(row)

    # -- what is in them

    def check_open(self) -> None:
        """For an owner that answers from memory: raise what `read` would.

        Raises
        ------
        ClosedError, ForkedError
        """
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
        if self._weights is None:
            raise SchemaError(f"{self.path}: this ring has no weights")
        return self._weights

    # -- starting over

    @contextlib.contextmanager
    def rebuilding(self, base: int = 0) -> Iterator["SlotBuffer"]:
        """An empty ring of the same kind, which takes this one's place when the block ends well.

        After an exception this ring is as it was. The exchange is one step, as in `load`.
        """
        with tempfiles.Workspace(self.path, "load") as room:
            fresh = SlotBuffer(room.path / "ring", base=base, **self._options)
            try:
                yield fresh
                fresh.save(room.path, "rebuilt")
            finally:
                fresh.close()
            self.load(room.path, "rebuilt")

    def reset(self, base: int = 0) -> None:
        """Forget all rows; the next one has the number `base`."""
        with self.rebuilding(base):
            pass

    # -- as a buffer

    def _check_capacity(self, capacity: int | None) -> None:
        """One row will do: what makes a transition is for the owner to say."""

    def _check_kind(self, store: Store) -> None:
        super()._check_kind(store)
        if store.meta.get("facade") != self._facade:
            raise SchemaError(
                f"{store.path}: made by {store.meta.get('facade', 'diskreplay itself')}, not by "
                f"{self._facade}; open it there, or choose another directory"
            )

    def _check_store(self, store: Store) -> None:
        super()._check_store(store)
        base, notes = store.meta.get("base"), store.meta.get("notes")
        try:
            numbers.integer("base", base, 0, numbers.MOST_ROWS - int(store.count[0]))
            if not isinstance(notes, dict):
                raise ValueError(f"notes: a JSON object expected, found {notes!r:.60}")
        except ValueError as error:
            raise FormatError(f"{store.path}/zarr.json: damaged ({error})") from error
        for name, (low, high) in self._note_bounds.items():
            check = numbers.integer if type(low) is int else numbers.real
            try:
                if name in notes:
                    check(name, notes[name], low, high)
            except ValueError as error:
                raise FormatError(f"{store.path}/zarr.json: {name} is damaged ({error})") from error
        if self._check is not None:
            self._check(store)

    def _check_saved(self, saved: Store) -> None:
        super()._check_saved(saved)
        if saved.meta.get("prefetch", []) != []:
            raise FormatError(f"{saved.path}/zarr.json: damaged: a ring has no prefetchers")
        if self._weighted:
            self._restored_weights(saved, 0, saved.meta["notes"])

    def _complete(self, rows: IndexedStore) -> None:
        """Nothing is drawn by the row index here, and `_check_saved` has seen the rest."""

    def _prepared(self, store: Store, **how: bool) -> _Prepared:
        base, notes = int(store.meta["base"]), dict(store.meta["notes"])
        weights = self._restored_weights(store, base, notes) if self._weighted else None
        prepared = super()._prepared(store, **how)
        newest = int(store.count[0]) - 1
        if self._resumes and "resume_episodes" not in how and newest >= int(store.first[0]):
            # Opened. What the metadata say of the next step is as old as the last flush.
            prepared.rows.next_step[0] = prepared.rows.step_after(0)
        return prepared._replace(more=(base, notes, weights))

    def _take_over(self, prepared: _Prepared) -> None:
        super()._take_over(prepared)
        self.base, self.notes, self._weights = prepared.more

    def _restored_weights(self, store: Store, base: int, notes: Mapping[str, Any]) -> SumTree:
        first, count = int(store.first[0]), int(store.count[0])
        start, saved, _alpha = store.read_priorities() or (first, np.empty((0, 1)), None)
        weights = np.full(count - first, np.nan)
        known = saved[max(first - start, 0) :, 0][: len(weights)]
        weights[: len(known)] = known
        weights[np.isnan(weights)] = notes.get("newest_weight", 1.0)
        capacity = self._options["capacity"]
        tree = SumTree(capacity, track_min=True)
        try:
            tree.set((np.arange(first, count) + base) % capacity, weights)
        except PriorityError as error:
            raise FormatError(f"{store.path}/priority: damaged ({error})") from error
        return tree

    def _leaves(self) -> np.ndarray | None:
        if not self._weighted:
            return None
        first, count = self.bounds[0]
        return self.weights.get(self.slots(np.arange(first, count)))[:, None]

    def _options_meta(self) -> dict[str, Any]:
        return super()._options_meta() | {"facade": self._facade}

    def _state_meta(self, rows: IndexedStore | None) -> dict[str, Any]:
        return super()._state_meta(rows) | {"base": self.base, "notes": self.notes}

    @contextlib.contextmanager
    def _checkpoint(
        self, directory: Path, suffix: int | str | None
    ) -> Iterator[tuple[Path, str, Path]]:
        path, text = checkpoint.find(directory, self.name, suffix)
        yield path, text, path  # other files are its owner's to read

    def load(
        self,
        checkpoint_dir: str | os.PathLike,
        suffix: int | str | None = None,
        *,
        resume_episodes: bool = True,
    ) -> Checkpoint:
        """As `ReplayBuffer.load`; an open episode is continued, as the older APIs do."""
        return super().load(checkpoint_dir, suffix, resume_episodes=resume_episodes)
