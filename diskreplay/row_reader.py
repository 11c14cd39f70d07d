"""Rows that are read by id, and what is known of the store that has them."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from diskreplay import extensions
from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError
from diskreplay.metadata import checked as checked_metadata
from diskreplay.metadata import parse as parse_metadata
from diskreplay.session import Session
from diskreplay.store.format import read_attributes
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store
from diskreplay.validation import field_names, row_ids

if TYPE_CHECKING:
    import gymnasium
    import pandas

Seen = TypeVar("Seen")
Read = TypeVar("Read")


class RowReader(Session):
    """A session whose rows are read by id: see `ReplayBuffer`."""

    def take(
        self, field: str | Sequence[str], ids: np.ndarray, *, out: np.ndarray | None = None
    ) -> Any:
        """The values of fields in any retained rows, whether they can be sampled or not.

        Parameters
        ----------
        field : str or sequence of str
            One or several of `fields`.
        ids : array_like of int, any shape
            ``row * num_envs + env``; a negative one stands for a row of zeros.
        out : ndarray, optional
            For one field: C-contiguous, of the shape and dtype of the result.

        Returns
        -------
        ndarray, shape (*ids.shape, *shape), or a list of them
            Copies; of several fields, all of the same moment. Rows that follow each other along
            the last axis are read in one go.

        Raises
        ------
        InvalidInputError
            There is no such field, or `out` does not fit.
        DtypeError
            `ids` are no integers.
        UnknownIdError, NotSampleableError
            A row was never recorded, or is evicted.
        CorruptSegmentError, ClosedError, ForkedError
        """
        ids, names = row_ids(ids), field_names(field)
        if out is None:
            results = [np.empty(*self._shape(name, ids.shape)) for name in names]
        else:
            if not isinstance(out, np.ndarray) or not out.flags.writeable:
                raise InvalidInputError(
                    "out: an array that can be written to expected, found "
                    f"{'a read-only one' if isinstance(out, np.ndarray) else type(out).__name__}"
                )
            given = (out.shape, out.dtype, out.flags.c_contiguous)
            if [(*self._shape(name, ids.shape), True) for name in names] != [given]:
                raise InvalidInputError(
                    f"out: a contiguous array for one field expected, found {out.dtype} of shape "
                    f"{out.shape}"
                )
            results = [out]

        def read(store: Store, ids: np.ndarray) -> None:
            for name, result in zip(names, results, strict=True):
                store.columns[name].take(ids.reshape(-1), result)

        self._read_rows(lambda rows: rows.retained(ids), read)
        return results[0] if isinstance(field, str) else results

    def take_both(self, field: str, ids: np.ndarray, out: np.ndarray) -> None:
        """`take` for adapters: of windows of rows what was seen, and what it led to, in one go.

        Parameters
        ----------
        field : str
        ids : ndarray of int64, shape (n, width)
            As for `take`, C-contiguous; at least two in a window.
        out : ndarray, shape (2, n, width - 1, *shape)
            C-contiguous, of the field's dtype. Its first half gets the rows of ``ids[:, :-1]``, the
            second one those of ``ids[:, 1:]``. What both get is read once.

        Raises
        ------
        InvalidInputError
            There is no such field, or `ids` or `out` do not fit.
        UnknownIdError, NotSampleableError, CorruptSegmentError, ClosedError, ForkedError
            As for `take`.
        """
        if ids.dtype != np.int64 or ids.ndim != 2 or ids.shape[1] < 2 or not ids.flags.c_contiguous:
            raise InvalidInputError(
                "ids: a contiguous array of int64 with two axes expected, at least two ids in a "
                f"window; found {ids.dtype} of shape {ids.shape}"
            )
        shape, dtype = self._shape(field, (2, len(ids), ids.shape[1] - 1))
        if out.shape != shape or out.dtype != dtype or not out.flags.carray:
            raise InvalidInputError(
                f"out: a contiguous array of {dtype} and shape {shape} expected, found {out.dtype} "
                f"of shape {out.shape}"
            )
        self._read_rows(
            lambda rows: rows.retained(ids),
            lambda store, ids: store.columns[field].take_both(ids, out),
        )

    def _retained(self, names: Sequence[str]) -> tuple[np.ndarray, tuple[int, ...], list[Any]]:
        """Fields of all retained rows, of one moment.

        Returns
        -------
        bounds : ndarray of int64, shape (num_envs, 2)
            The rows that were read: from the first up to the second.
        begins : tuple of int
            As `begins`, at that moment.
        values : list of ndarray
            Copies, env by env, oldest first.
        """

        def look(rows: Any) -> tuple[np.ndarray, tuple[int, ...]]:
            bounds = np.stack([rows.store.first, rows.store.count], axis=1)
            return bounds, tuple(rows.episodes.retained_begins())

        def read(store: Store, seen: tuple[np.ndarray, tuple[int, ...]]) -> Any:
            bounds, begins = seen
            return bounds, begins, [store.spans(name, *bounds.T) for name in names]

        return self._read_rows(look, read)

    def _read_rows(self, look: Callable[[Any], Seen], read: Callable[[Store, Seen], Read]) -> Read:
        """What `read` makes of what `look` sees, under the lock, of the rows as they are at the
        moment: the store keeps these until `read` returns."""

        def attempt(guard: ReadGuard) -> tuple[Read]:
            with self._lock:
                rows = self._current()
                seen, store = look(rows), rows.store
                store.rwlock.acquire_read(guard, store.follower)  # what is there is not evicted
            return (read(store, seen),)

        self._turn()
        return self._read_held(attempt)[0]

    def _shape(self, field: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of so many values of a field."""
        if field not in self._kind.schema.shapes:
            raise InvalidInputError(f"no field {field!r}; there are {self._kind.schema.names}")
        row_shape, dtype = self._kind.schema.shapes[field]
        return (*shape, *row_shape), dtype

    # -- looking

    @property
    def observation_space(self) -> "gymnasium.Space[Any]":
        """The space of one frame."""
        return self._kind.schema.observation.space

    @property
    def action_space(self) -> "gymnasium.Space[Any]":
        """The space of actions."""
        return self._kind.schema.action.space

    @property
    def extras(self) -> dict[str, tuple[Any, ...]]:
        """Shape and dtype of each further field, and ``"mutable"`` where its values may be
        replaced: as a buffer is told when it is made."""
        return self._kind.schema.extra_specs

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of one row of each stored field, by name: observations, actions,
        ``reward``, ``terminated``, ``truncated``, ``step``, ``is_final``, extras."""
        return dict(self._kind.schema.shapes)

    @property
    def bounds(self) -> np.ndarray:
        """The oldest retained row and the number of rows ever, int64 of shape (num_envs, 2); a
        copy."""
        with self._turn():
            store = self._current().store
            return np.stack([store.first, store.count], axis=1)

    @property
    def capacity(self) -> int | None:
        """Rows kept, over all envs; None for everything. Of a reader as its last call found it."""
        return self._rows.store.capacity

    @property
    def max_transitions(self) -> int | None:
        """Transitions kept, over all envs; None for as many as the rows have. Of a reader as its
        last call found it."""
        return self._kind.options.max_transitions

    @property
    def rng(self) -> np.random.Generator:
        """The generator of every random draw."""
        return self._rng.rng

    @property
    def add_count(self) -> int:
        """Transitions ever recorded."""
        with self._turn():
            self._follow()
            return self._rows.add_count

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids of rows that begin an episode though their steps count on from the row before, lowest
        first. Parts of episodes that `extend` was given may be such; `episodes` knows all episodes.
        """
        with self._turn():
            return tuple(self._current().episodes.retained_begins())

    def zarr(self) -> Any:
        """The store as a read-only `zarr.Group`: all rows after `flush`, else full segments.

        Raises
        ------
        StoreMovedError
            Another store or checkpoint is at its path, or none. Once it is closed nobody looks.
        """
        import zarr

        return self._read_in_place(lambda: zarr.open_group(self.path, mode="r"))

    def _read_in_place(self, read: Callable[[], Read]) -> Read:
        """What `read` finds at the path, if that is still where this store is. Once it is closed
        nobody looks whether it is."""
        with self._turn():
            if self._closed:
                return read()
            self._follow()
            self._rows.store.place.check()
            found = read()
            self._rows.store.place.check()
            return found

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about the store, by the user and by recorders; a copy.

        `set_metadata` changes it. A reader reads it anew each time; a checkpoint has its own.

        Raises
        ------
        StoreMovedError
            Of a reader: another store is at its path, or none.
        """
        if self._rows.store.page is None:  # a checkpoint, though another one be at its path by now
            return parse_metadata(self._rows.store.meta)[0]
        if self.mode == "r":
            return parse_metadata(self._read_in_place(lambda: read_attributes(self.path)))[0]
        return checked_metadata(self._metadata)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Note something else about the store, in place of all that was noted.

        ``buffer.set_metadata({**buffer.metadata, "seed": 3})`` changes a key.

        Parameters
        ----------
        metadata : mapping of str to JSON values
            At most 64 KiB as JSON. NumPy's numbers and arrays become numbers and lists.

        Raises
        ------
        InvalidInputError
            It is no such thing; nothing was changed.
        DiskFullError, ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        Durable when this returns, and seen by readers; costs what `flush` costs.
        """
        new = checked_metadata(metadata)
        self._check_writable()
        with self._turn_when_drawn():
            self._check_writable()
            before, self._metadata = self._metadata, new
            try:
                self._record()
            except BaseException:
                self._metadata = before
                raise

    def episodes(self) -> Episodes:
        """The retained episodes of all envs: where each begins and ends, its length, its return,
        and how it ended.

        Returns
        -------
        Episodes
            Arrays with an element for each episode that has a transition, oldest first; see
            `diskreplay.episodes.Episodes`. Of this moment: it does not follow the
            buffer.

        Raises
        ------
        CorruptSegmentError, ClosedError, ForkedError

        Notes
        -----
        O(rows): reads 11 bytes a row, and no frame. While another process writes to the store, rows
        that leave meanwhile are left out.
        """
        return extensions.find("episodes")(self)

    # -- other formats

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        episodes: int | Sequence[int] | None = None,
        ids: Sequence[int] | np.ndarray | None = None,
        observations: Literal["none", "array", "bytes", "png"] = "none",
        *,
        vectors: Literal["spread", "array"] = "spread",
        gamma: float = 1.0,
    ) -> "pandas.DataFrame":
        """The transitions as a data frame, one row each, in the order of time.

        `convert.pandas.iter_frames` gives it in pieces. Needs ``diskreplay[pandas]``.

        Parameters
        ----------
        columns, episodes, ids, observations, vectors, gamma
            As for `convert.pandas.to_pandas`.

        Returns
        -------
        pandas.DataFrame
        """
        to_pandas = extensions.find("to_pandas")
        return to_pandas(self, columns, episodes, ids, observations, vectors=vectors, gamma=gamma)

    def export_gz(
        self,
        checkpoint_dir: str | os.PathLike[str],
        suffix: int | str,
        *,
        flavour: Literal["reagent", "dopamine"] = "reagent",
        stack_size: int | None = None,
        capacity: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write a checkpoint that ReAgent or Dopamine loads, and so does `load`.

        Parameters
        ----------
        checkpoint_dir, suffix, flavour, stack_size, capacity, progress
            As for `convert.gz_checkpoint.write`, which says which errors are raised, too.

        Returns
        -------
        Path
            The directory.
        """
        return extensions.find("export_gz")(
            self, checkpoint_dir, suffix, flavour=flavour, stack_size=stack_size,
            capacity=capacity, progress=progress,
        )  # fmt: skip

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._rows.add_count} transitions recorded"
        return f"{type(self).__name__}({str(self.path)!r}, capacity={self.capacity}, {state})"
