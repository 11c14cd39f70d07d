"""Sums and minima over ranges of leaves, as the Rainbow notebooks have them."""

from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.sampling.sum_tree import SumTree


def as_indices(name: str, given: Any) -> np.ndarray:
    """What was given as indices, as int64 with at least one axis.

    Raises
    ------
    AssertionError
        It holds no integers. A fraction, a flag or NaN would be taken for another index.
    """
    try:
        found = np.array(given, ndmin=1)
    except (ValueError, TypeError, OverflowError) as error:  # lists of different lengths, say
        raise AssertionError(f"{name}: integers expected, found {brief(given)}") from error
    if found.size and found.dtype.kind not in "iu":
        raise AssertionError(
            f"{name}: integers expected, found {brief(given)} of dtype {found.dtype}"
        )
    return found.astype(np.int64)


class _SegmentTree:
    """Leaves of float64, and one function of any range of them.

    Parameters
    ----------
    capacity : int
        Leaves; a power of two.

    Raises
    ------
    AssertionError
        `capacity` is no power of two.
    """

    _join: np.ufunc
    _empty: float
    leaves: np.ndarray

    def __init__(self, capacity: int) -> None:
        if capacity <= 0 or capacity & (capacity - 1):
            raise AssertionError(f"capacity: a power of two expected, found {brief(capacity)}")
        self.capacity = int(capacity)

    def __getitem__(self, idx: Any) -> Any:
        """A leaf, or an array of them for an array of indices.

        Raises
        ------
        AssertionError
            An index is outside, or no integer.
        """
        leaves = self.leaves[self._checked(idx)]
        return leaves if np.ndim(idx) else float(leaves[0])

    def _checked(self, idx: Any) -> np.ndarray:
        found = as_indices("index", idx)
        if len(found) and (found.min() < 0 or found.max() >= self.capacity):
            raise AssertionError(f"index: 0 to {self.capacity - 1} expected, found {brief(idx)}")
        return found

    @property
    def tree(self) -> np.ndarray:
        """The nodes of the original's binary tree, root at 1, leaf i at ``capacity + i``: a copy.
        O(capacity)."""
        levels = [self.leaves]
        while len(levels[0]) > 1:
            levels.insert(0, self._join(levels[0][::2], levels[0][1::2]))
        return np.concatenate([[self._empty], *levels])

    def operate(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity. O(leaves of
        the range)."""
        if end <= 0:
            end += self.capacity
        if not 0 <= start <= self.capacity or end > self.capacity:
            raise AssertionError(
                f"a range within 0 to {self.capacity} expected, found {start} to {end}"
            )
        return float(self._join.reduce(self.leaves[start : max(start, end)], initial=self._empty))


class SumSegmentTree(_SegmentTree):
    """Sums over ranges, and the leaf at a given part of the sum: other names for a `SumTree`.

    Attributes
    ----------
    weights : SumTree
    """

    _join, _empty = np.add, 0.0

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.weights = SumTree(self.capacity, track_min=True)

    @property
    def leaves(self) -> np.ndarray:  # type: ignore[override] # of the tree
        """A view of all leaves."""
        return self.weights.leaves

    def __setitem__(self, idx: Any, val: Any) -> None:
        """Set a leaf, or many: arrays of indices and values; the last of equal ones counts."""
        leaves = self._checked(idx)
        self.weights.set(leaves, np.broadcast_to(np.asarray(val, np.float64), leaves.shape))

    def sum(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity. O(1) for
        all of them."""
        return self.operate(start, end) if start or end else self.weights.total

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
        masses, total = np.asarray(upperbound, np.float64), self.weights.total
        if not total > 0:
            raise AssertionError("retrieve: every leaf is 0")
        if not ((masses >= 0) & (masses <= total + 1e-5)).all():
            raise AssertionError(f"upperbound: 0 to {total} expected, found {brief(upperbound)}")
        found = self.weights.find(np.minimum(masses, total))
        return found if np.ndim(upperbound) else int(found)


class MinSegmentTree(_SegmentTree):
    """Minima over ranges.

    Attributes
    ----------
    leaves : ndarray of float64, shape (capacity,)
    """

    _join, _empty = np.minimum, np.inf

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.leaves = np.full(self.capacity, np.inf)

    def __setitem__(self, idx: Any, val: Any) -> None:
        """Set a leaf, or many: arrays of indices and values; the last of equal ones counts."""
        self.leaves[self._checked(idx)] = val

    def min(self, start: int = 0, end: int = 0) -> float:
        """Of the leaves ``[start, end)``; an end of 0 or less counts from the capacity."""
        return self.operate(start, end)
