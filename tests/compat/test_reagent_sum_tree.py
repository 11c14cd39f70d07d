"""ReAgent's sum tree, beside a list."""

import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from diskreplay.compat.reagent import SumTree


@settings(max_examples=30, deadline=None)
@given(
    capacity=st.integers(1, 70),
    steps=st.lists(st.tuples(st.integers(0, 69), st.integers(0, 9)), min_size=1, max_size=30),
    seed=st.integers(0, 999),
)
def test_tree_does_as_a_list(capacity, steps, seed):
    tree, leaves = SumTree(capacity), [0] * capacity
    for index, value in steps:
        tree.set(index % capacity, value)
        leaves[index % capacity] = value
        assert tree.get(index % capacity) == value
    assert tree.max_recorded_priority == max(1, *(value for _, value in steps))
    width = len(tree.nodes[-1])
    assert [len(level) for level in tree.nodes] == [2**i for i in range(len(tree.nodes))]
    assert capacity <= width < 2 * capacity or capacity == width == 1
    assert tree.nodes[-1].tolist() == leaves + [0] * (width - capacity)
    assert tree.nodes[0][0] == sum(leaves)
    if not sum(leaves):
        with pytest.raises(Exception, match="Cannot sample from an empty sum tree"):
            tree.sample()
        with pytest.raises(Exception, match="Cannot sample from an empty sum tree"):
            tree.stratified_sample(3)
        return

    def leaf(share):
        before = 0
        for index, value in enumerate(leaves):
            before += value
            if share * sum(leaves) < before:
                return index
        return max(i for i, value in enumerate(leaves) if value)

    for share in (0.0, 0.25, 0.5, 0.999, 1.0):
        assert tree.sample(query_value=share) == leaf(share)
    random.seed(seed)
    bounds = np.linspace(0, 1, 6)
    expected = [leaf(random.uniform(*bounds[i : i + 2])) for i in range(5)] + [
        leaf(random.random())
    ]
    random.seed(seed)
    assert [*tree.stratified_sample(5), tree.sample()] == expected


def test_tree_refuses():
    with pytest.raises(AssertionError):
        SumTree(2.0)
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="should be positive"):
            SumTree(capacity)
    tree = SumTree(4)
    tree.set(1, 2.0)
    for index, value in [(0, -1), (0, float("nan")), (0, float("inf")), (4, 1.0), (-1, 1.0)]:
        with pytest.raises(ValueError, match=r"expected|nonnegative"):
            tree.set(index, value)
    for query in (-0.1, 1.1):
        with pytest.raises(ValueError, match="query_value"):
            tree.sample(query_value=query)
    assert tree.leaves.tolist() == [0, 2, 0, 0]


def test_an_emptied_tree_is_empty():
    tree = SumTree(8)
    for value in (0.1, 0.7, 1e16, 0.3):
        for index in range(8):
            tree.set(index, value)
    for index in range(8):
        tree.set(index, 0)
    with pytest.raises(Exception, match="empty"):
        tree.sample()


def test_tree_can_be_pickled():
    tree = SumTree(5)
    tree.set(2, 3.0)
    again = pickle.loads(pickle.dumps(tree))
    again.set(0, 1.0)
    assert again.leaves[:5].tolist() == [1, 0, 3, 0, 0]
    assert again.max_recorded_priority == 3.0
