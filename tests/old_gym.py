"""An environment with the calls that gym once had."""

from types import SimpleNamespace

import numpy as np
from gymnasium.spaces import Discrete


class Enough(Exception):
    """Ends a loop that would not end."""


class OldEnv:
    """Its observations count the steps. There are 60 in all, and `episode` in an episode."""

    num_frames, action_space, ep = 4, Discrete(3), 0
    spec = SimpleNamespace(max_episode_steps=60)

    def __init__(self, shape, episode=7):
        self.shape, self.episode, self.taken = shape, episode, 0

    def reset(self):
        self.ep += 1
        return np.full(self.shape, self.taken, np.uint8)

    def step(self, _action):
        self.taken += 1
        if self.taken > 60:
            raise Enough
        done = self.taken % self.episode == self.episode - 1
        return np.full(self.shape, self.taken, np.uint8), 1.0, done, {}
