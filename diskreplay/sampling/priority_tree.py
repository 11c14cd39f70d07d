"""A sum tree whose leaves are powers of priorities, one for each place of a row index."""

from collections.abc import Callable
from typing import Self

import numpy as np

from diskreplay.errors import EmptyBufferError, PriorityError, UnknownIdError
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.sum_tree import SumTree

_SMALLEST = 5e-324  # 0 would say that there is none


class PriorityTree(SumTree):
    """Proportional prioritization, Schaul et al. 2016, equations 1 and following.

    ``P(i) = p_i^alpha / sum_k p_k^alpha``, drawn stratified; weights ``(N P(i))^-beta``, divided
    by the largest of the batch or, with `track_min`, of all leaves.

    Parameters
    ----------
    capacity : int
    alpha : float
    track_min : bool
    """

    def __init__(self, capacity: int, alpha: float, *, track_min: bool) -> None:
        from diskreplay.sampling import prioritized_kernels

        super().__init__(capacity, track_min=track_min)
        self.row_kernels = prioritized_kernels
        self.alpha = alpha
        self._one, self._places = np.empty(1), np.empty(0, np.int64)  # for kernels, made once

    def grown(self, capacity: int) -> Self:
        """One with the same leaves, and more of them."""
        tree = type(self)(capacity, self.alpha, track_min=len(self.least) > 0)
        tree.leaves[: self.capacity] = self.leaves
        tree.rebuild()
        return tree

    def leaf(self, priority: float) -> float:
        """The leaf of a priority; always the same bits for the same number. At most the largest
        that the tree takes, also where the priority was set with a smaller alpha."""
        return min(self.row_kernels.leaf_of(priority, self.alpha), self._kernels.LARGEST_LEAF)

    def fill(self, places: np.ndarray, leaf: float) -> None:
        """Set all these leaves to one value."""
        self._one[0] = leaf
        self.put(places, self._one)

    @property
    def least_probability(self) -> float:
        """By which weights are normalised; 0 where the batch's smallest is taken."""
        return max(self.min / self.total, _SMALLEST) if len(self.least) else 0.0

    def draw(
        self, ids: np.ndarray, probability: np.ndarray, weight: np.ndarray, index: RowIndex,
        rng: ReplayableRng, beta: float,
    ) -> None:  # fmt: skip
        """Draw rows: ids, probabilities (float64) and importance weights (float32) into arrays.

        Raises
        ------
        EmptyBufferError
            All priorities are 0.
        """
        if not self.total > 0:
            raise EmptyBufferError("nothing to sample: all priorities are 0")
        rng.draw(
            len(ids), self.row_kernels.tree_draw, self.nodes, self.starts, float(beta),
            self.least_probability, index.bounds, index.figures, ids, probability, weight,
        )  # fmt: skip

    def update(
        self, kernel: Callable[..., tuple[int, int, float]], words: np.ndarray, index: RowIndex,
        ids: np.ndarray, priorities: np.ndarray, noun: str, example: str,
    ) -> tuple[int, float]:  # fmt: skip
        """Set priorities with `tree_update`, or another kernel like it, which goes by `words`.
        Returns how many rows were ignored, since they cannot be drawn, and the largest priority of
        the others. `noun` and `example` are for errors: what an id names, and a formula.

        Raises
        ------
        PriorityError, UnknownIdError
            Nothing is changed.
        """
        if len(self._places) < len(ids):
            self._places = np.empty(len(ids), np.int64)
        wrong, at, largest = kernel(
            self.nodes, self.least, self.starts, words, index.bounds, index.figures, ids,
            priorities, self.alpha, self._places,
        )  # fmt: skip
        if not wrong:
            return at, largest
        if wrong == 1:
            raise PriorityError(
                f"priority {priorities[at]} at position {at}: finite, not negative and, raised "
                f"to alpha, at most 1e297 expected ({example}, say)"
            )
        index.check_known(ids)
        raise UnknownIdError(f"{noun} {ids[at]} at position {at} was never handed out")

    def restore(self, index: RowIndex, start: int, leaves: np.ndarray, where: np.ndarray) -> None:
        """Set the leaves of consecutive rows from `start` on, where it is said; then all sums."""
        ours = self.leaves[: index.size].reshape(-1, index.num_envs)
        for at, place, rows in index.runs(start, start + len(leaves)):
            # Where envs differ, one row's place may be another row's of another env.
            run = slice(at, at + rows)
            np.copyto(ours[place : place + rows], leaves[run], where=where[run])
        self.rebuild()
