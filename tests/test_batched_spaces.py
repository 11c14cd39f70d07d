"""The spaces of all envs together, given where those of one are meant."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector.utils import batch_space

import diskreplay
from diskreplay.errors import SchemaError, ShapeError
from diskreplay.integrations.gymnasium import VectorRecorder

NUM = 3
SINGLE = Dict(camera=Box(0, 255, (4, 4), "uint8"), body=Box(-1, 1, (2,)))


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("single", [SINGLE["camera"], Discrete(4), SINGLE], ids=repr)
def test_the_error_of_the_first_add_names_the_space(which, single):
    spaces = {"observation_space": Discrete(2), "action_space": Discrete(2)}
    spaces[which] = batch_space(single, NUM)
    values = {"observation": np.zeros(NUM, int), "action": np.zeros(NUM, int)}
    values[which.removesuffix("_space")] = spaces[which].sample()
    flags = np.zeros(NUM, bool)
    with diskreplay.ReplayBuffer(None, **spaces, capacity=300, num_envs=NUM) as buffer:
        with pytest.raises(ShapeError, match=f"single_{which}"):
            buffer.add(**values, reward=np.zeros(NUM), terminated=flags, truncated=flags)
        assert buffer.add_count == 0


def test_an_axis_of_that_length_may_well_be_meant():
    space = Box(0, 1, (NUM, 2))
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(2), capacity=300, num_envs=NUM
    ) as buffer:
        flags, actions = np.zeros(NUM, bool), np.zeros(NUM, int)
        frames = batch_space(space, NUM).sample()
        buffer.add(frames, actions, np.zeros(NUM), flags, flags)
        assert buffer.add_count == NUM


def test_num_envs_is_forgotten_too():
    spaces = {"observation_space": SINGLE, "action_space": Discrete(2)}
    spaces = {name: batch_space(space, NUM) for name, space in spaces.items()}
    observation, action = (space.sample() for space in spaces.values())
    with diskreplay.ReplayBuffer(None, **spaces, capacity=300) as buffer:
        with pytest.raises(ShapeError, match=r"num_envs=3.*single_observation_space"):
            buffer.add(observation, action, np.zeros(NUM), False, False)


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_a_recorder_refuses_it_at_once(which):
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM, vectorization_mode="sync")
    spaces = {
        "observation_space": envs.single_observation_space,
        "action_space": envs.single_action_space,
    }
    spaces[which] = getattr(envs, which)
    with diskreplay.ReplayBuffer(None, **spaces, capacity=300, num_envs=NUM) as buffer:
        with pytest.raises(SchemaError, match=f"single_{which}"):
            VectorRecorder(envs, buffer)
    envs.close()
