"""A copy of a batch has arrays of its own: what is read into one is not in the other."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.batch import mapped

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "pickle with buffers": lambda batch: pickle.loads(pickle.dumps(batch, 5)),
}
SPACE = Dict({"camera": Box(0, 255, (6, 6), "uint8"), "arm": Box(-1, 1, (3,), "float32")})


def make(stack, horizon=2, **options):
    buffer = diskreplay.PrioritizedReplayBuffer(
        None, observation_space=SPACE, action_space=Discrete(3), capacity=500, stack_size=stack,
        update_horizon=horizon, extras={"h": ((2,), "float32")}, seed=0, **options,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    for row in range(200):
        seen = {"camera": rng.integers(0, 256, (6, 6), np.uint8), "arm": rng.random(3, np.float32)}
        buffer.add(seen, row % 3, rng.random(), row % 23 == 22, False, h=rng.random(2))
    return buffer


def source(kind, stack):
    """What is drawn from, and what draws again by what is drawn."""
    buffer = make(stack)
    if kind == "transitions":
        return buffer.sample, lambda batch: buffer.gather(batch.id)
    view = buffer.sequences(4, burn_in=2, returns_to_go=0.9)
    return view.sample, lambda batch: view.gather(batch.anchor)


def shown(batch):
    return {name: mapped(np.copy, batch[name]) for name in batch}


def assert_shows(batch, expected, *, but=()):
    assert list(batch) == list(expected)
    for name in expected:
        if name not in but:
            np.testing.assert_equal(batch[name], expected[name], err_msg=name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("looked_at", [(), ("observation", "reward")])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("kind", ["transitions", "windows"])
def test_a_batch_and_its_copy_are_two(kind, stack, looked_at, way):
    sample, again = source(kind, stack)
    twin = shown(source(kind, stack)[0](8))
    batch = sample(8)
    for name in looked_at:
        assert batch[name] is not None
    other = WAYS[way](batch)
    for into, kept in ((other, batch), (batch, other)):
        before = shown(kept)
        drawn = sample(8, out=into)
        assert drawn is into
        assert_shows(kept, before)
        assert_shows(drawn, shown(again(drawn)), but=("weight", "probability"))
        if kept is batch:
            assert_shows(kept, twin)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("kind", ["transitions", "windows"])
def test_no_array_of_a_copy_is_one_of_the_batch(kind, stack, way):
    batch = source(kind, stack)[0](8)
    other = WAYS[way](batch)
    leaves = [[], []]
    for each, found in zip((batch, other), leaves, strict=True):
        for name in each:
            mapped(found.append, each[name])
        window = each.window("observation/camera")
        if window is not None:
            found.append(window)
    for mine, theirs in itertools.product(*leaves):
        assert not np.shares_memory(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_batch_of_a_union_is_its_own(way):
    with make(2) as one, make(2) as two, diskreplay.ReplayUnion([one, two], seed=1) as union:
        batch = union.sample(8)
        before, other = shown(batch), WAYS[way](batch)
        mapped(lambda leaf: leaf.fill(0), other["observation"])
        other.reward[:] = 0
        assert_shows(batch, before)


# -- stacks that share memory


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(("stack", "horizon"), [(1, 1), (2, 1), (3, 1), (3, 2)])
def test_separated_stacks_share_nothing(stack, horizon, size):
    """Of one transition both stacks are C-contiguous already, and share frames all the same."""
    with make(stack, horizon) as buffer:
        for ids in buffer.sampleable_ids()[:40].reshape(-1, size):
            batch = buffer.gather(ids)
            before = shown(batch)
            batch.separate_stacks()
            assert_shows(batch, before)
            for leaf in ("camera", "arm"):
                first, following = batch.observation[leaf], batch.next_observation[leaf]
                assert first.flags.c_contiguous
                assert following.flags.c_contiguous
                assert not np.shares_memory(first, following)


@pytest.mark.parametrize("stack", [1, 3])
def test_windows_have_no_next_stacks_to_separate(stack):
    batch = source("windows", stack)[0](8)
    before = shown(batch)
    batch.separate_stacks()
    assert_shows(batch, before)
    for leaf in ("camera", "arm"):
        assert batch.observation[leaf].flags.c_contiguous
