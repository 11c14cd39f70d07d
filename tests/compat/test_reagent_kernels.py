"""Kernels of ReAgent's buffers beside loops over slots, and beside `random.uniform`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from diskreplay.compat.reagent.kernels import follow, stratified
from diskreplay.sampling.sum_tree import SumTree
from tests.effort import effort


@settings(max_examples=effort(50, 120, 800))
@given(
    capacity=st.integers(1, 12), horizon=st.integers(1, 5), count=st.integers(0, 40),
    base=st.integers(0, 3), seed=st.integers(0, 999),
)  # fmt: skip
def test_windows_end_where_an_episode_does(capacity, horizon, count, base, seed):
    rng = np.random.default_rng(seed)
    terminal = (rng.random(capacity) < 0.3).astype(np.uint8)
    indices = rng.integers(-2 * capacity, 3 * capacity, 9)
    base, stored = min(base, count), int(rng.integers(0, min(count, capacity) + 1))
    slots, ids = np.zeros((2, 9), np.int64), np.zeros((2, 9), np.int64)
    steps, ended = np.zeros(9, np.int64), np.zeros(9, np.bool_)
    follow(indices, terminal, horizon, count, base, stored, slots, ids, steps, ended)
    there = {row % capacity: row for row in range(count - stored, count)}
    for at, index in enumerate(indices.tolist()):
        window = [(index + ahead) % capacity for ahead in range(horizon)]
        ends = [i for i, slot in enumerate(window) if terminal[slot]]
        length = ends[0] + 1 if ends else horizon
        following = (window[length - 1] + 1) % capacity
        assert (steps[at], ended[at]) == (length, bool(ends))
        assert slots[:, at].tolist() == [window[0], following]
        assert ids[:, at].tolist() == [
            there[slot] - base if slot in there else -1 for slot in (window[0], following)
        ]


@pytest.mark.parametrize("size", [1, 3, 32])
def test_each_draw_is_from_its_part_of_the_sum(size):
    rng, leaves = np.random.default_rng(size), np.random.default_rng(0).random(50)
    leaves[::7] = 0
    tree = SumTree(50)
    tree.set(np.arange(50), leaves)
    draws = rng.random(size)
    bounds = np.linspace(0.0, 1.0, size + 1)
    queries = bounds[:-1] + (bounds[1:] - bounds[:-1]) * draws
    expected = np.searchsorted(np.cumsum(leaves), queries * leaves.sum(), side="right")
    found = np.empty(size, np.int64)
    stratified(tree.nodes, tree.starts, draws, found)
    assert found.tolist() == expected.tolist()
    stratified(tree.nodes, tree.starts, np.empty(0), np.empty(0, np.int64))
