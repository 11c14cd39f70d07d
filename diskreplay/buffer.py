"""The replay buffer: episodes, stacks and n-step transitions over a store on disk."""

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import process, validation
from diskreplay.batch import Batch
from diskreplay.batch_reader import DrawnBatch
from diskreplay.errors import (
    CapacityError,
    CheckpointNotFoundError,
    ClosedError,
    CorruptSegmentError,
    DiskReplayError,
    DtypeError,
    ForkedError,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    SchemaError,
    ShapeError,
    StorageError,
    StoreMovedError,
    UsageError,
)
from diskreplay.indexed_store import BEGINS, IndexedStore, check_saved, saved_rng
from diskreplay.metadata import checked as checked_metadata
from diskreplay.metadata import parse as parse_metadata
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.schema import Schema
from diskreplay.statistics import PriorityStatistics, Statistics
from diskreplay.store import attachments as attaching
from diskreplay.store import checkpoint, files, loading, numbers, tempfiles, temporary
from diskreplay.store.format import read_attributes
from diskreplay.store.gate import Visit
from diskreplay.store.listing import Checkpoint
from diskreplay.store.manifest import Manifest
from diskreplay.store.place import Place
from diskreplay.store.store import Store

if TYPE_CHECKING:
    import pandas

    from diskreplay.inspection.episodes import Episodes
    from diskreplay.prefetch import Prefetcher, Resumed, UnderWay
    from diskreplay.sampling.prioritized import PrioritizedSampler
    from diskreplay.sampling.row_index import RowIndex
    from diskreplay.sampling.uniform import UniformSampler
    from diskreplay.store.attachments import Source

_OF_PRIORITIES = ("alpha", "beta", "weight_normalization", "largest_priority")
_MOST_ROWS = 1 << 36  # 16 bytes of memory each: more is a slip of the finger
_MOST_WINDOW = 1 << 20  # each transition of a batch has memory for so many frames
_TRIES = 20  # of a load whose checkpoint is replaced while it is read


class _Prepared(NamedTuple):
    """What a buffer has of one store."""

    rows: IndexedStore
    rng: tuple[np.random.BitGenerator, np.ndarray] | None  # None: the buffer keeps its own
    metadata: dict[str, Any] | None
    more: tuple[Any, ...] = ()  # of a derived class


class ReplayBuffer:
    """Experience replay on disk; transitions are drawn uniformly.

    Whole numbers may be of any kind: ``1_000_000``, ``1e6``, a NumPy scalar.

    Parameters
    ----------
    path : str or Path or None
        The store's directory: created, or reopened if it holds a store. Links are followed, and
        the attribute `path` is the real directory. None: a temporary one, removed by `close` or
        when the process ends; what a killed process left of one, the next one of that user removes.
    observation_space, action_space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of them. An observation is one
        frame: stacks are made when sampling. Of one environment, also if there are several. None is
        empty; keys of a Dict become directories, and are refused where they cannot.
    capacity : int or None
        Rows kept over all envs, final rows included; each env keeps ``capacity // num_envs``. None
        keeps everything. A store that exists is given this one; see `shrink`.
    num_envs : int
        Parallel environments. With more than one, every argument of `add` has a leading env axis.
    stack_size : int
        Frames in a sampled observation; 1 has no stack axis.
    stack_padding : {"zero", "reset"}
        What stands in a stack before the episode's start: zeros, or its first frame again. As
        ``padding_type`` of `gymnasium.wrappers.FrameStackObservation`, whose default is the other
        one: let them agree, or the agent learns from stacks that it never saw.
    update_horizon : int
        The n of n-step returns.
    gamma : float
        Discount of one step, in [0, 1].
    batch_size : int
        Default of `sample` and `prefetch`.
    extras : dict, optional
        Further fields of each step: name to ``(shape, dtype)``. A name is a letter, then letters,
        digits and underscores, of ASCII and at most 100; no name of the format, of a parameter of
        `add` or of what a batch has; and no two differ in case only.
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
    shrink : bool
        Whether a store that exists may be given a capacity that does not hold all its rows: the
        oldest are deleted, for good, at once.
    metadata : dict, optional
        What the store is: any JSON object of at most 64 KiB, see `metadata`. A store that exists
        keeps what it has under other keys.

    Raises
    ------
    InvalidInputError, CapacityError
        An argument makes no sense; the store has more rows than `capacity` holds, and `shrink` is
        not given. Nothing was changed.
    SchemaError
        The store at `path` holds other fields, or another number of envs.
    FormatError
        The directory holds something else, or a newer format.
    LockedError
        Another writer has the store open.
    StoreMovedError
        Of any call that touches files: the directory was moved or deleted. Rows that were added are
        in it, wherever it is.
    StorageError
        The file system refused, see ``errno``; or it refuses locks; or a link on the path leads to
        what is not there, a disk that is not mounted say. Only the path itself may be a link to a
        store that is yet to be made, in a directory that is there.

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
        stack_padding: Literal["zero", "reset"] = "zero",
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        extras: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        seed: int | np.random.Generator | None = None,
        name: str = "replay",
        shrink: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._closed = True  # until there is something to close
        self._metadata = given = checked_metadata(metadata or {})
        capacity = validation.whole("capacity", capacity, optional=True, most=_MOST_ROWS)
        segment_rows = validation.whole("segment_rows", segment_rows, optional=True)
        self._set_options(num_envs, stack_size, update_horizon, gamma, batch_size, stack_padding)
        self._check_capacity(capacity)
        self.name = checkpoint.checked_suffix(name)
        self._schema = Schema(observation_space, action_space, extras, compressor)
        # A Generator passes through default_rng as it is.
        self._rng = ReplayableRng(np.random.default_rng(seed))
        self._workspace = temporary.make() if path is None else None
        self.path = files.resolved(temporary.store_in(self._workspace) if path is None else path)
        Store.settle(self.path)
        if (self.path / "zarr.json").exists():
            store = Store.open(
                self.path, mode="a", capacity=capacity, shrink=bool(shrink),
                check=self._check_kind,  # first: to let rows go is no answer to a wrong path
            )  # fmt: skip
            keep_rng, reopened = isinstance(seed, np.random.Generator), True
        else:
            store = Store.create(
                self.path, self._schema.fields, num_envs=self.num_envs, capacity=capacity,
                segment_rows=segment_rows, meta=self._meta(),
            )  # fmt: skip
            keep_rng, reopened = True, False
        try:
            if reopened:
                self._check_store(store)
            self._start(store, keep_rng=keep_rng)
            self._metadata = checked_metadata(self._metadata | given)
        except BaseException:
            store.close()
            raise
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
        stack_padding: str,
    ) -> None:
        num_envs = validation.whole("num_envs", num_envs)
        stack_size = validation.whole("stack_size", stack_size, most=_MOST_WINDOW)
        update_horizon = validation.whole("update_horizon", update_horizon, most=_MOST_WINDOW)
        batch_size = validation.whole("batch_size", batch_size)
        if not isinstance(gamma, int | float | np.number) or not 0 <= gamma <= 1:
            raise InvalidInputError(f"gamma: a number from 0 to 1 expected, found {gamma!r}")
        if stack_padding not in ("zero", "reset"):
            raise InvalidInputError(
                f"stack_padding: 'zero' or 'reset' expected, found {stack_padding!r:.60}"
            )
        self.num_envs, self.stack_size = num_envs, stack_size
        self.stack_padding = stack_padding
        self.update_horizon, self.batch_size = update_horizon, batch_size
        self.gamma = float(gamma)

    @property
    def _transition_bytes(self) -> int:
        return self._schema.transition_bytes(self.stack_size, self.update_horizon)

    def _check_capacity(self, capacity: int | None) -> None:
        """Refuse one that holds no transition."""
        needed, num_envs = self.stack_size + self.update_horizon, self.num_envs
        if capacity is not None and capacity // num_envs < needed:
            raise CapacityError(
                f"capacity {capacity} leaves {capacity // num_envs} rows for each of {num_envs} "
                f"env(s); stack_size + update_horizon = {needed} are needed: at least "
                f"{needed * num_envs}"
            )

    def _check_kind(self, store: Store) -> None:
        """Refuse a store of something else, of which only the metadata are read so far."""
        self._schema.check(store, self.num_envs)

    def _check_store(self, store: Store) -> None:
        """Refuse a store, or a checkpoint to be loaded, that cannot be this buffer's."""
        self._check_kind(store)

    def _record_options(self) -> None:
        """Readers go by the attributes: they should not see the options of another run."""
        store = self._rows.store
        options = self._options_meta().items()
        if store.is_resized or any(store.meta.get(k) != v for k, v in options):
            store.record(self._meta(), self._leaves())

    def _start(self, store: Store, *, keep_rng: bool) -> None:
        """Take over a store that was opened, its episodes being over."""
        self._lock = threading.RLock()
        self._pid = process.pid
        self._prefetchers: list[Prefetcher] = []
        self._due: list[tuple[Prefetcher, float | None]] = []  # after a load, see `draw_resumed`
        self._last_asked = 0, threading.Lock()  # of their batches: number, and held until drawn
        self._ignored = 0
        self._check_metadata(store)
        self._holder: list[Store] = []
        self._take_over(self._prepared(store, keep_rng=keep_rng))
        if store.mode != "r" and store.count.any():
            self._complete(self._rows)
        self._closed = False
        # A buffer that is dropped, or still open when the process ends, lets go of its store as a
        # killed process would: nothing is lost, and the next opening recovers it. At exit this
        # runs while the keeper can still be joined; a __del__ would come too late for that.
        self._release = weakref.finalize(self, _let_go, self._holder, self._workspace, process.pid)

    def _prepared(
        self, store: Store, *, keep_rng: bool = False, resume_episodes: bool = False
    ) -> "_Prepared":
        """What this buffer will have of a store that was opened. Changes nothing of the buffer.

        Raises
        ------
        CorruptSegmentError, FormatError
            What is on disk cannot be.
        """
        rows = IndexedStore(
            store, self._schema, stack_size=self.stack_size, update_horizon=self.update_horizon,
            gamma=self.gamma, stack_padding=self.stack_padding, resume_episodes=resume_episodes,
        )  # fmt: skip
        metadata = parse_metadata(store.meta)[0] if "metadata" in store.meta else None
        return _Prepared(rows, None if keep_rng else saved_rng(store), metadata)

    def _take_over(self, prepared: "_Prepared") -> None:
        """Take over what was prepared. Cannot fail."""
        self._rows = prepared.rows
        self._holder[:] = [prepared.rows.store]
        if prepared.metadata is not None:
            self._metadata = prepared.metadata
        if prepared.rng is not None:
            self._rng.adopt(*prepared.rng)

    def _complete(self, rows: IndexedStore) -> None:
        """Have all of `rows` read that is otherwise read when first needed, so that a store that is
        damaged is refused as a whole."""
        rows.make_index(self._make_sampler)

    @staticmethod
    def _check_metadata(store: Store) -> None:
        """Warn where metadata are going to be left out."""
        _, damage = parse_metadata(store.meta)
        if damage is not None:
            warnings.warn(f"{store.path}/zarr.json: damaged metadata left out: {damage}",
                          stacklevel=4)  # fmt: skip

    def _make_sampler(
        self, index: "RowIndex", store: Store
    ) -> "UniformSampler | PrioritizedSampler":
        """The sampler over an index that was just made, with what its store has saved for it."""
        from diskreplay.sampling.uniform import UniformSampler

        return UniformSampler(index)

    def _indexed(self) -> IndexedStore:
        """The rows, with their index. Needs the lock."""
        rows = self._rows
        if rows.index is None:
            rows.make_index(self._make_sampler)
        return rows

    # -- adding

    def _addable(self) -> IndexedStore:
        """The rows, with what has to know of new ones. Needs the lock."""
        return self._indexed()

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
        UsageError
            An episode has 2**31 - 1 steps, the most that can be counted: call `end_episode` and
            add the step again. Nothing was recorded.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        When this returns, the rows survive the death of the process. The values are copied. Shapes
        and dtypes are checked, and that rewards are finite; not the bounds of the spaces, and not
        NaN in observations: a float64 too large for a float32 field becomes infinite.

        Of an episode that is truncated without a `next_observation` the last `update_horizon`
        transitions are never sampled: there is nothing to bootstrap from.
        """
        self._check_writable()  # before the lock: in a forked child it may be held for ever
        if self._prefetchers:
            self._settle()
        with self._lock:
            if self._closed:  # meanwhile
                self._check_open()
            rows = self._rows
            if rows.index is None:
                self._addable()
            if self.num_envs > 1:
                return rows.add_rows(
                    observation, action, reward, terminated, truncated, next_observation,
                    mask, next_observation_mask, extras,
                )  # fmt: skip
            if mask is not None or next_observation_mask is not None:
                keep = [
                    validation.fit_flags("mask", m, 1)[0] if m is not None else True
                    for m in (mask, next_observation_mask)
                ]
                if not keep[0]:
                    return np.empty(0, np.int64)
                next_observation = next_observation if keep[1] else None
            return rows.add_row(
                observation, action, reward, terminated, truncated, next_observation, extras
            )

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
            return self._addable().add_frame(observation)

    def extend(self, columns: Mapping[str, np.ndarray], env: int = 0) -> np.ndarray:
        """Record many rows of one env as they are to be stored, in one vectorised write.

        For imports and copies: nothing is derived, `step` and final rows are given too.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (rows, *shape)
            For every one of `fields`. ``step`` counts from 0 in each episode; where it does not
            count on by one, the episode before was cut. The first row goes on with the episode
            that is open if its step counts on. After `end_episode` or a reopening it begins one,
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
        self._settle()
        with self._lock:
            self._check_writable()
            rows, env = self._addable(), int(env)
            fitted = rows.fitted(columns)
            if len(fitted[0]) and rows.begin(env, int(columns["step"][0])):
                # Before the row: a kill must not leave it as one that the cut episode went on with.
                rows.store.record(self._meta(), self._leaves())
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
        self._settle()
        with self._lock:
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
        self._settle()
        with self._lock:
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

    def clear(self) -> None:
        """Forget all rows, for good; ids, rows and `add_count` start at 0 again.

        The options, the metadata, the generator and the largest priority seen stay what they are.

        Raises
        ------
        StorageError
            The disk is full, or refused something. The buffer stays as it was.
        ReadOnlyError, ClosedError, ForkedError

        Notes
        -----
        As a `load` of an empty checkpoint: it is done in one step, readers follow it, ids handed
        out before are void, and so is what a prefetcher has under way.
        """
        self._check_writable()
        with tempfiles.Workspace(self.path, "load") as room, self._lock:
            self._check_writable()
            store = self._rows.store
            fields = [column.field for column in store.columns.values()]
            meta = self._meta() | {"next_step": [0] * self.num_envs}
            Store.create(
                room.path / "store", fields, num_envs=self.num_envs, capacity=store.capacity,
                segment_rows=None, meta=meta, sized=True,
            ).close()  # fmt: skip
            with open(room.path / "store", mode="a") as empty:
                made = empty.save(room.path, "empty")
            self.load(made)

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
            size = validation.whole("batch_size", size)
        _check_out(out)
        self._settle()
        visit = Visit()
        try:
            while True:
                batch = self._draw(size, beta, visit).read(out)
                if batch is not None:
                    return batch
        finally:
            visit.end()  # `read` does it, if Ctrl-C does not come before

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
        ids = _checked_ids(ids).copy()  # the batch has them, and nothing of the caller's
        _check_out(out)
        visit = Visit()
        try:
            while True:
                with self._lock:
                    self._check_open()
                    self._follow()
                    drawn = self._indexed().choose(ids, visit)
                batch = drawn.read(out)
                if batch is not None:
                    return batch
        finally:
            visit.end()

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
        visit = Visit()
        while True:
            try:
                with self._lock:
                    self._check_open()
                    self._follow()
                    self._rows.check_retained(ids)
                    store = self._rows.store
                    store.gate.enter(visit)  # under the lock: what is there now is not evicted
                    epoch = store.mapped_epoch
                for name, result in zip(names, results, strict=True):
                    store.take(name, ids.reshape(-1), result)
                visit.end()
            finally:
                visit.end()  # unless Ctrl-C came when this began above, it is at its end
            if store.mode != "r" or store.tail_epoch() == epoch:
                return results[0] if isinstance(field, str) else results

    def _room(self, field: str, shape: tuple[int, ...]) -> np.ndarray:
        """An array for so many values of a field."""
        if field not in self._schema.shapes:
            raise InvalidInputError(f"no field {field!r}; there are {self._schema.names}")
        row_shape, dtype = self._schema.shapes[field]
        return np.empty((*shape, *row_shape), dtype)

    def sampleable_ids(self) -> np.ndarray:
        """The ids of all transitions that can be sampled now, env by env, oldest first. O(rows).

        Returns
        -------
        ndarray of int64
        """
        with self._lock:
            self._check_open()
            self._follow()
            return self._indexed().index.sampleable_ids()

    def _draw(
        self, size: int, beta: float | Callable[[int], float] | None, visit: Visit
    ) -> DrawnBatch:
        with self._lock:
            self._check_open()
            self._follow()
            return self._indexed().draw(self._rng, size, self._exponent(beta), visit)

    def _exponent(self, beta: float | Callable[[int], float] | None) -> float:
        return 0.0

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
            so its priorities are `depth` updates old. Never more and never less; the first take
            draws them all.
        batch_size, beta
            As for `sample`.

        Returns
        -------
        Prefetcher
            An endless iterator and context manager, with ``close()``. A batch is valid until the
            next one is taken: its memory is used again. Until it is closed, its thread keeps it and
            the buffer alive.

        Raises
        ------
        InvalidInputError
            `depth` is not from 1 to 1,024, or `batch_size` is no whole number from 1 on.
        UsageError
            1,024 prefetchers of this buffer are open.
        ClosedError

        Notes
        -----
        Taking a batch asks for another one, which the background thread draws before the next
        `add`, `update_priorities` or `sample` changes anything: what is drawn depends on the order
        of calls and not on timing. Making a prefetcher draws nothing: it may be done before there
        is anything to sample, and when does not matter.

        `save` puts the batches under way back and draws them again. After a `load` they are drawn
        too, by the first call that changes or draws anything, so that a run that goes on and a run
        that is resumed there get the same ones. A resumed run gets them from a prefetcher of the
        same depth and batch size, whenever it makes it (of several alike in the order in which they
        were made): until then they wait. Only a schedule that was given here as `beta` is unknown
        until then: make its prefetcher before the next save. A run that needs none of them calls
        ``prefetch(depth, batch_size).close()`` after the `load`: its first `sample` gets what was
        put back.
        """
        from diskreplay.prefetch import MOST_DEPTH, MOST_PREFETCHERS, Prefetcher

        depth = validation.whole("depth", depth, most=MOST_DEPTH)
        size = validation.whole("batch_size", batch_size, optional=True) or self.batch_size
        with self._lock:
            self._check_open()
            for waiting in self._prefetchers:
                if waiting.claim(depth, size, beta):
                    return waiting
            if len(self._prefetchers) == MOST_PREFETCHERS:
                raise UsageError(
                    f"{len(self._prefetchers):,} prefetchers of this buffer are open, the most "
                    "there can be: close those that are done with"
                )
            prefetcher = Prefetcher(self, depth, size, beta)
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
            self._rows.store.record(self._meta(), self._leaves())

    def close(self) -> None:
        """Flush and release the store. A temporary store is removed. Closing twice is fine.

        Raises
        ------
        StoreMovedError
            The store's directory was moved or deleted. It was released all the same, and opening it
            where it is now gives all rows; a power cut may take those since the last flush.
        StorageError
            The flush failed, on a full disk say. Nothing was released: close it again.
        """
        if getattr(self, "_closed", True):
            return
        if process.pid != self._pid:
            self._closed = True  # a child's copy: the store is the parent's
            return
        self._due.clear()  # the numbers for these draws are not taken from the generator yet
        for prefetcher in list(self._prefetchers):
            prefetcher.close()
        with self._lock:
            store = self._rows.store
            if store.mode != "r" and self._workspace is None:
                try:
                    store.record(self._meta(), self._leaves(), closing=True)
                    store.mark_closed()
                except StoreMovedError:  # nothing can be done about it here: let go of all
                    self._closed = True
                    self._release()
                    raise
            self._closed = True
            self._release()

    def save(
        self,
        checkpoint_dir: str | os.PathLike,
        iteration_number: int | str,
        *,
        attachments: "Mapping[str, Source] | None" = None,
        keep: int | None = checkpoint.CHECKPOINT_DURATION,
    ) -> Path:
        """Write a checkpoint ``<checkpoint_dir>/<name>_ckpt.<iteration_number>``.

        Parameters
        ----------
        checkpoint_dir : path
            Created if it is missing; not inside the store.
        iteration_number : int or str
            The suffix: a number from 0 on, or letters, digits, ``.``, ``_`` and ``-``. A checkpoint
            of the same suffix is replaced.
        attachments : dict of str to bytes, Path or function, optional
            Files that belong to these rows, by the names they get: ``"agent.pt"``,
            ``"nets/critic.pt"``. Bytes are written, the file at a Path is copied, and a function
            is called with the Path to write to: ``lambda path: torch.save(state, path)``.
        keep : int or None
            So many checkpoints of the highest numbers are kept, and the one just written; None
            keeps all. Those with a text for a suffix are always kept.

        Returns
        -------
        Path
            The checkpoint's directory, without links.

        Raises
        ------
        SuffixError, InvalidInputError
        AttachmentError
            A function raised (that is its ``__cause__``), or wrote something else than one file.
        StorageError
            The directory cannot be written, or is full. In all these cases there is no new
            checkpoint, and one of that suffix is as it was.

        Notes
        -----
        Full segments are hard-linked, so the cost follows the rows since the last full one; nothing
        that happens later changes the checkpoint. It is there whole, with its attachments, or not
        at all, also after a power cut. After one the checkpoint has rows that the live store may
        have lost, of which only the full segments and small fields are synced here: `load` it, or
        call `flush` too.

        Attachments are written first, one after the other, on this thread and without the buffer's
        lock: a function may take its time and may use the buffer. The rows are those of the moment
        after the last one, when the lock is taken; other threads may add until then.

        Batches under way in a prefetcher are drawn again, see `prefetch`.
        """
        from diskreplay import prefetch

        self._check_writable()
        directory = files.resolved(checkpoint_dir)
        keep, wanted = checkpoint.checked_keep(keep), attaching.checked(attachments)
        with self._lock:
            self._rows.store.place.check()  # before a directory is made, beside the old path say
        with checkpoint.begun(self.path, directory, self.name, iteration_number, wanted) as begun:
            with self._lock:
                self._check_writable()
                prefetch.draw_resumed(self)
                with self._drained() as under_way:
                    meta = self._meta() | {"prefetch": prefetch.describe(self, under_way)}
                    return checkpoint.finish(
                        begun, self._rows.store, self.name, meta, self._leaves(), keep
                    )

    def load(
        self,
        checkpoint_dir: str | os.PathLike,
        suffix: int | str | None = None,
        *,
        resume_episodes: bool = False,
    ) -> Checkpoint:
        """Go back to a checkpoint; all or nothing.

        Parameters
        ----------
        checkpoint_dir : path
            What `save` was given. Or the path of one checkpoint, without a suffix.
        suffix : int or str, optional
            Default: the highest number there.
        resume_episodes : bool
            Go on with the episodes that were open, for environments that restore their own state;
            a recorder needs `resume` with the observation that is due. Otherwise they are over, and
            rows whose n-step window is not whole are not sampled.

        Returns
        -------
        Checkpoint
            Which one it was: its `number`, `path`, `saved_at`, and its `attachments` as a dict of
            names to Paths, each of them held against its checksum before anything was changed.

        Raises
        ------
        CheckpointNotFoundError
            There is none (a ``FileNotFoundError``).
        IncompleteCheckpointError
            A file of it is missing (a ``FileNotFoundError``).
        CorruptCheckpointError, CorruptSegmentError, FormatError
            It is damaged.
        SchemaError
            It holds other fields.
        StorageError
            The disk is full, or refused something. In all these cases the buffer stays as it was.

        Warns
        -----
        RuntimeWarning
            It is loaded, but the disk does not say that this outlasts a power cut.

        Notes
        -----
        Where there is no such checkpoint but one of ReAgent or Dopamine (``add_count_ckpt.7.gz``,
        ``$store$_observation_ckpt.7.gz``, ...), that is converted and loaded, see
        `convert.gz_checkpoint.read`; its stack size has to be this buffer's.

        The rows of the live store are replaced, and row numbers go back: ids handed out since the
        save are void. The generator, priorities and counts are those of the save, so the next batch
        is bit for bit the one that the saved run drew next; what it had under way in a prefetcher
        comes from one again, see `prefetch`. With another capacity the newest rows are kept.

        Every file is read and held against its checksum first, but packed frames, whose blocks are
        checked whenever they are read: half a second a gigabyte of raw fields that are in memory.
        While the new store is made there are two row indices (16 bytes a row) and two sum trees.
        """
        directory = files.resolved(checkpoint_dir)
        with self._lock:
            for last in [False] * (_TRIES - 1) + [True]:
                self._check_writable()
                with self._checkpoint(directory, suffix) as (path, text, at):
                    place = Place(path)
                    try:
                        return self._load(path, place, text, at, resume_episodes)
                    except DiskReplayError:
                        # A save may replace or retire a checkpoint whoever reads it.
                        if last or place.holds():
                            raise
                    finally:
                        place.close()

    def _load(
        self, path: Path, place: Place, text: str, at: Path, resume_episodes: bool
    ) -> Checkpoint:
        """Load what is in a directory, if that stays at its path until all is read. Needs the
        lock."""
        saved, contents = loading.open_checked(path)
        try:
            self._check_store(saved)
            self._check_saved(saved)
            with self._drained() as under_way:
                self._replace(saved, place, contents, under_way, resume_episodes)
        finally:
            saved.close()
        rows = int((saved.count - saved.first).sum())
        is_ours = at == path
        return Checkpoint(
            at, self.name, text, contents.saved_at if is_ours else None,
            attaching.paths(path, contents), rows, None,
        )  # fmt: skip

    def _replace(
        self, saved: Store, place: Place, contents: Manifest, under_way: "list[Prefetcher]",
        resume_episodes: bool,
    ) -> None:  # fmt: skip
        """Put a checkpoint that was checked in the place of the live store; all or nothing."""
        from diskreplay import prefetch

        live = self._rows.store
        meta = {**saved.meta, **self._options_meta()}
        if "metadata" in saved.meta:
            meta["metadata"] = parse_metadata(saved.meta)[0]
        replacement = loading.Replacement(live, saved, contents, meta)
        try:
            prepared = self._prepared(replacement.store, resume_episodes=resume_episodes)
            self._complete(prepared.rows)
            resumed = prefetch.resumed(self, self._under_way(saved))
            place.check()  # else what was linked may be of two checkpoints
            doubt = self._switch(replacement, prepared, under_way, resumed)
        except BaseException:
            if self._rows.store is live:
                replacement.discard()
            raise
        if doubt is not None:
            warnings.warn(
                f"{self.path}: loaded, but a power cut may bring back the rows of before ({doubt})",
                RuntimeWarning,
                stacklevel=3,
            )

    def _switch(
        self, replacement: loading.Replacement, prepared: _Prepared,
        under_way: "list[Prefetcher]", resumed: "Resumed",
    ) -> StorageError | None:  # fmt: skip
        with process.undisturbed():  # else this is a buffer of a store that is gone
            doubt = replacement.put_in_place(self._rows.store)
            self._take_over(prepared)
            under_way.clear()  # of the rows that are gone
            self._prefetchers[:], self._due = resumed
        return doubt

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
        from diskreplay.convert import gz_checkpoint

        return gz_checkpoint.write(
            self, checkpoint_dir, suffix, flavour=flavour, stack_size=stack_size,
            capacity=capacity, progress=progress,
        )  # fmt: skip

    @contextlib.contextmanager
    def _checkpoint(
        self, directory: Path, suffix: int | str | None
    ) -> Iterator[tuple[Path, str, Path]]:
        """The checkpoint to load, its suffix, and where it was found: one of ReAgent or Dopamine is
        converted, beside the store."""
        from diskreplay.convert import gz_checkpoint

        try:
            path, text = checkpoint.find(directory, self.name, suffix)
        except CheckpointNotFoundError:
            suffix = gz_checkpoint.newest(directory) if suffix is None else suffix
            if suffix is None or not gz_checkpoint.found(directory, suffix):
                raise
        else:
            yield path, text, path
            return
        with tempfiles.Workspace(self.path, "load") as room:
            made = gz_checkpoint.read(
                directory, suffix, room.path / "store",
                observation_space=self.observation_space, action_space=self.action_space,
                stack_size=self.stack_size, update_horizon=self.update_horizon,
                gamma=self.gamma, batch_size=self.batch_size, capacity=self.capacity,
                metadata=self._metadata, **self._of_this_kind(),
            )  # fmt: skip
            with open(made, mode="a") as converted:
                path = converted.save(room.path, "converted")
            yield path, str(suffix), directory

    def _of_this_kind(self) -> dict[str, Any]:
        """Options that a converted store needs to be one of this kind of buffer."""
        return {"prioritized": False}

    def _check_saved(self, saved: Store) -> None:
        """Refuse a checkpoint with what could not be taken over, in its own words and before
        anything is built from it."""
        saved_rng(saved)
        self._under_way(saved)
        check_saved(saved)
        self._check_metadata(saved)

    def _under_way(self, saved: Store) -> "list[UnderWay]":
        """What the prefetchers of the saved run had under way, or a `FormatError`."""
        from diskreplay.prefetch import UnderWay

        try:
            return UnderWay.parse(saved.meta.get("prefetch", []), self._transition_bytes)
        except FormatError as error:
            raise FormatError(f"{saved.path / 'zarr.json'}: {error}") from error

    @contextlib.contextmanager
    def _drained(self) -> Iterator["list[Prefetcher]"]:
        """Put the batches under way back; draw those of the prefetchers that it gives, which are
        all that had some, again at the end."""
        from diskreplay import prefetch

        under_way = prefetch.put_back(self, self._prefetchers)
        try:
            yield under_way
        finally:
            prefetch.ask_again(under_way)

    def _meta(self) -> dict[str, Any]:
        """What the group's attributes hold besides the store's own."""
        rows = getattr(self, "_rows", None)  # None: the store is being created
        before = rows.store.meta if rows else {}
        return {
            # Of a prioritized buffer that had the store before: its priorities are still there.
            **{name: before[name] for name in _OF_PRIORITIES if name in before},
            **self._options_meta(),
            **self._state_meta(rows),
        }

    def _options_meta(self) -> dict[str, Any]:
        """Of `_meta`, what does not change while the buffer is open."""
        return {
            "kind": "uniform",
            **self._schema.describe(),
            "stack_size": self.stack_size,
            "stack_padding": self.stack_padding,
            "update_horizon": self.update_horizon,
            "gamma": self.gamma,
            "batch_size": self.batch_size,
            "metadata": self._metadata,
        }

    def _state_meta(self, rows: IndexedStore | None) -> dict[str, Any]:
        """Of `_meta`, what changes."""
        return {
            "rng": self._rng.state(),
            "next_step": rows.next_step.tolist() if rows else [0] * self.num_envs,
            **({BEGINS: rows.retained_begins()} if rows and rows.begins else {}),
        }

    def _leaves(self) -> np.ndarray | None:
        return None

    # -- readers

    @classmethod
    def _open(cls, store: Store, rng: np.random.Generator | None) -> Self:
        """A buffer over a store whose attributes say everything but, if `rng` is given, that."""
        self = cls.__new__(cls)
        self._closed = True
        self._metadata: dict[str, Any] = {}
        meta = store.meta
        try:
            self._set_options(
                store.num_envs, meta["stack_size"], meta["update_horizon"], meta["gamma"],
                meta["batch_size"], meta.get("stack_padding", "zero"),
            )  # fmt: skip
            if "facade" not in meta:  # a ring's owner asks for less
                self._check_capacity(store.capacity)
            self._schema = Schema.parse(meta)
            needed = self.batch_size * self._transition_bytes
            if needed > numbers.memory():
                raise ValueError(
                    f"a batch of {self.batch_size:,} transitions of {self._transition_bytes:,} "
                    f"bytes takes {needed / 2**30:,.1f} GiB, and this machine has "
                    f"{numbers.memory() / 2**30:,.1f} GiB of memory"
                )
            self._take_options(meta)
        except (
            FormatError, KeyError, TypeError, ValueError, AttributeError, OverflowError
        ) as error:  # fmt: skip
            raise FormatError(f"{store.path}/zarr.json: damaged attributes ({error})") from error
        self._schema.check(store, self.num_envs)
        self.name, self.path = "replay", store.path
        self._rng = ReplayableRng(np.random.default_rng() if rng is None else rng)
        self._workspace = None
        self._start(store, keep_rng=rng is not None)
        return self

    def _take_options(self, meta: Mapping[str, Any]) -> None:
        """Options of the kind of buffer."""

    def _follow(self) -> None:
        """For a reader: take over what the writer did since. Needs the lock."""
        store = self._rows.store
        if store.mode != "r":
            return
        if not (store.follows and store.replaced()):
            try:
                return self._rows.follow()
            except StoreMovedError:
                if not (store.follows and store.replaced()):  # meanwhile
                    raise
            except (StorageError, CorruptSegmentError, FormatError):
                # It may have been of a file that a smaller capacity does without.
                if not (store.follows and store.outdated()):
                    raise
        newer = Store.open(self.path, mode="r")
        try:
            prepared = self._prepared(newer, keep_rng=True)
        except BaseException:
            newer.close()
            raise
        self._take_over(prepared)
        store.close()

    # -- looking

    def __len__(self) -> int:
        """Transitions that can be sampled. O(1)."""
        with self._lock:
            self._check_open()
            self._follow()
            return self._indexed().index.sampleable

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
        self._settle()
        with self._lock:
            self._check_writable()
            before, self._metadata = self._metadata, new
            try:
                self._rows.store.record(self._meta(), self._leaves())
            except BaseException:
                self._metadata = before
                raise

    @property
    def add_count(self) -> int:
        """Transitions ever recorded."""
        with self._lock:
            self._follow()
            return self._rows.add_count

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def mode(self) -> str:
        """``"r"`` for a reader, else ``"a"``."""
        return self._rows.store.mode

    def zarr(self) -> Any:
        """The store as a read-only `zarr.Group`: all rows after `flush`, else full segments."""
        import zarr

        return zarr.open_group(self.path, mode="r")

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids of rows that begin an episode though their steps count on from the row before, as
        parts of episodes may that `extend` was given; see `episodes`, which knows all episodes."""
        with self._lock:
            self._check_open()
            self._follow()
            return tuple(self._rows.retained_begins())

    def episodes(self) -> "Episodes":
        """The retained episodes of all envs: where each begins and ends, its length, its return,
        and how it ended.

        Returns
        -------
        Episodes
            Arrays with an element for each episode that has a transition, oldest first; see
            `diskreplay.inspection.episodes.Episodes`. Of this moment: it does not follow the
            buffer.

        Raises
        ------
        CorruptSegmentError, ClosedError, ForkedError

        Notes
        -----
        O(rows): reads 11 bytes a row, and no frame. While another process writes to the store, rows
        that leave meanwhile are left out.
        """
        from diskreplay.inspection.episodes import episodes_of

        return episodes_of(self)

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
            return self._indexed().statistics(self._ignored, self._priority_statistics())

    def _priority_statistics(self) -> PriorityStatistics | None:
        return None

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._rows.add_count} transitions recorded"
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
        if self._due:
            from diskreplay.prefetch import draw_resumed

            with self._lock:
                draw_resumed(self)
        for prefetcher in self._prefetchers:
            prefetcher.settle()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: the buffer is closed; open it again")
        if process.pid != self._pid and self._rows.store.mode != "r":
            # Not only writing: the parent puts other rows into memory that is still mapped here.
            raise ForkedError(
                f"{self.path}: opened by process {self._pid}, and this is its child {process.pid}; "
                'let the parent write, and open(path, mode="r") here'
            )

    def _check_writable(self) -> None:
        # All that speaks against it in one line, since each `add` asks.
        if self._closed or process.pid != self._pid or self._rows.store.mode == "r":
            self._check_open()
            raise ReadOnlyError(
                f'{self.path}: opened with mode="r"; open it with mode="a" to write'
            )


def open(
    path: str | os.PathLike,
    mode: str = "r",
    *,
    follow: bool = True,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """Open a store or a checkpoint by its path alone.

    Parameters
    ----------
    path : path
    mode : {"r", "a"}
        ``"r"`` reads along with a live store that another process writes to, or reads a checkpoint
        directory; ``"a"`` goes on writing a store.
    follow : bool
        Whether a reader takes over what the writer does at each call. With False it shows the store
        as it is now for as long as it is open: no row comes, and none leaves, unless the writer
        adds as many as the store keeps. What that deletes takes room on the disk until this is
        closed. After a `load` of the writer it may have to be opened again (`StorageError`).
    seed : int or numpy.random.Generator, optional
        Of the draws. None goes on with the generator that was saved, so that several readers of one
        store draw the same batches.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        As the store was made. Of a reader, priorities are those of the
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
    store = Store.open(Path(path), mode=mode)
    store.follows = follow
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


def _let_go(holder: list[Store], room: tempfiles.Workspace | None, pid: int) -> None:
    """Release the store of a buffer that is gone; the parent's is not a forked child's to close."""
    if process.pid != pid:
        return
    for store in holder:
        store.close()
    if room is not None:
        room.remove()
