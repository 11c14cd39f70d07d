"""What of the priorities is handed to a save."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay


def test_leaves_of_two_saves_have_memory_of_their_own(tmp_path):
    """One may be written while the next one is taken."""
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "a", capacity=50, observation_space=Box(-1, 1, (1,), "float32"),
        action_space=Discrete(2),
    ) as buffer:  # fmt: skip
        for _ in range(9):
            buffer.add(np.zeros(1, np.float32), 0, 0.0, False, False)
        sampler = buffer._rows.sampler
        sampler.make_room()
        one, two = sampler.leaves(), sampler.leaves()
        assert not np.shares_memory(one, two)
        np.testing.assert_array_equal(one, two)
