"""Batches as they cross from a shard to the learner."""

from typing import Any, NamedTuple, Self

import numpy as np

from diskreplay.batch import Batch, FollowingStacks, WindowView, mapped


class PackedBatch(NamedTuple):
    """A batch with each frame of its windows once, as `Batch` is pickled.

    Attributes
    ----------
    arrays : dict
        By name; arrays, or where in a window they are.
    windows : dict of str to ndarray
    """

    arrays: dict[str, Any]
    windows: dict[str, np.ndarray]

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """What is sent of a batch."""
        _kind, arrays, windows = batch.__reduce__()[1]
        return cls(arrays, windows)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        sizes = [window.nbytes for window in self.windows.values()]

        def count(leaf: Any) -> Any:
            if not isinstance(leaf, WindowView):
                sizes.append((leaf.stacks if isinstance(leaf, FollowingStacks) else leaf).nbytes)

        mapped(count, self.arrays)
        return sum(sizes)
