"""Goals are relabelled, and rewards computed anew."""

import contextlib

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

CHANGED = {"40, burn_in=10": "5"}


class Reach:
    """An environment whose goal is a place."""

    def __init__(self):
        self.unwrapped = self

    @staticmethod
    def compute_reward(achieved, desired, _info):
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.5).astype(np.float32)


def check_transitions(names):
    batch = names["batch"]
    assert batch.relabelled.sum() == 204
    assert (batch.reward[batch.relabelled] == 0).sum() > 20


def check_windows(names):
    batch = names["batch"]
    assert batch.relabelled.sum() == 51
    assert (batch.reward[batch.relabelled] == 0).sum() > 20


CHECKS = {"view = buffer.hindsight(": check_transitions, "view.hindsight(": check_windows}


@contextlib.contextmanager
def around(_said):
    goal = Box(-9, 9, (2,), "float32")
    space = Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    with diskreplay.ReplayBuffer(
        "runs/replay", observation_space=space, action_space=Discrete(4), capacity=None
    ) as buffer:
        for i in range(100):
            seen = dict.fromkeys(space, np.full(2, i % 10, np.float32))
            buffer.add(seen, 0, -1.0, False, i % 10 == 9, next_observation=seen)
        yield {"buffer": buffer, "env": Reach()}
