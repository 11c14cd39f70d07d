"""Hindsight: transitions with goals that their episode reached, beside Stable-Baselines3's.

    python tools/bench/hindsight.py [--rows 1000000] [--rounds 40]

Vectors of 25 floats, and two goals of 5, in episodes of 50 steps, as goal environments for robots
have them; four of five goals are new, and the reward is by distance. Calls take turns. They are
timed by the clock, and by the processor time of their thread: the median and the quickest quarter.
Stable-Baselines3 has `--sb3` transitions: it looks at all of them at each call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict

EPISODE, STATE, GOAL = 50, 25, 5
SPACE = Dict({
    "observation": Box(-np.inf, np.inf, (STATE,), "float32"),
    "achieved_goal": Box(-np.inf, np.inf, (GOAL,), "float32"),
    "desired_goal": Box(-np.inf, np.inf, (GOAL,), "float32"),
})  # fmt: skip
ACTIONS = Box(-1, 1, (4,), "float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sb3", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hindsight-") as directory:
        calls = dict(contenders(options, Path(directory)))
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for number in range(options.rounds * 10 + 20):
            for name in calls if number % 2 else reversed(calls):
                if name.startswith("SB3") and number % 10:
                    continue  # as long as all others together
                begin = time.perf_counter(), time.thread_time()
                calls[name](options.batch)
                ends = time.perf_counter(), time.thread_time()
                if number >= 20:
                    taken[name].append((ends[0] - begin[0], ends[1] - begin[1]))
    for name, times in taken.items():
        clock, processor = 1e3 * np.array(times).T
        print(
            f"{name:40} {np.median(clock):6.3f} ms (quarter {np.quantile(clock, 0.25):.3f})   "
            f"processor {np.median(processor):6.3f} ms ({np.quantile(processor, 0.25):.3f})"
        )


def _reward(reached: np.ndarray, wanted: np.ndarray, _info: Any) -> np.ndarray:
    return -(np.linalg.norm(reached - wanted, axis=-1) > 0.5).astype(np.float32)


def contenders(
    options: argparse.Namespace, directory: Path
) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Each as a call that samples a batch of so many."""
    import diskreplay

    rng = np.random.default_rng(0)
    common = {"observation_space": SPACE, "action_space": ACTIONS, "capacity": options.rows}
    buffer = diskreplay.ReplayBuffer(directory / "replay", **common, seed=1)
    for start in range(0, options.rows, 50_000):
        buffer.extend(_columns(rng, start, min(50_000, options.rows - start)))
    buffer.flush()
    yield f"diskreplay, {options.rows:,} rows", buffer.hindsight(_reward).sample
    yield "diskreplay, without hindsight", buffer.sample
    if find_spec("stable_baselines3"):
        yield f"SB3, {options.sb3:,} rows", _sb3(rng, options.sb3)


def _columns(rng: np.random.Generator, start: int, rows: int) -> dict[str, np.ndarray]:
    step = (start + np.arange(rows)) % EPISODE
    return {
        "observation/observation": rng.random((rows, STATE), np.float32),
        "observation/achieved_goal": rng.random((rows, GOAL), np.float32),
        "observation/desired_goal": rng.random((rows, GOAL), np.float32),
        "action": rng.random((rows, 4), np.float32),
        "reward": np.full(rows, -1, np.float32), "terminated": np.zeros(rows, bool),
        "truncated": step == EPISODE - 1, "step": step.astype(np.int32),
        "is_final": np.zeros(rows, bool),
    }  # fmt: skip


def _sb3(rng: np.random.Generator, rows: int) -> Callable[[int], Any]:
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.envs import BitFlippingEnv
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Env(BitFlippingEnv):
        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> np.ndarray:
            return _reward(achieved, desired, info)

    buffer = HerReplayBuffer(rows, SPACE, ACTIONS, DummyVecEnv([Env]), device="cpu")
    columns = _columns(rng, 0, rows)
    shown = {key: columns[f"observation/{key}"] for key in SPACE.spaces}
    for i in range(rows):
        now = {key: value[i : i + 1] for key, value in shown.items()}
        after = {key: value[(i + 1) % rows][None] for key, value in shown.items()}
        buffer.add(
            now, after, columns["action"][i : i + 1], columns["reward"][i : i + 1],
            columns["truncated"][i : i + 1], [{}],
        )  # fmt: skip
    return buffer.sample


if __name__ == "__main__":
    main()
