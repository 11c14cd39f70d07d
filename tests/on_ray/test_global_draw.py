"""The draw over several shards beside one sum tree over all their leaves; no cluster."""

import numpy as np
import pytest

from diskreplay import SumTree
from diskreplay.ray import global_draw


def trees(count, leaves, rng):
    """Shards of unequal size, and one tree with all their leaves; whole numbers, so that sums are
    exact in any order."""
    values = rng.integers(0, 6, leaves).astype(float)
    parts = np.split(values, np.sort(rng.choice(leaves, count - 1, replace=False)))
    made = []
    for part in [*parts, values]:
        tree = SumTree(len(part))
        tree.set(np.arange(len(part)), part)
        made.append(tree)
    return made[:-1], made[-1]


def draw(uniform, shards, totals=None):
    """The place of each draw in the list of all leaves, and its probability."""
    sums = np.array([tree.total for tree in shards])
    totals = sums if totals is None else totals
    starts = np.cumsum([0, *map(len, shards)])
    owners, positions = global_draw.stratified(uniform, totals)
    places, within = np.empty(len(uniform), np.int64), np.empty(len(uniform))
    for number, tree in enumerate(shards):
        mine = owners == number
        own = tree.find(positions[mine] * tree.total)
        places[mine] = starts[number] + own
        within[mine] = tree.get(own) / tree.total
    return places, global_draw.probabilities(owners, within, totals)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_million_draws_are_those_of_one_tree_over_all_leaves(count):
    """But where rounding puts a mass on the other side of the edge between two leaves."""
    rng = np.random.default_rng(count)
    shards, whole = trees(count, 5000, rng)
    uniform = rng.random(1_000_000)
    places, probability = draw(uniform, shards)
    masses = (np.arange(len(uniform)) + uniform) / len(uniform) * whole.total
    expected = whole.find(masses)
    differing = places != expected
    if differing.any():
        edges = np.cumsum(whole.leaves)
        near = np.abs(masses[differing, None] - edges[None]).min(axis=1)
        assert near.max() < 1e-9 * whole.total
    assert differing.sum() < 50
    np.testing.assert_allclose(probability, whole.get(places) / whole.total, rtol=1e-12)
    assert (whole.get(places) > 0).all()
    drawn = np.bincount(places, minlength=5000)
    wanted = whole.leaves / whole.total * len(uniform)
    positive = wanted > 0
    chi_square = ((drawn - wanted)[positive] ** 2 / wanted[positive]).sum()
    freedom = positive.sum() - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)  # stratified draws vary less


@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_weights_are_those_of_a_list_of_all_leaves(normalization):
    rng = np.random.default_rng(3)
    shards, whole = trees(4, 300, rng)
    places, probability = draw(rng.random(64), shards)
    sums = np.array([tree.total for tree in shards])
    least = np.array([tree.min for tree in shards])
    leaves = whole.leaves.tolist()
    floor = probability.min()
    if normalization == "buffer":
        floor = global_draw.least_probability(least, sums, sums)
    found = global_draw.weights(probability, 0.4, floor)
    one_by_one = []
    rows = sum(leaf > 0 for leaf in leaves)
    for place in places.tolist():
        one_by_one.append((rows * leaves[place] / sum(leaves)) ** -0.4)
    if normalization == "buffer":
        largest = (rows * min(leaf for leaf in leaves if leaf > 0) / sum(leaves)) ** -0.4
    else:
        largest = max(one_by_one)
    np.testing.assert_allclose(found, np.array(one_by_one) / largest, rtol=1e-5)


def test_weights_stay_unbiased_where_the_sums_are_old():
    """The mean of ``value / (N P)`` is the mean of all values; by the probabilities that the true
    sums give, it is not."""
    rng = np.random.default_rng(5)
    shards, whole = trees(3, 600, rng)
    values = np.where(whole.leaves > 0, rng.normal(3.0, 1.0, 600) + np.arange(600) / 100, 0.0)
    rows = int((whole.leaves > 0).sum())
    truth = values.sum() / rows
    old = np.array([tree.total for tree in shards]) * [0.5, 2.0, 1.0]
    means, naive = [], []
    for _ in range(4000):
        places, probability = draw(rng.random(32), shards, old)
        means.append((values[places] / (rows * probability)).mean())
        naive.append((values[places] / (rows * whole.get(places) / whole.total)).mean())

    def z(found):
        return (np.mean(found) - truth) / (np.std(found) / np.sqrt(len(found)))

    assert abs(z(means)) < 4
    assert abs(z(naive)) > 10


def test_a_shard_without_anything_is_never_drawn():
    totals = np.array([0.0, 3.0, 0.0, 1.0, 0.0])
    for uniform in (np.zeros(8), np.full(8, np.nextafter(1.0, 0.0)), np.linspace(0, 0.999, 8)):
        shards, positions = global_draw.stratified(uniform, totals)
        assert set(shards.tolist()) <= {1, 3}
        assert ((positions >= 0) & (positions <= 1)).all()
    shards, _positions = global_draw.at(np.array([0.0, 0.75, 1.0]), totals)
    assert shards.tolist() == [1, 3, 3]


def test_what_fell_to_a_lost_shard_is_spread_over_the_others():
    rng = np.random.default_rng(0)
    totals = np.array([2.0, 5.0, 3.0])
    found = np.zeros(3)
    for _ in range(2000):
        shards, positions = global_draw.stratified(rng.random(50), totals)
        again, _ = global_draw.at(positions[shards == 1], np.array([2.0, 0.0, 3.0]))
        found += np.bincount(again, minlength=3)
    share = found / found.sum()
    np.testing.assert_allclose(share, [0.4, 0.0, 0.6], atol=0.01)
