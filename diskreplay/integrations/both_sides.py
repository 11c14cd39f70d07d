"""What agents saw and what it led to: of stacks, nearly the same frames, to be read once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np


class BothSides(threading.local):
    """The frames of the transitions of a batch, for as long as a block that asks for both sides.

    Each thread has its own. Outside of such a block everybody gets memory of their own.
    """

    _windows: dict[int, tuple[tuple[bytes, bytes], np.ndarray]] | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within, frames that both observations of a transition have in common are read once.

        That is for a batch whose both sides are asked for in the same slots. Both are views of one
        array then, so this is for code that copies them before anybody may write to them. Nothing
        of it outlasts the block.
        """
        self._windows = {}
        try:
            yield
        finally:
            self._windows = None

    @property
    def is_reading(self) -> bool:
        """Whether this thread is in such a block."""
        return self._windows is not None

    def windows(
        self, leaf_at: int, slots: np.ndarray, envs: np.ndarray, read: Callable[[], np.ndarray]
    ) -> np.ndarray:
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
