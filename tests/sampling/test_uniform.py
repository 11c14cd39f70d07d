"""Which row of which env a number picks, where envs have different numbers of rows, or none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskreplay.errors import EmptyBufferError, InvalidInputError
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.uniform import UniformSampler


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
    st.integers(0, 3),
)
def test_a_number_picks_the_row_at_its_place_among_all(counts, uniform, evicted):
    """Of rows that end at once, so that all of them can be sampled."""
    envs, kept = len(counts), 8
    index = RowIndex(kept, envs, 1, 1, 0.99)
    for env, rows in enumerate(counts):
        index.append(
            np.full(rows, env), np.zeros(rows, np.int32), np.ones(rows, np.uint8),
            np.zeros(rows, np.float32),
        )  # fmt: skip
    for env in range(0, envs, 2):
        index.evict(env, min(int(index.first[env]) + evicted, int(index.count[env])))
    rows = [
        row * envs + env
        for env, count in enumerate(counts)
        for row in range(int(index.first[env]), count)
    ]
    assert sorted(rows) == sorted(index.sampleable_ids().tolist())
    if rows:
        numbers = ReplayableRng(np.random.default_rng(0))
        numbers.put_back([np.array(uniform)])
        ids = UniformSampler(index).draw(numbers, len(uniform), 0.0)[0]
        assert ids.tolist() == [rows[int(number * len(rows))] for number in uniform]


def test_where_nearly_no_row_can_be_sampled_they_are_listed():
    index = RowIndex(5000, 2, 1, 1, 0.99)
    rows = 5000
    flags = np.zeros(rows, np.uint8)  # cut episodes of one row each, which lead nowhere
    flags[[7, 4000]] = 1
    index.append(np.zeros(rows, np.int64), np.zeros(rows, np.int32), flags, np.zeros(rows, "f4"))
    ids, probability, weight = UniformSampler(index).draw(
        ReplayableRng(np.random.default_rng(0)), 3000, 0.0
    )
    assert sorted(set(ids.tolist())) == [14, 8000]
    assert 1350 < np.count_nonzero(ids == 14) < 1650  # five and a half standard deviations
    assert (probability == 0.5).all()
    assert (weight == 1).all()
    assert (ids.dtype, probability.dtype, weight.dtype) == (np.int64, np.float64, np.float32)
    np.testing.assert_array_equal(UniformSampler(index).probability(ids[:3]), 0.5)


def test_nothing_can_be_drawn_from_no_rows():
    sampler = UniformSampler(RowIndex(5, 1, 1, 1, 0.99))
    with pytest.raises(EmptyBufferError, match="add more steps"):
        sampler.draw(np.random.default_rng(0), 1, 0.0)
    assert sampler.probability(np.empty(0, np.int64)).tolist() == []
    with pytest.raises(InvalidInputError, match="this buffer draws uniformly"):
        sampler.given(np.ones(3))
