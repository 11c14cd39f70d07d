"""Transitions in proportion to a power of their priority."""

from typing import Any, Literal, NamedTuple

import numpy as np

from diskreplay.errors import EmptyBufferError
from diskreplay.sampling.initial_priorities import Given, InitialPriorities, checked
from diskreplay.sampling.priority_tree import PriorityTree
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.row_index import RowIndex

_MORE_ROWS = 1024  # that may be added until leaves are copied


class PriorityMass(NamedTuple):
    """What a sum tree can say of all its rows at one moment."""

    total: float
    """The sum of ``priority ** alpha``; 0 if nothing can be drawn."""
    least: float
    """The smallest of them that can be drawn, infinity if there is none. NaN where weights are
    normalised by the batch: then it is not kept up to date."""
    sampleable: int
    """Rows that can be sampled."""
    largest: float
    """The largest priority seen, which new rows get."""


class PrioritizedSampler:
    """Keeps the tree of priorities of a row index. A row that becomes sampleable gets the priority
    that it was added with, or else the largest one seen so far (1 before any).

    Attributes
    ----------
    tree : PriorityTree
        Leaf ``place`` holds ``p^alpha`` of the row there, 0 while it cannot be sampled.
    largest : float
        The largest priority seen.
    initial : InitialPriorities or None
        Those that rows were added with; None as long as there was none.
    """

    def __init__(
        self, index: RowIndex, alpha: float, normalization: Literal["batch", "buffer"]
    ) -> None:
        from diskreplay.sampling import prioritized_kernels, row_index_kernels

        self._kernels = prioritized_kernels
        self._tree_at = row_index_kernels.NODES
        self.alpha, self.normalization = alpha, normalization
        self._index = index
        self.largest = 1.0
        self.initial: InitialPriorities | None = None
        self._room: np.ndarray | None = None
        self._newest = 0.0, 0.0  # the largest priority at the last `enter`, and its leaf
        self._go_by(PriorityTree(index.size, alpha, track_min=normalization == "buffer"))

    def _go_by(self, tree: PriorityTree) -> None:
        """Have this tree, and let the table of the index say where it is."""
        self.tree = tree
        self._index.table[self._tree_at :] = (
            tree.nodes.ctypes.data, tree.least.ctypes.data, len(tree.least),
            tree.starts.ctypes.data, len(tree.starts) - 1,
        )  # fmt: skip

    def grow(self, size: int) -> None:
        """Have a leaf for each place of the index, which is about to have so many."""
        self._go_by(self.tree.grown(size))

    def append_one(self, step: int, flags: int, reward: float, columns: int = 0) -> None:
        """One row of the only env, taken in by index and tree with one kernel call, and committed
        first, see `RowIndex.append_one`: not where rows were added with priorities."""
        if self.initial is not None:
            return self._append_with_initial(step, flags, reward)
        index, newest = self._index, self._newest
        leaf = newest[1] if newest[0] == self.largest else self._newest_leaf()
        index.sampleable += self._kernels.tree_append_one(
            index.table, columns, step, flags, reward, leaf
        )

    def _newest_leaf(self) -> float:
        if self._newest[0] != self.largest:
            self._newest = self.largest, self.tree.leaf(self.largest)
        return self._newest[1]

    def _append_with_initial(self, step: int, flags: int, reward: float) -> None:
        left, entered = self._index.append(
            np.zeros(1, np.int64), np.array([step], np.int32), np.array([flags], np.uint8),
            np.array([reward], np.float32),
        )  # fmt: skip
        self.leave(left)
        self.enter(entered)

    def given(self, priorities: Any, shape: tuple[int, ...], **how: Any) -> Given:
        """Priorities that rows are to be added with, see `initial_priorities.checked`."""
        return checked(self._kernels, priorities, shape, self.alpha, **how)

    def given_by_actors(self, priorities: np.ndarray) -> Given | None:
        """Priorities that actors gave, NaN for none. They go by the buffer that made their writers,
        whose alpha may have been another one: what is too large with this one is the largest."""
        if np.isnan(priorities).all():
            return None
        kernels: Any = self._kernels
        with np.errstate(over="ignore", divide="ignore"):  # with an alpha of 0 any will do
            most = np.float64(kernels.LARGEST_LEAF / 2) ** (1 / np.float64(self.alpha))
        return self.given(np.minimum(priorities, most), priorities.shape, partly=True)

    def note(self, envs: np.ndarray, given: Given | None) -> None:
        """Rows of these envs are about to be added, with these priorities or without. Has to be
        called before each row if one is `given`, and from the first one on that was."""
        if self.initial is None:
            self.initial = InitialPriorities(self._index)
        self.initial.note(envs, np.nan if given is None else given.leaves)

    def enter(self, places: np.ndarray) -> None:
        """Rows became sampleable: they get the priority that they were added with, or else the
        largest one seen."""
        if self.initial is None:
            return self.tree.fill(places, self._newest_leaf())
        leaves = self.initial.at(places)
        leaves[np.isnan(leaves)] = self._newest_leaf()
        self.tree.put(places, leaves)

    def leave(self, places: np.ndarray) -> None:
        """Rows stopped being sampleable: they cannot be drawn."""
        self.tree.fill(places, 0.0)

    def _converted(self, leaves: np.ndarray, alpha: float) -> np.ndarray:
        """Leaves that are powers with exponent `alpha`, as powers with this sampler's.

        Zeros stay zeros, and a positive leaf stays positive and finite: where the power would be
        neither, it is the least or the largest leaf. So whatever could be drawn can be drawn, none
        before one that it was behind.
        """
        kernels = self._kernels
        positive = leaves > 0  # not NaN
        with np.errstate(all="ignore"):
            powers = np.power(
                leaves, np.float64(self.alpha) / alpha, where=positive, out=leaves * 1
            )
        return np.where(positive, powers.clip(kernels.LEAST_LEAF, kernels.LARGEST_LEAF), leaves)

    def make_room(self) -> None:
        """Have memory for the next `leaves`, which a save calls while each `add` waits: the system
        clears memory when it is touched first, and that takes longer than the copy."""
        index = self._index
        rows = int(index.count.max() - index.first.min()) + _MORE_ROWS
        room = np.empty(rows * index.num_envs)
        room.fill(0.0)
        nothing = room[:0].reshape(0, index.num_envs)
        self._kernels.copy_leaves(self.tree.nodes, *index.state, 0, nothing)  # it is loaded now
        # Last: a flush or save on another thread, which may take it at once, would find its leaves
        # overwritten with zeros.
        self._room = room

    def leaves(self) -> np.ndarray:
        """The leaves of all retained rows, to be saved.

        Returns
        -------
        ndarray of float64, shape (rows, num_envs)
            From the oldest retained row of any env on. NaN where a row cannot be sampled, unless
            it was added with a priority and may come to be.
        """
        index = self._index
        start, stop = int(index.first.min()), int(index.count.max())
        room, self._room = self._room, None
        size = (stop - start) * index.num_envs
        if room is None or len(room) < size:
            room = np.empty(size)
        out = room[:size].reshape(-1, index.num_envs)
        self._kernels.copy_leaves(self.tree.nodes, *index.state, start, out)
        if self.initial is not None:
            envs, numbers, known = self.initial.known(index.count)
            waiting = np.isnan(out[numbers - start, envs])
            out[numbers[waiting] - start, envs[waiting]] = known[waiting]
        return out

    def restore(self, saved: tuple[int, np.ndarray, float | None] | None) -> None:
        """Take over saved leaves; a row that has none gets the largest priority.

        Parameters
        ----------
        saved : tuple of int, ndarray and float, optional
            The row of the first leaf, what `leaves` returned, and what they were raised to.
        """
        tree = self.tree
        start, leaves, alpha = saved or (0, np.empty((0, self._index.num_envs)), None)
        if alpha and alpha != self.alpha:  # those of alpha 0 say nothing: they stay as they are
            leaves = self._converted(leaves, alpha)
        # The record has the largest one. Whoever was killed before it left leaves that are far
        # above it; those of rounded powers are not, and the largest one stays to the last bit.
        highest = float(np.fmax.reduce(leaves, axis=None, initial=0.0))
        if alpha == self.alpha > 0 and highest > tree.leaf(self.largest) * (1 + 1e-9):
            with np.errstate(over="ignore"):
                seen = np.float64(highest) ** (1 / self.alpha)
            self.largest = max(self.largest, float(min(seen, np.finfo(np.float64).max)))
        index = self._index
        of_new = tree.leaf(self.largest)
        first, stop = int(index.first.min()), int(index.count.max())
        known = np.full((stop - first, index.num_envs), np.nan)
        low, high = max(start, first), min(start + len(leaves), stop)
        if low < high:
            known[low - first : high - first] = leaves[low - start : high - start]
        sampleable = index.sampleable_rows(first, stop)
        self._restore_initial(first, known, sampleable)
        if not index.sampleable:
            tree.clear()
            return
        known[np.isnan(known)] = of_new
        tree.leaves[:] = 0.0
        tree.restore(index, first, known, sampleable)

    def _restore_initial(self, first: int, leaves: np.ndarray, sampleable: np.ndarray) -> None:
        """Take over the leaves of rows that cannot be sampled yet, from `first` on."""
        index, self.initial = self._index, None
        rows = index.count[:, None] - 1 - np.arange(index.horizon + 1)
        envs, at = np.nonzero(rows >= index.first[:, None])
        rows = rows[envs, at]
        waiting = ~sampleable[rows - first, envs] & ~np.isnan(leaves[rows - first, envs])
        if waiting.any():
            envs, rows = envs[waiting], rows[waiting]
            self.initial = InitialPriorities(index)
            self.initial.put(envs, rows, leaves[rows - first, envs])

    def take_over(self, other: "PrioritizedSampler", newest: np.ndarray) -> None:
        """Go on with the priorities of another sampler, which did not come to know the last rows.

        Parameters
        ----------
        other : PrioritizedSampler
        newest : ndarray of int64, shape (num_envs,)
            From these rows of each env on, a leaf of 0 is one that was never set.
        """
        self.largest = other.largest
        leaves, start = other.leaves(), int(other._index.first.min())
        for env, row in enumerate(newest.tolist()):
            of_env = leaves[max(row - start, 0) :, env]
            of_env[of_env == 0] = np.nan
        if other.initial is not None:
            count = self._index.count
            more = max(int(count.max()) - start - len(leaves), 0)
            leaves = np.concatenate([leaves, np.full((more, leaves.shape[1]), np.nan)])
            envs, rows, known = other.initial.known(np.minimum(other.initial.until, count))
            never = np.isnan(leaves[rows - start, envs])
            leaves[rows[never] - start, envs[never]] = known[never]
        self.restore((start, leaves, self.alpha))

    def draw(
        self, rng: ReplayableRng, size: int, beta: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, probabilities (float64) and importance weights (float32) of `size` transitions.

        Raises
        ------
        EmptyBufferError
            Nothing can be sampled, or all priorities are zero.
        """
        self._drawable()
        drawn = np.empty(size, np.int64), np.empty(size), np.empty(size, np.float32)
        self.tree.draw(*drawn, self._index, rng, beta)
        return drawn

    def draw_at(self, positions: np.ndarray) -> tuple[np.ndarray, PriorityMass]:
        """The ids at given places of the total, and what that total was: for a draw over several
        trees, of which somebody else knows the random numbers.

        Parameters
        ----------
        positions : ndarray of float64, shape (size,)
            In ``[0, 1]``, as shares of the total.

        Raises
        ------
        EmptyBufferError
            Nothing can be sampled, or all priorities are zero.
        """
        total, index = self._drawable(), self._index
        envs, rows = index.newest_at(self.tree.find(positions * total))
        return rows * index.num_envs + envs, self.mass()

    def mass(self) -> PriorityMass:
        """What the tree says of all rows now."""
        least = self.tree.min if self.normalization == "buffer" else np.nan
        return PriorityMass(self.tree.total, least, self._index.sampleable, self.largest)

    def raise_largest(self, priority: Any) -> None:
        """Take over the largest priority that another sampler has seen, if it is larger.

        Raises
        ------
        PriorityError, ShapeError
        """
        self.largest = max(self.largest, self.given(priority, ()).largest)

    def _drawable(self) -> float:
        """The total, if it is positive."""
        total = self.tree.total
        if not total > 0:
            what = (
                "all priorities are 0" if self._index.sampleable else "no complete transition yet"
            )
            raise EmptyBufferError(f"nothing to sample: {what}")
        return total

    def probability(self, ids: np.ndarray) -> np.ndarray:
        """The probability of each id in one draw."""
        return self.tree.leaves[ids % self._index.size] / (self.tree.total or 1.0)

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> int:
        """Set priorities; returns how many rows were ignored since they cannot be sampled.

        Raises
        ------
        PriorityError, UnknownIdError
            Nothing is changed.
        """
        index = self._index
        ignored, largest = self.tree.update(
            self._kernels.tree_update, index.ring, index, ids, priorities, "id",
            "|td_error| plus a small constant",
        )  # fmt: skip
        if largest > self.largest:
            self.largest = largest
        return ignored
