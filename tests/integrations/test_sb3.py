"""Stable-Baselines3 with observations on disk: the same batches, the same weights."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
import torch
from stable_baselines3 import DQN, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from diskreplay.check.verify import verify
from diskreplay.integrations.sb3 import (
    DiskHerReplayBuffer,
    DiskNStepReplayBuffer,
    DiskReplayBuffer,
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cartpole(envs=2):
    return make_vec_env("CartPole-v1", n_envs=envs, seed=0)


def pendulum(normalized=False):
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=0)
    return VecNormalize(env) if normalized else env


class Noise(gym.Env):
    """Pictures of noise; episodes of seven steps are truncated, and some terminate before."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def _picture(self):
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._picture(), {}

    def step(self, action):
        self._steps += 1
        ends = bool(self.np_random.random() < 0.1)
        return self._picture(), float(action) - 1.0, ends, self._steps == 7, {}


def images():
    return VecFrameStack(make_vec_env(Noise, n_envs=2, seed=0), 4)


def bits():
    return make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True), n_envs=2, seed=0)


def dqn(**options):
    # 120 slots of each of two envs: the ring wraps round.
    options |= {"buffer_size": 240, "learning_starts": 20, "train_freq": 4, "seed": 3}
    return DQN(
        "MlpPolicy", cartpole(), target_update_interval=50, policy_kwargs={"net_arch": [8]},
        device="cpu", **options,
    )  # fmt: skip


def dqn_of_images(**options):
    policy = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 8}}
    options |= {"buffer_size": 100, "learning_starts": 20, "train_freq": 16, "seed": 3}
    return DQN("CnnPolicy", images(), batch_size=8, policy_kwargs=policy, device="cpu", **options)


def continuous(kind, policy, env, **options):
    options |= {"buffer_size": 120, "learning_starts": 30, "train_freq": 8, "seed": 3}
    return kind(
        policy, env, batch_size=16, policy_kwargs={"net_arch": [8]}, device="cpu", **options
    )


def sac(**options):
    return continuous(SAC, "MlpPolicy", pendulum(), **options)


def sac_normalized(**options):
    return continuous(SAC, "MlpPolicy", pendulum(normalized=True), **options)


def td3(**options):
    return continuous(TD3, "MlpPolicy", pendulum(), **options)


def sac_of_goals(**options):
    return continuous(SAC, "MultiInputPolicy", bits(), **options)


RUNS = {
    "dqn": (dqn, ReplayBuffer, DiskReplayBuffer, {}, {}),
    "images": (dqn_of_images, ReplayBuffer, DiskReplayBuffer, {}, {"frame_stack": 4}),
    "whole stacks": (dqn_of_images, ReplayBuffer, DiskReplayBuffer, {}, {"compressor": "raw"}),
    "sac": (sac, ReplayBuffer, DiskReplayBuffer, {}, {}),
    "sac, normalized": (sac_normalized, ReplayBuffer, DiskReplayBuffer, {}, {}),
    "td3": (td3, ReplayBuffer, DiskReplayBuffer, {}, {}),
    "3-step sac": (sac, NStepReplayBuffer, DiskNStepReplayBuffer, {"n_steps": 3, "gamma": 0.9}, {}),
    "dict": (sac_of_goals, DictReplayBuffer, DiskReplayBuffer, {}, {}),
    "her": (sac_of_goals, HerReplayBuffer, DiskHerReplayBuffer, {"n_sampled_goal": 3}, {}),
}


def trained(make, kind, steps=180, **options):
    """The weights after two calls of `learn`, the second of which resets in mid-episode."""
    model = make(replay_buffer_class=kind, replay_buffer_kwargs=options)
    model.learn(steps)
    model.learn(steps // 2, reset_num_timesteps=False)
    model.learn(steps // 2)
    return model, {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


def arrays(buffer, name):
    parts = getattr(buffer, name)
    parts = parts if isinstance(parts, dict) else {"": parts}
    return {key: np.asarray(part) for key, part in parts.items()}


@pytest.mark.costly(3)
@pytest.mark.parametrize("run", RUNS)
def test_a_run_ends_in_the_same_weights(tmp_path, run):
    make, theirs, ours, options, disk = RUNS[run]
    plain, wanted = trained(make, theirs, **options)
    model, found = trained(make, ours, **options, path=tmp_path / "replay", **disk)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert value.tobytes() == found[name].tobytes(), name
    one, other = plain.replay_buffer, model.replay_buffer
    assert (one.pos, one.full, one.buffer_size) == (other.pos, other.full, other.buffer_size)
    assert one.full
    for name in ("actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("observations", "next_observations"):
        there, here = arrays(one, name), arrays(other, name)
        for key, value in there.items():
            assert value.dtype == here[key].dtype
            np.testing.assert_array_equal(value, here[key])
    # Reopened, all of it is there again, in the same slots.
    other.close()
    again = make(
        replay_buffer_class=ours,
        replay_buffer_kwargs={**options, "path": tmp_path / "replay", **disk},
    ).replay_buffer
    assert (again.pos, again.full) == (one.pos, one.full)
    for name in ("actions", "rewards"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
    timeouts = one.timeouts.copy()
    if "n_steps" in options:  # sums end where `learn` has reset the environment, too
        order = (one.pos + np.arange(one.buffer_size)) % one.buffer_size
        seen, led = (arrays(one, name)[""][order] for name in ("observations", "next_observations"))
        cut = np.ones(timeouts.shape, bool)
        cut[:-1] = (led[:-1] != seen[1:]).reshape(*cut[:-1].shape, -1).any(-1)
        timeouts[order] = np.maximum(timeouts[order], cut & (one.dones[order] == 0))
        assert timeouts.sum() > one.timeouts.sum() + 1
    np.testing.assert_array_equal(timeouts, again.timeouts)
    for key, value in arrays(one, "next_observations").items():
        np.testing.assert_array_equal(value, arrays(again, "next_observations")[key])
    again.close()
    assert verify(tmp_path / "replay").findings == ()
