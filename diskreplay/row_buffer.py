"""Rows recorded as they are: what every buffer on disk can do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.checkpoint_loader import CheckpointLoader
from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import as_array, is_integer
from diskreplay.indexed_store import IndexedStore
from diskreplay.row_reader import RowReader
from diskreplay.runs import Run
from diskreplay.store import generation
from diskreplay.validation import checked_ids, fit


class RowBuffer(RowReader):
    """A session whose rows are recorded and read, drawn by nobody: see `ReplayBuffer`."""

    def _addable(self) -> IndexedStore:
        """The rows, with what has to know of new ones. Needs the lock."""
        return self._rows.indexed()

    @property
    def generation(self) -> int:
        """Which run of row numbers this is. `load` and `clear` raise it, since row numbers go back
        then, and so does an opening that had to drop rows after a power cut. An id means the same
        transition as long as it stays; a kill does not change it."""
        with self._turn():
            self._follow()
            return generation.current(self._rows.store.meta)

    @property
    def _loaded_as(self) -> str | None:
        """The name of the last load, if it was given one. It is in the store that was loaded, so
        it is there after a kill or a power cut if, and only if, the load is."""
        with self._turn():
            return self._rows.store.meta.get(generation.LOAD)

    def _load_as(self, name: str, path: Path) -> None:
        """Load a checkpoint, and note the name of this load in the same step."""
        with self._turn():
            self._check_writable()
            CheckpointLoader(self).load(path, None, resume_episodes=False, name=name)

    def _check_load(self, path: Path) -> None:
        """Refuse a checkpoint that could not be loaded; nothing changes."""
        CheckpointLoader(self).check(path)

    def put_row(self, values: list[Any]) -> int:
        """Record one step of the only env, which fits: as `add`, in less time.

        For an adapter that has looked at shapes and dtypes itself.

        Parameters
        ----------
        values : list
            One for each of `fields`, in their order, of its shape and dtype; None for zeros. The
            reward is looked at. ``truncated``, ``step`` and ``is_final`` are not: the episode goes
            on, unless ``terminated`` says that it ended. The list is written to.

        Returns
        -------
        int
            The row, which is its id.

        Raises
        ------
        InvalidInputError
            There are several envs; or it is no list of that length.
        TypeError, ValueError
            A value does not fit, by NumPy. Nothing is added.
        NotFiniteError, DiskFullError, UsageError, ReadOnlyError, ClosedError, ForkedError
            As for `add`.
        """
        if self.num_envs > 1:
            raise InvalidInputError(f"put_row: one env expected, this buffer has {self.num_envs}")
        self._check_writable()
        with self._turn_when_drawn():
            rows = self._rows
            if rows.store.mode != "a":  # closed meanwhile
                self._check_open()
            if not isinstance(values, list) or len(values) != len(rows.store.columns):
                raise InvalidInputError(
                    f"put_row: a list of {len(rows.store.columns)} values expected, one for each "
                    f"of {', '.join(rows.store.columns)}; found {brief(values, 100)}"
                )
            return (self._addable() if rows.index is None else rows).put_row(values)

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

    def extend(
        self, columns: Mapping[str, np.ndarray], env: int = 0, *, priority: Any = None
    ) -> np.ndarray:
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
        priority : ndarray of float, shape (rows,), optional
            Of a prioritized buffer, as for `add`; NaN, or nothing at all, for the largest one seen.

        Returns
        -------
        ndarray of int64, shape (rows,)
            Their ids. The oldest may have left already if there are more than the capacity keeps.

        Raises
        ------
        InvalidInputError
            A field is missing or unknown, or there is no such env. Nothing was recorded.
        ShapeError, DtypeError, NotFiniteError, PriorityError
            Nothing was recorded.
        DiskFullError
            The rows before the first that did not fit are recorded, as `bounds` says.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        The next `add` continues the last row's episode unless that row ended it. Where an episode
        begins at another step than 0, or a final row has a reward or ends, the store notes that
        these rows are as they were given, before they are there: a write to the disk, once for many
        such calls. In the rows of such a call `verify` takes neither for rot.
        """
        self._check_writable()
        if not is_integer(env) or not 0 <= env < self.num_envs:
            raise InvalidInputError(f"env: 0 to {self.num_envs - 1} expected, found {brief(env)}")
        with self._turn_when_drawn():
            self._check_writable()
            rows, env = self._addable(), int(env)
            fitted = rows.fitted(columns)
            given = self._given(rows, priority, fitted)
            first = int(rows.store.count[env])
            self._extend([Run(env, fitted)], given)
            return (first + np.arange(len(fitted[0]))) * self.num_envs + env

    def extend_many(
        self,
        columns: Mapping[str, np.ndarray],
        envs: np.ndarray,
        first_rows: np.ndarray,
        lengths: np.ndarray,
        *,
        priority: Any = None,
    ) -> np.ndarray:
        """Record rows of many envs, each of them exactly once, however often they are given.

        For whoever sends rows and may not know whether they have come: in doubt, send them again.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (rows, *shape)
            As for `extend`: those of the first of `envs`, then those of the next one, and so on.
        envs : array_like of int, shape (runs,)
            No env twice.
        first_rows : array_like of int, shape (runs,)
            The number, as in `bounds`, that the first of these rows has in its env. Rows that the
            env has already are left out, whatever they hold.
        lengths : array_like of int, shape (runs,)
            How many of the rows each env gets.
        priority : ndarray of float, shape (rows,), optional
            As for `extend`.

        Returns
        -------
        ndarray of int64, shape (runs,)
            How many rows each of these envs has now: the number of the next one.

        Raises
        ------
        InvalidInputError
            There would be a gap: an env has fewer rows than come before its first one here. Or a
            field is missing or unknown, an env is unknown or there twice, or the lengths are not
            those of the columns. Nothing was recorded.
        ShapeError, DtypeError, NotFiniteError, PriorityError
            Nothing was recorded.
        DiskFullError
            Some of the rows are recorded, of each env the first ones, as `bounds` says.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        Takes a fraction of the time of an `extend` for each env where each has few rows. After a
        kill the rows of some envs may be there and those of others not.
        """
        self._check_writable()
        runs_ = [_whole(name, value) for name, value in
                 (("envs", envs), ("first_rows", first_rows), ("lengths", lengths))]  # fmt: skip
        self._check_runs(*runs_)
        with self._turn_when_drawn():
            self._check_writable()
            rows = self._addable()
            fitted = rows.fitted(columns)
            env, first, length = runs_
            rows_in_all = sum(length.tolist())  # NumPy's sum may wrap around to what is expected
            if rows_in_all != len(fitted[0]):
                raise InvalidInputError(
                    f"lengths: {rows_in_all} rows in all, and {len(fitted[0])} in the columns"
                )
            given, count = self._given(rows, priority, fitted), rows.store.count[env]
            if (first > count).any():
                at = int((first > count).argmax())
                raise InvalidInputError(
                    f"first_rows: row {first[at]} of env {env[at]} given, which has {count[at]} "
                    f"rows: send those from {count[at]} on first"
                )
            there = np.minimum(count - first, length)
            stop = np.cumsum(length)
            start = stop - length + there
            runs = [
                Run(e, [column[a:b] for column in fitted])
                for e, a, b in zip(env.tolist(), start.tolist(), stop.tolist(), strict=True)
                if a < b
            ]
            if given is not None:
                at_ = np.arange(len(fitted[0])) - np.repeat(start, length)
                given = given._replace(leaves=given.leaves[at_ >= 0])
            self._extend(runs, given)
            return rows.store.count[env]

    def _check_runs(self, envs: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> None:
        if not envs.shape == first.shape == lengths.shape:
            raise InvalidInputError(
                "envs, first_rows, lengths: one number of each for each env expected, found "
                f"{len(envs)}, {len(first)} and {len(lengths)}"
            )
        if len(envs) and not 0 <= envs.min() <= envs.max() < self.num_envs:
            bad = envs[(envs < 0) | (envs >= self.num_envs)][0]
            raise InvalidInputError(f"envs: 0 to {self.num_envs - 1} expected, found {bad}")
        if len(np.unique(envs)) < len(envs):
            raise InvalidInputError("envs: an env is there twice; give all of its rows at once")
        for name, numbers in (("first_rows", first), ("lengths", lengths)):
            if (numbers < 0).any():
                raise InvalidInputError(
                    f"{name}: numbers from 0 on expected, found {numbers.min()}"
                )

    @staticmethod
    def _given(rows: IndexedStore, priority: Any, fitted: list[np.ndarray]) -> Any:
        given = rows.given(priority, (len(fitted[0]),), partly=True)
        if given is not None:
            given.leaves[fitted[rows.final_at]] = np.nan  # these are never drawn
        return given

    def _extend(self, runs: Sequence[Run], given: Any) -> None:
        """Rows that were checked, and whose episodes go on or begin. Needs the lock."""
        rows, runs = self._rows, [run for run in runs if run.rows]
        if not runs:
            return
        store, episodes = rows.store, rows.episodes
        try:
            if episodes.begin(runs, rows.final_at - 4):
                # Before the rows: a kill must not leave one as one that the cut episode went on
                # with, or as a rotten one.
                store.amend(episodes.attributes(ahead=True))
            rows.extend(runs, given)
        except BaseException:
            episodes.forget_missing()
            raise

    def write(self, field: str, ids: np.ndarray, values: np.ndarray) -> int:
        """Replace the values of a mutable extra in rows that are there.

        For what a learner works out anew and wants to find in later samples: recurrent states
        (Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning",
        2019), latents of a world model.

        Parameters
        ----------
        field : str
            An extra that was declared as ``(shape, dtype, "mutable")``.
        ids : array_like of int, shape (rows,)
            As in ``batch.id``, of any transitions, whether they can be sampled or not; of
            duplicates the last counts.
        values : array_like, shape (rows, *shape)
            Cast as by `add`.

        Returns
        -------
        int
            How many rows were ignored: evicted since, or final.

        Raises
        ------
        InvalidInputError
            There is no such extra, or it is not mutable.
        UnknownIdError, ShapeError, DtypeError
            Nothing was changed.
        DiskFullError
            A file that a checkpoint shares could not be copied. Nothing was changed.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        A copy of the values, which a kill after this call does not take; a power cut may take those
        since the last `flush`. Checkpoints never change: the first value in a file that
        one shares costs a copy of that file, 2 MiB. Batches that were drawn before have the
        old values, those of a prefetcher too; this waits until they are read. A reader in another
        process sees new values at once, and may see a row half written.
        """
        self._check_writable()
        spec = self._kind.schema.extras.get(field) if isinstance(field, str) else None
        if spec is None or not spec.mutable:
            there = [name for name, f in self._kind.schema.extras.items() if f.mutable]
            raise InvalidInputError(
                f"field: {brief(field)} is no mutable extra; there are: "
                f"{', '.join(there) or 'none at all'}. Declare it as (shape, dtype, 'mutable') "
                "when the store is made"
            )
        ids = checked_ids(ids)
        fitted = np.asarray(fit(spec, values, ids.shape))
        with self._turn_when_drawn():
            self._check_writable()
            rows = self._rows.indexed()
            assert rows.index is not None
            kept = rows.index.holds_transitions(ids)
            if not kept.all():
                ids, fitted = ids[kept], fitted[kept]
            if len(ids):
                rows.store.writer.overwrite(field, ids, np.ascontiguousarray(fitted))
        return int(np.count_nonzero(~kept))

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
        segment when all of it has left. After a kill they stay away, after a power cut those that
        left since the last flush may be back. Of several envs, a kill amid this call may let go of
        the rows of some and not of others. Readers that are open see it with their next call.
        """
        self._check_writable()
        with self._turn_when_drawn():
            self._check_writable()
            self._rows.evict(self._checked_first(first))

    def _checked_first(self, first: Any) -> np.ndarray:
        count = self._rows.store.count
        rows = as_array("first", first, InvalidInputError)
        fits = rows.dtype.kind in "iu" and rows.shape == count.shape
        if not fits or (rows > np.maximum(count - 1, 0)).any():
            raise InvalidInputError(
                f"first: a row of each of {self.num_envs} env(s) expected, none behind the newest "
                f"({(count - 1).tolist()}), found {brief(first, 200)}"
            )
        return rows.astype(np.int64)


def _whole(name: str, numbers: Any) -> np.ndarray:
    """Whole numbers along one axis, as int64."""
    found = as_array(name, numbers, InvalidInputError)
    fits = found.dtype.kind in "iu" or found.size == 0
    if not fits or found.ndim != 1:
        raise InvalidInputError(
            f"{name}: integers along one axis expected, found {brief(numbers, 200)}"
        )
    return found.astype(np.int64)
