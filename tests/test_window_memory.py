"""Memory of batches that are gone, for batches of other sizes."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.batch import WindowMemory


@pytest.fixture
def buffer():
    with diskreplay.PrioritizedReplayBuffer(
        None, observation_space=Box(0, 255, (5, 5), "uint8"), action_space=Discrete(3),
        capacity=300, stack_size=3, update_horizon=2, seed=0,
    ) as made:  # fmt: skip
        rng = np.random.default_rng(0)
        for row in range(250):
            frame = rng.integers(0, 256, (5, 5), np.uint8)
            made.add(frame, row % 3, row, row % 40 == 39, False, frame)
        yield made


def owner(array):
    return array if array.base is None else array.base


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_batches_of_any_size_are_read_right_and_stay_as_they_are(buffer, kept):
    """Beside the same transitions one at a time, copied at once."""
    rng = np.random.default_rng(1)
    held = []
    for size in rng.integers(1, 60, 80).tolist():
        batch, _mass = buffer.sample_at(rng.random(size))
        single = [buffer.gather(batch.id[k : k + 1]) for k in range(size)]
        wanted = {
            name: np.concatenate([one[name].copy() for one in single])
            for name in ("observation", "next_observation", "reward")
        }
        del single
        held = [*held, (batch, wanted)][-1 - kept :]
        for earlier, expected in held:
            for name, array in expected.items():
                np.testing.assert_array_equal(earlier[name], array, err_msg=name)
            window = earlier.window()
            assert window is None or len(window) == len(earlier)


def test_a_smaller_batch_takes_the_memory_of_a_larger_one_and_gives_it_back(buffer):
    places = np.linspace(0, 1, 40)
    first, _ = buffer.sample_at(places)
    memory = owner(first.observation).ctypes.data
    del first
    for size in (38, 40, 33):
        batch, _ = buffer.sample_at(places[:size])
        assert owner(batch.observation).ctypes.data == memory
        assert len(owner(batch.observation)) == 40
        del batch


def test_memory_of_twice_the_size_is_let_go():
    memory = WindowMemory()
    memory.give({"frames": np.empty((40, 3)), "next": np.empty((10, 3))})
    assert memory.take(19) == {}
    assert memory.take(19) == {}


def test_memory_is_shared_with_nobody_who_looks_at_a_part_of_it():
    memory = WindowMemory()
    memory.give({"frames": np.empty((40, 3))})
    shown = memory.take(30)
    memory.give(shown)
    view = shown.pop("frames")[5:6]
    assert memory.take(30) == {}
    del view
    assert len(memory.take(40)["frames"]) == 40
