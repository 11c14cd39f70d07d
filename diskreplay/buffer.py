"""The replay buffer: episodes, stacks and n-step transitions over a store on disk."""

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import process, spaces, values
from diskreplay.batch import Batch
from diskreplay.errors import (
    CapacityError,
    ClosedError,
    DtypeError,
    EmptyBufferError,
    ExtrasError,
    ForkedError,
    FormatError,
    InvalidInputError,
    NotFiniteError,
    ReadOnlyError,
    ShapeError,
)
from diskreplay.gathering import Draft, Gathering
from diskreplay.sampling.stream import Stream
from diskreplay.sampling.stream import parse as parse_stream
from diskreplay.schema import Schema
from diskreplay.statistics import FieldStatistics, PriorityStatistics, Statistics
from diskreplay.store import checkpoint
from diskreplay.store.format import Field
from diskreplay.store.store import Store

if TYPE_CHECKING:
    from diskreplay.prefetch import Prefetcher
    from diskreplay.sampling.prioritized import PrioritizedSampler
    from diskreplay.sampling.row_index import Plan, RowIndex
    from diskreplay.sampling.uniform import UniformSampler

_CHANGING = frozenset(("rng", "next_step", "largest_priority"))  # of the attributes
_FLAG_FIELDS = ("terminated", "truncated", "step", "is_final")


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
        keeps everything.
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
                self._schema.check(store, self.num_envs)
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
        _positive("capacity", capacity, optional=True)
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
        self._all_envs = np.arange(self.num_envs)
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
        self._zeros = [np.zeros((), c.field.dtype) for c in store.columns.values()]
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
            if (extras or self._schema.extras) and extras.keys() != self._schema.extras.keys():
                self._complain_extras(extras)
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
        if self._schema.is_flat:  # by far the most common, and worth two microseconds
            row_values = [
                values.fit(self._schema.observations[0], observation),
                values.fit(self._schema.actions[0], action),
            ]
        else:
            row_values = self._fit_leaves(
                self.observation_space, self._schema.observations, observation
            )
            row_values += self._fit_leaves(self.action_space, self._schema.actions, action)
        reward = values.fit_reward(reward)
        terminated = values.fit_flag("terminated", terminated)
        truncated = values.fit_flag("truncated", truncated)
        step = int(self._next_step[0])
        row_values += (reward, terminated, truncated, step, False)
        for name, field in self._schema.extras.items():
            row_values.append(values.fit(field, extras[name]))
        ended = terminated or truncated
        final = None
        if next_observation is not None:
            leaves = self._fit_leaves(
                self.observation_space, self._schema.observations, next_observation, used=ended
            )
            if ended:
                final = [*leaves, *self._zeros[len(leaves) :]]
                final[self._schema.names.index("step")] = step + 1
                final[self._schema.names.index("is_final")] = True
        if index.growing:
            self._grow(index, 2)
        store = self._store
        row = int(store.count[0])
        store.append_row(row_values, final)
        self._added[0, 1], self._added[0, 2] = step, terminated + 2 * truncated
        self._rewards[0] = reward
        if final is None:
            self._take_in(index, *self._one_row)
        else:
            self._added[1, 1] = step + 1
            self._take_in(index, self._added, self._rewards)
        self._next_step[0] = 0 if ended else step + 1
        self._add_count += 1
        return np.array([row])

    def _fit_leaves(
        self, space: gym_spaces.Space, fields: list[Field], value: Any, *, used: bool = True
    ) -> list[Any]:
        parts = spaces.flatten(space, value, fields[0].name.split("/")[0])
        if used:
            return [values.fit(field, part) for field, part in zip(fields, parts, strict=True)]
        for field, part in zip(fields, parts, strict=True):
            if np.shape(part) != field.shape:
                raise ShapeError(
                    f"next_{field.name}: shape {field.shape} expected, found {np.shape(part)}"
                )
        return []

    def _add_rows(
        self, observation, action, reward, terminated, truncated, next_observation,
        mask, next_observation_mask, extras,
    ) -> np.ndarray:  # fmt: skip
        index = self._index or self._indexed()
        num_envs = self.num_envs
        envs = self._all_envs
        if mask is not None:
            envs = np.flatnonzero(values.fit_flags("mask", mask, num_envs))
        terminated = _masked_flags("terminated", terminated, num_envs, envs)
        truncated = _masked_flags("truncated", truncated, num_envs, envs)
        row_values = self._fit_rows(
            self.observation_space, self._schema.observations, observation, envs
        )
        row_values += self._fit_rows(self.action_space, self._schema.actions, action, envs)
        columns = self._store.columns
        rewards = values.fit_rows(columns["reward"].field, reward, num_envs, envs)
        if not np.isfinite(rewards[envs]).all():
            env = int(envs[~np.isfinite(rewards[envs])][0])
            raise NotFiniteError(f"reward: {rewards[env]} of env {env}, a finite float32 expected")
        steps = self._next_step
        row_values += (rewards, terminated, truncated, steps, np.zeros(num_envs, np.bool_))
        for name, field in self._schema.extras.items():
            row_values.append(values.fit_rows(field, extras[name], num_envs, envs))
        ended = terminated | truncated
        final_envs, final = self._all_envs[:0], []
        if next_observation is not None:
            has = ended
            if next_observation_mask is not None:
                has = ended & values.fit_flags(
                    "next_observation_mask", next_observation_mask, num_envs
                )
            final_envs = envs[has[envs]]
            final = self._fit_rows(
                self.observation_space, self._schema.observations, next_observation, final_envs
            )
            if len(final_envs):
                final += [
                    np.zeros((num_envs, *c.field.shape), c.field.dtype)
                    for c in list(columns.values())[len(final) :]
                ]
                named = dict(zip(columns, final, strict=True))
                named["step"][:] = steps + 1
                named["is_final"][:] = True
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
        new_rewards[:count] = rewards[envs]
        self._take_in(index, added, new_rewards)
        self._next_step[envs] += 1
        self._next_step[envs[ended[envs]]] = 0
        self._add_count += count
        return rows * num_envs + envs

    def _fit_rows(
        self, space: gym_spaces.Space, fields: list[Field], value: Any, envs: np.ndarray
    ) -> list[np.ndarray]:
        parts = spaces.flatten(space, value, fields[0].name.split("/")[0])
        return [
            values.fit_rows(field, part, self.num_envs, envs)
            for field, part in zip(fields, parts, strict=True)
        ]

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

    def _complain_extras(self, extras: Mapping[str, Any]) -> None:
        missing = sorted(self._schema.extras.keys() - extras.keys())
        unknown = sorted(extras.keys() - self._schema.extras.keys())
        what = [f"{name!r} is missing" for name in missing]
        what += [f"{name!r} is unknown" for name in unknown]
        raise ExtrasError(
            f"add: {', '.join(what)}; the extras of this buffer are {sorted(self._schema.extras)}"
        )

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
        The rows of the live store are replaced, and row numbers go back: ids handed out since the
        save are void. The generator, priorities and counts are those of the save, so the next batch
        is bit for bit the one that the saved run drew next. With another capacity the newest rows
        are kept.
        """
        with self._lock:
            self._check_writable()
            path = checkpoint.find(Path(checkpoint_dir), self.name, suffix)
            entries = checkpoint.manifest(path)
            saved = Store(path, mode="r")  # opens every segment, so checks their indices
            try:
                self._schema.check(saved, self.num_envs)
                self._check_meta(saved)
                with self._drained():
                    store = checkpoint.load(self._store, saved, entries)
                    self._bind(store, resume_episodes=resume_episodes)
                    self._record_options()
            finally:
                saved.close()

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
        return {
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
    def _open(cls, store: Store) -> Self:
        """A buffer over a store whose attributes say everything."""
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
        except (KeyError, TypeError, InvalidInputError) as error:
            raise FormatError(f"{store.path}/zarr.json: damaged attributes ({error})") from error
        self._schema.check(store, self.num_envs)
        self.name, self.path = "replay", store.path
        self._stream = Stream(np.random.default_rng())
        self._temporary = False
        self._start(store, keep_rng=False)
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


def open(path: str | os.PathLike, mode: str = "r") -> ReplayBuffer:
    """Open a store or a checkpoint by its path alone.

    Parameters
    ----------
    path : path
    mode : {"r", "a"}
        ``"r"`` reads along with a live store that another process writes to, or reads a checkpoint
        directory; ``"a"`` goes on writing a store.

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
        kind = {"uniform": ReplayBuffer, "prioritized": PrioritizedReplayBuffer}.get(
            store.meta.get("kind")
        )
        if kind is None:
            raise FormatError(f"{path}: unknown kind of buffer {store.meta.get('kind')!r}")
        return kind._open(store)
    except BaseException:
        store.close()
        raise


def _positive(name: str, value: Any, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInputError(f"{name}: a positive integer expected, found {value!r}")


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


def _masked_flags(name: str, value: Any, num_envs: int, envs: np.ndarray) -> np.ndarray:
    """Flags with False for envs that do not record."""
    flags = np.asarray(value)
    if len(envs) != num_envs and flags.shape == (num_envs,):
        cleared = np.zeros(num_envs, flags.dtype)
        cleared[envs] = flags[envs]
        flags = cleared
    return np.ascontiguousarray(values.fit_flags(name, flags, num_envs))


def _let_go(holder: list[Store], temporary: Path | None, pid: int) -> None:
    """Release the store of a buffer that is gone; the parent's is not a forked child's to close."""
    if process.pid != pid:
        return
    for store in holder:
        store.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
