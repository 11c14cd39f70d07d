"""What is left of each episode's return, beside sums over lists."""

import math

import numpy as np
import pytest

from diskreplay.sampling.returns_to_go import ReturnsToGo
from tests.sampling.streams import Told

GAMMA = 0.8


def check(told, to_go):
    naive = told.naive(returns_to_go=GAMMA)
    for env in range(told.num_envs):
        for row in range(told.stream.first[env], len(told.stream.rows[env])):
            found = to_go.column[(row * told.num_envs + env) % told.index.size]
            expected = naive.to_go(env, row)
            if math.isnan(expected):
                assert math.isnan(found)
            else:
                assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("num_envs", "kept"), [(1, 15), (1, None), (3, 9), (2, None)])
def test_any_walk(num_envs, kept):
    rng = np.random.default_rng(num_envs)
    told = Told(rng, num_envs, kept)
    to_go = ReturnsToGo(GAMMA)
    to_go.follow(told.index)
    for turn in range(60):
        told.add(int(rng.integers(0, 12)))
        if turn % 7 == 6:
            env = int(rng.integers(num_envs))
            first, count = int(told.index.first[env]), int(told.index.count[env])
            told.evict(env, int(rng.integers(first, count + 1)))
        to_go.catch_up(told.index)
        check(told, to_go)
    late = ReturnsToGo(GAMMA)  # of all rows at once
    late.follow(told.index)
    check(told, late)


def test_it_begins_anew_with_another_index():
    rng = np.random.default_rng(5)
    one, other, to_go = Told(rng, 2, 30), Told(rng, 2, 50), ReturnsToGo(GAMMA)
    one.add(40)
    other.add(70)
    for told in (one, other, one):
        to_go.follow(told.index)
        assert len(to_go.column) == told.index.size
        check(told, to_go)


def test_an_index_that_grows():
    told, to_go = Told(np.random.default_rng(6), 1, None), ReturnsToGo(GAMMA)
    told.add(800)
    to_go.follow(told.index)
    before = to_go.column.copy()
    told.add(300)
    assert told.index.size > len(before)
    to_go.catch_up(told.index)
    check(told, to_go)
    known = ~np.isnan(before[:790])
    np.testing.assert_array_equal(to_go.column[:790][known], before[:790][known])
