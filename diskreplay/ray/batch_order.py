"""Where the transitions of the parts of some batches stand in them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


class BatchOrder:
    """Where the transitions of some parts stand in some batches: of each batch those of the first
    part, then those of the second one.

    Parameters
    ----------
    owners : sequence of ndarray of int64
        Of each part, which batch each transition is of; they never fall. No batch is empty, but for
        a single one.
    count : int
        Of batches.

    Attributes
    ----------
    bounds : ndarray of int64, shape (parts, count + 1)
        Where each batch begins and ends in each part.
    starts : ndarray of int64, shape (count + 1,)
        Where each batch begins and ends, one behind the other.
    """

    def __init__(self, owners: Sequence[np.ndarray], count: int) -> None:
        self.count, batches = count, np.arange(count + 1)
        self.bounds = np.stack([np.searchsorted(each, batches) for each in owners])
        self.starts = self.bounds.sum(axis=0)
        self._order = np.argsort(np.concatenate(owners), kind="stable")
        self._places = np.empty_like(self._order)
        self._places[self._order] = np.arange(len(self._order))
        self._parts = np.cumsum([0, *map(len, owners)])

    @property
    def sizes(self) -> np.ndarray:
        """Transitions of each batch."""
        return np.diff(self.starts)

    def rows(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Of each part an array: all batches, one behind the other; a copy."""
        return np.concatenate(parts)[self._order]

    def places(self, part: int, rows: np.ndarray) -> np.ndarray:
        """Where these of a part stand, in all batches one behind the other."""
        return self._places[self._parts[part] + rows]

    def cut(self, array: np.ndarray) -> list[np.ndarray]:
        """What `rows` gave, by batch; views."""
        starts = self.starts.tolist()
        return [array[low:high] for low, high in pairwise(starts)]

    def joined(
        self, parts: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """Of each part an array: those of each batch, copied, each in memory of its own, or into
        what is given for it."""
        bounds, found = self.bounds.T.tolist(), []
        for (lows, highs), room in zip(pairwise(bounds), out or [None] * self.count, strict=True):
            mine = [
                array[low:high]
                for array, low, high in zip(parts, lows, highs, strict=True) if low < high
            ]  # fmt: skip
            found.append(np.concatenate(mine, out=room))
        return found
