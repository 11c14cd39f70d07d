"""One array of an observation: how it comes, as a stack of frames, and how its frames are kept."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.errors import InvalidInputError
from diskreplay.validation import one_of

Padding = Literal["zero", "reset"]


class StackedLeaf:
    """The shape of one array of an observation, and where its frames lie in it.

    Parameters
    ----------
    name : str
        Its key in a Dict space; "" if the observation is this one array.
    space : gymnasium.Space
    shape : tuple of int
        That the framework's arrays have, without their first axis.
    stack : int
        So many frames are in an observation, the newest last.
    axis : {"auto", 0, -1}
        Along which of its axes they follow each other. "auto" is the one that can be divided so; of
        two such axes the shorter one, which an image has its channels in.

    Attributes
    ----------
    field : str
        The field of the store that has its frames.
    frame_space : gymnasium.Space
        Of one frame, for the store.
    frame_shape : tuple of int
    newest_of_one : tuple or None
        The index of the newest frame in an array ``(1, *shape)``; None if it takes more than one.

    Raises
    ------
    InvalidInputError
        The observation cannot consist of so many frames.
    """

    def __init__(
        self, name: str, space: gym_spaces.Space[Any], shape: tuple[int, ...], stack: int,
        axis: Literal["auto", 0, -1] | int,
    ) -> None:  # fmt: skip
        self.name, self.shape, self.stack = name, tuple(shape), stack
        self.field = f"observation/{name}" if name else "observation"
        self.dtype = np.dtype(space.dtype)
        self.axis = 0
        self.newest_of_one: tuple[Any, ...] | None = None
        if stack == 1:
            self.frame_space = space
            self.frame_shape = tuple(space.shape or ())
            if self.frame_shape == self.shape:
                self.newest_of_one = (0,)
            return
        self.axis = self._frame_axis(axis)
        length = self.shape[self.axis] // stack
        rest = self.shape[1:] if self.axis == 0 else self.shape[:-1]
        each = (length,) if length > 1 or not rest else ()
        self.frame_shape = (*each, *rest) if self.axis == 0 else (*rest, *each)
        assert isinstance(space, gym_spaces.Box)
        low, high = space.low.min(), space.high.max()
        self.frame_space = gym_spaces.Box(low, high, self.frame_shape, self.dtype)
        self._length = length
        if self.axis == 0:
            self.newest_of_one = (0, slice(-length, None)) if each else (0, -1)

    def _frame_axis(self, axis: Any) -> int:
        where = f"frame_stack={self.stack}: {self.name or 'the observation'} of shape {self.shape}"
        one_of("frame_axis", axis, ("auto", 0, -1))
        candidates = [a for a in (0, -1) if self.shape and self.shape[a] % self.stack == 0]
        if axis != "auto":
            candidates = [a for a in candidates if a == axis]
        if not candidates:
            raise InvalidInputError(
                f"{where} is no stack of {self.stack} frames along axis {axis}; give the number of "
                "frames that an observation has, or frame_stack=1"
            )
        return min(candidates, key=lambda a: self.shape[a])

    @property
    def shown(self) -> str:
        """Its key, in messages."""
        return f"[{self.name!r}]" if self.name else ""

    # -- what comes

    def fitted(self, observations: Any, num_envs: int) -> np.ndarray:
        """Observations as an array ``(num_envs, *shape)`` of the leaf's dtype; no copy if it is
        one already. Cast as NumPy's assignment does."""
        array = np.asarray(observations)
        if array.dtype != self.dtype:
            array = array.astype(self.dtype)
        shape = (num_envs, *self.shape)
        return array if array.shape == shape else array.reshape(shape)

    def newest(self, observations: np.ndarray) -> np.ndarray:
        """The newest frame of each observation, ``(num_envs, *frame_shape)``; a view."""
        if self.stack > 1:
            if self.axis == 0:
                observations = observations[:, -self._length :]
            else:
                observations = observations[..., -self._length :]
        return observations.reshape(len(observations), *self.frame_shape)

    def _split(self, observations: np.ndarray) -> np.ndarray:
        """As ``(num_envs, stack, ...)``, oldest frame first; a view."""
        count, shape = len(observations), self.shape
        if self.axis == 0:
            return observations.reshape(count, self.stack, -1, *shape[1:])
        split = observations.reshape(count, *shape[:-1], self.stack, -1)
        return np.moveaxis(split, -2, 1)

    def slides(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether the older frames of `after` are the newer ones of `before`; bool (num_envs,)."""
        if self.stack == 1:
            return np.ones(len(before), np.bool_)
        return same(self._split(before)[:, 1:], self._split(after)[:, :-1])

    def padded(self, observations: np.ndarray, padding: Padding) -> np.ndarray:
        """Whether what comes before the newest frame are zeros, or that frame; bool (num_envs,)."""
        if self.stack == 1:
            return np.ones(len(observations), np.bool_)
        frames = self._split(observations)
        older, newest = frames[:, :-1], frames[:, -1:]
        wanted = np.zeros_like(older) if padding == "zero" else np.broadcast_to(newest, older.shape)
        return same(older, wanted)

    # -- what is given

    def split(self, observations: np.ndarray) -> np.ndarray:
        """All frames of observations, ``(num_envs, stack, *frame_shape)``, oldest first."""
        frames = self._split(observations) if self.stack > 1 else observations
        return frames.reshape(len(observations), self.stack, *self.frame_shape)

    def joined(self, frames: np.ndarray) -> np.ndarray:
        """Observations of frames ``(batch, stack, *frame_shape)``: a view for ``axis=0``."""
        shape = (len(frames), *self.shape)
        if self.stack == 1 or self.axis == 0:
            return frames.reshape(shape)
        frames = frames.reshape(len(frames), self.stack, *self.shape[:-1], self._length)
        return np.moveaxis(frames, 1, -2).reshape(shape)


def same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether the arrays agree bit for bit in each of their first axis; bool (len,).

    As bytes, which compare faster than numbers and know NaN.
    """
    if one.tobytes() == other.tobytes():
        return np.ones(len(one), np.bool_)
    if len(one) == 1:
        return np.zeros(1, np.bool_)
    return np.array([a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)])


def padding_of(
    declared: Literal["auto", "zero", "reset"], leaves: Sequence[StackedLeaf],
    first: list[np.ndarray] | None,
) -> Padding:  # fmt: skip
    """What stands before the newest frame at the beginning: as declared, or as it is seen."""
    if declared != "auto":
        return declared
    for leaf, observations in zip(leaves, first or [], strict=False):
        if leaf.stack > 1 and not leaf.padded(observations, "zero").all():
            return "reset"
    return "zero"
