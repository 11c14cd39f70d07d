"""Steps whose content is a hash of their number, and what is true of those that come back."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 9
"""Steps of an episode; they end by turns in both ways."""
_SIDE = 32
_ENV = 1 << 32  # steps of one env: their numbers are above `_ENV` times its number


def options(**more: Any) -> dict[str, Any]:
    """What a buffer of such steps is made with."""
    return {
        "observation_space": Box(0, 255, (_SIDE, _SIDE), "uint8"), "action_space": Discrete(5),
        "stack_size": 2, "alpha": 1.0, "extras": {"number": ((), "int64")}, "segment_rows": 256,
    } | more  # fmt: skip


def numbers(env: int, count: int) -> np.ndarray:
    """Those of the first steps of an env."""
    return (env + 1) * _ENV + np.arange(count)


def env_of(number: int) -> int:
    """The env of a step."""
    return number // _ENV - 1


def frames(of: np.ndarray) -> np.ndarray:
    """Noise that follows from a number; of a final observation, from the negative one."""
    words = _SIDE * _SIDE // 8
    x = of.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x ^ (x >> np.uint64(31))).view(np.uint8).reshape(len(of), _SIDE, _SIDE)


def steps(of: np.ndarray) -> dict[str, np.ndarray]:
    """The arguments of `add` for one step of each of some envs."""
    ends, even = of % _ENV % LENGTH == LENGTH - 1, of % _ENV // LENGTH % 2 == 0
    return {
        "observation": frames(of), "action": of % 5, "reward": (of % 7).astype(np.float32),
        "terminated": ends & even, "truncated": ends & ~even, "next_observation": frames(-of),
        "number": of,
    }  # fmt: skip


def wrong_in(batch: Any) -> str | None:
    """What is wrong with a batch; None if all is right."""
    of = batch.number
    expected = steps(of)
    shown = {
        "observation": batch.observation[:, -1], "action": batch.action, "reward": batch.reward,
        "terminated": batch.terminated, "truncated": batch.truncated,
    }  # fmt: skip
    for name, values in shown.items():
        if not np.array_equal(values, expected[name]):
            return f"{name} of {of.tolist()}"
    ends = expected["terminated"] | expected["truncated"]
    following = np.where(ends[:, None, None], frames(-of), frames(of + 1))
    if not np.array_equal(batch.next_observation[:, -1], following):
        return f"next_observation of {of.tolist()}"
    # Of a row that is the first after its shard was restarted, zeros are before it.
    before = batch.observation[:, 0]
    first, zero = of % _ENV % LENGTH == 0, ~before.any(axis=(1, 2))
    if not (zero | (~first & (before == frames(of - 1)).all(axis=(1, 2)))).all():
        return f"the frames before {of.tolist()}"
    if not (np.isfinite(batch.weight).all() and (batch.weight > 0).all()):
        return f"weights {batch.weight.tolist()}"
    return None


def wrong_rows(of: np.ndarray, columns: dict[str, np.ndarray]) -> str | None:
    """The same of stored rows that are not final."""
    expected = steps(of)
    for name in ("observation", "action", "reward", "terminated", "truncated"):
        if not np.array_equal(columns[name], expected[name]):
            return f"{name} differs"
    return None
