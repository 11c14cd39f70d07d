"""What a replay buffer with Stable-Baselines3's face has on disk, with or without SB3.

SB3's class (and CleanRL's, which is a copy of it) keeps its observations in two arrays. Here they
are in a store, each frame once, and the two arrays only look like some: so the framework's own
drawing, relabelling and n-step code runs unchanged, and draws the same batches.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import (
    EmptyBufferError,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    ReentryError,
    SchemaError,
)
from diskreplay.given_numbers import whole
from diskreplay.integrations.action_spaces import dtype_of, stored_action_space
from diskreplay.integrations.disk_options import DiskOptions
from diskreplay.integrations.pickled_ring import Checkpointed, Snapshot
from diskreplay.integrations.slot_array import SlotArray, reading
from diskreplay.integrations.stacked_leaf import Padding, StackedLeaf, padding_of
from diskreplay.integrations.transition_ring import TransitionRing
from diskreplay.integrations.transition_rows import rows_for
from diskreplay.locks import one_call
from diskreplay.prefetch import MOST_DEPTH
from diskreplay.shared_buffer import shared
from diskreplay.store import files
from diskreplay.store.format import read_attributes
from diskreplay.store.paths import local
from diskreplay.validation import one_of


class DiskTransitions(Checkpointed):
    """Mixin: transitions of which the frames are on disk.

    A class that has it sets `buffer_size` (slots), `n_envs`, `observation_space`, `action_space`,
    `action_dim`, `obs_shape` and `handle_timeout_termination`, and then calls `_set_up`.
    """

    # Set by the framework's buffer, or by the class that stands for it.
    observation_space: gym_spaces.Space[Any]
    action_space: gym_spaces.Space[Any]
    action_dim: int
    obs_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    handle_timeout_termination: bool

    _disk = DiskOptions()
    _opener: int | None = None  # the thread that is opening the store

    # -- construction

    def _set_up(self, options: DiskOptions) -> None:
        path, checkpoints = (
            None if given is None else os.path.abspath(local(given, name))
            for name, given in (("path", options.path), ("checkpoints", options.checkpoints))
        )
        prefetch = whole("prefetch", options.prefetch, least=0, most=MOST_DEPTH)
        self._disk = options._replace(path=path, checkpoints=checkpoints, prefetch=prefetch)
        one_of("pickle", options.pickle, ("reference", "embed"))
        one_of("stack_padding", options.stack_padding, ("auto", "zero", "reset"))
        self._leaves = self._make_leaves()
        self._of_one = (1, *self._leaves[0].shape), self._leaves[0].dtype
        if self._draws_itself and len({leaf.stack for leaf in self._leaves}) > 1:
            raise InvalidInputError(
                "frame_stack: the same for all keys expected where the buffer on disk draws "
                "(prefetch, priorities)"
            )
        self._is_discrete = isinstance(self.action_space, gym_spaces.Discrete)
        shape = self.buffer_size, self.n_envs
        self.actions = np.zeros((*shape, self.action_dim), dtype_of(self.action_space))
        self.rewards, self.dones, self.timeouts = (np.zeros(shape, np.float32) for _ in range(3))
        self._make_views()
        self._check_place()

    def _make_leaves(self) -> list[StackedLeaf]:
        space, shape, stack = self.observation_space, self.obs_shape, self._disk.frame_stack
        parts = space.spaces if isinstance(space, gym_spaces.Dict) else {"": space}
        shapes = shape if isinstance(shape, dict) else {"": shape}
        each = dict(stack) if isinstance(stack, Mapping) else dict.fromkeys(parts, stack)
        if unknown := sorted(each.keys() - parts.keys()):
            raise InvalidInputError(f"frame_stack: {unknown[0]!r} is no key of {space}")
        for name, frames in each.items():
            each[name] = whole(f"frame_stack[{name!r}]" if name else "frame_stack", frames)
        axis = self._disk.frame_axis
        return [
            StackedLeaf(name, part, shapes[name], each.get(name, 1), axis)
            for name, part in parts.items()
        ]

    def _make_views(self) -> None:
        """The two arrays of observations, or dicts of arrays."""
        for name, following in (("observations", False), ("next_observations", True)):
            views = {
                leaf.name: SlotArray(
                    self.buffer_size, self.n_envs, leaf.shape, leaf.dtype,
                    reading(self, at, following),
                )
                for at, leaf in enumerate(self._leaves)
            }  # fmt: skip
            setattr(self, name, views if self._leaves[0].name else views[""])

    def _check_place(self) -> None:
        """Refuse a path that holds something else, without opening or making anything."""
        path = self._disk.path
        if path is None or not files.is_there(Path(path)):
            return
        if not files.is_there(Path(path, "zarr.json")):
            if not files.is_dir(Path(path)) or files.listed(Path(path), "[!.]*"):
                raise FormatError(f"{path}: holds something else than a store; choose another path")
            return
        there = {field["name"]: field for field in read_attributes(Path(path))["fields"]}
        for leaf in self._leaves:
            field = there.get(leaf.field)
            found = field and (tuple(field["shape"]), field["dtype"])
            if found != (leaf.frame_shape, leaf.dtype.name):
                raise SchemaError(
                    f"{path}: {leaf.field!r} is {found or 'missing'} in the store and "
                    f"{(leaf.frame_shape, leaf.dtype.name)} here; choose another path, or the "
                    "spaces and the frame_stack that it was made with"
                )

    def _of_engine(self) -> dict[str, Any]:
        """Further options of the buffer that has the rows."""
        return {}

    @property
    def _draws_itself(self) -> bool:
        """Whether batches are drawn by the buffer that has the rows, and not by the framework."""
        return self._disk.prefetch > 0

    # -- opening

    def _look(self) -> None:
        """Open the store if there is one: who asks wants to know what it holds."""
        if self._ring is None and self._store_there() is not None:
            self._open(None)

    def _store_there(self) -> Path | None:
        """The directory of the store, if there is one already."""
        path = self._disk.path
        return Path(path) if path is not None and files.is_there(Path(path, "zarr.json")) else None

    def _open(self, first: list[np.ndarray] | None) -> TransitionRing:
        """Open the store, or make it for these first observations."""
        me = get_ident()
        if self._opener == me:  # else the ring that this call makes would not be the store's
            raise ReentryError(
                f"{self._disk.path}: called by a signal handler, or a __del__, as this thread "
                "opens it. Let a handler set a flag, and call the buffer when the step is done"
            )
        try:
            self._opener = me
            return self._opened(first)
        finally:
            self._opener = None

    def _opened(self, first: list[np.ndarray] | None) -> TransitionRing:
        there = self._store_there()
        if there is None:
            padding = padding_of(self._disk.stack_padding, self._leaves, first)
        else:
            padding = read_attributes(there)["stack_padding"]
            if self._disk.stack_padding not in ("auto", padding):
                raise SchemaError(
                    f"{self._disk.path}: made with stack_padding={padding!r}, found "
                    f"{self._disk.stack_padding!r}; leave it out, or choose another path"
                )
        handle = shared(self._disk.path, **self._options_of_buffer(padding))
        ring = TransitionRing(handle, self._leaves, self.buffer_size, self.n_envs, padding)
        if there is not None:
            self._found(ring)
        elif self._draws_itself:  # as the rest of the run, by the framework's seed
            seed = np.random.randint(2**31)  # noqa: NPY002
            handle.buffer.rng.bit_generator.state = np.random.PCG64(seed).state
        self._handle, self._ring = handle, ring
        return ring

    def _options_of_buffer(self, padding: Padding) -> dict[str, Any]:
        leaves = self._leaves
        stacks = {leaf.stack for leaf in leaves}
        space = leaves[0].frame_space
        if leaves[0].name:
            space = gym_spaces.Dict({leaf.name: leaf.frame_space for leaf in leaves})
        return {
            "observation_space": space,
            "action_space": stored_action_space(self.action_space, self.action_dim),
            "capacity": self.n_envs * rows_for(self.buffer_size, max(stacks)),
            "num_envs": self.n_envs,
            "stack_size": stacks.pop() if len(stacks) == 1 else 1,
            "stack_padding": padding,
            "compressor": self._disk.compressor,
            **self._of_engine(),
        }

    def _found(self, ring: TransitionRing) -> None:
        """Take over the transitions of a store that was there."""
        names = ["action", "reward", "terminated", "truncated", "step"]
        self._pos, self._full, slots, columns = ring.find(names)
        actions, rewards, terminated, truncated, step = (columns[name] for name in names)
        self.actions[slots] = actions.reshape(len(slots), self.n_envs, self.action_dim)
        self.rewards[slots] = rewards
        done, rows = terminated | truncated, ring.rows[slots]
        self.dones[slots] = done
        if self.handle_timeout_termination:
            self.timeouts[slots] = truncated & ~terminated
        # Also where an episode was cut, by a kill say, and never goes on.
        last = np.ones((len(slots), self.n_envs), np.bool_)
        last[:-1] = done[:-1] | (np.diff(rows, axis=0) != 1) | (np.diff(step, axis=0) != 1)
        if "update_horizon" in self._of_engine():
            # SB3 sums rewards until a transition is done or timed out: without this, on into the
            # episode behind one that was cut.
            self.timeouts[slots] += last & ~done
        self._found_episodes(slots, last)

    def _found_episodes(self, slots: np.ndarray, last: np.ndarray) -> None:
        """For those who keep count of episodes: which transitions are the last of one."""

    @property
    def disk(self) -> "ReplayBuffer | None":
        """The buffer that has the rows, to look into; None while nothing is recorded."""
        self._look()
        return None if self._ring is None else self._ring.buffer

    # -- as the framework's buffer

    @property
    def pos(self) -> int:
        """The slot of the next transition."""
        self._look()
        return self._pos

    @pos.setter
    def pos(self, value: int) -> None:
        self._pos = value

    @property
    def full(self) -> bool:
        """Whether all slots have a transition."""
        self._look()
        return self._full

    @full.setter
    def full(self, value: bool) -> None:
        self._full = value

    @one_call
    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Record a transition of each env.

        Parameters
        ----------
        obs, next_obs : ndarray of shape (n_envs, *obs_shape), or dict of them
            What the agents saw, and what their actions led to; at an episode's end its last
            observation, not the next episode's first one.
        action : ndarray, shape (n_envs, action_dim)
        reward, done : ndarray, shape (n_envs,)
        infos : list of dict
            With ``"TimeLimit.truncated"`` where an episode was truncated. A dict (of a vector
            environment) says nothing of it.

        Raises
        ------
        InvalidInputError
            The observations are no stacks of frames as `frame_stack` says.
        NotFiniteError
            A reward is NaN or infinite.
        ReadOnlyError
            This is a copy.
        StorageError
            The disk is full, say. In all these cases nothing was recorded.
        """
        self._add(obs, next_obs, action, reward, done, infos)

    def _add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any
    ) -> None:
        ring, n_envs = self._ring, self.n_envs
        if n_envs == 1 and ring is not None:
            if self._add_one(ring, obs, next_obs, action, reward, done, infos):
                return
        if self._leaves[0].name:
            seen = [leaf.fitted(obs[leaf.name], n_envs) for leaf in self._leaves]
            led = [leaf.fitted(next_obs[leaf.name], n_envs) for leaf in self._leaves]
        else:
            seen = [self._leaves[0].fitted(obs, n_envs)]
            led = [self._leaves[0].fitted(next_obs, n_envs)]
        if ring is None:
            self._look()
            ring = self._ring or self._open(seen)
        if isinstance(self._handle, Snapshot):
            raise ReadOnlyError("a copy of a replay buffer on disk can only be read")
        pos = self._pos
        actions = np.asarray(action).reshape(n_envs, self.action_dim)
        if actions.dtype != self.actions.dtype:
            actions = actions.astype(self.actions.dtype)
        rewards = np.asarray(reward, np.float32).reshape(n_envs)
        ended = np.asarray(done).reshape(n_envs) != 0
        timed_out = np.zeros(n_envs, np.bool_)
        if not isinstance(infos, dict):
            for env, info in enumerate(infos):
                if info and info.get("TimeLimit.truncated", False):
                    timed_out[env] = True
        given = actions[:, 0] if self._is_discrete else actions
        ring.add(pos, seen, led, given, rewards, ended, timed_out)
        self.actions[pos], self.rewards[pos], self.dones[pos] = actions, rewards, ended
        if self.handle_timeout_termination:
            self.timeouts[pos] = timed_out
        pos += 1
        if pos == self.buffer_size:
            self._full, pos = True, 0
        self._pos = pos

    def _add_one(
        self, ring: TransitionRing, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any,
        infos: Any,
    ) -> bool:  # fmt: skip
        """`add` for a step in the middle of the only env's episode whose arrays are as they are
        stored; False, and nothing was done, if it is something else."""
        shape, dtype = self._of_one
        if not (
            type(obs) is type(next_obs) is type(action) is type(reward) is type(done) is np.ndarray
            and obs.shape == next_obs.shape == shape and obs.dtype == next_obs.dtype == dtype
            and action.size == self.action_dim and action.dtype == self.actions.dtype
            and done.size == reward.size == 1 and not done.item()
        ):  # fmt: skip
            return False
        if type(infos) is list and infos[0] and infos[0].get("TimeLimit.truncated"):
            return False
        if type(self._handle) is Snapshot:
            return False
        pos, reward = self._pos, reward.item()
        value = action.item() if self._is_discrete else action.reshape(self.action_dim)
        if not ring.add_one(pos, obs, next_obs, value, reward, is_fitted=True):
            return False
        self.actions[pos, 0] = value
        self.rewards[pos, 0] = reward
        self.dones[pos, 0] = 0
        if self.handle_timeout_termination:
            self.timeouts[pos, 0] = 0
        self._pos = pos = pos + 1
        if pos == self.buffer_size:
            self._full, self._pos = True, 0
        return True

    def _drawn(self, batch_size: int) -> dict[str, Any]:
        """A batch that the buffer on disk drew: arrays by the framework's names.

        Raises
        ------
        EmptyBufferError
            No transition is complete yet.
        """
        self._look()
        ring = self._ring
        if ring is None:
            raise EmptyBufferError("nothing to sample: add transitions first")
        ring.let_go(self._pos)  # what the framework's ring shows no more
        if self._disk.prefetch:
            batch = next(ring.prefetched(self._disk.prefetch, batch_size))
        else:
            batch = ring.buffer.sample(batch_size)
        actions = np.asarray(batch.action).reshape(batch_size, self.action_dim)
        done = batch.terminated
        if not self.handle_timeout_termination:
            done = done | batch.truncated
        return {
            "observations": self._observed(batch.observation),
            "actions": actions.astype(self.actions.dtype, copy=False),
            "next_observations": self._observed(batch.next_observation),
            "dones": done.astype(np.float32)[:, None],
            "rewards": batch.reward[:, None],
            # Without the zeros of terminations: frameworks multiply by `1 - dones` too.
            "discounts": (ring.buffer.gamma ** batch.steps[:, None]).astype(np.float32),
            "weights": batch.weight[:, None],
            "ids": batch.id,
        }

    def _reading_both(self) -> AbstractContextManager[Any]:
        """For a block that reads both observations of a batch and copies them."""
        self._look()
        return nullcontext() if self._ring is None else self._ring.both

    def _observed(self, parts: Any) -> Any:
        """Observations as the framework has them, of those that the buffer on disk gave."""
        if not self._leaves[0].name:
            return self._leaves[0].joined(parts)
        return {leaf.name: leaf.joined(parts[leaf.name]) for leaf in self._leaves}

    @one_call
    def reset(self) -> None:
        """Forget all transitions, on the disk too."""
        self._look()
        if self._ring is not None:
            self._ring.buffer.clear()
            self._ring.forget()
        self._pos, self._full = 0, False

    @one_call
    def close(self) -> None:
        """Write down what the newest transitions led to, and release the store.

        A run that just ends loses the newest transition of each env whose episode is not over. With
        several envs it may lose as many of the oldest of the others: a slot has one of each env.
        Afterwards the path is free, and the next use of this object opens it again. Without a path
        all transitions are gone, and the buffer is empty.
        """
        if self._handle is not None:
            if isinstance(self._handle, Snapshot):
                self._disk = self._disk._replace(path=None)  # that store is not the copy's own
            elif self._ring is not None:
                self._ring.finish()
            self._handle.close()
        self._ring = self._handle = None
        if self._disk.path is None:
            self._empty()

    def _empty(self) -> None:
        """Have no transition, in a buffer whose rows are gone."""
        self._pos, self._full = 0, False
        for values in (self.actions, self.rewards, self.dones, self.timeouts):
            values[:] = 0
