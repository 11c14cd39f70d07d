"""The buffer takes transitions of eight environments."""

import contextlib

import numpy as np
import pytest

CHANGED = {"1_000_000": "1_000"}


@contextlib.contextmanager
def around(_said):
    pytest.importorskip("tianshou")
    from tianshou.data import Batch

    yield (names := {})
    stacks, flags = np.zeros((8, 4, 84, 84), np.uint8), np.zeros(8, bool)
    for name in ("buffer", "stacks"):
        for _ in range(5):
            names[name].add(
                Batch(
                    obs=stacks, act=np.zeros(8, int), rew=np.zeros(8), terminated=flags,
                    truncated=flags, obs_next=stacks, info={},
                )
            )  # fmt: skip
        assert names[name].sample(4)[0].obs.shape == (4, 4, 84, 84)
    # Each of eight lanes has five rows, and those with the frames before its first.
    assert names["stacks"].disk.bounds[:, 1].tolist() == [4 + 5] * 8
    for name in ("buffer", "stacks"):
        names[name].close()
