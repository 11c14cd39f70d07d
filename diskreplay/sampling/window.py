"""The shape of the windows of a view: how long they are, and where they may lie."""

import math
from itertools import accumulate
from typing import NamedTuple

import numpy as np

ENDS = ("inside", "shift", "pad", "cross")
_INT64, _INT32, _BOOL = map(np.dtype, ("int64", "int32", "bool"))
_FLOAT64, _FLOAT32 = np.dtype("float64"), np.dtype("float32")


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

    All arrays are views of one block of memory, made once, and so is each view of one of them.

    Parameters
    ----------
    window : Window
    size : int
        N.
    stack : int
        Frames of a stack.
    has_to_go : bool
        Whether the view has returns to go.

    Attributes
    ----------
    size : int
    block : ndarray of uint8
    table : ndarray of int64
        The addresses of its parts, and N, in the order of `window_kernels`.
    ids : ndarray of int64, shape (N, T)
        The row at each position, -1 where there is none.
    transitions : ndarray of int64, shape (N, T)
        The same, and -1 for final rows too.
    frames : ndarray of int64
        The rows whose frames are read: `ids` for a stack of 1, (N, T + stack - 1) where a window
        is of one episode, else (N, T, stack); -1 for zeros.
    transition_rows, frame_rows : ndarray of int64
        Both again, flat.
    state : ndarray of int64, shape (N,)
        The first valid row; -1 if that is no transition.
    anchor : ndarray of int64, shape (N,)
    probability : ndarray of float64, shape (N,)
    weight : ndarray of float32, shape (N,)
    to_go : ndarray of float32, shape (N, T)
        Returns to go, if the view has them.
    masks : ndarray of bool, shape (8, N, T)
        In the order of `window_kernels`.
    shown : dict of str to ndarray
        What all batches have of these, and of no field that is stored, see `SequenceBatch`.
    """

    def __init__(self, window: Window, size: int, stack: int, *, has_to_go: bool) -> None:
        self.size = size
        of_windows, shape, learning = (size,), (size, window.positions), (size, window.length)
        frames: tuple[int, ...] = (0,)
        if stack > 1:
            frames = (*shape, stack) if window.crosses else (size, window.positions + stack - 1)
        parts = [
            (shape, _INT64), (shape, _INT64), (frames, _INT64), (of_windows, _INT64),
            (of_windows, _INT64), (of_windows, _FLOAT64), (shape, _INT32), (shape, _FLOAT32),
            (shape, _FLOAT32), (learning, _FLOAT32), (learning, _FLOAT32), (learning, _INT32),
            (of_windows, _FLOAT32), ((8, *shape), _BOOL),
        ]  # fmt: skip
        ends = list(accumulate((math.prod(of) * kind.itemsize for of, kind in parts), initial=0))
        self.block = np.empty(ends[-1], np.uint8)
        self.table = self.block.ctypes.data + np.array(ends)
        self.table[-1] = size
        (
            self.ids, self.transitions, self.frames, self.state, self.anchor, self.probability,
            self.step, self.reward, self.to_go, self.returns, self.discount, self.target,
            self.weight, self.masks,
        ) = (
            np.ndarray(of, kind, self.block, at)
            for (of, kind), at in zip(parts, ends, strict=False)
        )  # fmt: skip
        if stack == 1:
            self.frames = self.ids
        self.transition_rows = self.transitions.reshape(-1)
        self.frame_rows = self.frames.reshape(-1)
        observed, transition, is_first, is_last, begin, learn, terminated, truncated = self.masks
        self.shown = {
            "reward": self.reward, "terminated": terminated, "truncated": truncated,
            "step": self.step, "observed": observed, "transition": transition,
            "is_first": is_first, "is_last": is_last, "is_terminal": terminated, "begin": begin,
            "learn": learn, "returns": self.returns, "discount": self.discount,
            "target": self.target, "id": self.ids, "anchor": self.anchor, "weight": self.weight,
            "probability": self.probability,
        }  # fmt: skip
        if has_to_go:
            self.shown["returns_to_go"] = self.to_go
