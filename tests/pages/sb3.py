"""A DQN of SB3 trains on frames, is saved, and goes on with the same store."""

import contextlib

import numpy as np
import pytest
from gymnasium import Env
from gymnasium.spaces import Box, Discrete

CHANGED = {
    "buffer_size=1_000_000": "buffer_size=300", "10_000_000": "120", "1_000_000": "40",
    'make_atari_env("PongNoFrameskip-v4")': "DummyVecEnv([Frames])",
}  # fmt: skip


class Frames(Env):
    """Frames that say how many steps there were."""

    observation_space, action_space = Box(0, 255, (36, 36, 1), "uint8"), Discrete(3)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return np.full((36, 36, 1), self.steps % 256, np.uint8), {}

    def step(self, _action):
        self.steps += 1
        seen = np.full((36, 36, 1), self.steps % 256, np.uint8)
        return seen, 1.0, self.steps % 30 == 0, False, {}


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    yield (names := {"DummyVecEnv": DummyVecEnv, "Frames": Frames})
    assert names["model"].num_timesteps == 160
    assert names["model"].replay_buffer.size() == 160
    names["model"].replay_buffer.close()
