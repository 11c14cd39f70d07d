"""What agents saw and what it led to: where both are stacks, nearly the same frames, to be read
once."""

import threading
from collections.abc import Callable

import numpy as np

from diskreplay.integrations.read_memory import ReadMemory

Frames = tuple[np.ndarray, int]


class BothSides(threading.local):
    """The frames of the transitions of a batch, for as long as a block that asks for both sides.

    A context manager: within, frames that both observations of a transition have in common are read
    once. That is for a batch whose both sides are asked for in the same slots. Both are views of
    one array then, so this is for code that copies them before anybody may write to them. That
    array is used again when nobody has a view of it any more.

    Each thread has its own. Outside of such a block everybody gets memory of their own.
    """

    def __init__(self) -> None:
        self._windows: dict[int, tuple[tuple[bytes, bytes], Frames]] | None = None
        self._memory = ReadMemory()

    def __enter__(self) -> None:
        self._windows = {}

    def __exit__(self, *_exception: object) -> None:
        self._windows = None

    @property
    def is_reading(self) -> bool:
        """Whether this thread is in such a block."""
        return self._windows is not None

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array to read into."""
        if self._windows is None:
            return np.empty(shape, dtype)
        return self._memory.room(shape, dtype)

    def windows(
        self, leaf_at: int, slots: np.ndarray, envs: np.ndarray, read: Callable[[], Frames]
    ) -> Frames:
        """The frames of one leaf in these slots: those of before, or what `read` gives now."""
        assert self._windows is not None
        asked = slots.tobytes(), envs.tobytes()  # of a batch's length: compared soonest so
        if leaf_at in self._windows:
            known, windows = self._windows[leaf_at]
            if known == asked:
                return windows
        windows = read()
        self._windows[leaf_at] = asked, windows
        return windows
