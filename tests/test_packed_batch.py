"""How many bytes a batch is on its way, beside its pickle; without a cluster."""

import pickle

import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.packed_batch import PackedBatch

SPACES = {
    "frames": Box(0, 255, (40, 40), "uint8"),
    "nested": Dict({"a": Box(0, 255, (40, 40), "uint8"), "b": Box(-1, 1, (300,), "float32")}),
}


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("space", SPACES)
def test_its_bytes_are_those_that_are_sent(space, stack):
    observation = SPACES[space]
    observation.seed(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=observation, action_space=Discrete(3), capacity=100,
        stack_size=stack, seed=0,
    ) as buffer:  # fmt: skip
        for row in range(40):
            buffer.add(observation.sample(), row % 3, row, row % 15 == 14, False)
        batch = buffer.sample(32)
        packed = PackedBatch.of(batch)
        sent = len(pickle.dumps(packed, 5))
        assert packed.nbytes <= sent < packed.nbytes + 10_000
