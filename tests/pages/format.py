"""Zarr reads what was recorded."""

import contextlib

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay


@contextlib.contextmanager
def around(_said):
    with diskreplay.ReplayBuffer(
        "runs/pong/replay",
        observation_space=Box(0, 255, (8, 8), "uint8"),
        action_space=Discrete(4),
        capacity=100,
    ) as buffer:
        for step in range(50):
            buffer.add(np.full((8, 8), step, np.uint8), 0, 1.0, False, False)
    yield (names := {})
    assert names["frames"][:, 0, 0].tolist() == list(range(50))
