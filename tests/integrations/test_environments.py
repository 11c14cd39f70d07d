"""What recorders note about the environment."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TransformReward

import diskreplay
from diskreplay.integrations.gymnasium import Recorder, VectorRecorder

PONG = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]


def make_buffer(env, num_envs=1, path=None, **options):
    single = num_envs == 1 and not isinstance(env, gymnasium.vector.VectorEnv)
    return diskreplay.ReplayBuffer(
        path,
        observation_space=env.observation_space if single else env.single_observation_space,
        action_space=env.action_space if single else env.single_action_space,
        capacity=100, num_envs=num_envs, seed=0, **options,
    )  # fmt: skip


def noted(env, num_envs=1, **options):
    with make_buffer(env, num_envs, **options) as buffer:
        recorder = (Recorder if num_envs == 1 else VectorRecorder)(env, buffer)
        if num_envs > 1:
            recorder.reset()  # they live, if not as long as a recorder of gymnasium 1.1
        return buffer.metadata


def cartpole(**options):
    return gymnasium.make("CartPole-v1", **options)


def pong():
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", obs_type="ram", frameskip=3)


def test_a_single_environment():
    env = gymnasium.wrappers.TimeLimit(cartpole(sutton_barto_reward=True), 77)
    found = noted(env)
    assert found["env_id"] == "CartPole-v1"
    assert found["env_kwargs"] == {"sutton_barto_reward": True}
    assert found["gymnasium_version"] == gymnasium.__version__
    assert "action_meanings" not in found
    spec = gymnasium.envs.registration.EnvSpec.from_json(json.dumps(found["env_spec"]))
    assert spec.max_episode_steps == 77
    assert gymnasium.make(spec).unwrapped._sutton_barto_reward


def test_ale():
    found = noted(pong())
    assert found["env_id"] == "ALE/Pong-v5"
    assert found["env_kwargs"]["frameskip"] == 3
    assert found["action_meanings"] == PONG


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments(kind):
    envs = kind([pong, pong])
    found = noted(envs, 2)
    envs.close()
    assert found["env_id"] == "ALE/Pong-v5"
    assert found["action_meanings"] == PONG
    if kind is SyncVectorEnv:
        assert found["env_kwargs"]["frameskip"] == 3


@pytest.mark.costly(1)
@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5"])
@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_vector_environments_that_gymnasium_made(mode, name):
    pong()  # registers them
    if mode == "vector_entry_point" and gymnasium.spec(name).vector_entry_point is None:
        pytest.skip("ale-py has vector environments since 0.11")
    envs = gymnasium.make_vec(name, num_envs=2, vectorization_mode=mode)
    found = noted(envs, 2)
    envs.close()
    assert found["env_id"] == found["env_spec"]["id"] == name
    assert found.get("action_meanings") == (PONG if name.startswith("ALE") else None)


def test_what_the_user_notes_is_not_overwritten(tmp_path):
    env = cartpole()
    mine = {"env_id": "mine", "gymnasium_version": None, "seed": 3}
    found = noted(env, path=tmp_path / "store", metadata=mine)
    assert mine.items() <= found.items()
    assert found["env_spec"]["id"] == "CartPole-v1"
    assert noted(env, path=tmp_path / "store", metadata={"env_spec": 0})["env_spec"] == 0


def test_a_second_recorder_writes_nothing(tmp_path, monkeypatch):
    env = cartpole()
    first = noted(env, path=tmp_path / "store")
    monkeypatch.setattr(diskreplay.ReplayBuffer, "set_metadata", None)
    assert noted(env, path=tmp_path / "store") == first


class Odd(gymnasium.Env):
    """An environment that makes it hard to say what it is."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, first=None, second=None):
        self.first = first

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def get_action_meanings(self, which):
        raise RuntimeError(which)


class NoCopy:
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies")


@pytest.fixture
def odd():
    gymnasium.register("diskreplay/Odd-v0", Odd, disable_env_checker=True)
    yield lambda **options: gymnasium.make("diskreplay/Odd-v0", **options)
    del gymnasium.registry["diskreplay/Odd-v0"]


def test_an_environment_without_a_spec():
    assert noted(Odd()) == {"gymnasium_version": gymnasium.__version__}
    envs = AsyncVectorEnv([Odd, Odd])
    assert noted(envs, 2) == {"gymnasium_version": gymnasium.__version__}
    envs.close()


def test_arguments_that_are_no_json(odd):
    found = noted(odd(first=lambda: 3, second=[1, 2]))
    assert found["env_id"] == "diskreplay/Odd-v0"
    assert found["env_kwargs"] == {"second": [1, 2]}
    assert "env_spec" not in found  # its entry point is a class, the argument a function
    wrapped = TransformReward(odd(second="x"), lambda reward: reward)
    assert noted(wrapped)["env_kwargs"] == {"second": "x"}
    envs = AsyncVectorEnv([lambda: odd(first=lambda: 3)] * 2, context="fork")
    assert noted(envs, 2)["env_id"] == "diskreplay/Odd-v0"
    envs.close()


def test_a_description_that_is_too_long_loses_its_longest_part(odd):
    found = noted(odd(first="x" * 40_000, second="y"), metadata={"mine": "z" * 30_000})
    assert found["mine"] == "z" * 30_000
    assert found["env_id"] == "diskreplay/Odd-v0"
    assert "env_kwargs" not in found
    assert found["gymnasium_version"] == gymnasium.__version__


def test_a_spec_that_is_not_gymnasiums():
    """As EnvPool's environments have one, which has no id; the recorder could not be made."""

    class Pool(gymnasium.vector.VectorWrapper):
        spec = object()

    class Single(gymnasium.Wrapper):
        spec = object()

    vector = Pool(SyncVectorEnv([cartpole] * 2))
    type(vector).unwrapped = property(lambda self: self)  # nothing of Gymnasium's is inside
    assert noted(vector, 2) == {"gymnasium_version": gymnasium.__version__}
    assert noted(Single(cartpole())) == {"gymnasium_version": gymnasium.__version__}
