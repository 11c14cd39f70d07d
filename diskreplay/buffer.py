"""The replay buffer: episodes, stacks and n-step transitions over a store on disk."""

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import process, values
from diskreplay.batch import Batch
from diskreplay.errors import (
    CapacityError,
    CheckpointNotFoundError,
    ClosedError,
    DtypeError,
    EmptyBufferError,
    ForkedError,
    FormatError,
    InvalidInputError,
    NotSampleableError,
    ReadOnlyError,
    SchemaError,
    ShapeError,
    UnknownIdError,
)
from diskreplay.fitting import Fitting
from diskreplay.gathering import Draft, Gathering
from diskreplay.sampling.stream import Stream
from diskreplay.sampling.stream import parse as parse_stream
from diskreplay.schema import Schema
from diskreplay.statistics import FieldStatistics, PriorityStatistics, Statistics
from diskreplay.store import checkpoint
from diskreplay.store.store import Store

if TYPE_CHECKING:
    import pandas

    from diskreplay.prefetch import Prefetcher
    from diskreplay.sampling.prioritized import PrioritizedSampler
    from diskreplay.sampling.row_index import Plan, RowIndex
    from diskreplay.sampling.uniform import UniformSampler

_OF_PRIORITIES = ("alpha", "beta", "weight_normalization", "largest_priority")
_CHANGING = frozenset(
    ("rng", "next_step", "largest_priority", "base", "notes")
)  # of the attributes
_MOST_ROWS = 1 << 36  # 12 bytes of memory each: more is a slip of the finger
_FLAG_FIELDS = ("terminated", "truncated", "step", "is_final")
_FINAL = 4  # the flag of a row that is no transition, see sampling.kernels


class ReplayBuffer:
    """Experience replay on disk; transitions are drawn uniformly.

    Parameters
    ----------
    path : str or Path or None
        The store's directory: created, or reopened if it holds a store. None: a temporary one,
        removed by `close` or when the process ends.
    observation_space, action_space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of them. An observation is one
        frame: stacks are made when sampling.
    capacity : int or None
        Rows kept over all envs, final rows included; each env keeps ``capacity // num_envs``. None
        keeps everything. A store that exists is given this one: with fewer rows the oldest are let
        go for good.
    num_envs : int
        Parallel environments. With more than one, every argument of `add` has a leading env axis.
    stack_size : int
        Frames in a sampled observation; 1 has no stack axis.
    update_horizon : int
        The n of n-step returns.
    gamma : float
        Discount of one step, in [0, 1].
    batch_size : int
        Default of `sample` and `prefetch`.
    extras : dict, optional
        Further fields of each step: name to ``(shape, dtype)``.
    compressor : str or dict
        ``"auto"`` (lz4 for uint8 fields of 1 KiB a row or more), ``"raw"``, ``"lz4"``, ``"zstd"``,
        which the small per-step fields ignore; or a dict of these by field name. Chosen when a
        store is created; one that exists keeps its own.
    segment_rows : int, optional
        Rows in one file, rounded up to what each field's format needs. None chooses; a store that
        exists keeps its own.
    seed : int or numpy.random.Generator, optional
        Of every random draw. A store that exists goes on with the generator it saved, unless a
        generator is given here.
    name : str
        Prefix of checkpoint directories.

    Raises
    ------
    InvalidInputError, CapacityError
        An argument makes no sense.
    SchemaError
        The store at `path` holds other fields, or another number of envs.
    FormatError
        The directory holds something else, or a newer format.
    LockedError
        Another writer has the store open.
    StorageError
        The file system refused, see ``errno``.

    Notes
    -----
    Thread-safe for one adding thread and any number of sampling and updating threads: drawing and
    bookkeeping hold a lock for microseconds; frames are read outside of it.

    After a reopening, an episode that was open is over: the next `add` starts a new one, and the
    rows of the cut episode whose n-step window is not whole are never sampled.
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        *,
        observation_space: gym_spaces.Space,
        action_space: gym_spaces.Space,
        capacity: int | None,
        num_envs: int = 1,
        stack_size: int = 1,
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        extras: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        seed: int | np.random.Generator | None = None,
        name: str = "replay",
    ) -> None:
        self._closed = True  # until there is something to close
        self._set_options(num_envs, stack_size, update_horizon, gamma, batch_size, capacity)
        _positive("segment_rows", segment_rows, optional=True)
        self.name = checkpoint.checked_suffix(name)
        self._schema = Schema(observation_space, action_space, extras, compressor)
        self._next_step = np.zeros(num_envs, np.int32)
        # A Generator passes through default_rng as it is.
        self._stream = Stream(np.random.default_rng(seed))
        self._temporary = path is None
        self.path = Path(
            tempfile.mkdtemp(prefix="diskreplay-") if self._temporary else path
        ).absolute()
        Store.settle(self.path)
        capacity = None if capacity is None else int(capacity)
        if (self.path / "zarr.json").exists():
            store = Store.open(self.path, mode="a", capacity=capacity)
            try:
                self._check_store(store)
            except BaseException:
                store.close()
                raise
            keep_rng = isinstance(seed, np.random.Generator)
            reopened = True
        else:
            store = Store.create(
                self.path, self._schema.fields, num_envs=self.num_envs, capacity=capacity,
                segment_rows=segment_rows, meta=self._meta(),
            )  # fmt: skip
            keep_rng, reopened = True, False
        self._start(store, keep_rng=keep_rng)
        if reopened:
            self._record_options()

    # -- construction

    def _set_options(
        self,
        num_envs: int,
        stack_size: int,
        update_horizon: int,
        gamma: float,
        batch_size: int,
        capacity: int | None,
    ) -> None:
        for option, value in (
            ("num_envs", num_envs), ("stack_size", stack_size),
            ("update_horizon", update_horizon), ("batch_size", batch_size),
        ):  # fmt: skip
            _positive(option, value)
        _positive("capacity", capacity, optional=True, most=_MOST_ROWS)
        if not isinstance(gamma, int | float | np.number) or not 0 <= gamma <= 1:
            raise InvalidInputError(f"gamma: a number from 0 to 1 expected, found {gamma!r}")
        needed = stack_size + update_horizon
        if capacity is not None and capacity // num_envs < needed:
            raise CapacityError(
                f"capacity {capacity} leaves {capacity // num_envs} rows for each of {num_envs} "
                f"env(s); stack_size + update_horizon = {needed} are needed: at least "
                f"{needed * num_envs}"
            )
        self.num_envs, self.stack_size = int(num_envs), int(stack_size)
        self.update_horizon, self.batch_size = int(update_horizon), int(batch_size)
        self.gamma = float(gamma)

    def _check_store(self, store: Store) -> None:
        """Refuse a store, or a checkpoint to be loaded, that holds something else."""
        self._schema.check(store, self.num_envs)

    def _record_options(self) -> None:
        """Readers go by the attributes: they should not see the options of another run."""
        saved = self._store.meta
        if any(saved.get(k) != v for k, v in self._meta().items() if k not in _CHANGING):
            self._store.record(self._meta(), self._leaves())

    def _start(self, store: Store, *, keep_rng: bool) -> None:
        """Take over a store that was opened, its episodes being over."""
        self._lock = threading.RLock()
        self._pid = process.pid
        self._prefetchers: list[Prefetcher] = []
        self._ignored = 0
        self._holder: list[Store] = []
        self._bind(store, keep_rng=keep_rng)
        self._closed = False
        # A buffer that is dropped, or still open when the process ends, lets go of its store as a
        # killed process would: nothing is lost, and the next opening recovers it. At exit this
        # runs while the keeper can still be joined; a __del__ would come too late for that.
        removed = self.path if self._temporary else None
        self._release = weakref.finalize(self, _let_go, self._holder, removed, process.pid)

    def _bind(self, store: Store, *, keep_rng: bool = False, resume_episodes: bool = False) -> None:
        store.columns = {name: store.columns[name] for name in self._schema.names}
        self._store = store
        self._holder[:] = [store]
        self._index: RowIndex | None = None
        self._sampler: UniformSampler | PrioritizedSampler | None = None
        self._add_count = int(store.transitions_at(store.count).sum())
        # The step that each env's next row has: 0 where no episode is open.
        self._next_step = np.zeros(self.num_envs, np.int32)
        if resume_episodes:
            self._next_step[:] = store.meta.get("next_step", 0)
        # What `add` tells the index of a row and a final row; made once, it allocates nothing.
        self._added = np.array([[0, 0, 0], [0, 0, 4]], np.int64)
        self._rewards = np.zeros(2, np.float32)
        self._one_row = self._added[:1], self._rewards[:1]
        self._fitting = Fitting(self._schema, self.num_envs)
        self._reward_at = self._schema.names.index("reward")
        if not keep_rng and "rng" in store.meta:
            self._stream.restore(store.meta["rng"])

    # -- the sampler's memory, made when first needed: Numba is not loaded before

    def _make_sampler(self, index: "RowIndex") -> "UniformSampler | PrioritizedSampler":
        from diskreplay.sampling.uniform import UniformSampler

        return UniformSampler(index)

    def _indexed(self) -> "RowIndex":
        """The row index, built from the columns if it is not there yet. Needs the lock."""
        if self._index is None:
            from diskreplay.sampling.row_index import RowIndex

            store = self._store
            index = RowIndex(
                store.rows_per_env, self.num_envs, self.stack_size, self.update_horizon, self.gamma
            )
            if index.growing:
                index.grow(int(store.count.max()) + 2)
            index.count[:], index.first[:] = store.count, store.first
            for env in range(self.num_envs):
                start, stop = int(store.first[env]), int(store.count[env])
                index.load(env, start, *self._read_small(env, start, stop))
            index.validate()
            self._gathering = Gathering(self._schema, self.stack_size, self.update_horizon)
            self._sampler = self._make_sampler(index)
            self._restore_sampler(store)
            # One array: what the index evicts, the store may delete.
            store.first = index.first
            self._index = index
        return self._index

    def _read_small(
        self, env: int, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        terminated, truncated, step, is_final = (
            self._store.read(name, env, start, stop) for name in _FLAG_FIELDS
        )
        if len(step) and step.min() < 0:  # rot: the kernels go back by it, to other memory
            self._store.columns["step"].complain(start + int(step.argmin()), env)
        flags = terminated.view(np.uint8) | truncated.view(np.uint8) << 1
        flags |= is_final.view(np.uint8) << 2
        return step, flags, self._store.read("reward", env, start, stop)

    def _restore_sampler(self, store: Store) -> None:
        """Give the sampler what was saved for it; a uniform one needs nothing."""

    # -- adding

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_observation: Any = None,
        *,
        mask: np.ndarray | None = None,
        next_observation_mask: np.ndarray | None = None,
        **extras: Any,
    ) -> np.ndarray:
        """Record one step of each env.

        Parameters
        ----------
        observation, action
            What the agent saw and did, as in the spaces; one frame, not a stack.
        reward : float
        terminated, truncated : bool
            Whether the episode ended with this step, as `gymnasium.Env.step` says.
        next_observation : optional
            What the step led to. Where the episode ends it is kept in a final row, and a truncated
            episode can be bootstrapped from it; elsewhere the next `add` brings it anyway, and only
            its shape is checked.
        mask : ndarray of bool, shape (num_envs,), optional
            Envs that record this step; the values of the others are not looked at.
        next_observation_mask : ndarray of bool, shape (num_envs,), optional
            Envs whose `next_observation` is one; all by default.
        **extras
            A value for each further field.

        Returns
        -------
        ndarray of int64
            The ids of the recorded rows, one for each env that recorded, in env order.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ExtrasError
            Nothing was recorded.
        DiskFullError
            Nothing was recorded; free some space and add the step again.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        When this returns, the rows survive the death of the process. The values are copied.
        """
        self._check_writable()  # before the lock: in a forked child it may be held for ever
        self._settle()
        with self._lock:
            self._check_writable()
            if self.num_envs > 1:
                return self._add_rows(
                    observation, action, reward, terminated, truncated, next_observation,
                    mask, next_observation_mask, extras,
                )  # fmt: skip
            if mask is not None or next_observation_mask is not None:
                keep = [
                    values.fit_flags("mask", m, 1)[0] if m is not None else True
                    for m in (mask, next_observation_mask)
                ]
                if not keep[0]:
                    return np.empty(0, np.int64)
                next_observation = next_observation if keep[1] else None
            return self._add_row(
                observation, action, reward, terminated, truncated, next_observation, extras
            )

    def _add_row(
        self, observation, action, reward, terminated, truncated, next_observation, extras
    ) -> np.ndarray:
        index = self._index or self._indexed()
        step = int(self._next_step[0])
        row, final = self._fitting.row(
            step, observation, action, reward, terminated, truncated, next_observation, extras
        )
        if index.growing:
            self._grow(index, 2)
        store = self._store
        number = int(store.count[0])
        store.append_row(row, final)
        reward, terminated, truncated = row[self._reward_at : self._reward_at + 3]
        self._added[0, 1], self._added[0, 2] = step, terminated + 2 * truncated
        self._rewards[0] = reward
        if final is None:
            self._take_in(index, *self._one_row)
        else:
            self._added[1, 1] = step + 1
            self._take_in(index, self._added, self._rewards)
        self._next_step[0] = 0 if terminated or truncated else step + 1
        self._add_count += 1
        return np.array([number])

    def _add_rows(
        self, observation, action, reward, terminated, truncated, next_observation,
        mask, next_observation_mask, extras,
    ) -> np.ndarray:  # fmt: skip
        index = self._index or self._indexed()
        num_envs, fitting, steps = self.num_envs, self._fitting, self._next_step
        envs = fitting.envs(mask)
        terminated = fitting.flags("terminated", terminated, envs)
        truncated = fitting.flags("truncated", truncated, envs)
        row_values = fitting.rows(
            envs, steps, observation, action, reward, terminated, truncated, extras
        )
        ended = terminated | truncated
        final_envs, final = envs[:0], []
        if next_observation is not None:
            has = ended
            if next_observation_mask is not None:
                has = ended & values.fit_flags(
                    "next_observation_mask", next_observation_mask, num_envs
                )
            final_envs = envs[has[envs]]
            final = fitting.frames(final_envs, steps + 1, next_observation)
        if index.growing:
            self._grow(index, 2)
        rows = self._store.append(envs, row_values, final_envs, final)
        count = len(envs)
        total = count + len(final_envs)
        added = np.empty((total, 3), np.int64)
        added[:count, 0], added[count:, 0] = envs, final_envs
        added[:, 1] = steps[added[:, 0]]
        added[count:, 1] += 1
        added[:count, 2] = terminated[envs] + 2 * truncated[envs].view(np.uint8)
        added[count:, 2] = 4
        new_rewards = np.zeros(total, np.float32)
        new_rewards[:count] = row_values[self._reward_at][envs]
        self._take_in(index, added, new_rewards)
        self._next_step[envs] += 1
        self._next_step[envs[ended[envs]]] = 0
        self._add_count += count
        return rows * num_envs + envs

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
        self._settle()
        with self._lock:
            self._check_writable()
            index = self._index or self._indexed()
            step = int(self._next_step[0])
            row = self._fitting.frame(step, observation)
            if index.growing:
                self._grow(index, 1)
            number = int(self._store.count[0])
            self._store.append_row(row, None, is_final=True)
            self._take_in(index, np.array([[0, step, _FINAL]]), np.zeros(1, np.float32))
            self._next_step[0] = step + 1
            return np.array([number])

    def extend(self, columns: Mapping[str, np.ndarray], env: int = 0) -> np.ndarray:
        """Record many rows of one env as they are to be stored, in one vectorised write.

        For imports and copies: nothing is derived, `step` and final rows are given too.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (rows, *shape)
            For every one of `fields`. ``step`` counts from 0 in each episode; where it does not
            count on by one, the episode before was cut.
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
        self._settle()
        with self._lock:
            self._check_writable()
            fitted = self._fitting.columns(columns)
            index = self._index or self._indexed()
            first, rows = int(self._store.count[env]), len(fitted[0])
            most = self._store.most_at_once
            for start in range(0, rows, most):
                self._extend(index, int(env), [part[start : start + most] for part in fitted])
            return (first + np.arange(rows)) * self.num_envs + env

    def _extend(self, index: "RowIndex", env: int, columns: list[np.ndarray]) -> None:
        reward, terminated, truncated, step, is_final = columns[self._reward_at :][:5]
        if index.growing:
            self._grow(index, len(step))
        self._store.extend(env, columns)
        flags = terminated + 2 * truncated.view(np.uint8) + _FINAL * is_final.view(np.uint8)
        added = np.stack([np.full(len(step), env), step, flags], axis=1).astype(np.int64)
        self._take_in(index, added, np.ascontiguousarray(reward, np.float32))
        over = terminated[-1] or truncated[-1] or is_final[-1]
        self._next_step[env] = 0 if over else step[-1] + 1
        self._add_count += int(np.count_nonzero(~is_final))

    def _grow(self, index: "RowIndex", rows: int) -> None:
        if int(index.count.max()) + rows > index.size // self.num_envs:
            index.grow(int(index.count.max()) + rows)
            self._sampler.grow()

    def _take_in(self, index: "RowIndex", added: np.ndarray, rewards: np.ndarray) -> None:
        """Tell the index and the sampler of committed rows."""
        left, entered = index.append(added, rewards)
        if len(left):
            self._sampler.leave(left)
        if len(entered):
            self._sampler.enter(entered)

    def end_episode(self, mask: np.ndarray | None = None) -> None:
        """Cut the episode under way: the next `add` starts a new one.

        For an environment that was reset in the middle of an episode. The cut episode's last
        transitions, whose n-step window is not whole, are not sampled.

        Parameters
        ----------
        mask : ndarray of bool, shape (num_envs,), optional
            Envs whose episode is cut; all by default.
        """
        self._settle()
        with self._lock:
            self._check_writable()
            if mask is None:
                self._next_step[:] = 0
            else:
                self._next_step[values.fit_flags("mask", mask, self.num_envs)] = 0

    # -- sampling

    def sample(
        self,
        batch_size: int | None = None,
        *,
        beta: float | Callable[[int], float] | None = None,
        out: Batch | None = None,
    ) -> Batch:
        """Draw transitions, with replacement.

        Parameters
        ----------
        batch_size : int, optional
            Default: that of the constructor.
        beta : float or callable, optional
            Exponent of the importance weights, or a schedule: `add_count` to exponent. Without
            meaning for a uniform buffer.
        out : Batch, optional
            A batch of this buffer and size whose frames may be overwritten; it is filled and
            returned.

        Returns
        -------
        Batch

        Raises
        ------
        EmptyBufferError
            Nothing can be sampled yet.
        CorruptSegmentError
            Stored bytes do not match their checksum.

        Notes
        -----
        Costs little more than copying the frames. The lock is held while drawing only.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is not self.batch_size:
            _positive("batch_size", size)
        _check_out(out)
        self._settle()
        while True:
            draft = self._draw(size, beta)  # first: it may have to make the index and all else
            batch = self._gathering.fill(draft, out)
            if batch is not None:
                return batch

    def gather(self, ids: np.ndarray, *, out: Batch | None = None) -> Batch:
        """The transitions with these ids, as `sample` would return them, with weights of 1.

        Parameters
        ----------
        ids : array_like of int, shape (batch,)

        Raises
        ------
        UnknownIdError
            An id was never handed out.
        NotSampleableError
            A row is evicted, pending, cut or final.
        """
        ids = _checked_ids(ids)
        _check_out(out)
        while True:
            with self._lock:
                self._check_open()
                self._follow()
                index = self._indexed()
                index.check_known(ids)
                plan = index.plan(ids)
                probability = self._sampler.probability(ids)
                draft = self._draft(ids, probability, np.ones(len(ids), np.float32), plan)
            batch = self._gathering.fill(draft, out)
            if batch is not None:
                return batch

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
            given = (out.shape, out.dtype, out.flags.c_contiguous)
            if [(room.shape, room.dtype, True) for room in results] != [given]:
                raise InvalidInputError(
                    f"out: a contiguous array for one field expected, found {out.dtype} of shape "
                    f"{out.shape}"
                )
            results = [out]
        while True:
            with self._lock:
                self._check_open()
                self._follow()
                store = self._store
                self._check_retained(ids)
                store.gate.enter()  # under the lock: rows that are there now are not evicted
                epoch = store.mapped_epoch
            try:
                for name, result in zip(names, results, strict=True):
                    store.take(name, ids.reshape(-1), result)
            finally:
                store.gate.leave()
            if store.mode != "r" or store.tail_epoch() == epoch:
                return results[0] if isinstance(field, str) else results

    def _room(self, field: str, shape: tuple[int, ...]) -> np.ndarray:
        """An array for so many values of a field."""
        if field not in self._schema.shapes:
            raise InvalidInputError(f"no field {field!r}; there are {self._schema.names}")
        row_shape, dtype = self._schema.shapes[field]
        return np.empty((*shape, *row_shape), dtype)

    def _check_retained(self, ids: np.ndarray) -> None:
        """Refuse ids of rows that are not there, without the row index."""
        first, count = self._store.first, self._store.count
        if self.num_envs == 1 and ids.size and ids.max() < count[0]:
            low = ids.min()
            if low >= first[0] or (low < 0 and first[0] == 0):
                return  # by far the most common
        there = ids[ids >= 0]
        rows, envs = np.divmod(there, self.num_envs)
        if (rows >= count[envs]).any():
            at = int((rows >= count[envs]).argmax())
            raise UnknownIdError(
                f"id {there[at]} was never handed out: env {envs[at]} has {count[envs[at]]} rows; "
                "ids are row * num_envs + env"
            )
        if (rows < first[envs]).any():
            at = int((rows < first[envs]).argmax())
            raise NotSampleableError(
                f"id {there[at]} is evicted: env {envs[at]} keeps rows from {first[envs[at]]} on"
            )

    def sampleable_ids(self) -> np.ndarray:
        """The ids of all transitions that can be sampled now, env by env, oldest first. O(rows).

        Returns
        -------
        ndarray of int64
        """
        with self._lock:
            self._check_open()
            self._follow()
            return self._indexed().sampleable_ids()

    def _draw(self, size: int, beta: float | Callable[[int], float] | None) -> Draft:
        with self._lock:
            self._check_open()
            self._follow()
            index = self._index or self._indexed()
            self._stream.taken()
            drawn = self._sampler.draw(self._stream, size, self._exponent(beta))
            return self._draft(*drawn, index.plan(drawn[0]))

    def _exponent(self, beta: float | Callable[[int], float] | None) -> float:
        return 0.0

    def _draft(
        self, ids: np.ndarray, probability: np.ndarray, weight: np.ndarray, plan: "Plan"
    ) -> Draft:
        # Entered under the buffer's lock: rows that were planned are not evicted in between.
        self._store.gate.enter()
        return Draft(
            ids, probability, weight, plan, self._store, self._store.mapped_epoch,
            self._stream.taken(),
        )  # fmt: skip

    def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Only a `PrioritizedReplayBuffer` has priorities."""
        raise InvalidInputError(
            "update_priorities: this buffer samples uniformly; make a PrioritizedReplayBuffer"
        )

    def prefetch(
        self,
        depth: int = 2,
        batch_size: int | None = None,
        *,
        beta: float | Callable[[int], float] | None = None,
    ) -> "Prefetcher":
        """Batches read ahead on a background thread.

        Parameters
        ----------
        depth : int
            How many batches are under way: the batch that is taken was drawn `depth` takes ago,
            so its priorities are `depth` updates old. Never more and never less.
        batch_size, beta
            As for `sample`.

        Returns
        -------
        Prefetcher
            An endless iterator and context manager, with ``close()``. A batch is valid until the
            next one is taken: its memory is used again.

        Notes
        -----
        Taking a batch asks for another one, which the background thread draws before the next
        `add`, `update_priorities` or `sample` changes anything: what is drawn depends on the order
        of calls and not on timing. `save` and `load` put the batches under way back and draw them
        again, so that a run that goes on and a run that is resumed there get the same ones.
        """
        from diskreplay.prefetch import Prefetcher

        _positive("depth", depth)
        _positive("batch_size", batch_size, optional=True)
        with self._lock:
            self._check_open()
            self._follow()
            if not self._indexed().sampleable:
                raise EmptyBufferError("no complete transition to prefetch yet: add more steps")
            prefetcher = Prefetcher(self, depth, batch_size or self.batch_size, beta)
            self._prefetchers.append(prefetcher)
        return prefetcher

    # -- the disk

    def flush(self) -> None:
        """Make everything durable, also against a power cut, and visible to any Zarr reader.

        Costs a sync of what is new, and for a prioritized buffer 8 bytes a row.
        """
        self._settle()
        with self._lock:
            self._check_writable()
            self._store.record(self._meta(), self._leaves())

    def close(self) -> None:
        """Flush and release the store. A temporary store is removed. Closing twice is fine."""
        if getattr(self, "_closed", True):
            return
        if process.pid != self._pid:
            self._closed = True  # a child's copy: the store is the parent's
            return
        for prefetcher in list(self._prefetchers):
            prefetcher.close()
        with self._lock:
            store = self._store
            if store.mode != "r" and not self._temporary:
                store.record(self._meta(), self._leaves())
                store.mark_closed()
            self._closed = True
            self._release()

    def save(self, checkpoint_dir: str | os.PathLike, iteration_number: int | str) -> Path:
        """Write a checkpoint ``<checkpoint_dir>/<name>_ckpt.<iteration_number>``.

        Parameters
        ----------
        checkpoint_dir : path
            Created if it is missing.
        iteration_number : int or str
            The suffix. A checkpoint of the same suffix is replaced.

        Returns
        -------
        Path
            The checkpoint's directory.

        Raises
        ------
        SuffixError
        StorageError
            The directory cannot be written, or is full. No half checkpoint is left.

        Notes
        -----
        Full segments are hard-linked, so the cost follows the rows since the last full one; nothing
        that happens later changes the checkpoint. It is there whole or not at all. Of numbered
        checkpoints the newest four are kept (``CHECKPOINT_DURATION``, as in ReAgent and Dopamine).
        Batches under way in a prefetcher are drawn again, see `prefetch`.
        """
        with self._lock:
            self._check_writable()
            directory = Path(checkpoint_dir)
            checkpoint.checked_suffix(iteration_number)
            with self._drained():
                return checkpoint.save(
                    self._store, directory, self.name, iteration_number, self._meta(),
                    self._leaves(),
                )  # fmt: skip

    def load(
        self,
        checkpoint_dir: str | os.PathLike,
        suffix: int | str | None = None,
        *,
        resume_episodes: bool = False,
    ) -> None:
        """Go back to a checkpoint; all or nothing.

        Parameters
        ----------
        checkpoint_dir : path
        suffix : int or str, optional
            Default: the highest number there.
        resume_episodes : bool
            Go on with the episodes that were open, for environments that restore their own state.
            Otherwise they are over, and rows whose n-step window is not whole are not sampled.

        Raises
        ------
        CheckpointNotFoundError
            There is none (a ``FileNotFoundError``).
        IncompleteCheckpointError
            A file of it is missing (a ``FileNotFoundError``).
        CorruptCheckpointError, CorruptSegmentError, FormatError
            It is damaged.
        SchemaError
            It holds other fields. In all these cases the buffer stays as it was.

        Notes
        -----
        Where there is no such checkpoint but one of ReAgent or Dopamine (``add_count_ckpt.7.gz``,
        ``$store$_observation_ckpt.7.gz``, ...), that is converted and loaded, see
        `convert.gz_checkpoint.read`; its stack size has to be this buffer's.

        The rows of the live store are replaced, and row numbers go back: ids handed out since the
        save are void. The generator, priorities and counts are those of the save, so the next batch
        is bit for bit the one that the saved run drew next. With another capacity the newest rows
        are kept.
        """
        with self._lock:
            self._check_writable()
            with self._checkpoint(Path(checkpoint_dir), suffix) as path:
                entries = checkpoint.manifest(path)
                saved = Store(path, mode="r")  # opens every segment, so checks their indices
                try:
                    self._check_store(saved)
                    self._check_meta(saved)
                    with self._drained():
                        store = checkpoint.load(self._store, saved, entries)
                        self._bind(store, resume_episodes=resume_episodes)
                        self._record_options()
                finally:
                    saved.close()

    def export_gz(
        self, checkpoint_dir: str | os.PathLike, suffix: int | str, **options: Any
    ) -> Path:
        """Write a checkpoint that ReAgent or Dopamine loads, and so does `load`; see
        `convert.gz_checkpoint.write` for the options."""
        from diskreplay.convert import gz_checkpoint

        return gz_checkpoint.write(self, checkpoint_dir, suffix, **options)

    @contextlib.contextmanager
    def _checkpoint(self, directory: Path, suffix: int | str | None) -> Iterator[Path]:
        """The checkpoint to load; one of ReAgent or Dopamine is converted, beside the store."""
        from diskreplay.convert import gz_checkpoint

        try:
            path = checkpoint.find(directory, self.name, suffix)
        except CheckpointNotFoundError:
            suffix = gz_checkpoint.newest(directory) if suffix is None else suffix
            if suffix is None or not gz_checkpoint.found(directory, suffix):
                raise
        else:
            yield path
            return
        # An opening of the store removes what a killed process left under such a name.
        prefix = f".{self.path.name}.load-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self.path.parent) as beside:
            made = gz_checkpoint.read(
                directory, suffix, Path(beside) / "store",
                observation_space=self.observation_space, action_space=self.action_space,
                stack_size=self.stack_size, update_horizon=self.update_horizon,
                gamma=self.gamma, batch_size=self.batch_size, capacity=self.capacity,
                **self._of_this_kind(),
            )  # fmt: skip
            with open(made, mode="a") as converted:
                path = converted.save(beside, "converted")
            yield path

    def _of_this_kind(self) -> dict[str, Any]:
        """Options that a converted store needs to be one of this kind of buffer."""
        return {"prioritized": False}

    def _check_meta(self, saved: Store) -> None:
        """Refuse a saved state that could not be taken over, before anything changes."""
        if "rng" in saved.meta:
            parse_stream(saved.meta["rng"])
        steps = saved.meta.get("next_step", [0] * self.num_envs)
        if np.shape(steps) != (self.num_envs,) or np.asarray(steps).dtype.kind != "i":
            raise FormatError(f"{saved.path}/zarr.json: next_step is damaged ({steps!r:.60})")

    @contextlib.contextmanager
    def _drained(self):
        """Put the batches under way back; draw them again at the end."""
        prefetchers = list(self._prefetchers)
        for prefetcher in prefetchers:
            prefetcher.drain()
        try:
            yield
        finally:
            for prefetcher in prefetchers:
                prefetcher.refill()

    def _meta(self) -> dict[str, Any]:
        """What the group's attributes hold besides the store's own."""
        before = self._store.meta if hasattr(self, "_store") else {}
        return {
            # Of a prioritized buffer that had the store before: its priorities are still there.
            **{name: before[name] for name in _OF_PRIORITIES if name in before},
            "kind": "uniform",
            **self._schema.describe(),
            "stack_size": self.stack_size,
            "update_horizon": self.update_horizon,
            "gamma": self.gamma,
            "batch_size": self.batch_size,
            "rng": self._stream.state(),
            "next_step": self._next_step.tolist(),
        }

    def _leaves(self) -> np.ndarray | None:
        return None

    # -- readers

    @classmethod
    def _open(cls, store: Store, rng: np.random.Generator | None) -> Self:
        """A buffer over a store whose attributes say everything but, if `rng` is given, that."""
        self = cls.__new__(cls)
        self._closed = True
        meta = store.meta
        try:
            self._set_options(
                store.num_envs, meta["stack_size"], meta["update_horizon"], meta["gamma"],
                meta["batch_size"], store.capacity,
            )  # fmt: skip
            self._schema = Schema.parse(meta)
            self._take_options(meta)
        except (
            FormatError, KeyError, TypeError, ValueError, AttributeError, OverflowError
        ) as error:  # fmt: skip
            raise FormatError(f"{store.path}/zarr.json: damaged attributes ({error})") from error
        self._schema.check(store, self.num_envs)
        self.name, self.path = "replay", store.path
        self._stream = Stream(np.random.default_rng() if rng is None else rng)
        self._temporary = False
        self._start(store, keep_rng=rng is not None)
        return self

    def _take_options(self, meta: Mapping[str, Any]) -> None:
        """Options of the kind of buffer."""

    def _follow(self) -> None:
        """For a reader: take over what the writer did since. Needs the lock."""
        store = self._store
        if store.mode != "r":
            return
        if store.replaced():
            self._bind(Store.open(self.path, mode="r"), keep_rng=True)
            store.close()
            return
        if not store.refresh():
            return
        self._add_count = int(store.transitions_at(store.count).sum())
        if self._index is None:
            return
        index = self._index
        room = index.size // self.num_envs
        new = store.count - index.count
        if (new >= room).any() or (store.first > index.count).any():
            self._index = None  # it has gone round: read all of it
            return
        if index.growing:
            self._grow(index, int(new.max()))
        chunk = max(1, room // 4)
        for env in np.flatnonzero(new).tolist():
            start, stop = int(index.count[env]), int(store.count[env])
            for low in range(start, stop, chunk):
                steps, flags, rewards = self._read_small(env, low, min(low + chunk, stop))
                added = np.stack([np.full(len(steps), env), steps, flags], axis=1).astype(np.int64)
                self._take_in(index, added, rewards)
        store.first = np.maximum(store.first, index.first)

    # -- looking

    def __len__(self) -> int:
        """Transitions that can be sampled. O(1)."""
        with self._lock:
            self._check_open()
            self._follow()
            return self._indexed().sampleable

    @property
    def observation_space(self) -> gym_spaces.Space:
        """The space of one frame."""
        return self._schema.observation_space

    @property
    def action_space(self) -> gym_spaces.Space:
        """The space of actions."""
        return self._schema.action_space

    @property
    def extras(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each further field."""
        return {name: (field.shape, field.dtype) for name, field in self._schema.extras.items()}

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of one row of each stored field, by name: observations, actions,
        ``reward``, ``terminated``, ``truncated``, ``step``, ``is_final``, extras."""
        return dict(self._schema.shapes)

    @property
    def bounds(self) -> np.ndarray:
        """The oldest retained row and the number of rows ever, int64 of shape (num_envs, 2); a
        copy."""
        with self._lock:
            self._check_open()
            self._follow()
            return np.stack([self._store.first, self._store.count], axis=1)

    @property
    def capacity(self) -> int | None:
        """Rows kept, over all envs; None for everything."""
        return self._store.capacity

    @property
    def rng(self) -> np.random.Generator:
        """The generator of every random draw."""
        return self._stream.rng

    @property
    def add_count(self) -> int:
        """Transitions ever recorded."""
        with self._lock:
            self._follow()
            return self._add_count

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def mode(self) -> str:
        """``"r"`` for a reader, else ``"a"``."""
        return self._store.mode

    def zarr(self) -> Any:
        """The store as a read-only `zarr.Group`: all rows after `flush`, else full segments."""
        import zarr

        return zarr.open_group(self.path, mode="r")

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
        from diskreplay.convert.pandas import to_pandas

        return to_pandas(self, columns, episodes, ids, observations, vectors=vectors, gamma=gamma)

    def statistics(self) -> Statistics:
        """Figures of this moment. O(rows) and a look at every file; not for the inner loop."""
        with self._lock:
            self._check_open()
            self._follow()
            index = self._indexed()
            store = self._store
            rows = int((store.count - index.first).sum())
            episodes = 0
            for env in range(self.num_envs):
                step = store.read("step", env, int(index.first[env]), int(store.count[env]))
                episodes += int(np.count_nonzero(step[1:] == 0)) + (len(step) > 0)
            fields = {}
            for name, (disk, segments) in store.disk_usage().items():
                raw = rows * store.columns[name].field.row_bytes
                fields[name] = FieldStatistics(raw, disk, raw / disk if disk else 0.0, segments)
            raw = sum(f.raw_bytes for f in fields.values())
            disk = sum(f.disk_bytes for f in fields.values())
            return Statistics(
                rows=rows,
                sampleable=index.sampleable,
                transitions=self._add_count,
                episodes=episodes,
                capacity=store.capacity,
                num_envs=self.num_envs,
                fields=fields,
                raw_bytes=raw,
                disk_bytes=disk,
                ratio=raw / disk if disk else 0.0,
                segments=sum(f.segments for f in fields.values()),
                ignored_updates=self._ignored,
                priorities=self._priority_statistics(),
            )

    def _priority_statistics(self) -> PriorityStatistics | None:
        return None

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._add_count} transitions recorded"
        return f"{type(self).__name__}({str(self.path)!r}, capacity={self.capacity}, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        raise InvalidInputError(
            "a buffer cannot be pickled or copied; pass its path and open it there with "
            'diskreplay.open(path, mode="r")'
        )

    def _settle(self) -> None:
        """Let a prefetcher draw what was asked of it before anything changes. Without the lock,
        which it needs for that."""
        for prefetcher in self._prefetchers:
            prefetcher.settle()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: the buffer is closed; open it again")
        if process.pid != self._pid and self._store.mode != "r":
            # Not only writing: the parent puts other rows into memory that is still mapped here.
            raise ForkedError(
                f"{self.path}: opened by process {self._pid}, and this is its child {process.pid}; "
                'let the parent write, and open(path, mode="r") here'
            )

    def _check_writable(self) -> None:
        self._check_open()
        if self._store.mode == "r":
            raise ReadOnlyError(
                f'{self.path}: opened with mode="r"; open it with mode="a" to write'
            )


def open(
    path: str | os.PathLike, mode: str = "r", *, seed: int | np.random.Generator | None = None
) -> ReplayBuffer:
    """Open a store or a checkpoint by its path alone.

    Parameters
    ----------
    path : path
    mode : {"r", "a"}
        ``"r"`` reads along with a live store that another process writes to, or reads a checkpoint
        directory; ``"a"`` goes on writing a store.
    seed : int or numpy.random.Generator, optional
        Of the draws. None goes on with the generator that was saved, so that several readers of one
        store draw the same batches.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        As the store was made. A reader follows the writer at each call; priorities are those of the
        writer's last flush, later rows have the largest.

    Raises
    ------
    FormatError
        There is no store, or one of a newer format.
    LockedError
        With ``"a"``: another writer has it.
    """
    from diskreplay.prioritized import PrioritizedReplayBuffer

    if mode not in ("r", "a"):
        raise InvalidInputError(f"mode: 'r' or 'a' expected, found {mode!r}")
    store = Store.open(Path(path).absolute(), mode=mode)
    try:
        if mode == "a" and "facade" in store.meta:
            raise SchemaError(
                f"{path}: its rows belong to diskreplay.compat.{store.meta['facade']}: open it "
                "there to write, or with mode='r' to read"
            )
        kinds = {"uniform": ReplayBuffer, "prioritized": PrioritizedReplayBuffer}
        kind = store.meta.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise FormatError(f"{path}/zarr.json: unknown kind of buffer {kind!r:.60}")
        return kinds[kind]._open(store, None if seed is None else np.random.default_rng(seed))
    except BaseException:
        store.close()
        raise


def _positive(name: str, value: Any, *, optional: bool = False, most: int = 1 << 30) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInputError(f"{name}: a positive integer expected, found {value!r}")
    if value > most:
        raise InvalidInputError(f"{name}: at most {most} expected, found {value}")


def _check_out(out: Any) -> None:
    if out is not None and not isinstance(out, Batch):
        raise InvalidInputError(f"out: a Batch expected, found {type(out).__name__}")


def _checked_ids(ids: Any) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.size == 0:
        return np.empty(0, np.int64)
    if ids.dtype.kind not in "iu":
        raise DtypeError(f"ids: integers expected, found dtype {ids.dtype}")
    if ids.ndim != 1:
        raise ShapeError(f"ids: one axis expected, found shape {ids.shape}")
    return np.ascontiguousarray(ids, np.int64)


def _let_go(holder: list[Store], temporary: Path | None, pid: int) -> None:
    """Release the store of a buffer that is gone; the parent's is not a forked child's to close."""
    if process.pid != pid:
        return
    for store in holder:
        store.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
