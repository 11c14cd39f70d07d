"""Sums and minima over ranges, beside a list and Python's own functions."""

import itertools
import math

import numpy as np
import pytest

from diskreplay.compat.segment_trees import MinSegmentTree, SumSegmentTree

KINDS = [
    (SumSegmentTree, math.fsum, 0.0),
    (MinSegmentTree, lambda x: min(x, default=math.inf), math.inf),
]


@pytest.mark.parametrize(("kind", "join", "empty"), KINDS)
@pytest.mark.parametrize("capacity", [1, 2, 8, 64])
def test_every_range(kind, join, empty, capacity):
    rng = np.random.default_rng(capacity)
    tree, leaves = kind(capacity), [empty] * capacity
    for _ in range(5):
        for at in rng.integers(0, capacity, 5).tolist():
            tree[at] = leaves[at] = float(rng.integers(0, 9))
        many = rng.integers(0, capacity, 4)
        values = rng.integers(1, 9, 4).astype(float)
        tree[many] = values
        for at, value in zip(many.tolist(), values.tolist(), strict=True):
            leaves[at] = value
        assert [tree[at] for at in range(capacity)] == leaves
        assert tree[np.arange(capacity)].tolist() == leaves
        for start, end in itertools.combinations_with_replacement(range(capacity + 1), 2):
            expected = join(leaves[start : end or None])
            assert tree.operate(start, end) == expected
            if 0 < end < capacity:
                assert tree.operate(start, end - capacity) == expected


@pytest.mark.parametrize(("kind", "join", "empty"), KINDS)
def test_nodes_are_those_of_a_binary_tree(kind, join, empty):
    tree = kind(8)
    tree[np.arange(8)] = [5, 3, 8, 1, 9, 2, 7, 4]
    nodes = tree.tree
    assert len(nodes) == 16
    assert nodes[8:].tolist() == [5, 3, 8, 1, 9, 2, 7, 4]
    for node in range(1, 8):
        assert nodes[node] == join(nodes[2 * node : 2 * node + 2].tolist())
    assert nodes[0] == empty
    nodes[8] = 77  # a copy
    assert tree[0] == 5.0


@pytest.mark.parametrize(("kind", "join", "empty"), KINDS)
def test_what_is_outside(kind, join, empty):
    for capacity in (0, -4, 3, 12):
        with pytest.raises(AssertionError, match="a power of two expected"):
            kind(capacity)
    tree = kind(4)
    for at in (-1, 4, [0, 4], [-1]):
        with pytest.raises(AssertionError, match="index: 0 to 3 expected"):
            tree[at]
        with pytest.raises(AssertionError, match="index: 0 to 3 expected"):
            tree[at] = 1.0
    for at in (1.7, 1.0, np.nan, True, [0, 1.5], [False], "1", None):
        with pytest.raises(AssertionError, match="index: integers expected, found"):
            tree[at]
        with pytest.raises(AssertionError, match="index: integers expected, found"):
            tree[at] = 1.0
    assert tree[np.arange(4, dtype=np.uint8)].tolist() == [empty] * 4  # nothing was set
    for start, end in ((-1, 2), (5, 0), (0, 5), (5, 5)):
        with pytest.raises(AssertionError, match="a range within 0 to 4"):
            tree.operate(start, end)
    assert tree.operate(3, 1) == tree.operate(2, 2) == empty  # of no leaves
    assert tree[np.empty(0, np.int64)].tolist() == tree[[]].tolist() == []


def test_the_names_of_the_notebooks():
    sums, minima = SumSegmentTree(4), MinSegmentTree(4)
    for tree in (sums, minima):
        tree[np.arange(4)] = [4, 3, 2, 1]
    assert (sums.sum(), sums.sum(1, 3), sums.sum(0, 2), sums.sum(2)) == (10, 5, 7, 3)
    assert (minima.min(), minima.min(1, 3), minima.min(0, 2), minima.min(2)) == (1, 2, 3, 1)


def test_the_leaf_at_a_part_of_the_sum():
    tree = SumSegmentTree(8)
    with pytest.raises(AssertionError, match="every leaf is 0"):
        tree.retrieve(0.0)
    leaves = [0.0, 2.0, 0.0, 3.0, 1.0, 0.0, 4.0, 0.0]
    tree[np.arange(8)] = leaves
    ends = np.cumsum(leaves)
    masses = np.arange(0, 10, 0.25)
    expected = [int(np.searchsorted(ends, mass, side="right")) for mass in masses]
    assert [tree.retrieve(float(mass)) for mass in masses] == expected
    assert tree.retrieve(masses).tolist() == expected
    assert tree.retrieve(10.0) == tree.retrieve(10.0 + 1e-6) == 6
    for wrong in (-1e-9, 10.1, np.nan, [1.0, 11.0]):
        with pytest.raises(AssertionError, match=r"upperbound: 0 to 10\.0 expected"):
            tree.retrieve(wrong)
