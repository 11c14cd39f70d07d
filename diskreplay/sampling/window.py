"""The shape of the windows of a view: how long they are, and where they may lie."""

import math
import sys
from itertools import accumulate
from typing import NamedTuple

import numpy as np

ENDS = ("inside", "shift", "pad", "cross")
_INT64, _INT32, _FLOAT32, _BOOL = map(np.dtype, ("int64", "int32", "float32", "bool"))


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


class WindowPlan:
    """What a batch of windows consists of before anything is read from the store; N windows of T
    positions, of which L are the learning part.

    All arrays are views of one block of memory, made once: a plan of which nobody has any view that
    was `shown` can be filled again.

    Parameters
    ----------
    window : Window
    size : int
        N.
    stack : int
        Frames of a stack.

    Attributes
    ----------
    block : ndarray of uint8
    offsets : ndarray of int64
        Where in it each part begins, in the order of `window_kernels`.
    ids : ndarray of int64, shape (N, T)
        The row at each position, -1 where there is none.
    transitions : ndarray of int64, shape (N, T)
        The same, and -1 for final rows too.
    frames : ndarray of int64
        The rows whose frames are read: `ids` for a stack of 1, (N, T + stack - 1) where a window
        is of one episode, else (N, T, stack); -1 for zeros.
    state : ndarray of int64, shape (N,)
        The first valid row; -1 if that is no transition.
    to_go : ndarray of float32, shape (N, T)
        Returns to go, if the view has them.
    masks : ndarray of bool, shape (8, N, T)
        In the order of `window_kernels`.
    """

    def __init__(self, window: Window, size: int, stack: int) -> None:
        shape, learning = (size, window.positions), (size, window.length)
        frames: tuple[int, ...] = (0,)
        if stack > 1:
            frames = (*shape, stack) if window.crosses else (size, window.positions + stack - 1)
        parts = [
            (shape, _INT64), (shape, _INT64), (frames, _INT64), ((size,), _INT64),
            (shape, _INT32), (shape, _FLOAT32), (shape, _FLOAT32),
            (learning, _FLOAT32), (learning, _FLOAT32), (learning, _INT32), ((8, *shape), _BOOL),
        ]  # fmt: skip
        ends = list(accumulate((math.prod(of) * kind.itemsize for of, kind in parts), initial=0))
        self.offsets, self.block = np.array(ends), np.empty(ends[-1], np.uint8)
        (
            self.ids, self.transitions, self.frames, self.state, self.step, self.reward, self.to_go,
            self.returns, self.discount, self.target, self.masks,
        ) = (
            np.ndarray(of, kind, self.block, at)
            for (of, kind), at in zip(parts, ends, strict=False)
        )  # fmt: skip
        if stack == 1:
            self.frames = self.ids
        self._alone = sys.getrefcount(self.block)

    def shown(self) -> dict[str, np.ndarray]:
        """What a batch has of these, and of no field that is stored, see `SequenceBatch`: views of
        its own, whose shapes and flags may be set."""
        observed, transition, is_first, is_last, begin, learn, terminated, truncated = self.masks
        return {
            "reward": self.reward[:], "terminated": terminated, "truncated": truncated,
            "step": self.step[:], "observed": observed, "transition": transition,
            "is_first": is_first, "is_last": is_last, "is_terminal": terminated, "begin": begin,
            "learn": learn, "returns": self.returns[:], "discount": self.discount[:],
            "target": self.target[:], "id": self.ids[:], "returns_to_go": self.to_go[:],
        }  # fmt: skip

    @property
    def is_free(self) -> bool:
        """Whether nobody has anything that was `shown`: all of it, and each view of it, refers to
        the block."""
        return sys.getrefcount(self.block) == self._alone
