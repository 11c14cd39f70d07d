"""Kernels over leaves and rows: what they are handed is all that they touch."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.sampling import prioritized_kernels


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_leaves_are_copied_into_what_is_given_and_no_further(tmp_path, num_envs, rows):
    """Also where it is for rows that have all left, or are not there yet."""
    options = {"observation_space": Box(-1, 1, (1,), "float32"), "action_space": Discrete(2)}
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "a", capacity=20 * num_envs, num_envs=num_envs, **options
    ) as buffer:
        lead = () if num_envs == 1 else (num_envs,)
        no = np.zeros(lead, bool)
        for _ in range(90):
            buffer.add(np.zeros((*lead, 1), np.float32), no * 1, no * 1.0, no, no)
        sampler = buffer._rows.sampler
        for start in (0, int(sampler._index.first[0]) - 1, 89, 90, 200):
            memory = np.full((200, num_envs), 7.0)
            given = memory[50 : 50 + rows]
            prioritized_kernels.copy_leaves(sampler.tree.nodes, *sampler._index.state, start, given)
            assert (memory[:50] == 7.0).all()
            assert (memory[50 + rows :] == 7.0).all()
            first, stop = int(sampler._index.first[0]), 90
            for row, leaves in enumerate(given, start):
                assert np.isnan(leaves).all() == (not first <= row < stop - 1)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_leaves_are_those_of_the_places_of_their_rows(tmp_path, num_envs):
    """The ring has turned: the oldest row that is retained is not in its first place."""
    options = {"observation_space": Box(-1, 1, (1,), "float32"), "action_space": Discrete(2)}
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "a", capacity=20 * num_envs, num_envs=num_envs, alpha=1.0, **options
    ) as buffer:
        lead = () if num_envs == 1 else (num_envs,)
        no = np.zeros(lead, bool)
        for _ in range(47):
            buffer.add(np.zeros((*lead, 1), np.float32), no * 1, no * 1.0, no, no)
        ids = buffer.sampleable_ids()
        buffer.update_priorities(ids, 1.0 + ids)
        expected = np.full(20 * num_envs, np.nan)
        expected[ids - 27 * num_envs] = 1.0 + ids
        leaves = buffer._rows.sampler.leaves()
        np.testing.assert_array_equal(leaves, expected.reshape(20, num_envs))
