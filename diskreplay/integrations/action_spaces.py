"""Actions as Stable-Baselines3 hands them over."""

from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces


def dtype_of(actions: gym_spaces.Space[Any]) -> np.dtype:
    dtype: np.dtype = np.dtype(actions.dtype)
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def stored_action_space(space: gym_spaces.Space[Any], size: int) -> gym_spaces.Space[Any]:
    """Of actions as the framework hands them over: one array of `size` numbers."""
    dtype = dtype_of(space)
    if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
        return space
    if isinstance(space, gym_spaces.MultiBinary):
        return gym_spaces.MultiBinary(size)
    if dtype.kind == "f":  # scaled to this, whatever the bounds are
        return gym_spaces.Box(-1.0, 1.0, (size,), dtype)
    assert isinstance(space, gym_spaces.Box)  # the frameworks take no others
    return gym_spaces.Box(space.low.reshape(-1), space.high.reshape(-1), dtype=dtype)
