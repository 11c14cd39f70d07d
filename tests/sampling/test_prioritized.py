"""What of the priorities is handed to a save."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay


class Cleared(np.ndarray):
    """Memory that another thread has a look at before it is cleared."""

    meanwhile = staticmethod(lambda: None)

    def fill(self, value):
        type(self).meanwhile()
        super().fill(value)


def test_leaves_that_another_thread_takes_are_not_cleared(tmp_path, monkeypatch):
    """A flush amid the preparations of a save wrote zeros as priorities, and the save failed."""
    with diskreplay.PrioritizedReplayBuffer(
        tmp_path / "a", capacity=50, observation_space=Box(-1, 1, (1,), "float32"),
        action_space=Discrete(2),
    ) as buffer:  # fmt: skip
        for _ in range(9):
            buffer.add(np.zeros(1, np.float32), 0, 0.0, False, False)
        sampler, taken, empty = buffer._rows.sampler, [], np.empty
        wanted = sampler.leaves().copy()
        assert np.nanmin(wanted) > 0
        with monkeypatch.context() as patch:
            patch.setattr(Cleared, "meanwhile", lambda: taken.append(sampler.leaves()))
            patch.setattr(np, "empty", lambda *shape, **how: empty(*shape, **how).view(Cleared))
            sampler.make_room()
        assert len(taken) == 1
        np.testing.assert_array_equal(taken[0], wanted)
        np.testing.assert_array_equal(sampler.leaves(), wanted)


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
