"""Pong, as Atari agents see it."""

from collections.abc import Iterator

import ale_py
import gymnasium

from demo_parts.training import Step


def play(seed: int) -> Iterator[Step]:
    """Endless play with a random policy: 84x84 grey frames, every fourth of the game's."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.AtariPreprocessing(
        gymnasium.make("ALE/Pong-v5", frameskip=1), frame_skip=4, screen_size=84
    )
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    while True:
        action = int(env.action_space.sample())
        following, reward, terminated, truncated, _ = env.step(action)
        yield Step(observation, action, float(reward), terminated, truncated, following)
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
