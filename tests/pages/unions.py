"""Shares of members are those that were asked for, and a saved union draws the same again."""

import contextlib

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay


def record(path, start):
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (3,), np.uint8), action_space=Discrete(4), capacity=500
    )
    for i in range(start, start + 200):
        buffer.add(np.full(3, i % 256, np.uint8), 0, i, i % 50 == 49, False)
    return buffer


def check_shares(names):
    counts = np.bincount(names["members"])
    assert counts[0] == 128
    assert counts[1] in (76, 77)
    assert counts.sum() == 256


def check_the_saved_union(names):
    again, wanted = names["union"].sample(64), names["batch"]
    np.testing.assert_array_equal(again.id, wanted.id)
    np.testing.assert_array_equal(again.weight, wanted.weight)


CHECKS = {"union.locate(": check_shares, "union.load(": check_the_saved_union}


@contextlib.contextmanager
def around(_said):
    record("runs/expert/replay", 1000).close()
    with record("runs/b/replay", 2000) as other:
        other.save("runs/b/checkpoints", 7)
    with record("runs/a/replay", 0) as buffer:
        yield (names := {"buffer": buffer, "np": np, "diskreplay": diskreplay})
        names["union"].close()
