"""Memory of batches that nobody looks at any more, for those that are read next."""

import math

import numpy as np

from diskreplay.batch import WindowMemory

_MOST_BYTES = 64 << 20  # more is no batch, and not kept


class ReadMemory:
    """Arrays to read into, each with room for so many of a batch, which are used again.

    A batch of frames is so large that the C library fetches fresh pages for it each time, which may
    take longer than to fill them. An array is free again when nobody has a view of it; the last
    three are remembered.
    """

    def __init__(self, arrays: int = 1) -> None:
        self._kept, self._most = WindowMemory(), arrays * _MOST_BYTES

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array that nobody else has, with anything in it."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._most:
            return np.empty(shape, dtype)
        kept = self._kept.take()
        if "" not in kept or kept[""].nbytes < size:
            kept[""] = np.empty(size, np.uint8)
        self._kept.give(kept)
        return kept[""][:size].view(dtype).reshape(shape)
