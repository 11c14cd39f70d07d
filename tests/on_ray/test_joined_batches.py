"""Parts of batches put together beside the batches themselves."""

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import diskreplay
from diskreplay.packed_batch import PackedBatch
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.ray.block_frames import BlockFrames
from diskreplay.ray.joined_batches import joined

NO_BLOCKS = BlockFrames({})  # those that are sent in blocks are for `test_block_frames.py`
SPACES = [
    Box(0, 255, (6, 6), "uint8"),
    Box(0, 255, (20, 20), "uint8"),  # larger than what is put together for all batches at once
    Dict({"camera": Box(0, 255, (6, 6), "uint8"), "arm": Tuple((Box(-1, 1, (3,)), Discrete(4)))}),
]


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, tuple):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


@pytest.fixture
def buffer(space, stack, horizon, ends):
    space.seed(0)
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(3), capacity=300, stack_size=stack,
        update_horizon=horizon, seed=0,
    ) as made:  # fmt: skip
        for row in range(200):
            end = row % ends == ends - 1
            made.add(space.sample(), row % 3, row, end and row % 2 == 0, end and row % 2 == 1,
                     space.sample())  # fmt: skip
        yield made


@pytest.mark.parametrize("space", SPACES, ids=["small", "large", "nested"])
@pytest.mark.parametrize(("stack", "horizon"), [(4, 1), (1, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("ends", [10**9, 40, 9])
def test_joined_parts_are_the_batches_one_behind_the_other(buffer, ends):
    """Beside the transitions picked one by one."""
    # Some with episodes that end in them, and some without.
    chosen = [buffer.sample(24), buffer.gather([50, 51]), buffer.sample(5)]
    parts = [pickle.loads(pickle.dumps(PackedBatch.of(batch), 5)) for batch in chosen]
    owners = [np.sort(np.arange(24) % 4), np.array([1, 3]), np.array([0, 0, 0, 1, 2])]
    more = {"id": np.arange(31), "owner": np.ones(31)}
    found = joined(parts, BatchOrder(owners, 4), more, NO_BLOCKS)
    assert [len(batch) for batch in found] == [9, 8, 7, 7]
    wanted = [
        [(part, row) for part in range(3) for row in range(len(owners[part]))
         if owners[part][row] == number] for number in range(4)
    ]  # fmt: skip
    for batch, places in zip(found, wanted, strict=True):
        for name in set(chosen[0]) - {"id"}:
            for at, leaf in enumerate(leaves(batch[name])):
                expected = [leaves(chosen[part][name])[at][row] for part, row in places]
                np.testing.assert_array_equal(leaf, np.stack(expected), err_msg=name)
    np.testing.assert_array_equal(np.concatenate([batch.id for batch in found]), more["id"])
    assert all((batch.owner == 1).all() for batch in found)


@pytest.mark.parametrize("space", SPACES[:2], ids=["small", "large"])
@pytest.mark.parametrize(("stack", "horizon", "ends"), [(3, 2, 40)])
def test_only_batches_with_an_end_of_an_episode_are_no_views_of_their_window(buffer):
    ids = np.concatenate([np.arange(32, 39), np.arange(3, 10), np.arange(33, 40)])
    parts = [PackedBatch.of(buffer.gather(ids)), PackedBatch.of(buffer.gather([12, 13]))]
    owners = [np.repeat([0, 1, 2], 7), np.array([1, 2])]
    order = BatchOrder(owners, 3)
    batches = joined(parts, order, {"id": order.rows([ids, np.array([12, 13])])}, NO_BLOCKS)
    whole = [batch.window() is not None for batch in batches]
    assert whole == [(batch.steps == 2).all() and not batch.terminated.any() for batch in batches]
    assert whole == [True, True, False]
    assert batches[1].window().shape[:2] == (8, 5)


@pytest.mark.parametrize("space", SPACES[:1], ids=["small"])
@pytest.mark.parametrize(("stack", "horizon", "ends"), [(2, 1, 9)])
def test_batches_share_nothing(buffer):
    drawn = buffer.sample(30)
    parts = [PackedBatch.of(drawn)]
    order = BatchOrder([np.repeat([0, 1], 15)], 2)
    batches = joined(parts, order, {"id": drawn.id}, NO_BLOCKS)
    before = {name: batches[1][name].copy() for name in batches[1]}
    shown = drawn.asdict()
    kept = {name: shown[name].copy() for name in shown}
    for name in set(batches[0]) - {"id"}:
        batches[0][name][...] = 1
    for name, array in before.items():
        np.testing.assert_array_equal(batches[1][name], array, err_msg=name)
    for name, array in kept.items():
        np.testing.assert_array_equal(drawn[name], array, err_msg=name)
