"""Batches as they cross from a shard to the learner."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from diskreplay.batch import Batch, FollowingStacks, WindowView, mapped
from diskreplay.store.stored_blocks import StoredBlocks


@dataclass(frozen=True, slots=True)
class BlockStacks:
    """Stacks whose frames are sent in blocks.

    Attributes
    ----------
    field : str
    following : bool
        Whether they are the next ones.
    """

    field: str
    following: bool


class PackedBatch(NamedTuple):
    """A batch with each frame of its windows once, as `Batch` is pickled, or in the blocks that it
    is stored in.

    Attributes
    ----------
    arrays : dict
        By name; arrays, or where in a window they are, or of which field's blocks.
    windows : dict of str to ndarray
        By field.
    blocks : dict of str to StoredBlocks
        By field.
    rows : ndarray of int64, shape (batch, 5)
        As a `Plan` has them, to read what is in blocks; None where nothing is.
    """

    arrays: dict[str, Any]
    windows: dict[str, np.ndarray]
    blocks: dict[str, StoredBlocks]
    rows: np.ndarray | None

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """What is sent of a batch, nothing of it in blocks."""
        _kind, arrays, windows = batch.__reduce__()[1]
        return cls(arrays, windows, {}, None)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        sizes = [window.nbytes for window in self.windows.values()]
        sizes += [blocks.nbytes for blocks in self.blocks.values()]
        sizes += [] if self.rows is None else [self.rows.nbytes]

        def count(leaf: Any) -> Any:
            if isinstance(leaf, FollowingStacks):
                sizes.append(leaf.stacks.nbytes)
            elif not isinstance(leaf, WindowView | BlockStacks):
                sizes.append(leaf.nbytes)

        mapped(count, self.arrays)
        return sum(sizes)
