"""SumTree beside a list of leaves and its cumulative sum."""

import copy
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import diskreplay
from tests.naive import NaiveSumTree

# One leaf, both sides of one level (64), of two (4096), and what lies between.
CAPACITIES = st.one_of(
    st.sampled_from([1, 2, 63, 64, 65, 4095, 4096, 4097, 5000]), st.integers(1, 5000)
)
VALUES = st.one_of(
    st.just(0.0),
    st.integers(1, 20).map(float),
    st.floats(1e-9, 1e6, allow_subnormal=False),
)
FINITE_ERRORS = (ValueError, IndexError)


@st.composite
def written(draw, most=40):
    """(capacity, batches): what is set, batch after batch, the same index twice now and then."""
    capacity = draw(CAPACITIES)
    indices = st.integers(0, capacity - 1)
    batch = st.lists(st.tuples(indices, VALUES), min_size=0, max_size=most)
    batches = draw(st.lists(batch, min_size=1, max_size=4))
    if batches[0] and draw(st.booleans()):
        batches[0] += [(index, value + 1) for index, value in reversed(batches[0])]
    return capacity, batches


def fill(capacity, batches):
    tree, twin = diskreplay.SumTree(capacity), NaiveSumTree(capacity)
    for batch in batches:
        indices = [index for index, _ in batch]
        values = [value for _, value in batch]
        tree.set(np.asarray(indices, np.int64), np.asarray(values, np.float64))
        twin.set(indices, values)
    return tree, twin


def assert_same(tree, twin):
    capacity = len(twin.leaves)
    assert tree.get(np.arange(capacity)).tolist() == twin.leaves
    assert tree.total == pytest.approx(twin.total, rel=1e-12, abs=0)
    assert tree.min == twin.min
    tree.check()


def interval_holds(twin, index, point):
    """Whether `index` owns `point`; a point on a border may fall to either side of it."""
    slack = 1e-9 * twin.total
    for leaf, start, end in twin.intervals():
        if leaf == index:
            return start - slack <= point <= end + slack
    return False


@given(written())
@example((1, [[(0, 0.0)]]))
@example((4097, [[(4096, 1.0), (0, 2.0), (4095, 3.0)], [(4096, 0.0)]]))
@settings(deadline=None, max_examples=60)
def test_set_get_total_and_min(data):
    capacity, batches = data
    tree, twin = fill(capacity, batches)
    assert tree.capacity == capacity
    assert_same(tree, twin)
    some = [index for batch in batches for index, _ in batch] * 2
    assert tree.get(np.asarray(some, np.int64)).tolist() == twin.get(some)


@given(written(), st.integers(0, 2**32), st.integers(1, 70))
@settings(deadline=None, max_examples=60)
def test_sample_maps_each_uniform_to_its_leaf(data, seed, size):
    tree, twin = fill(*data)
    if twin.total == 0:
        return
    rng = np.random.default_rng(seed)
    uniforms = copy.deepcopy(rng).random(size)
    drawn = tree.sample(size, rng)
    assert drawn.dtype == np.int64
    assert drawn.shape == (size,)
    for u, index in zip(uniforms.tolist(), drawn.tolist(), strict=True):
        assert twin.leaves[index] > 0
        assert interval_holds(twin, index, u * twin.total)


@given(written(), st.integers(0, 2**32), st.integers(1, 70))
@settings(deadline=None, max_examples=60)
def test_a_stratified_sample_has_one_draw_in_each_stratum(data, seed, size):
    tree, twin = fill(*data)
    if twin.total == 0:
        return
    rng = np.random.default_rng(seed)
    uniforms = copy.deepcopy(rng).random(size)
    drawn = tree.stratified_sample(size, rng)
    assert drawn.dtype == np.int64
    assert drawn.shape == (size,)
    for k, (u, index) in enumerate(zip(uniforms.tolist(), drawn.tolist(), strict=True)):
        assert twin.leaves[index] > 0
        assert interval_holds(twin, index, (k + u) / size * twin.total)


@pytest.mark.parametrize("capacity", [1, 64, 65, 4096, 4097, 5000])
def test_a_zero_leaf_is_never_drawn(capacity):
    """Nor when the positive ones are the first, the last, or tiny beside the others."""
    positives = sorted({0, capacity // 2, capacity - 1})
    tree = diskreplay.SumTree(capacity)
    tree.set(np.arange(capacity), np.ones(capacity))
    tree.set(np.arange(capacity), np.zeros(capacity))
    tree.set(np.asarray(positives), np.asarray([1e-200, 1e200, 1.0][: len(positives)]))
    rng = np.random.default_rng(1)
    for _ in range(20):
        assert set(tree.sample(500, rng).tolist()) <= set(positives)
        assert set(tree.stratified_sample(500, rng).tolist()) <= set(positives)


class EdgeGenerator:
    """The largest uniform there is, and the smallest: where rounding would step over the end."""

    def __init__(self, value):
        self.value = value

    def random(self, size=None, dtype=np.float64, out=None):
        if out is not None:
            out[...] = self.value
            return out
        return self.value if size is None else np.full(size, self.value, dtype)

    def uniform(self, low=0.0, high=1.0, size=None):
        return low + (high - low) * self.random(size)


@pytest.mark.parametrize("u", [0.0, float(np.nextafter(1.0, 0.0))])
@pytest.mark.parametrize("capacity", [1, 64, 70, 4100])
def test_the_ends_of_the_line_are_positive_leaves(capacity, u):
    tree = diskreplay.SumTree(capacity)
    values = np.random.default_rng(0).random(capacity) * 0.1
    positives = range(capacity // 3, max(capacity * 2 // 3, capacity // 3 + 1))
    values[: positives.start] = 0
    values[positives.stop :] = 0
    tree.set(np.arange(capacity), values)
    drawn = tree.sample(3, EdgeGenerator(u))
    assert set(drawn.tolist()) == {positives.start if u == 0 else positives.stop - 1}


@pytest.mark.parametrize(
    ("indices", "values"),
    [
        ([1, -1], [2.0, 2.0]),
        ([1, 100], [2.0, 2.0]),
        ([1, 2], [2.0, -1.0]),
        ([1, 2], [2.0, math.nan]),
        ([1, 2], [2.0, math.inf]),
        ([1, 2], [2.0, -math.inf]),
        ([1, 2], [2.0]),
    ],
)
def test_a_refused_set_changes_nothing(indices, values):
    tree, twin = fill(100, [[(1, 1.0), (2, 3.0), (99, 5.0)]])
    with pytest.raises(FINITE_ERRORS):
        tree.set(np.asarray(indices, np.int64), np.asarray(values, np.float64))
    assert_same(tree, twin)


@pytest.mark.parametrize("index", [-1, 100])
def test_get_outside_of_the_tree_is_an_error(index):
    with pytest.raises(FINITE_ERRORS):
        diskreplay.SumTree(100).get(np.asarray([0, index], np.int64))


@pytest.mark.parametrize("method", ["sample", "stratified_sample"])
def test_nothing_can_be_drawn_from_zeros(method):
    tree = diskreplay.SumTree(70)
    rng = np.random.default_rng(0)
    with pytest.raises(diskreplay.EmptyBufferError):
        getattr(tree, method)(3, rng)
    tree.set(np.asarray([69], np.int64), np.asarray([1.0]))
    assert getattr(tree, method)(3, rng).tolist() == [69, 69, 69]
    tree.set(np.asarray([69], np.int64), np.asarray([0.0]))
    with pytest.raises(diskreplay.EmptyBufferError):
        getattr(tree, method)(3, rng)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_tree_needs_a_leaf(capacity):
    with pytest.raises(ValueError):
        diskreplay.SumTree(capacity)


def test_sums_do_not_drift():
    """A large leaf that comes and goes leaves nothing behind in its parents."""
    tree = diskreplay.SumTree(5000)
    tree.set(np.arange(5000), np.full(5000, 1e-3))
    for _ in range(100):
        tree.set(np.asarray([77], np.int64), np.asarray([1e15]))
        tree.set(np.asarray([77], np.int64), np.asarray([1e-3]))
    assert tree.total == pytest.approx(5.0, rel=1e-12)
    tree.check()


def test_the_same_generator_draws_the_same_leaves():
    tree, _ = fill(200, [[(index, float(index % 7)) for index in range(200)]])
    draws = [tree.sample(50, np.random.default_rng(3)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != tree.sample(50, np.random.default_rng(4)).tolist()


def test_the_minimum_is_the_same_whether_it_is_tracked_or_looked_for():
    rng = np.random.default_rng(5)
    tracked, looked_for = diskreplay.SumTree(5000, track_min=True), diskreplay.SumTree(5000)
    for _ in range(30):
        indices = rng.integers(0, 5000, 40)
        values = rng.random(40) * (rng.random(40) < 0.7)
        for tree in (tracked, looked_for):
            tree.set(indices, values)
            tree.check()
        positive = tracked.leaves[tracked.leaves > 0]
        assert tracked.min == looked_for.min == positive.min()
