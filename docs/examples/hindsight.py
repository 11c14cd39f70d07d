"""A DQN that learns to flip bits until they are as wanted, where no other reward is given.

    python docs/examples/hindsight.py [--without]

The task of Andrychowicz et al., "Hindsight Experience Replay", 2017, section 3.1. With 10 bits a
random agent meets the goal once in a hundred episodes. Without hindsight it learns from these only.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import diskreplay

GAMMA = 0.95


def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: object) -> np.ndarray:
    """0 where all bits are as wanted, else -1."""
    return -(achieved != desired).any(axis=-1).astype(np.float32)


def train(
    path: Path, *, hindsight: bool, bits: int = 10, episodes: int = 1200, seed: int = 0
) -> float:
    """The share of the last sixth of the episodes in which the bits became as wanted."""
    word_space = Box(0, 1, (bits,), "float32")
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network, target = (
        nn.Sequential(nn.Linear(2 * bits, 128), nn.ReLU(), nn.Linear(128, bits)) for _ in range(2)
    )
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    met = []
    with diskreplay.ReplayBuffer(
        path, observation_space=Dict({"achieved_goal": word_space, "desired_goal": word_space}),
        action_space=Discrete(bits), capacity=20_000, gamma=GAMMA, seed=seed,
    ) as buffer:  # fmt: skip
        source = buffer.hindsight(compute_reward) if hindsight else buffer
        for episode in range(episodes):
            word, goal = rng.integers(0, 2, (2, bits)).astype(np.float32)
            for step in range(bits):
                if rng.random() < max(0.1, 1 - episode / (episodes / 3)):
                    action = int(rng.integers(bits))
                else:
                    with torch.no_grad():
                        action = int(network(torch.from_numpy(np.r_[word, goal])).argmax())
                following = word.copy()
                following[action] = 1 - following[action]
                reward = float(compute_reward(following, goal, None))
                done = reward == 0 or step == bits - 1
                buffer.add(
                    {"achieved_goal": word, "desired_goal": goal}, action, reward, False, done,
                    {"achieved_goal": following, "desired_goal": goal},
                )  # fmt: skip
                word = following
                if done:
                    break
            met.append(reward == 0)
            if episode >= 20:
                for _ in range(4):
                    learn(network, target, optimizer, source.sample(128))
                with torch.no_grad():
                    for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                        slow.lerp_(fast, 0.05)
    return float(np.mean(met[-episodes // 6 :]))


def learn(
    network: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: diskreplay.Batch
) -> None:
    """One step of gradient descent; an episode ends for the learner where its goal is met."""

    def seen(observation: dict[str, np.ndarray]) -> torch.Tensor:
        both = observation["achieved_goal"], observation["desired_goal"]
        return torch.from_numpy(np.concatenate(both, axis=1))

    reward = torch.from_numpy(batch.reward)
    action = torch.from_numpy(batch.action)[:, None]
    with torch.no_grad():
        value = target(seen(batch.next_observation)).max(dim=1).values
        wanted = (reward + GAMMA * (reward != 0) * value).clamp(-1 / (1 - GAMMA), 0)
    chosen = network(seen(batch.observation)).gather(1, action)[:, 0]
    loss = nn.functional.smooth_l1_loss(chosen, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--without", action="store_true", help="learn from what was recorded only")
    without = parser.parse_args().without
    with tempfile.TemporaryDirectory() as directory:
        share = train(Path(directory) / "replay", hindsight=not without)
    print(f"the goal was met in {share:.0%} of the last 200 episodes")
