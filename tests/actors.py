"""Steps whose content follows from their number, and a buffer for them; for actors of tests."""

import pickle

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay


def step_of(env, number, size=3):
    """The step of an env: what is in it follows from its number."""
    ends = number % 7 == 6
    return {
        "observation": np.full(size, 1000 * env + number, np.float32),
        "action": number % 5, "reward": float(number), "terminated": ends and number % 2 == 0,
        "truncated": ends and number % 2 == 1,
        "next_observation": np.full(size, -number, np.float32) if ends else None,
    }  # fmt: skip


def make(path, envs=2, *, kind=diskreplay.ReplayBuffer, **options):
    options = {
        "observation_space": Box(-9e9, 9e9, (3,), "float32"), "action_space": Discrete(5),
        "capacity": None, "num_envs": envs, "update_horizon": 2,
    } | options  # fmt: skip
    return kind(path, **options)


def note(path, writer):
    path.write_bytes(pickle.dumps(writer))
    return path
