"""The shape of the windows of a view: how long they are, and where they may lie."""

from typing import NamedTuple

import numpy as np

ENDS = ("inside", "shift", "pad", "cross")


class Window(NamedTuple):
    """What `ReplayBuffer.sequences` was asked for, as far as it says which windows there are and
    what is in them. Checked there."""

    length: int
    burn_in: int
    ahead: int
    stride: int
    ends: str
    n_step: int
    arrival: bool
    finished: bool

    @property
    def positions(self) -> int:
        """Rows of a window, those before and behind the learning part included."""
        return self.burn_in + self.length + self.ahead

    @property
    def crosses(self) -> bool:
        """Whether it may hold rows of several episodes."""
        return self.ends == "cross"

    def figures(self, *, repeat_first: bool) -> np.ndarray:
        """As the kernels take it; `repeat_first`: what stacks show before an episode's start."""
        return np.array(
            [
                self.burn_in, self.length, self.ahead, self.n_step, self.stride,
                ENDS.index(self.ends), self.arrival, self.finished, repeat_first,
            ],
            np.int64,
        )  # fmt: skip


class WindowPlan(NamedTuple):
    """What a batch of windows consists of before anything is read from the store; N windows of T
    positions, of which L are the learning part.

    Attributes
    ----------
    ids : ndarray of int64, shape (N, T)
        The row at each position, -1 where there is none.
    transitions : ndarray of int64, shape (N, T)
        The same, and -1 for final rows too.
    frames : ndarray of int64
        The rows whose frames are read: `ids` for a stack of 1, (N, T + stack - 1) where a window
        is of one episode, else (N, T, stack); -1 for zeros.
    state : ndarray of int64, shape (N,)
        The first valid row; -1 if that is no transition.
    step : ndarray of int32, shape (N, T)
    reward : ndarray of float32, shape (N, T)
    masks : ndarray of bool, shape (8, N, T)
        In the order of `window_kernels`.
    returns, discount : ndarray of float32, shape (N, L)
    target : ndarray of int32, shape (N, L)
    """

    ids: np.ndarray
    transitions: np.ndarray
    frames: np.ndarray
    state: np.ndarray
    step: np.ndarray
    reward: np.ndarray
    masks: np.ndarray
    returns: np.ndarray
    discount: np.ndarray
    target: np.ndarray
