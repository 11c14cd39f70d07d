"""`sample_at`: what several buffers are drawn from together with."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import DtypeError, EmptyBufferError, InvalidInputError, PriorityError, ShapeError


def make(num_envs=3, **options):
    options = {"capacity": 300, "alpha": 1.0, "seed": 0, "stack_size": 2} | options
    return diskreplay.PrioritizedReplayBuffer(
        None, observation_space=Box(0, 255, (4,), "uint8"), action_space=Discrete(9),
        num_envs=num_envs, **options,
    )  # fmt: skip


def fill(buffer, rows):
    for row in range(rows):
        end = np.full(buffer.num_envs, row % 17 == 16)
        buffer.add(
            np.full((buffer.num_envs, 4), row % 256, "uint8"), np.full(buffer.num_envs, row % 9),
            np.full(buffer.num_envs, row), end, ~end & False,
        )  # fmt: skip


def test_positions_are_places_in_the_sum_of_the_leaves():
    """Beside a list of leaves that is gone through from its beginning."""
    with make() as buffer:
        fill(buffer, 250)  # round the ring
        rng = np.random.default_rng(1)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, rng.integers(0, 5, len(ids)))
        leaves = buffer.tree.leaves.copy()
        ends = np.cumsum(leaves)
        positions = rng.random(2000)
        batch, mass = buffer.sample_at(positions)
        assert mass.total == leaves.sum()
        assert mass.sampleable == len(buffer)
        assert mass.largest == 4
        expected = [int((ends <= position * ends[-1]).sum()) for position in positions]
        places = batch.id // 3 % 100 * 3 + batch.id % 3
        assert places.tolist() == expected
        np.testing.assert_array_equal(batch.probability, leaves[expected] / leaves.sum())
        assert (batch.weight == 1).all()
        again = buffer.gather(batch.id)
        for name in batch:
            np.testing.assert_array_equal(batch[name], again[name])


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_same_numbers_draw_the_same_rows_as_sample(num_envs):
    """`sample` is stratified: it draws its own positions."""
    with make(num_envs, capacity=None) as buffer, make(num_envs, capacity=None) as other:
        for each in (buffer, other):
            if num_envs == 1:
                for row in range(200):
                    each.add(np.full(4, row, "uint8"), 0, 0.0, row % 9 == 8, False)
            else:
                fill(each, 200)
        ids = buffer.sampleable_ids()
        for each in (buffer, other):
            each.update_priorities(ids, ids % 8 + 0.5)
        numbers = np.random.default_rng(0).random(64)
        batch, _ = other.sample_at((np.arange(64) + numbers) / 64)
        assert batch.id.tolist() == buffer.sample(64).id.tolist()


def test_the_generator_is_left_alone_and_both_ends_are_rows():
    with make() as buffer, make() as other:
        fill(buffer, 50), fill(other, 50)
        batch, _ = buffer.sample_at([0.0, 1.0, 1])
        sampleable = buffer.sampleable_ids()
        assert np.isin(batch.id, sampleable).all()
        assert buffer.sample(9).id.tolist() == other.sample(9).id.tolist()


def test_what_the_tree_says_of_all():
    with make(weight_normalization="buffer") as buffer:
        assert buffer.priority_mass() == (0.0, np.inf, 0, 1.0)
        with pytest.raises(EmptyBufferError, match="no complete transition"):
            buffer.sample_at([0.5])
        fill(buffer, 20)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids[:4], [0.25, 3.0, 0.0, 7.0])
        assert buffer.priority_mass() == (10.25 + len(ids) - 4, 0.25, len(ids), 7.0)
    with make() as buffer:
        assert np.isnan(buffer.priority_mass().least)


def test_the_largest_priority_can_come_from_elsewhere():
    with make() as buffer:
        fill(buffer, 20)
        buffer.raise_largest_priority(9)
        buffer.raise_largest_priority(2.5)
        assert buffer.priority_mass().largest == 9
        known = buffer.sampleable_ids()
        fill(buffer, 2)
        new = np.setdiff1d(buffer.sampleable_ids(), known)
        batch, mass = buffer.sample_at(np.linspace(0, 1, 5000))
        of_new = batch.probability[np.isin(batch.id, new)]
        np.testing.assert_allclose(of_new, 9 / mass.total)
        for wrong in (np.nan, np.inf, -1, 1e300, "many"):
            with pytest.raises(PriorityError):
                buffer.raise_largest_priority(wrong)
        assert buffer.priority_mass().largest == 9


def test_bad_positions_are_refused():
    with make() as buffer:
        fill(buffer, 20)
        for wrong in ([np.nan], [-0.1], [1.1]):
            with pytest.raises(InvalidInputError, match="from 0 to 1"):
                buffer.sample_at(wrong)
        for wrong in ([[0.1]], 0.5):
            with pytest.raises(ShapeError):
                buffer.sample_at(wrong)
        with pytest.raises(DtypeError, match="positions"):
            buffer.sample_at(["a"])
        assert len(buffer.sample_at([])[0]) == 0
