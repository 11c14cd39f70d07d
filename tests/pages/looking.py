"""Pages, sheets, films and charts of a run; the live page is served, asked once and ended."""

import contextlib

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("matplotlib")
    with diskreplay.PrioritizedReplayBuffer(
        "runs/pong/replay",
        observation_space=Box(0, 255, (16, 16), "uint8"),
        action_space=Discrete(4),
        capacity=1000,
    ) as buffer:
        for step in range(300):
            frame = np.full((16, 16), step % 256, np.uint8)
            buffer.add(frame, step % 4, 1.0, step % 20 == 19, False, frame)
    yield {}
