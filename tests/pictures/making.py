"""Small stores to draw, and what went into them."""

from dataclasses import dataclass, field

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay


@dataclass
class Episode:
    """What was recorded in one episode; `frames` has one more than the others: the final one."""

    frames: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)


def frame(rng, shape=(12, 16)):
    """Coarse noise with few colours."""
    return rng.integers(0, 4, shape, np.uint8) * 64


def record(path, lengths=(5, 9, 7), *, shape=(12, 16), kind="prioritized", seed=0):
    """A store at `path` with whole episodes of these lengths, and what is in it."""
    rng = np.random.default_rng(seed)
    make = {
        "prioritized": diskreplay.PrioritizedReplayBuffer, "uniform": diskreplay.ReplayBuffer,
    }[kind]  # fmt: skip
    episodes = []
    with make(
        path, observation_space=Box(0, 255, shape, "uint8"), action_space=Discrete(4),
        capacity=10_000, seed=seed,
    ) as buffer:  # fmt: skip
        for length in lengths:
            episode = Episode([frame(rng, shape)])
            for step in range(length):
                episode.actions.append(int(rng.integers(4)))
                episode.rewards.append(float(rng.integers(-1, 2)))
                episode.frames.append(frame(rng, shape))
                buffer.add(
                    episode.frames[-2], episode.actions[-1], episode.rewards[-1],
                    step + 1 == length, False, episode.frames[-1],
                )  # fmt: skip
            episodes.append(episode)
    return episodes


def record_vectors(path, rows=40):
    """A uniform store of two envs without pictures, and with actions that are vectors."""
    rng = np.random.default_rng(1)
    actions = []
    with diskreplay.ReplayBuffer(
        path, observation_space=Dict(position=Box(-1, 1, (3,)), speed=Box(-1, 1, ())),
        action_space=Box(-1, 1, (2,)), capacity=None, num_envs=2,
    ) as buffer:  # fmt: skip
        for row in range(rows):
            observation = {
                "position": rng.uniform(-1, 1, (2, 3)).astype(np.float32),
                "speed": rng.uniform(-1, 1, 2).astype(np.float32),
            }
            actions.append(rng.uniform(-1, 1, (2, 2)).astype(np.float32))
            ended = np.full(2, row % 10 == 9)
            buffer.add(observation, actions[-1], rng.normal(size=2), ended, ~ended & False)
    return np.array(actions)
