"""Kernels of the sum tree beside sums of all leaves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.sampling.sum_tree_kernels import FANOUT, tree_find, tree_set
from tests.effort import effort


def empty(capacity, *, least=False):
    """The nodes of a tree whose leaves are zeros, and where each level begins."""
    sizes, width = [], capacity
    while True:
        padded = -(-width // FANOUT) * FANOUT if width > 1 else 1
        sizes.append(padded)
        if width == 1:
            break
        width = padded // FANOUT
    starts = np.concatenate([[0], np.cumsum(sizes)])[: len(sizes)]
    nodes = np.zeros(sum(sizes))
    smallest = np.full(len(nodes) - sizes[0], np.inf) if least else np.empty(0)
    # Behind the levels: where the last one ends.
    return nodes, smallest, np.append(starts, len(nodes)).astype(np.int64)


def put(tree, leaves, values):
    nodes, least, starts = tree
    tree_set(nodes, least, starts, np.array(leaves, np.int64), np.array(values, np.float64))


@pytest.mark.parametrize("capacity", [1, 2, 16, 17, 300, 5000])
@settings(max_examples=effort(8, 20, 100))
@given(st.data())
def test_each_node_is_the_sum_of_those_below(capacity, data):
    tree, expected = empty(capacity, least=True), np.zeros(capacity)
    nodes, least, starts = tree
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for _ in range(3):
        leaves = rng.integers(0, capacity, data.draw(st.integers(1, 40)))
        values = rng.random(len(leaves)) * (rng.random(len(leaves)) < 0.7)
        if data.draw(st.booleans()):
            values = values[:1]  # that of all
        put(tree, leaves, values)
        expected[leaves] = values if len(values) > 1 else values[0]
        if len(values) > 1:  # the last of duplicates
            for leaf, value in zip(leaves.tolist(), values.tolist(), strict=True):
                expected[leaf] = value
    np.testing.assert_array_equal(nodes[:capacity], expected)
    assert nodes[-1] == pytest.approx(expected.sum(), rel=1e-12)
    below = nodes[: starts[1]]
    for level in range(1, len(starts) - 1):
        here = nodes[starts[level] : starts[level + 1]]
        sums = below.reshape(-1, FANOUT).sum(axis=1)
        np.testing.assert_allclose(here[: len(sums)], sums, rtol=1e-12)
        below = here
    if expected.any() and capacity > 1:
        assert least[-1] == expected[expected > 0].min()
    masses = rng.random(50) * nodes[-1]
    if expected.any():
        found, asked = np.empty(50, np.int64), masses.copy()
        tree_find(nodes, starts, asked, found)
        ends = np.cumsum(expected)
        for mass, leaf in zip(masses.tolist(), found.tolist(), strict=True):
            assert expected[leaf] > 0
            slack = 1e-9 * ends[-1]
            assert ends[leaf] - expected[leaf] - slack <= mass <= ends[leaf] + slack


def test_leaves_that_have_values_are_summed_again_without_new_ones():
    tree = empty(40)
    nodes = tree[0]
    nodes[3], nodes[20] = 2.0, 0.5
    put(tree, [3, 20], [])
    assert nodes[-1] == 2.5


def test_what_rounding_carries_past_the_end_is_no_leaf_of_zero():
    tree = empty(64)
    put(tree, [5, 6, 37], [0.1, 0.2, 0.3])
    nodes, _least, starts = tree
    total = nodes[-1]
    masses = np.array([total, np.nextafter(total, 0), total * (1 + 1e-15), 0.0])
    found = np.empty(4, np.int64)
    tree_find(nodes, starts, masses, found)
    assert found.tolist() == [37, 37, 37, 5]


def test_a_sum_of_nothing_leads_to_no_memory_before_the_group():
    """No sum of ours is wrong. Where one is, a leaf of that group is found all the same."""
    tree = empty(300)
    nodes, _least, starts = tree
    put(tree, [5], [1.0])
    nodes[starts[1] + 3] = nodes[-1] = 1.0  # above leaves 48 to 63, which are zeros
    nodes[starts[1]] = 0.0
    out = np.zeros(1, np.int64)
    tree_find(nodes, starts, np.array([0.5]), out)
    assert out[0] in range(48, 64)
