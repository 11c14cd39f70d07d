"""A buffer of frames and vectors, for the tests of handing batches over."""

from gymnasium.spaces import Box, Dict, Discrete, Tuple

import diskreplay

FRAME = Box(0, 255, (4, 3), "uint8")
BOTH = Dict({"camera": FRAME, "rest": Tuple([Box(-9, 9, (2,)), Discrete(300)])})


def make(path=None, *, kind=diskreplay.ReplayBuffer, steps=90, **options):
    """A buffer whose transitions are told apart by their reward."""
    defaults = {
        "observation_space": BOTH, "action_space": Discrete(5), "capacity": 200, "stack_size": 3,
        "update_horizon": 2, "extras": {"mark": ((), "uint32")}, "seed": 0,
    }  # fmt: skip
    buffer = kind(path, **(defaults | options))
    space = buffer.observation_space
    space.seed(3)
    for step in range(steps):
        end = step % 10 == 9
        final = space.sample() if end else None
        buffer.add(space.sample(), step % 5, step, end, False, final, mark=step)
    buffer.flush()
    return buffer


def pairs(array, other):
    """Each array beside its counterpart, out of dicts and tuples of the same structure."""
    if isinstance(array, dict):
        assert list(array) == list(other)
        return [pair for key in array for pair in pairs(array[key], other[key])]
    if isinstance(array, tuple):
        assert isinstance(other, tuple)
        return [pair for two in zip(array, other, strict=True) for pair in pairs(*two)]
    return [(array, other)]
