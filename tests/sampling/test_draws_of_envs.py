"""Which row of which env a number picks, where envs have different numbers of rows, or none."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.uniform import UniformSampler


class Numbers:
    """A generator that gives these."""

    def __init__(self, uniform):
        self.uniform = uniform

    def random(self, size):
        return self.uniform[:size]


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
        ids = UniformSampler(index).draw(Numbers(np.array(uniform)), len(uniform), 0.0)[0]
        assert ids.tolist() == [rows[int(number * len(rows))] for number in uniform]


def test_windows_are_drawn_evenly_over_envs_that_differ(tmp_path):
    rows = [0, 90, 3, 0, 30, 1]
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(-1, 1, (2,)), action_space=Discrete(2),
        capacity=6 * 100, num_envs=6, seed=0,
    ) as buffer:  # fmt: skip
        for step in range(max(rows)):
            mask = np.array([step < count for count in rows])
            no = np.zeros(6, bool)
            buffer.add(np.zeros((6, 2)), np.ones(6, int), np.ones(6), no, no, mask=mask)
        windows = buffer.sequences(2)
        drawn = windows.sample(40_000).id[:, 0]
        assert set(drawn.tolist()) == set(windows.anchors().tolist())
        share = np.bincount(drawn % 6, minlength=6) / len(drawn)
        np.testing.assert_allclose(share, np.array([0, 89, 2, 0, 29, 0]) / 120, atol=0.01)
