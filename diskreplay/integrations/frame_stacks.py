"""Observations that are stacks of frames: where these lie, and whether the buffer stacks alike.

A buffer stores each frame once and makes stacks of them when sampling. An agent that acts on other
stacks learns from observations that it never saw. So what a recorder can know is compared, and
refused where it differs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError, SchemaError
from diskreplay.integrations.environments import attribute
from diskreplay.stored_space import StoredSpace
from diskreplay.validation import one_of

_NEVER_SEEN = "the agent would learn from stacks that it never saw"
_WHOLE = (
    "to store whole stacks, make the buffer with the environment's observation space and "
    "stack_size=1"
)


class FrameStacks:
    """The stacks that an environment shows, beside those that a buffer makes.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
    found : gymnasium.Space
        The observation space of one env.
    buffer : ReplayBuffer
    frame_axis : {"auto", None, 0, -1}
        As for the recorders.

    Attributes
    ----------
    axes : list of int or None
        For each leaf of the buffer's observation space the axis of the environment's that has its
        frames, 0 or -1; None: it is one frame.

    Raises
    ------
    InvalidInputError
        `frame_axis` must be said, or is none of these.
    SchemaError
        The spaces do not fit, or the stacks would differ.
    """

    def __init__(
        self,
        env: Any,
        found: gym_spaces.Space[Any],
        buffer: ReplayBuffer,
        frame_axis: str | int | None,
    ) -> None:
        self.axes = _frame_axes(found, buffer.observation_space, frame_axis)
        self._repeats = buffer.stack_padding == "reset"
        leaves = {n: shape for n, shape, _dtype in StoredSpace.of(found, "observation").leaves}
        self._names = StoredSpace.of(buffer.observation_space, "observation").names
        paddings = attribute(env, "padding_type")  # of a FrameStackObservation
        for name, axis in zip(self._names, self.axes, strict=True):
            length = None if axis is None else leaves[name][axis]
            if length not in (None, buffer.stack_size):
                raise SchemaError(
                    f"the environment shows stacks of {length} frames of {name}, of which the "
                    f"newest is stored, and the buffer makes stacks of {buffer.stack_size}: "
                    f"{_NEVER_SEEN}; make the buffer with stack_size={length}, or {_WHOLE}"
                )
        if self.axes.count(None) < len(self.axes):
            for padding in paddings:
                if padding in ("zero", "reset") and padding != buffer.stack_padding:
                    self._refuse(f"FrameStackObservation has padding_type={padding!r}")
        elif paddings and buffer.stack_size > 1 and frame_axis == "auto":
            raise SchemaError(
                f"the environment shows stacks of frames, and the buffer makes stacks of "
                f"{buffer.stack_size} of such stacks: {_NEVER_SEEN}; make the buffer with the "
                "observation space of one frame, or with stack_size=1"
            )

    def check_first(self, parts: Sequence[Any], begun: np.ndarray | None = None) -> None:
        """Refuse the first observations of episodes, by a `SchemaError`, if the buffer would make
        others. The leaves have an env axis if there is `begun`, the envs whose episode begins with
        them."""
        for name, part, axis in zip(self._names, parts, self.axes, strict=True):
            if axis is None:
                continue
            stacks = np.asarray(part)
            stacks = stacks[None] if begun is None else stacks[begun]
            stacks = np.moveaxis(stacks, -1 if axis else 1, 1)
            older, newest = stacks[:, :-1], stacks[:, -1:]
            repeated = np.broadcast_to(newest, older.shape)
            wanted = repeated if self._repeats else np.zeros_like(older)
            if np.array_equal(older, wanted, equal_nan=True):
                continue
            start = f"in an episode's first stack of {name} there"
            if not older.any():
                self._refuse(f"{start} are zeros before the newest frame")
            if np.array_equal(older, repeated, equal_nan=True):
                self._refuse(f"{start} is its newest frame in place of older ones")
            raise SchemaError(
                f"{start} are older frames, neither zeros nor the newest one again, and the "
                f"buffer's stacks never go back behind an episode's first observation: "
                f"{_NEVER_SEEN}; stack the frames outside of the wrapper that steps in `reset`, "
                f"and inside of one that resets in `step` (Autoreset), or {_WHOLE}"
            )

    def _refuse(self, what: str) -> None:
        mine, other = ("reset", "zero") if self._repeats else ("zero", "reset")
        raise SchemaError(
            f"{what}, and the buffer has stack_padding={mine!r}: {_NEVER_SEEN}; make the buffer "
            f"with stack_padding={other!r}, or the environment with "
            f"FrameStackObservation(..., padding_type={mine!r})"
        )


def _frame_axes(
    found: gym_spaces.Space[Any], expected: gym_spaces.Space[Any], frame_axis: str | int | None
) -> list[int | None]:
    """For each leaf of `expected` the axis of `found` that has its frames; None: it is one."""
    one_of("frame_axis", frame_axis, ("auto", None, 0, -1))
    where = f"the environment's observation space is {found}, the buffer's {expected}"
    leaves, frames = (
        {n: (shape, dtype) for n, shape, dtype in StoredSpace.of(space, "observation").leaves}
        for space in (found, expected)
    )
    if leaves.keys() != frames.keys():
        raise SchemaError(f"{where}: {list(frames)} expected, found {list(leaves)}")
    axes: list[int | None] = []
    for name, (shape, dtype) in frames.items():
        stack, found_dtype = leaves[name]
        candidates: list[int | None] = [None] if stack == shape else []
        if len(stack) == len(shape) + 1:
            candidates = [
                axis for axis in (0, -1) if np.delete(stack, axis).tolist() == list(shape)
            ]
        if frame_axis != "auto":
            candidates = [axis for axis in candidates if axis in (None, frame_axis)]
        if len(stack) == 1:
            candidates = candidates[:1]  # its first axis is its last one
        integers = found_dtype.kind in "iu" and dtype.kind in "iuf"  # taken where each value fits
        if not candidates or not (integers or np.can_cast(found_dtype, dtype, "same_kind")):
            raise SchemaError(
                f"{where}: with frame_axis={frame_axis!r}, {name} of shape {stack} and dtype "
                f"{found_dtype} is neither a frame of shape {shape} and dtype {dtype} nor a stack"
            )
        if len(candidates) > 1:
            raise InvalidInputError(
                f"{where}: the frames of {name} may lie along the first axis or the last one; say "
                "frame_axis=0 or frame_axis=-1"
            )
        axes += candidates
    if frame_axis in (0, -1) and set(axes) == {None}:
        raise SchemaError(f"{where}: no stack of frames, which frame_axis={frame_axis} says")
    return axes
