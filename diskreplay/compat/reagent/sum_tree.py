"""ReAgent's sum tree over diskreplay's."""

import random
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.compat.reagent.kernels import stratified
from diskreplay.convert.unpickling import levels
from diskreplay.errors import EmptyBufferError
from diskreplay.sampling.sum_tree import SumTree as Tree

LARGEST = 1e297  # the tree takes no more: its sums stay finite
_MOST_WAITING = 4096


class SumTree:
    """Priorities, one of which is drawn in proportion to its size.

    Draws come from Python's `random`. Sums are recomputed and never adjusted by differences, so
    they cannot drift, and a leaf of zero is never drawn.

    Parameters
    ----------
    capacity : int
    tree : diskreplay.SumTree, optional
        The leaves to stand on; own ones by default.

    Attributes
    ----------
    max_recorded_priority : float
        1.0 at first; only grows.

    Raises
    ------
    AssertionError
        `capacity` is no int.
    ValueError
        It is not positive.
    """

    def __init__(self, capacity: int, *, tree: Tree | None = None) -> None:
        if not isinstance(capacity, int):
            raise AssertionError(f"capacity: an int expected, found {brief(capacity)}")
        if capacity <= 0:
            raise ValueError(f"Sum tree capacity should be positive. Got: {capacity}")
        self._tree = Tree(capacity) if tree is None else tree
        # Set, and not yet in the tree: by index, so that the last of several counts.
        self._waiting: dict[int, float] = {}
        self.max_recorded_priority = 1.0

    def apply_pending(self) -> Tree:
        """Bring the tree up to date, and return it. Single values wait for this, as one call for
        many is far cheaper than many calls."""
        if self._waiting:
            count = len(self._waiting)
            self._tree.set(
                np.fromiter(self._waiting.keys(), np.int64, count),
                np.fromiter(self._waiting.values(), np.float64, count),
            )
            self._waiting.clear()
        return self._tree

    @property
    def nodes(self) -> list[np.ndarray]:
        """All sums, float64: arrays of length 1, 2, 4, ... up to the leaves, which are filled up
        with zeros to a power of two. A copy; O(capacity)."""
        return levels(self.apply_pending().leaves)

    @property
    def leaves(self) -> np.ndarray:
        """A copy of the leaves, float64 of shape ``(capacity,)``."""
        return self.apply_pending().leaves.copy()

    def set(self, node_index: int, value: float) -> None:
        """Set one priority.

        Raises
        ------
        ValueError
            It is negative, NaN or infinite, or there is no such leaf. Nothing is changed.
        """
        value = float(value)
        if not 0 <= value <= LARGEST:
            raise ValueError(f"Sum tree values should be nonnegative and finite. Got {value}")
        if not 0 <= node_index < self._tree.capacity:
            raise ValueError(f"node_index: 0 to {self._tree.capacity - 1} expected: {node_index}")
        self._waiting[int(node_index)] = value
        if value > self.max_recorded_priority:
            self.max_recorded_priority = value
        if len(self._waiting) == _MOST_WAITING:
            self.apply_pending()

    def set_many(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Set several, of shape (batch,); of duplicates the last counts. Errors as `set`."""
        if len(values) and values.min() < 0:
            raise ValueError(f"Sum tree values should be nonnegative. Got {values.min()}")
        self.apply_pending().set(indices, values)
        if len(values):
            self.max_recorded_priority = max(float(values.max()), self.max_recorded_priority)

    def get(self, node_index: int) -> float:
        """One priority."""
        return float(self.nodes_at(np.array([node_index]))[0])

    def nodes_at(self, indices: np.ndarray) -> np.ndarray:
        """Several priorities, float64."""
        return self.apply_pending().get(indices)

    def sample(self, query_value: float | None = None) -> int:
        """Draw a leaf.

        Parameters
        ----------
        query_value : float in [0, 1], optional
            The share of the total that lies before it; a random one by default.

        Raises
        ------
        EmptyBufferError
            All priorities are zero.
        ValueError
            `query_value` is out of range.
        """
        tree = self._filled()
        if query_value is None:
            query_value = random.random()
        elif not 0.0 <= query_value <= 1.0:
            raise ValueError(f"query_value must be in [0, 1]. Got {query_value}")
        return int(tree.find(np.array([query_value * tree.total]))[0])

    def stratified_sample(self, batch_size: int) -> list[int]:
        """Draw a leaf from each of `batch_size` equal parts of the total; errors as `sample`."""
        return self.strata(batch_size).tolist()

    def strata(self, batch_size: int) -> np.ndarray:
        """As `stratified_sample`, an array of int64."""
        tree = self._filled()
        draw, leaves = random.random, np.empty(batch_size, np.int64)
        draws = np.array([draw() for _ in range(batch_size)])
        stratified(tree.nodes, tree.starts, draws, leaves)
        return leaves

    def _filled(self) -> Tree:
        if not self.apply_pending().total > 0:
            raise EmptyBufferError("Cannot sample from an empty sum tree: every priority is 0")
        return self._tree

    def __getstate__(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "max_recorded_priority": self.max_recorded_priority}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = state["nodes"][-1]
        SumTree.__init__(self, len(leaves))
        self._tree.set(np.arange(len(leaves)), leaves)
        self.max_recorded_priority = state["max_recorded_priority"]
