"""A sheet of a game's frames; that the page's runs go on is for tests/test_resuming_guide.py."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("matplotlib")
    with diskreplay.ReplayBuffer(
        "runs/pong/replay",
        observation_space=Box(0, 255, (84, 84), "uint8"),
        action_space=Discrete(6),
        capacity=1000,
    ) as buffer:
        for step in range(100):
            frame = np.full((84, 84), step, np.uint8)
            buffer.add(frame, step % 6, 0.0, step % 30 == 29, False, frame)
        buffer.save("runs/pong/checkpoints", 75_000)
    yield {}
    assert Path("pong_frames.png").exists()
