"""The replay buffers of the Rainbow notebooks, on the disk."""

import os
import random
import sys
from typing import Any, ClassVar

import numpy as np

from diskreplay.compat.base import Facade
from diskreplay.compat.segment_trees import MinSegmentTree, SumSegmentTree, as_indices
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.locks import one_call
from diskreplay.signals import undisturbed
from diskreplay.spaces import box
from diskreplay.store.priorities import LARGEST_LEAF
from diskreplay.validation import fit_reward

__all__ = ["MinSegmentTree", "PrioritizedReplayBuffer", "ReplayBuffer", "SumSegmentTree"]


class ReplayBuffer(Facade):
    """Whole transitions of vector observations, drawn uniformly.

    Parameters
    ----------
    obs_dim : int
        Length of an observation.
    size : int
        Capacity.
    batch_size : int
    path : path, optional
        The store's directory: created, or reopened if there is one. None: a temporary one.

    Attributes
    ----------
    size : int
        Rows there are.
    max_size : int
        Capacity.
    ptr : int
        The slot of the next row.

    Raises
    ------
    SchemaError, FormatError, LockedError, StorageError
        For `path`, as `diskreplay.ReplayBuffer` does.

    Notes
    -----
    Memory: 12 bytes a slot.
    """

    _ring_options: ClassVar[dict[str, Any]] = {"facade": "rainbow"}

    def __init__(
        self, obs_dim: int, size: int, batch_size: int = 32, *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        self.max_size, self.batch_size = int(size), int(batch_size)
        self.ptr = self.size = 0
        self._acts, self._rews, self._done = np.zeros((3, self.max_size), np.float32)
        super().__init__(path, self.max_size, **self._ring_options)
        self._obs_dim = int(obs_dim)
        self._following: bytes | None = None  # the observation that continues the episode
        self._make_ring(
            box((self._obs_dim,), np.float32), box((), np.float32),
            {"next_obs": ((self._obs_dim,), np.float32)},
        )  # fmt: skip

    def _lost(self, ring: SlotBuffer) -> np.ndarray:
        return ring.column("is_final")  # no row of this buffer's is one

    def _recall(self, ring: SlotBuffer) -> None:
        self.ptr, self.size = ring.cursor, ring.stored
        slots = ring.retained % self.max_size
        for values, field in (
            (self._acts, "action"), (self._rews, "reward"), (self._done, "terminated"),
        ):  # fmt: skip
            values[slots] = ring.column(field)

    @one_call
    def store(self, obs: Any, act: Any, rew: float, next_obs: Any, done: bool) -> None:
        """Record one transition; all of it is kept as float32.

        Parameters
        ----------
        obs, next_obs : array_like, shape (obs_dim,)
        act, rew : float
        done : bool

        Raises
        ------
        InvalidInputError
            A reward that is not finite, a `done` that is neither 0 nor 1.
        ValueError
            An observation or action of another shape. In all cases nothing was recorded.
        """
        obs, next_obs = self._row("obs", obs), self._row("next_obs", next_obs)
        act = np.asarray(act, np.float32).reshape(())
        rew, ended = fit_reward(float(rew)), float(done)
        if ended not in (0, 1):
            raise InvalidInputError(f"done: 0 or 1 expected, found {ended}")
        ring = self._ring
        if self._following not in (None, obs.tobytes()):
            ring.end_episode()
        row = {
            "observation": obs, "action": act, "reward": rew, "terminated": ended,
            "next_obs": next_obs,
        }  # fmt: skip
        self._commit(row, self._took, act, rew, ended, next_obs)

    def _took(
        self, number: int, act: np.ndarray, rew: float, done: float, next_obs: np.ndarray
    ) -> None:
        """The ring has row `number`."""
        slot, count = number % self.max_size, number + 1
        self._acts[slot], self._rews[slot], self._done[slot] = act, rew, done
        self._following = next_obs.tobytes()
        self.size = min(count, self.max_size)
        self.ptr = count % self.max_size

    def _row(self, name: str, values: Any) -> np.ndarray:
        row = np.array(values, np.float32)  # a copy
        if row.shape != (self._obs_dim,):
            raise ShapeError(f"{name}: shape ({self._obs_dim},) expected, found {row.shape}")
        return row

    @one_call
    def sample_batch(self) -> dict[str, np.ndarray]:
        """Draw different transitions, with `numpy.random.choice`.

        Returns
        -------
        dict of str to ndarray of float32
            obs, next_obs ``(batch, obs_dim)``; acts, rews, done ``(batch,)``.

        Raises
        ------
        ValueError
            There are fewer rows than a batch has.
        """
        # As the original draws, so that a seed repeats its batches; costs O(rows).
        return self._batch(
            np.random.choice(self.size, size=self.batch_size, replace=False)  # noqa: NPY002
        )

    def _batch(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        obs, next_obs = self._ring.read(["observation", "next_obs"], slots)
        return {
            "obs": obs,
            "next_obs": next_obs,
            "acts": self._acts[slots],
            "rews": self._rews[slots],
            "done": self._done[slots],
        }

    def __len__(self) -> int:
        return self.size

    # -- the slots, as the original names them: copies, zeros where nothing is

    @property
    def obs_buf(self) -> np.ndarray:
        """Observations, float32 ``(max_size, obs_dim)``. Reads the whole store."""
        return self._ring.read("observation", np.arange(self.max_size))

    @property
    def next_obs_buf(self) -> np.ndarray:
        """What they led to, float32 ``(max_size, obs_dim)``. Reads the whole store."""
        return self._ring.read("next_obs", np.arange(self.max_size))

    @property
    def acts_buf(self) -> np.ndarray:
        """Actions, float32 ``(max_size,)``."""
        return self._acts.copy()

    @property
    def rews_buf(self) -> np.ndarray:
        """Rewards, float32 ``(max_size,)``."""
        return self._rews.copy()

    @property
    def done_buf(self) -> np.ndarray:
        """Whether the episode ended, float32 ``(max_size,)``."""
        return self._done.copy()


class PrioritizedReplayBuffer(ReplayBuffer):
    """Transitions drawn in proportion to ``priority ** alpha``.

    Parameters
    ----------
    obs_dim, size, batch_size, path
        As for `ReplayBuffer`.
    alpha : float
        Not negative.

    Attributes
    ----------
    max_priority : float
        The largest so far; new rows get it. 1 at first.
    tree_ptr : int
        The slot of the next row.
    sum_tree : SumSegmentTree
    min_tree : MinSegmentTree

    Raises
    ------
    AssertionError
        `alpha` is negative.

    Notes
    -----
    Priorities are written by `flush` and `close`; rows that came later have `max_priority` after a
    kill. Memory: 50 to 90 bytes a slot.
    """

    _ring_options: ClassVar[dict[str, Any]] = {
        "facade": "rainbow_prioritized", "weighted": True, "notes": {"max_priority": 1.0},
    }  # fmt: skip
    _note_bounds: ClassVar[dict[str, tuple[float, float]]] = {
        "max_priority": (1.0, sys.float_info.max),
    }  # fmt: skip

    def __init__(
        self, obs_dim: int, size: int, batch_size: int = 32, alpha: float = 0.6, *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        if not alpha >= 0:
            raise AssertionError(f"alpha: 0 or more expected, found {alpha}")
        self.alpha, self.max_priority = alpha, 1.0
        leaves = 1 << max(int(size) - 1, 0).bit_length()
        self.sum_tree, self.min_tree = SumSegmentTree(leaves), MinSegmentTree(leaves)
        self._slot, self._leaf = np.empty(1, np.int64), np.empty(1)  # for the kernel, made once
        super().__init__(obs_dim, size, batch_size, path=path)

    def _recall(self, ring: SlotBuffer) -> None:
        super()._recall(ring)
        self.max_priority = float(ring.notes.get("max_priority", 1.0))
        if self.alpha > 0:  # another one than before may make too large a leaf of it
            with np.errstate(over="ignore"):
                most = float(np.float64(LARGEST_LEAF / 2) ** (1 / self.alpha))
            self.max_priority = min(self.max_priority, most)
        slots = ring.retained % self.max_size
        self._weigh(slots, ring.weights.get(slots))

    def _hand_over(self, ring: SlotBuffer, *, closing: bool) -> None:
        slots = np.arange(self.size)
        ring.weights.set(slots, self.sum_tree[slots])
        newest = float(self.max_priority**self.alpha)
        ring.notes |= {"max_priority": self.max_priority, "newest_weight": newest}

    def _weigh(self, slots: np.ndarray, leaves: np.ndarray) -> None:
        """Set leaves that were checked."""
        self.sum_tree.weights.put(slots, leaves)
        self.min_tree.leaves[slots] = leaves

    @property
    def tree_ptr(self) -> int:
        """The slot of the next row, as `ptr`."""
        return self.ptr

    def _took(
        self, number: int, act: np.ndarray, rew: float, done: float, next_obs: np.ndarray
    ) -> None:
        slot, leaf = number % self.max_size, self.max_priority**self.alpha
        self._slot[0], self._leaf[0] = slot, leaf
        self.sum_tree.weights.put(self._slot, self._leaf)
        self.min_tree.leaves[slot] = leaf
        super()._took(number, act, rew, done, next_obs)

    @one_call
    def sample_batch(self, beta: float = 0.4) -> dict[str, Any]:
        """Draw transitions, one from each of as many equal parts of the sum as a batch has.

        Parameters
        ----------
        beta : float
            Exponent of the importance weights, above 0 and finite.

        Returns
        -------
        dict
            As of `ReplayBuffer.sample_batch`; ``weights`` float64 ``(batch,)``, where 1 is the
            largest of all rows'; ``indices``, an ascending list of int.

        Raises
        ------
        AssertionError
            There are fewer rows than a batch has, or `beta` is not positive, or not finite.
        """
        if self.size < self.batch_size:
            raise AssertionError(f"{self.batch_size} rows needed for a batch, {self.size} there")
        if not 0 < beta < np.inf:
            raise AssertionError(f"beta: a finite number above 0 expected, found {beta}")
        tree = self.sum_tree.weights
        total = tree.total
        part = total / self.batch_size
        # What random.uniform makes of these, to the last bit.
        drawn = np.array([random.random() for _ in range(self.batch_size)])
        parts = part * np.arange(self.batch_size + 1)
        masses = parts[:-1] + (parts[1:] - parts[:-1]) * drawn
        slots = tree.find(np.minimum(masses, total))
        largest = (tree.min / total * self.size) ** -beta
        weights = (tree.leaves[slots] / total * self.size) ** -beta / largest
        return {**self._batch(slots), "weights": weights, "indices": slots.tolist()}

    @one_call
    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Set the priorities of rows; of equal indices the last one counts.

        Parameters
        ----------
        indices : array_like of int, shape (n,)
            From 0 to ``len(self) - 1``.
        priorities : array_like of float, shape (n,) or (n, 1)
            Above 0; to the power of `alpha` at most 1e297, so that the sum of all stays finite.

        Raises
        ------
        AssertionError
            Anything else; nothing was changed.
        ClosedError
        """
        self._ring.check_open()
        slots = as_indices("indices", indices)
        if slots.ndim != 1:
            raise AssertionError(f"indices: one axis expected, found shape {slots.shape}")
        priorities = np.asarray(priorities, np.float64).reshape(-1)
        if len(slots) != len(priorities):
            raise AssertionError(f"{len(slots)} indices for {len(priorities)} priorities")
        if not ((priorities > 0) & (priorities < np.inf)).all():
            raise AssertionError("priorities: finite numbers above 0 expected")
        with np.errstate(over="ignore"):
            leaves = priorities**self.alpha
        if not (leaves <= LARGEST_LEAF).all():
            raise AssertionError(
                f"priorities: at most {LARGEST_LEAF:g} to the power of alpha ({self.alpha}) "
                f"expected, found {priorities[leaves > LARGEST_LEAF][0]:g}"
            )
        if not ((slots >= 0) & (slots < self.size)).all():
            raise AssertionError(f"indices: 0 to {self.size - 1} expected")
        if len(slots):
            with undisturbed():  # or the trees differ, and new rows get less than the largest
                self._weigh(slots, leaves)
                self.max_priority = max(self.max_priority, float(priorities.max()))
