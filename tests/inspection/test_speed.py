"""The bench: what is measured, not how fast."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.inspection import speed


@pytest.fixture
def path(tmp_path):
    space = Dict({"camera": Box(0, 255, (8, 8), np.uint8), "joints": Box(-1, 1, (3,), np.float32)})
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=space, action_space=Discrete(2), capacity=200,
        stack_size=2, batch_size=5,
    ) as buffer:  # fmt: skip
        for _ in range(50):
            buffer.add(space.sample(), 0, 1.0, False, False)
    return tmp_path / "replay"


def test_bytes_of_nested_batches(path):
    found = speed.bench(path, seconds=0)
    frames = 2 * (2 * (8 * 8 + 3 * 4))  # observation and next, two of each in a stack
    rest = 8 + 4 + 4 + 1 + 1 + 4 + 8 + 4 + 8  # action, reward, discount, flags, steps, id, ...
    assert (found.batch_size, found.batch_bytes) == (5, 5 * (frames + rest))
    assert found.warm.batches == 1
    assert speed.bench(path, batch_size=7, seconds=0).batch_size == 7


@pytest.mark.parametrize("reads", [True, False])
def test_cold_only_if_the_disk_was_read(path, monkeypatch, reads):
    calls = []

    class Usage:
        def __init__(self):
            calls.append(self)
            self.ru_inblock = len(calls) if reads else 0

    monkeypatch.setattr(speed.resource, "getrusage", lambda _who: Usage())
    found = speed.bench(path, seconds=0)
    if reads:
        assert (found.cold.batches, found.why_not_cold) == (5, None)
    else:
        assert found.cold is None
        assert "kept the files in memory" in found.why_not_cold
