"""Leaves that are powers of priorities, and what is drawn by them."""

import math

import numpy as np
import pytest

from diskreplay.errors import EmptyBufferError, PriorityError, UnknownIdError
from diskreplay.sampling.priority_tree import PriorityTree
from diskreplay.sampling.rng import ReplayableRng
from tests.sampling.streams import Told


def numbers():
    return ReplayableRng(np.random.default_rng(3))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_a_leaf_is_a_power_of_the_priority_and_zero_stays_zero(alpha):
    tree = PriorityTree(5, alpha, track_min=False)
    for priority in (1e-9, 0.5, 1.0, 3.0, 1e6):
        assert tree.leaf(priority) == pytest.approx(priority**alpha, rel=1e-12)
    assert tree.leaf(0.0) == 0.0  # with alpha 0 too: it is never drawn
    assert tree.leaf(0.5) == tree.leaf(0.5)


def test_a_leaf_is_never_larger_than_the_tree_takes():
    """Where the priority was set with a smaller alpha."""
    tree = PriorityTree(5, 2.0, track_min=False)
    assert tree.leaf(1e300) == tree.leaf(1e299) < math.inf
    tree.fill(np.arange(5), tree.leaf(1e300))
    assert math.isfinite(tree.total)


def test_leaves_are_filled_and_kept_when_it_grows():
    tree = PriorityTree(70, 0.5, track_min=True)
    tree.fill(np.array([3, 69, 5]), 2.5)
    tree.fill(np.array([5]), 0.0)
    tree.fill(np.empty(0, np.int64), 9.0)
    assert np.flatnonzero(tree.leaves[:70]).tolist() == [3, 69]
    assert tree.total == 5.0
    assert tree.min == 2.5
    grown = tree.grown(5000)
    assert type(grown) is PriorityTree
    assert (grown.capacity, grown.alpha, grown.total, grown.min) == (5000, 0.5, 5.0, 2.5)
    np.testing.assert_array_equal(grown.leaves[:70], tree.leaves[:70])
    assert not grown.leaves[70:5000].any()
    grown.check()
    assert len(PriorityTree(70, 0.5, track_min=False).grown(99).least) == 0


def index_of(rows, num_envs=1):
    told = Told(np.random.default_rng(0), num_envs, 64)
    while told.index.sampleable < rows:
        told.add(1)
    return told.index


def draw(tree, index, size, beta):
    drawn = np.empty(size, np.int64), np.empty(size), np.empty(size, np.float32)
    tree.draw(*drawn, index, numbers(), beta)
    return drawn


@pytest.mark.parametrize("track_min", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_are_drawn_by_their_leaves_and_weighted_against_them(num_envs, track_min):
    index = index_of(6, num_envs)
    ids = index.sampleable_ids()[:6]
    tree = PriorityTree(index.size, 1.0, track_min=track_min)
    leaves = np.array([1.0, 2.0, 0.0, 4.0, 8.0, 1.0])
    for id_, leaf in zip(ids, leaves, strict=True):
        tree.fill(np.array([id_ % index.size]), leaf)
    drawn, probability, weight = draw(tree, index, 4096, 0.5)
    which = np.array([ids.tolist().index(id_) for id_ in drawn])
    # Stratified: one draw out of each 4096th part of the sum.
    counts = np.bincount(which, minlength=6)
    assert np.abs(counts - 4096 * leaves / 16).max() <= 2
    np.testing.assert_allclose(probability, leaves[which] / 16)
    # The largest of the batch, or of all, has the weight 1: both are of a leaf of 1.
    np.testing.assert_allclose(weight, leaves[which] ** -0.5, rtol=1e-6)
    assert tree.least_probability == (1 / 16 if track_min else 0.0)


def test_weights_go_by_the_batch_or_by_all_leaves():
    index = index_of(2)
    one, other = (index.sampleable_ids()[:2] % index.size).tolist()
    for track_min, expected in ((False, 1.0), (True, 1e-6)):
        tree = PriorityTree(index.size, 1.0, track_min=track_min)
        tree.fill(np.array([one]), 1.0)
        tree.fill(np.array([other]), 1e-6)  # hardly ever drawn
        drawn, _probability, weight = draw(tree, index, 4, 1.0)
        assert set((drawn % index.size).tolist()) == {one}
        np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_where_all_priorities_are_zero_nothing_is_drawn():
    index = index_of(3)
    tree = PriorityTree(index.size, 0.5, track_min=False)
    for _ in range(2):
        with pytest.raises(EmptyBufferError, match="all priorities are 0"):
            draw(tree, index, 3, 0.5)
        tree.fill(index.sampleable_ids() % index.size, 0.0)
    tree.fill(index.sampleable_ids()[:1] % index.size, 1e-300)
    assert len(draw(tree, index, 3, 0.5)[0]) == 3


def test_what_is_wrong_with_an_update_is_named():
    index = index_of(3)
    tree = PriorityTree(index.size, 0.5, track_min=False)
    ids, priorities = np.array([0, 1, 2]), np.array([1.0, np.nan, 2.0])

    def update(wrong, ids, noun):
        tree.update(lambda *_: (wrong, 1, 0.0), index.ring, index, ids, priorities, noun, "|td|")

    with pytest.raises(PriorityError, match="priority nan at position 1: finite, not negative"):
        update(1, ids, "id")
    with pytest.raises(UnknownIdError, match="id 999 at position 1 was never handed out: env 0"):
        update(2, np.array([0, 999]), "id")
    with pytest.raises(UnknownIdError, match="anchor 1 at position 1 was never handed out"):
        update(2, ids, "anchor")


def test_memory_of_updates_is_used_again():
    tree, index, given = PriorityTree(5, 0.5, track_min=False), index_of(3), []

    def kernel(*arguments):
        given.append(arguments[-1])
        return 0, 0, 0.0

    for count in (3, 2, 9, 3):
        ids = np.arange(count)
        assert tree.update(kernel, index.ring, index, ids, np.ones(count), "id", "") == (0, 0.0)
    few, again, many, last = given
    assert again is few
    assert len(many) == 9
    assert last is many


def test_a_least_probability_that_no_float_holds_is_not_that_of_none():
    """Weights by all leaves would be those of the batch."""
    index = index_of(2)
    tree = PriorityTree(index.size, 1.0, track_min=True)
    one, other = (index.sampleable_ids()[:2] % index.size).tolist()
    tree.fill(np.array([one]), 1e-200)
    tree.fill(np.array([other]), 1e200)
    assert 0 < tree.least_probability < 1e-300
    _drawn, _probability, weight = draw(tree, index, 8, 0.01)
    assert (weight < 1e-3).all()
