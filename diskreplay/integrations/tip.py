"""What the newest transitions led to: in memory until the next ones show how it goes on."""

import math

import numpy as np

from diskreplay.integrations.stack_kernels import goes_on
from diskreplay.integrations.stacked_leaf import StackedLeaf, same

_WORDS = np.dtype(np.int64)
_MANY_WORDS = 128  # less is compared sooner without a kernel


class Tip:
    """One array of the observations that the newest transition of each env led to.

    Frames of a stack are kept in a ring with one place more than it has frames. So what comes next
    is one new frame each, and a step that is refused has changed nothing.
    """

    def __init__(self, leaf: StackedLeaf, num_envs: int) -> None:
        self._leaf = leaf
        frame = math.prod(leaf.frame_shape) * leaf.dtype.itemsize
        fits = leaf.axis == 0 and frame % 8 == 0 and frame >= 8 * _MANY_WORDS
        self._whole = None if fits else np.zeros((num_envs, *leaf.shape), leaf.dtype)
        # The oldest frame is at `_oldest`, the newest `stack - 1` places on; the next one is free.
        self._places, self._oldest = leaf.stack + 1, 0
        ring = (num_envs, self._places) if fits else (0, 0)
        self._frames = np.zeros((*ring, *leaf.frame_shape), leaf.dtype)
        self._words, self._frame = self._frames.reshape(-1).view(_WORDS), frame // 8

    @property
    def array(self) -> np.ndarray:
        """The observations, shape (num_envs, *leaf.shape); a copy, or not to be written to."""
        if self._whole is not None:
            return self._whole
        order = (self._oldest + np.arange(self._leaf.stack)) % self._places
        return self._leaf.joined(self._frames[:, order])

    @property
    def newest(self) -> np.ndarray:
        """Their newest frames, shape (num_envs, *leaf.frame_shape); not to be written to."""
        if self._whole is not None:
            return self._leaf.newest(self._whole)
        return self._frames[:, self._oldest - 2]

    def goes_on(self, seen: np.ndarray, following: np.ndarray) -> bool:
        """Whether all envs go on from here: `seen` is this, bit for bit, and the older frames of
        `following` are the newer ones of `seen`. Both are of the leaf's dtype."""
        if self._whole is None:
            try:
                one, other = np.frombuffer(seen, _WORDS), np.frombuffer(following, _WORDS)
            except ValueError:  # not contiguous
                pass
            else:
                if one.flags.carray and other.flags.carray:  # what the kernel is compiled for
                    words, frame = self._words, self._frame
                    return goes_on(words, one, other, frame, self._places, self._oldest) != 0
        if seen.tobytes() != self.array.tobytes():
            return False
        if self._leaf.stack > 1 and not self._leaf.slides(seen, following).all():
            return False
        if self._whole is None:
            self._frames[:, self._oldest - 1] = self._leaf.newest(following)
        return True

    def move_on(self, following: np.ndarray) -> None:
        """Have what a step led to, of which `goes_on` was just asked, and said yes."""
        if self._whole is not None:
            self._whole[...] = following
        else:  # its newest frame is in the free place
            oldest = self._oldest + 1
            self._oldest = 0 if oldest == self._places else oldest

    def put(self, following: np.ndarray) -> None:
        """Have other observations, shape (num_envs, *leaf.shape)."""
        if self._whole is not None:
            self._whole[...] = following
        else:
            self._oldest = 0
            self._frames[:, :-1] = self._leaf.split(following)

    def of_envs(self, seen: np.ndarray) -> np.ndarray:
        """The envs of which `seen` is this; bool of shape (num_envs,)."""
        return same(seen, self.array)

    def load(self, saved: np.ndarray) -> None:
        """Go on from what was saved, if there was something."""
        if saved.size:
            self.put(saved.reshape(-1, *self._leaf.shape))
