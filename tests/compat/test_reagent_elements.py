"""ReAgent's buffers made for environments: which elements their rows have."""

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torch")

from diskreplay.compat.reagent import PrioritizedReplayBuffer, ReplayBuffer, create_from_env


class Env:
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.unwrapped = self


BOX = spaces.Box(0, 255, (4, 4), np.uint8)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "action", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))]
)
def test_buffer_for_an_environment(kind, action):
    with kind.create_from_env(
        Env(BOX, action), replay_memory_size=10, batch_size=2, stack_size=2, update_horizon=3
    ) as buffer:
        elements = {element.name: element for element in buffer.get_storage_signature()}
        assert list(elements)[4:] == ["mdp_id", "sequence_number", "log_prob"]
        assert elements["observation"].shape == (4, 4)
        assert elements["observation"].type == np.uint8
        assert elements["action"].shape == action.shape
        assert elements["action"].type == action.dtype
        more = [1.0] if kind is PrioritizedReplayBuffer else []
        buffer.add(np.ones((4, 4)), action.sample(), 1.0, True, 0, 0, -1.0, *more)
        assert buffer.sample_transition_batch(1).state.shape == (1, 4, 4, 2)
    with kind.create_from_env(
        Env(BOX, action), replay_memory_size=10, batch_size=2, store_log_prob=False
    ) as buffer:
        assert [e.name for e in buffer.get_storage_signature()][-1] == "sequence_number"


def test_the_function_makes_a_uniform_buffer():
    env = Env(BOX, spaces.Discrete(3))
    with create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        assert type(buffer) is ReplayBuffer


def test_spaces_that_are_not_supported():
    for observation, action in [
        (spaces.Discrete(3), spaces.Discrete(3)),
        (spaces.Dict({"a": BOX}), spaces.Discrete(3)),
        (BOX, spaces.MultiBinary(3)),
    ]:
        with pytest.raises(NotImplementedError):
            ReplayBuffer.create_from_env(
                Env(observation, action), replay_memory_size=10, batch_size=2
            )


def test_buffer_for_a_recommender():
    document = spaces.Dict({"quality": spaces.Box(0, 1, (1,)), "cluster": spaces.Discrete(5)})
    response = spaces.Dict({"click": spaces.Discrete(2), "time": spaces.Box(0, 9, ())})
    space = spaces.Dict({
        "user": spaces.Box(0, 1, (6,)),
        "doc": spaces.Dict({str(i): document for i in range(3)}),
        "augmentation": spaces.Dict({"0": spaces.Dict({"age": spaces.Box(0, 1, (2,))})}),
        "response": spaces.Tuple([response, response]),
    })  # fmt: skip
    env = Env(space, spaces.MultiDiscrete([3, 3]))
    with ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        found = {e.name: tuple(e.shape) for e in buffer.get_storage_signature()}
    keys = sorted(found.keys() - {"observation", "action", "reward", "terminal"})
    assert found["observation"] == (6,)
    assert next(name for name in found if name in keys).startswith("doc_")
    assert {name: found[name] for name in keys} == {
        "doc_quality": (3, 1), "doc_cluster": (3,), "augmentation_age": (3, 2),
        "response_click": (2,), "response_time": (2,), "mdp_id": (), "sequence_number": (),
        "log_prob": (),
    }  # fmt: skip
    plain = spaces.Dict({**space.spaces, "doc": spaces.Dict({"0": BOX, "1": BOX})})
    env = Env(plain, spaces.MultiDiscrete([2, 2]))
    with ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2) as buffer:
        found = {e.name: tuple(e.shape) for e in buffer.get_storage_signature()}
    assert found["doc"] == (2, 4, 4)
