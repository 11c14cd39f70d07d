"""Parts of batches put together beside the batches themselves."""

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import diskreplay
from diskreplay.ray.packed_batch import PackedBatch, joined

SPACES = [
    Box(0, 255, (6, 6), "uint8"),
    Dict({"camera": Box(0, 255, (6, 6), "uint8"), "arm": Tuple((Box(-1, 1, (3,)), Discrete(4)))}),
]


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, tuple):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


@pytest.mark.parametrize("space", SPACES, ids=["box", "nested"])
@pytest.mark.parametrize(("stack", "horizon"), [(4, 1), (1, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("ends", [10**9, 9])
def test_joined_parts_are_the_batches_one_behind_the_other(space, stack, horizon, ends):
    space.seed(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=300, stack_size=stack,
        update_horizon=horizon, seed=0,
    ) as buffer:  # fmt: skip
        for row in range(200):
            end = row % ends == ends - 1
            buffer.add(space.sample(), row % 3, row, end and row % 2 == 0, end and row % 2 == 1,
                       space.sample())  # fmt: skip
        # Some with episodes that end in them, and some without.
        chosen = [buffer.sample(24), buffer.gather([50, 51]), buffer.sample(5)]
        batches = [pickle.loads(pickle.dumps(PackedBatch.of(batch), 5)) for batch in chosen]
        cuts = [(0, 24), (0, 2), (1, 4), (7, 11)]
        parts = [batches[0], batches[1], batches[2].part(1, 4), batches[0].part(7, 11)]
        more = {"id": np.arange(33), "owner": np.ones(33)}
        found = joined(parts, more)
        sources = [chosen[0], chosen[1], chosen[2], chosen[0]]
        for name in set(chosen[0]) - {"id"}:
            shown = leaves(found[name])
            for at, leaf in enumerate(shown):
                expected = [
                    leaves(source[name])[at][low:high]
                    for source, (low, high) in zip(sources, cuts, strict=True)
                ]
                np.testing.assert_array_equal(leaf, np.concatenate(expected), err_msg=name)
        assert found.id is more["id"]
        assert found.owner is more["owner"]
