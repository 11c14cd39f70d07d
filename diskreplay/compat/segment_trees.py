"""Sums and minima over ranges of leaves, as the Rainbow notebooks have them."""

from typing import Any

import numpy as np

from diskreplay.compat import tree_kernels


class _SegmentTree:
    """A binary tree of float64 nodes: the root is ``tree[1]``, leaf i ``tree[capacity + i]``.

    Parameters
    ----------
    capacity : int
        Leaves; a power of two.

    Raises
    ------
    AssertionError
        `capacity` is no power of two.
    """

    _empty: float

    def __init__(self, capacity: int) -> None:
        if capacity <= 0 or capacity & (capacity - 1):
            raise AssertionError(f"capacity: a power of two expected, found {capacity!r}")
        self.capacity = int(capacity)
        self.tree = np.full(2 * self.capacity, self._empty)

    def __getitem__(self, idx: Any) -> Any:
        """A leaf, or an array of them for an array of indices. AssertionError outside."""
        leaves = self.tree[self.capacity + self._checked(idx)]
        return leaves if np.ndim(idx) else float(leaves[0])

    def __setitem__(self, idx: Any, val: Any) -> None:
        """Set a leaf, or many: arrays of indices and values; the last of equal ones counts."""
        leaves = self._checked(idx)
        values = np.empty(len(leaves))
        values[:] = val
        self._set(self.tree, leaves, values)

    def _checked(self, idx: Any) -> np.ndarray:
        leaves = np.array(idx, np.int64, ndmin=1)
        if tree_kernels.any_outside(leaves, self.capacity):
            raise AssertionError(f"index: 0 to {self.capacity - 1} expected, found {idx!r:.60}")
        return leaves

    def operate(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity."""
        if end <= 0:
            end += self.capacity
        if not 0 <= start <= self.capacity or end > self.capacity:
            raise AssertionError(
                f"a range within 0 to {self.capacity} expected, found {start} to {end}"
            )
        return self._within(start, end, 1, 0, self.capacity) if start < end else self._empty

    def _within(self, start: int, end: int, node: int, low: int, high: int) -> float:
        """Of the part of ``[start, end)`` below `node`, which is over ``[low, high)``."""
        if (start, end) == (low, high):
            return float(self.tree[node])
        middle = (low + high) // 2
        if end <= middle:
            return self._within(start, end, 2 * node, low, middle)
        if start >= middle:
            return self._within(start, end, 2 * node + 1, middle, high)
        return self._join(
            self._within(start, middle, 2 * node, low, middle),
            self._within(middle, end, 2 * node + 1, middle, high),
        )


class SumSegmentTree(_SegmentTree):
    """Sums over ranges, and the leaf at a given part of the sum."""

    _empty = 0.0
    _set = staticmethod(tree_kernels.set_sums)

    @staticmethod
    def _join(left: float, right: float) -> float:
        return left + right

    def sum(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity."""
        return self.operate(start, end)

    def retrieve(self, upperbound: Any) -> Any:
        """The leaf i with ``sum(0, i) <= upperbound < sum(0, i + 1)``.

        Parameters
        ----------
        upperbound : float or array_like of float

        Returns
        -------
        int or ndarray of int64
            Never a leaf of 0: the last positive one for the total itself.

        Raises
        ------
        AssertionError
            Not from 0 to the total, give or take 1e-5, or all leaves are 0.
        """
        masses = np.array(upperbound, np.float64, ndmin=1)
        total = self.tree[1]
        if not total > 0:
            raise AssertionError("retrieve: every leaf is 0")
        if not ((masses >= 0) & (masses <= total + 1e-5)).all():
            raise AssertionError(f"upperbound: 0 to {total} expected, found {upperbound!r:.60}")
        found = tree_kernels.find(self.tree, masses)
        return found if np.ndim(upperbound) else int(found[0])


class MinSegmentTree(_SegmentTree):
    """Minima over ranges."""

    _empty = np.inf
    _set = staticmethod(tree_kernels.set_minima)
    _join = staticmethod(min)

    def min(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity."""
        return self.operate(start, end)
