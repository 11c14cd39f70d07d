"""What the newest transitions led to: in memory until the next ones show how it goes on."""

import math

import numpy as np

from diskreplay.integrations.stack_kernels import goes_on
from diskreplay.integrations.stacked_leaf import StackedLeaf, same

_WORDS = np.dtype(np.int64)
_MANY_WORDS = 128  # less is compared sooner without a kernel


class Tip:
    """One array of the observations that the newest transition of each env led to.

    Parameters
    ----------
    leaf : StackedLeaf
    num_envs : int

    Attributes
    ----------
    array : ndarray, shape (num_envs, *leaf.shape)
    """

    def __init__(self, leaf: StackedLeaf, num_envs: int) -> None:
        self._leaf = leaf
        self.array = np.zeros((num_envs, *leaf.shape), leaf.dtype)
        frame = math.prod(leaf.frame_shape) * leaf.dtype.itemsize
        fits = leaf.axis == 0 and frame % 8 == 0 and frame >= 8 * _MANY_WORDS
        self._words = self.array.reshape(-1).view(_WORDS) if fits else None
        self._frame, self._stack = frame // 8, frame // 8 * leaf.stack

    def goes_on(self, seen: np.ndarray, following: np.ndarray) -> bool:
        """Whether all envs go on from here: `seen` is this, bit for bit, and the older frames of
        `following` are the newer ones of `seen`.

        Parameters
        ----------
        seen, following : ndarray of the leaf's dtype, shape (num_envs, *leaf.shape)
        """
        words = self._words
        if words is not None:
            try:
                one, other = np.frombuffer(seen, _WORDS), np.frombuffer(following, _WORDS)
            except ValueError:  # not contiguous
                pass
            else:
                if one.flags.carray and other.flags.carray:  # what the kernel is compiled for
                    return goes_on(words, one, other, self._frame, self._stack) != 0
        if seen.tobytes() != self.array.tobytes():
            return False
        return self._leaf.stack == 1 or bool(self._leaf.slides(seen, following).all())

    def of_envs(self, seen: np.ndarray) -> np.ndarray:
        """The envs of which `seen` is this; bool of shape (num_envs,)."""
        return same(seen, self.array)

    def load(self, saved: np.ndarray) -> None:
        """Go on from what was saved, if there was something."""
        if saved.size:
            self.array[...] = saved.reshape(self.array.shape)
