"""Plays five Atari games with a random policy and writes the stream to disk, once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from stream import FRAME_SHAPE, Stream

GAMES = ("Pong", "Breakout", "Seaquest", "SpaceInvaders", "MsPacman")
STREAM_VERSION = 1


def find_stream(cache: Path, steps: int) -> Stream | None:
    """The recorded stream in `cache` with the fewest steps that still has `steps`."""
    found = []
    for about in cache.glob(f"atari-v{STREAM_VERSION}-*/about.json"):
        recorded = json.loads(about.read_text())["steps"]
        if recorded >= steps:
            found.append((recorded, about.parent))
    return Stream(min(found)[1]) if found else None


def record_stream(
    cache: Path, steps: int, seed: int = 0, progress: Callable[[int], None] = lambda done: None
) -> Stream:
    """Record `steps` steps into `cache`; the stream appears there whole or not at all.

    Whole episodes alternate between the games; the game with the fewest steps so far plays
    next, so that each has the same share.  When a game has its share its running episode is
    cut: a truncation, with a final observation, like any other.
    """
    target = cache / f"atari-v{STREAM_VERSION}-{steps}"
    working = cache / f".{target.name}.{os.getpid()}"
    working.mkdir(parents=True)
    try:
        _play(working, steps, seed, progress)
        shutil.rmtree(target, ignore_errors=True)
        working.rename(target)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return Stream(target)


def make_env(game: str):
    """84x84 grey, frame skip 4, sticky actions as the v5 environments have them."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1)
    return gymnasium.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=FRAME_SHAPE[0])


def _play(directory: Path, steps: int, seed: int, progress: Callable[[int], None]) -> None:
    rng = np.random.default_rng(seed)
    envs = [make_env(game) for game in GAMES]
    share = [steps // len(GAMES) + (index < steps % len(GAMES)) for index in range(len(GAMES))]
    left = list(share)
    columns: dict[str, list] = {
        name: [] for name in ("action", "reward", "terminated", "truncated")
    }
    lengths, games = [], []
    with (directory / "frames.bin").open("wb") as file:
        while any(left):
            game = max(range(len(GAMES)), key=lambda index: left[index] / share[index])
            env = envs[game]
            observation, _ = env.reset(seed=int(rng.integers(2**31)))
            length, ended = 0, False
            while not ended:
                file.write(observation.tobytes())
                action = int(rng.integers(env.action_space.n))
                observation, reward, terminated, truncated, _ = env.step(action)
                length += 1
                truncated = bool(truncated or (length == left[game] and not terminated))
                ended = terminated or truncated
                for name, value in zip(
                    columns, (action, reward, terminated, truncated), strict=True
                ):
                    columns[name].append(value)
            file.write(observation.tobytes())
            left[game] -= length
            lengths.append(length)
            games.append(game)
            progress(steps - sum(left))
    dtypes = {"action": "int64", "reward": "float32", "terminated": "bool", "truncated": "bool"}
    np.savez(
        directory / "steps.npz",
        **{name: np.array(column, dtypes[name]) for name, column in columns.items()},
        episode_length=np.array(lengths, "int64"),
        episode_game=np.array(games, "int64"),
    )
    about = {
        "steps": steps,
        "episodes": len(lengths),
        "games": GAMES,
        "policy": "uniformly random",
        "observation": "84x84 grey uint8, frame skip 4, AtariPreprocessing, ALE v5",
        "seed": seed,
        "versions": {name: version(name) for name in ("ale-py", "gymnasium", "numpy")},
    }
    (directory / "about.json").write_text(json.dumps(about, indent=2))
