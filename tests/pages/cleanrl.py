"""The buffers of the single files are made, take steps and give batches."""

import argparse
import contextlib
import pickle

import numpy as np
import pytest


def check_dqn(names):
    add(names["rb"], np.zeros((1, 4, 84, 84), np.uint8))
    assert names["rb"].sample(8).observations.shape == (8, 4, 84, 84)
    names["rb"].close()
    names["envs"].single_observation_space = names["box"](-1, 1, (3,))
    names["args"].exp_name = "sac"


def check_sac(names):
    add(names["rb"], np.zeros((1, 3), np.float32))
    assert names["rb"].sample(8).observations.shape == (8, 3)
    names["rb"].close()
    names["args"].exp_name = "rainbow"


def check_rainbow(names):
    for _ in range(100):
        names["rb"].add(np.zeros((84, 84), np.uint8), 1, 0.0, False, False)


def check_the_batch(names):
    assert names["data"]["observation"].shape == (8, 4, 84, 84)
    names["rb"].close()
    args, envs = names["args"], names["envs"]
    names["rb"] = names["ReplayBuffer"](
        args.buffer_size, envs.single_observation_space, envs.single_action_space, path="runs/kept"
    )
    add(names["rb"], np.zeros((1, 3), np.float32))


def add(rb, seen):
    for _ in range(20):
        rb.add(seen, seen, np.ones(1, np.int64), np.zeros(1), np.zeros(1, bool), [{}])


CHECKS = {
    "frame_stack=4, stack_padding": check_dqn,
    "n_envs=args.num_envs": check_sac,
    "PrioritizedReplayBuffer(": check_rainbow,
    "data = rb.sample(": check_the_batch,
}


@contextlib.contextmanager
def around(_said):
    torch = pytest.importorskip("torch")
    import gymnasium as gym

    args = argparse.Namespace(
        exp_name="dqn", buffer_size=200, num_envs=1, n_step=3, gamma=0.99, seed=1, batch_size=8,
        prioritized_replay_alpha=0.5, prioritized_replay_beta=0.4, prioritized_replay_eps=1e-6,
    )  # fmt: skip
    envs = argparse.Namespace(
        single_observation_space=gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
        single_action_space=gym.spaces.Discrete(3),
    )
    network = torch.nn.Linear(2, 2)
    stack, one = np.zeros((1, 4, 84, 84), np.uint8), np.zeros(1)
    yield (
        {
            "args": args, "envs": envs, "gym": gym, "np": np, "device": "cpu", "obs": stack,
            "real_next_obs": stack, "actions": one.astype(int), "rewards": one,
            "terminations": one.astype(bool), "truncations": one.astype(bool), "torch": torch,
            "loss_per_sample": torch.ones(8), "box": gym.spaces.Box, "global_step": 8,
            "q_network": network, "target_network": network,
            "optimizer": torch.optim.Adam(network.parameters()),
        }
    )  # fmt: skip
    with open("runs/rainbow/run.pkl", "rb") as file:
        assert pickle.load(file)["rb"].size() == 20
