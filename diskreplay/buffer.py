"""The replay buffer: episodes, stacks and n-step transitions over a store on disk."""

import os
from collections.abc import Collection, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diskreplay import validation
from diskreplay.checkpoint_loader import CheckpointLoader
from diskreplay.options import Options
from diskreplay.schema import Schema
from diskreplay.sequence_source import SequenceSource
from diskreplay.statistics import Statistics, measured
from diskreplay.store import tempfiles
from diskreplay.store.store import Store
from diskreplay.store_kind import StoreKind

if TYPE_CHECKING:
    import gymnasium


class ReplayBuffer(SequenceSource):
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
        keeps everything, or with `max_transitions` as many rows as those can have. A store that
        exists is given this one; see `shrink`.
    max_transitions : int, optional
        Transitions kept over all envs: each env keeps its newest ``max_transitions // num_envs``,
        with the frames of the oldest one's stack, as far as the capacity in rows goes. Final rows
        do not count. For a ring that is as long as another project's, which counts so.
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
        Further fields of each step: name to ``(shape, dtype)``, or ``(shape, dtype, "mutable")`` to
        `write` again. A name is a letter, then letters, digits and underscores, of ASCII, at most
        100; no name of the format, `add` or a batch; and no two differ in case only.
    new_extras : collection of str
        Names among `extras` that a store which exists may lack: they are added to it, and its rows
        get zeros. So may a checkpoint that is loaded. Without this both are refused.
    compressor : str or dict
        ``"auto"`` (lz4 for uint8 fields of 1 KiB a row or more), ``"raw"``, ``"lz4"``, ``"zstd"``,
        which the small per-step fields ignore; or a dict of these by field name. Chosen when a
        store is created; one that exists keeps its own.
    segment_rows, env_group : int, optional
        Rows of each env in one file, rounded up to what each field's format needs, and envs whose
        rows share files, all of them up to some thousands. A store that exists keeps its own.
    seed : int or numpy.random.Generator, optional
        Of every random draw. A store that exists goes on with the generator it saved, unless a
        generator is given here.
    name : str
        Prefix of checkpoint directories.
    shrink : bool
        Whether a store that exists may be given a `capacity` or `max_transitions` that does not
        hold all of it: the oldest rows are deleted, for good, at once.
    metadata : dict, optional
        What the store is: any JSON object of at most 64 KiB, see `metadata`. A store that exists
        keeps what it has under other keys.

    Raises
    ------
    InvalidInputError, CapacityError
        An argument makes no sense; the store has more than `capacity` or `max_transitions` holds,
        and `shrink` is not given. No row has left.
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

    _ignored = 0  # priorities that were given for rows that could not be sampled

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        observation_space: "gymnasium.Space[Any]",
        action_space: "gymnasium.Space[Any]",
        capacity: int | None,
        max_transitions: int | None = None,
        num_envs: int = 1,
        stack_size: int = 1,
        stack_padding: Literal["zero", "reset"] = "zero",
        update_horizon: int = 1,
        gamma: float = 0.99,
        batch_size: int = 32,
        extras: Mapping[str, tuple[Any, ...]] | None = None,
        new_extras: Collection[str] = (),
        compressor: str | Mapping[str, str] = "auto",
        segment_rows: int | None = None,
        env_group: int | None = None,
        seed: int | np.random.Generator | None = None,
        name: str = "replay",
        shrink: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        options = Options.checked(
            num_envs, stack_size, stack_padding, update_horizon, gamma, batch_size, max_transitions
        )
        capacity = options.rows_kept(capacity)
        schema = Schema.of(observation_space, action_space, extras, compressor, new_extras)
        super().__init__(
            StoreKind(schema, options, self._distribution), path, capacity=capacity,
            segment_rows=segment_rows, env_group=env_group, seed=seed, name=name, shrink=shrink,
            metadata=metadata,
        )  # fmt: skip

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
        priority: Any = None,
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
        priority : float, optional
            Of a `PrioritizedReplayBuffer`: what the transition has until its first update, once it
            can be drawn. Finite and not negative; the largest one seen by default. Ape-X and R2D2
            have the actors compute it (Horgan et al. 2018, Kapturowski et al. 2019).
        **extras
            A value for each further field.

        Returns
        -------
        ndarray of int64
            The ids of the recorded rows, one for each env that recorded, in env order.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ExtrasError, PriorityError
            Nothing was recorded.
        InvalidInputError
            A priority, and the buffer draws uniformly. Nothing was recorded.
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
        lock: Any = self._lock
        busy, group = self._busy, self._group
        if (
            lock._is_owned() or (busy and get_ident() in busy)
            or group is not None or self._prefetchers.open or self._views.prefetching
        ):  # fmt: skip
            self._turn_when_drawn()  # refuses, or waits
        with lock:
            rows = self._rows
            if rows.store.mode != "a":  # closed meanwhile
                self._check_open()
            if rows.index is None:
                self._addable()
            if self.num_envs > 1:
                return rows.add_rows(
                    observation, action, reward, terminated, truncated, next_observation,
                    mask, next_observation_mask, extras, priority,
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
                observation, action, reward, terminated, truncated, next_observation, extras,
                priority,
            )  # fmt: skip

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
        with tempfiles.Workspace(self.path, "load") as room, self._turn_when_drawn():
            self._check_writable()
            store = self._rows.store
            fields = [column.field for column in store.columns.values()]
            states = self._views.states(self._rows)
            states = {name: state.emptied() for name, state in states.items()}
            meta = self._meta(states) | {"next_step": [0] * self.num_envs}
            Store.create(
                room.path / "store", fields, num_envs=self.num_envs, capacity=store.capacity,
                segment_rows=None, meta=meta, sized=True,
            ).close()  # fmt: skip
            opened = Store.open(room.path / "store", mode="a")
            with type(self)._over(opened, self._kind, None) as empty:
                made = empty.save(room.path, "empty")
            CheckpointLoader(self).load(made, None, resume_episodes=False)

    # -- looking

    def __len__(self) -> int:
        """Transitions that can be sampled. O(1)."""
        with self._turn():
            return self._current().indexed().index.sampleable

    def statistics(self) -> Statistics:
        """Figures of this moment. O(rows) and a look at every file; not for the inner loop."""
        with self._turn():
            rows = self._current()
            priorities = self._distribution.statistics(rows)
            return measured(rows.indexed(), self._ignored, priorities)
