"""A wide sum tree: many weights, of which one is drawn in proportion to its size."""

import numpy as np

from diskreplay.errors import EmptyBufferError, InvalidInputError, PriorityError
from diskreplay.given_numbers import as_reals, whole

_MOST_LEAVES = 1 << 40
_FANOUT = 16  # as in `sum_tree_kernels`, which is not imported before it is needed


class SumTree:
    """Non-negative float64 leaves under sums of 16 children each.

    Parents are recomputed from their children and never adjusted by differences, so the sums
    cannot drift, and a leaf of zero can never be drawn. The idea of drawing from a sum tree is
    from Schaul et al., "Prioritized Experience Replay", 2016; a wide one touches fewer cache lines.

    Parameters
    ----------
    capacity : int
        Number of leaves, all zero at first.
    track_min : bool
        Whether `min` is always at hand, which makes `set` half as fast.

    Notes
    -----
    Not thread-safe by itself. All methods take and return arrays and hold no GIL while they work.
    Memory: 8 bytes a leaf, and 1/15 of that for sums, and for minima.

    Examples
    --------
    >>> import numpy as np
    >>> tree = SumTree(100)
    >>> tree.set([3, 7], [1.0, 3.0])
    >>> tree.total
    4.0
    >>> set(tree.sample(50, np.random.default_rng(0)).tolist())
    {3, 7}
    """

    def __init__(self, capacity: int, *, track_min: bool = False) -> None:
        capacity = whole("capacity", capacity, most=_MOST_LEAVES)
        from diskreplay.sampling import sum_tree_kernels  # Numba: loaded with the first tree

        self._kernels = sum_tree_kernels
        self.capacity = capacity
        sizes = [self.capacity]
        while sizes[-1] > 1 or len(sizes) == 1:
            sizes.append(-(-sizes[-1] // _FANOUT))
        sizes[:-1] = (-(-size // _FANOUT) * _FANOUT for size in sizes[:-1])
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.nodes = _aligned(int(self.starts[-1]))
        minima = self.starts[-1] - self.starts[1] if track_min else 0
        self.least = np.full(minima, np.inf)

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, total={self.total:g})"

    def __len__(self) -> int:
        return self.capacity

    @property
    def leaves(self) -> np.ndarray:
        """A view of the leaves, shape ``(capacity,)``; call `rebuild` after writing to it."""
        return self.nodes[: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all leaves. O(1)."""
        return float(self.nodes[-1])

    @property
    def min(self) -> float:
        """The smallest positive leaf, infinity if there is none.

        O(1) with `track_min`, else O(capacity): some milliseconds for a million.
        """
        if len(self.least):
            return float(self.least[-1])
        return float(self.leaves.min(where=self.leaves > 0, initial=np.inf))

    def set(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Set leaves.

        Parameters
        ----------
        indices : array_like of int
            In ``[0, capacity)``; where one occurs twice, its last value counts.
        values : array_like of float
            Finite and not negative; a single number is set at every index.

        Raises
        ------
        InvalidInputError
            An index is out of range, or the two differ in length. Nothing is changed.
        PriorityError
            A value is negative, NaN, infinite or beyond 1e297. Nothing is changed.
        """
        indices = self._checked(indices)
        values = as_reals("values", values, PriorityError)
        if values.ndim == 0:
            values = np.full(len(indices), values)
        values = _for_kernels(values)
        if len(values) != len(indices):
            raise InvalidInputError(f"{len(indices)} indices for {len(values)} values")
        bad = ~((values >= 0) & (values <= self._kernels.LARGEST_LEAF))  # NaN too
        if bad.any():
            at = int(bad.argmax())
            raise PriorityError(
                f"value {values[at]} at position {at}: finite and not negative expected"
            )
        self._kernels.tree_set(self.nodes, self.least, self.starts, indices, values)

    def get(self, indices: np.ndarray) -> np.ndarray:
        """A copy of leaves.

        Parameters
        ----------
        indices : array_like of int

        Returns
        -------
        ndarray of float64, in the shape of `indices`
        """
        return self.leaves[self._checked(indices)].reshape(np.shape(indices))

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draw leaves independently, each with probability leaf / total.

        Parameters
        ----------
        size : int
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of int64, shape (size,)

        Raises
        ------
        EmptyBufferError
            All leaves are zero.
        """
        return self.find(rng.random(size) * self.total)

    def stratified_sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draw one leaf from each of `size` equal parts of the total: same odds, less variance.

        Parameters
        ----------
        size : int
        rng : numpy.random.Generator

        Returns
        -------
        ndarray of int64, shape (size,)
            Not decreasing.

        Raises
        ------
        EmptyBufferError
            All leaves are zero.
        """
        shares = (np.arange(size) + rng.random(size)) / max(size, 1)
        return self.find(shares * self.total)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The leaves in whose share of the total these masses fall.

        Parameters
        ----------
        masses : array_like of float
            In ``[0, total]``. Leaf ``i`` has the masses from the sum of all leaves before it on;
            what rounding carries past the end falls to the last positive leaf.

        Returns
        -------
        ndarray of int64, in the shape of `masses`
            Never a leaf of zero.

        Raises
        ------
        EmptyBufferError
            All leaves are zero.
        InvalidInputError
            A mass is out of range.
        """
        if not self.total > 0:
            raise EmptyBufferError("every leaf is zero: nothing can be drawn")
        masses = as_reals("masses", masses, InvalidInputError)
        flat = masses.flatten()  # a copy: the kernel uses it up
        if not ((flat >= 0) & (flat <= self.total)).all():  # NaN too
            raise InvalidInputError(f"masses: numbers from 0 to {self.total} expected")
        out = np.empty(len(flat), np.int64)
        self._kernels.tree_find(self.nodes, self.starts, flat, out)
        return out.reshape(masses.shape)

    def put(self, indices: np.ndarray, values: np.ndarray) -> None:
        """As `set`, of arrays that were checked.

        Parameters
        ----------
        indices : ndarray of int64, shape (n,)
        values : ndarray of float64, shape (n,) or (1,)
            One value is that of all these leaves.
        """
        self._kernels.tree_set(self.nodes, self.least, self.starts, indices, values)

    def clear(self) -> None:
        """Set all leaves to zero."""
        self.nodes[:] = 0.0
        self.least[:] = np.inf

    def rebuild(self) -> None:
        """Recompute all sums from the leaves. O(capacity)."""
        self._recompute(self.nodes, self.least)

    def _recompute(self, nodes: np.ndarray, least: np.ndarray) -> None:
        """All parents: those above one leaf of each group of siblings."""
        leaves = np.arange(0, self.capacity, _FANOUT)
        self._kernels.tree_set(nodes, least, self.starts, leaves, np.empty(0))

    def check(self) -> None:
        """Verify every node against its children.

        Raises
        ------
        AssertionError
            A leaf is negative or not finite, or a sum is not that of its children.
        """
        if not (np.isfinite(self.leaves).all() and (self.leaves >= 0).all()):
            raise AssertionError("a leaf is negative or not finite")
        again, least = self.nodes.copy(), self.least.copy()
        self._recompute(again, least)
        for found, expected in ((self.nodes, again), (self.least, least)):
            if not np.array_equal(found, expected):
                at = int((found != expected).argmax())
                raise AssertionError(f"node {at}: {found[at]} found, {expected[at]} expected")

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices)
        if indices.size == 0:
            return np.empty(0, np.int64)
        if indices.dtype.kind not in "iu":
            raise InvalidInputError(f"indices: integers expected, found {indices.dtype}")
        flat = _for_kernels(indices.astype(np.int64, copy=False))
        bad = (flat < 0) | (flat >= self.capacity)
        if bad.any():
            raise InvalidInputError(
                f"index {flat[bad.argmax()]} is out of range: 0 to {self.capacity - 1} expected"
            )
        return flat


def _aligned(size: int) -> np.ndarray:
    """Zeros that begin where a line of the caches does, so that siblings are in two lines."""
    memory = np.zeros(size + 7, np.float64)
    skipped = -(memory.ctypes.data // 8) % 8
    return memory[skipped : skipped + size]


def _for_kernels(array: np.ndarray) -> np.ndarray:
    """The array flat and writable, a copy if it is not: for one that is read-only another kernel
    would be compiled, which takes a second."""
    return np.require(array.ravel(), requirements=("C", "W"))
