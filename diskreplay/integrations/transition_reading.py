"""Observations of a ring of transitions: which frames they consist of, and reading them."""

from typing import Any

import numpy as np

from diskreplay.integrations.both_sides import BothSides
from diskreplay.integrations.stack_kernels import TIP, window_ids
from diskreplay.integrations.stacked_leaf import Padding, StackedLeaf
from diskreplay.integrations.tip import Tip


class TransitionReading:
    """What `TransitionRing` reads of its store."""

    leaves: list[StackedLeaf]
    rows: np.ndarray
    both: BothSides
    _before: np.ndarray
    _blind: np.ndarray
    _open: np.ndarray
    _newest: np.ndarray
    _tips: list[Tip]
    _padding: Padding

    @property
    def buffer(self) -> Any:
        """The `ReplayBuffer` that has the rows."""
        raise NotImplementedError

    def observations(
        self, leaf_at: int, slots: np.ndarray, envs: np.ndarray, *, following: bool
    ) -> np.ndarray:
        """What agents saw, or what it led to, of shape (batch, *leaf.shape); zeros where a slot has
        no transition. Memory of its own, but within `both`.

        Slots and envs are int64, of shape (batch,) and from 0 on.
        """
        leaf = self.leaves[leaf_at]
        if leaf.stack > 1 and self.both.is_reading:  # of vectors it would cost more than it saves
            windows, blind = self.both.windows(
                leaf_at, slots, envs, lambda: self._windows(leaf_at, slots, envs, 1 - leaf.stack, 1)
            )
            windows = windows[:, 1:] if following else windows[:, :-1]
        else:
            oldest = 1 - leaf.stack + following
            windows, blind = self._windows(leaf_at, slots, envs, oldest, int(following))
        observations = leaf.joined(windows)
        if not following or leaf.stack == 1 or not blind:
            return observations
        blind_ones = self._blind[slots, envs].reshape(-1, *(1,) * len(leaf.shape))
        return np.where(blind_ones, leaf.dtype.type(0), observations)

    def both_observations(self, slots: np.ndarray, envs: np.ndarray, room: np.ndarray) -> None:
        """What agents saw, and what it led to, of the only leaf, go into `room`, an array of shape
        (2, batch, *leaf.shape)."""
        leaf = self.leaves[0]
        stacks = room.reshape(2, len(slots), leaf.stack, *leaf.frame_shape)
        ids, tips, blind = self._ids(leaf, slots, envs, 1 - leaf.stack, 1)
        self.buffer.take_both(leaf.field, ids, stacks)
        if tips:
            at = np.flatnonzero(ids[:, -1] == TIP)
            stacks[1, at, -1] = self._tips[0].newest[envs[at]]
        if blind:
            stacks[1, self._blind[slots, envs]] = 0

    def _ids(
        self, leaf: StackedLeaf, slots: np.ndarray, envs: np.ndarray, oldest: int, last: int
    ) -> tuple[np.ndarray, int, int]:
        """The ids of frames, see `window_ids`, and how many are tips and blind."""
        slots, envs = slots.copy(), envs.copy()  # contiguous, which the kernel is compiled for
        ids = np.empty((len(slots), last + 1 - oldest), np.int64)
        tips, blind = window_ids(
            self.rows, self._before, self._blind, self._open, self._newest, slots, envs, oldest,
            last, leaf.stack - 1, self._padding == "reset", ids,
        )  # fmt: skip
        return ids, tips, blind

    def _windows(
        self, leaf_at: int, slots: np.ndarray, envs: np.ndarray, oldest: int, last: int
    ) -> tuple[np.ndarray, int]:
        """The frames of each transition, from `oldest` to `last` as seen from its own row, and how
        many of what they led to nobody knows."""
        leaf = self.leaves[leaf_at]
        ids, tips, blind = self._ids(leaf, slots, envs, oldest, last)
        frames = self.both.room((*ids.shape, *leaf.frame_shape), leaf.dtype)
        self.buffer.take(leaf.field, ids, out=frames)
        if tips:
            at = np.flatnonzero(ids[:, -1] == TIP)
            frames[at, -1] = self._tips[leaf_at].newest[envs[at]]
        return frames, blind
