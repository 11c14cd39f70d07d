"""Rows recorded as they are and read by id: what every buffer on disk can do."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import extensions
from diskreplay.episodes import Episodes
from diskreplay.errors import CorruptSegmentError, DtypeError, InvalidInputError
from diskreplay.indexed_store import IndexedStore
from diskreplay.metadata import checked as checked_metadata
from diskreplay.metadata import parse as parse_metadata
from diskreplay.mutable_fields import MutableFields
from diskreplay.store.format import read_attributes
from diskreplay.store.rwlock import ReadGuard

if TYPE_CHECKING:
    import pandas

    from diskreplay.episodes import Episodes


class RowBuffer(MutableFields):
    """A session whose rows are recorded and read, drawn by nobody: see `ReplayBuffer`."""

    def _addable(self) -> IndexedStore:
        """The rows, with what has to know of new ones. Needs the lock."""
        return self._rows.indexed()

    def add_frame(self, observation: Any) -> np.ndarray:
        """Record an observation that is no transition, as the next row of the running episode.

        Later stacks show it; it is never sampled. For frames that come before the first decision.
        Only with one env.

        Parameters
        ----------
        observation
            As for `add`.

        Returns
        -------
        ndarray of int64, shape (1,)
            The row's id.

        Raises
        ------
        InvalidInputError
            There are several envs.
        ShapeError, DtypeError, DiskFullError, ReadOnlyError, ClosedError, ForkedError
            As for `add`.
        """
        self._check_writable()
        if self.num_envs > 1:
            raise InvalidInputError(f"add_frame: one env expected, this buffer has {self.num_envs}")
        with self._turn_when_drawn():
            self._check_writable()
            return self._addable().add_frame(observation)

    def extend(self, columns: Mapping[str, np.ndarray], env: int = 0) -> np.ndarray:
        """Record many rows of one env as they are to be stored, in one vectorised write.

        For imports and copies: nothing is derived, `step` and final rows are given too.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (rows, *shape)
            For every one of `fields`. ``step`` counts from 0 in each episode; where it does not
            count on by one, the episode before was cut. The first row goes on with the episode
            that is open if its step counts on, and so does the final row of an episode whose last
            row ended the call before. After `end_episode` or a reopening it begins one,
            whatever its step: a part of an episode whose beginning is missing, of which the first
            ``stack_size - 1`` rows have no whole stack and are not sampled.
        env : int

        Returns
        -------
        ndarray of int64, shape (rows,)
            Their ids. The oldest may have left already if there are more than the capacity keeps.

        Raises
        ------
        InvalidInputError
            A field is missing or unknown, or there is no such env. Nothing was recorded.
        ShapeError, DtypeError, NotFiniteError
            Nothing was recorded.
        DiskFullError
            The rows before the first that did not fit are recorded, as `bounds` says.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        The next `add` continues the last row's episode unless that row ended it.
        """
        self._check_writable()
        if not isinstance(env, int | np.integer) or not 0 <= env < self.num_envs:
            raise InvalidInputError(f"env: 0 to {self.num_envs - 1} expected, found {env!r}")
        with self._turn_when_drawn():
            self._check_writable()
            rows, env = self._addable(), int(env)
            fitted = rows.fitted(columns)
            if len(fitted[0]) and rows.episodes.begin(
                env, int(columns["step"][0]), bool(columns["is_final"][0])
            ):
                # Before the row: a kill must not leave it as one that the cut episode went on with.
                self._record()
            return rows.extend(env, fitted)

    def end_episode(self, mask: np.ndarray | None = None, *, next_observation: Any = None) -> None:
        """Cut the episode under way: the next `add` starts a new one.

        For an environment that was reset in the middle of an episode.

        Parameters
        ----------
        mask : ndarray of bool, shape (num_envs,), optional
            Envs whose episode is cut; all by default.
        next_observation : optional
            What the last step of each of these episodes led to, as for `add`. It is kept in a final
            row, and the episode's last transitions are bootstrapped from it, as those of a
            truncated one are. Without it the last `update_horizon` ones, whose n-step window is not
            whole, are never sampled. Of envs that no episode is under way in it is not looked at.

        Raises
        ------
        ShapeError, DtypeError
            Nothing was recorded, and no episode is cut.
        DiskFullError, ReadOnlyError, ClosedError, ForkedError
            As for `add`.
        """
        self._check_writable()
        with self._turn_when_drawn():
            self._check_writable()
            rows = self._rows if next_observation is None else self._addable()
            rows.end_episodes(mask, next_observation)

    def evict(self, first: np.ndarray) -> None:
        """Let go of old rows before the capacity does.

        For a ring that counts otherwise than in rows: in transitions, in episodes, in hours.

        Parameters
        ----------
        first : array_like of int, shape (num_envs,)
            The oldest row that each env keeps, as in `bounds`, and at most its newest one. Where
            an env keeps fewer rows already, nothing changes.

        Raises
        ------
        InvalidInputError
            Not such an array, or a row is behind the newest one. Nothing has left.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        O(rows that leave). Their files are deleted as those of rows that leave by the capacity, a
        segment when all of it has left. After a kill, rows that left in the last seconds may be
        back. A reader may still see them.
        """
        self._check_writable()
        with self._turn_when_drawn():
            self._check_writable()
            self._rows.evict(self._checked_first(first))

    def _checked_first(self, first: Any) -> np.ndarray:
        count = self._rows.store.count
        try:
            rows = np.asarray(first)
            fits = rows.dtype.kind in "iu" and rows.shape == count.shape
        except ValueError:  # ragged
            fits = False
        if not fits or (rows > np.maximum(count - 1, 0)).any():
            raise InvalidInputError(
                f"first: a row of each of {self.num_envs} env(s) expected, none behind the newest "
                f"({(count - 1).tolist()}), found {first!r:.200}"
            )
        return rows.astype(np.int64)

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
        UnknownIdError, NotSampleableError
            A row was never recorded, or is evicted.
        CorruptSegmentError
        """
        ids = np.asarray(ids)
        if ids.size and ids.dtype.kind not in "iu":
            raise DtypeError(f"ids: integers expected, found dtype {ids.dtype}")
        ids = np.asarray(ids, np.int64, order="C")
        names = [field] if isinstance(field, str) else list(field)
        results = [self._room(name, ids.shape) for name in names]
        if out is not None:
            if not isinstance(out, np.ndarray) or not out.flags.writeable:
                raise InvalidInputError(
                    "out: an array that can be written to expected, found "
                    f"{'a read-only one' if isinstance(out, np.ndarray) else type(out).__name__}"
                )
            given = (out.shape, out.dtype, out.flags.c_contiguous)
            if [(room.shape, room.dtype, True) for room in results] != [given]:
                raise InvalidInputError(
                    f"out: a contiguous array for one field expected, found {out.dtype} of shape "
                    f"{out.shape}"
                )
            results = [out]
        self._turn()
        guard, me = ReadGuard(), get_ident()
        while True:
            try:
                self._busy.add(me)
                with self._lock:
                    self._check_open()
                    self._follow()
                    self._rows.check_retained(ids)
                    store = self._rows.store
                    store.rwlock.acquire_read(
                        guard
                    )  # under the lock: what is there now is not evicted
                    looks = store.follower.looks
                for name, result in zip(names, results, strict=True):
                    store.take(name, ids.reshape(-1), result)
                guard.release()
            except CorruptSegmentError:
                if not store.follower.has_moved_on(looks):
                    raise
            else:
                return results[0] if isinstance(field, str) else results
            finally:
                try:
                    guard.release()  # unless Ctrl-C came when this began above, it is at its end
                finally:
                    self._busy.discard(me)

    def _room(self, field: str, shape: tuple[int, ...]) -> np.ndarray:
        """An array for so many values of a field."""
        if field not in self._kind.schema.shapes:
            raise InvalidInputError(f"no field {field!r}; there are {self._kind.schema.names}")
        row_shape, dtype = self._kind.schema.shapes[field]
        return np.empty((*shape, *row_shape), dtype)

    # -- looking

    @property
    def observation_space(self) -> gym_spaces.Space:
        """The space of one frame."""
        return self._kind.schema.observation_space

    @property
    def action_space(self) -> gym_spaces.Space:
        """The space of actions."""
        return self._kind.schema.action_space

    @property
    def extras(self) -> dict[str, tuple]:
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
            self._check_open()
            self._follow()
            return np.stack([self._rows.store.first, self._rows.store.count], axis=1)

    @property
    def capacity(self) -> int | None:
        """Rows kept, over all envs; None for everything."""
        return self._rows.store.capacity

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
        """Ids of rows that begin an episode though their steps count on from the row before, as
        parts of episodes may that `extend` was given; see `episodes`, which knows all episodes."""
        with self._turn():
            self._check_open()
            self._follow()
            return tuple(self._rows.episodes.retained_begins())

    def zarr(self) -> Any:
        """The store as a read-only `zarr.Group`: all rows after `flush`, else full segments."""
        import zarr

        return zarr.open_group(self.path, mode="r")

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about the store, by the user and by recorders; a copy.

        `set_metadata` changes it. A reader reads it anew each time; a checkpoint has its own.
        """
        if self.mode == "r":
            return parse_metadata(read_attributes(self.path))[0]
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

        See `convert.pandas.to_pandas`; `convert.pandas.iter_frames` gives it in pieces. Needs
        ``diskreplay[pandas]``.
        """
        to_pandas = extensions.find("to_pandas")
        return to_pandas(self, columns, episodes, ids, observations, vectors=vectors, gamma=gamma)

    def export_gz(
        self,
        checkpoint_dir: str | os.PathLike,
        suffix: int | str,
        *,
        flavour: Literal["reagent", "dopamine"] = "reagent",
        stack_size: int | None = None,
        capacity: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write a checkpoint that ReAgent or Dopamine loads, and so does `load`.

        `convert.gz_checkpoint.write` says what the options mean, and which errors are raised.
        """
        return extensions.find("export_gz")(
            self, checkpoint_dir, suffix, flavour=flavour, stack_size=stack_size,
            capacity=capacity, progress=progress,
        )  # fmt: skip

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._rows.add_count} transitions recorded"
        return f"{type(self).__name__}({str(self.path)!r}, capacity={self.capacity}, {state})"
