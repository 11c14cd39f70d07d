"""Tianshou's DQN ends with the same weights, bit for bit, with its own buffer and with ours."""

import random

import gymnasium
import numpy as np
import pytest

pytest.importorskip("tianshou")
import torch
from gymnasium.wrappers import FrameStackObservation
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import (
    Collector,
    CollectStats,
    PrioritizedVectorReplayBuffer,
    VectorReplayBuffer,
)
from tianshou.env import DummyVectorEnv

from diskreplay.integrations.tianshou import (
    DiskPrioritizedVectorReplayBuffer,
    DiskVectorReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
ENVS = 2


class Frames(gymnasium.ObservationWrapper):
    """CartPole as a picture: a frame of bytes, which says nothing of speeds."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (6, 8), np.uint8)

    def observation(self, observation):
        frame = np.zeros((6, 8), np.uint8)
        frame.flat[:4] = np.clip(observation * 20 + 128, 0, 255).astype(np.uint8)
        frame[3:] = frame[0, 2]
        return frame


class Values(torch.nn.Module):
    """Values of two actions, as Tianshou's policies ask for them."""

    def __init__(self, inputs):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(inputs, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
        )

    def forward(self, obs, state=None, info=None):
        return self.layers(torch.as_tensor(np.asarray(obs), dtype=torch.float32) / 255), state


def weights(make_buffer, frames, n_step, steps=360):
    """The weights of a network that learned beside a ring that wraps round."""
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002

    def make():
        env = gymnasium.make("CartPole-v1")
        return FrameStackObservation(Frames(env), 4) if frames else env

    envs = DummyVectorEnv([make] * ENVS)
    envs.seed(3)
    space = make().action_space
    space.seed(3)
    network = Values(4 * 48 if frames else 4)
    policy = DiscreteQLearningPolicy(model=network, action_space=space, eps_training=0.3)
    algorithm = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-2), gamma=0.97, target_update_freq=7,
        n_step_return_horizon=n_step,
    )  # fmt: skip
    buffer = make_buffer()
    collector = Collector[CollectStats](policy, envs, buffer, exploration_noise=True)
    collector.reset()
    for _ in range(steps // 12):
        collector.collect(n_step=12)
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer=buffer, sample_size=16)
    assert len(buffer) == buffer.maxsize
    envs.close()
    return buffer, {name: value.numpy().tobytes() for name, value in network.state_dict().items()}


@pytest.mark.parametrize(
    ("theirs", "ours", "frames", "options", "disk_options", "n_step"),
    [
        (VectorReplayBuffer, DiskVectorReplayBuffer, False, {}, {"next_of": True}, 1),
        (
            PrioritizedVectorReplayBuffer, DiskPrioritizedVectorReplayBuffer, False,
            {"alpha": 0.6, "beta": 0.4}, {}, 3,
        ),
        (
            VectorReplayBuffer, DiskVectorReplayBuffer, True,
            {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}, {}, 2,
        ),
        (VectorReplayBuffer, DiskVectorReplayBuffer, True, {}, {"next_of": True, "stack": 4}, 2),
    ],
    ids=["vectors", "prioritized, 3 steps", "stacks", "stacks stored once"],
)  # fmt: skip
def test_the_weights_are_the_same_bit_for_bit(theirs, ours, frames, options, disk_options, n_step):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _, wanted = weights(lambda: theirs(120, ENVS, **options), frames, n_step)
        disk_options = {"min_bytes": 16, **disk_options}
        disk, found = weights(lambda: ours(120, ENVS, **options, **disk_options), frames, n_step)
        _, other = weights(lambda: theirs(180, ENVS, **options), frames, n_step)
    finally:
        torch.set_num_threads(threads)
    assert found == wanted
    assert bool(disk.disk.next_of) == ("next_of" in disk_options)
    assert other != wanted  # what is drawn matters
    disk.close()
