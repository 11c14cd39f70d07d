"""Rows whose every byte follows from their env and number, so that anybody can check them.

Of eleven rows of an env, one is a final row; an episode among them is truncated without one, and
one terminates and has one. Half of the frames are noise, half are a few bytes again and again, so
that blocks are stored and packed.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from hashlib import blake2b

import numpy as np

FRAME = (64, 64)  # a page: raw segments may be as short as one likes
PERIOD = 11
_TRUNCATED, _TERMINATED, _FINAL = 4, 9, 10
_BYTES = FRAME[0] * FRAME[1]
_POOL = np.random.default_rng(20_240_229).integers(0, 256, 1 << 17, np.uint8)

EXTRAS = {"number": ((), "int64"), "checksum": ((), "uint32")}


def frame(env: int, row: int) -> np.ndarray:
    """The observation of a row, uint8 of shape `FRAME`."""
    digest = blake2b(b"%d.%d" % (env, row), digest_size=24).digest()
    at = int.from_bytes(digest[:4], "little") % (len(_POOL) - _BYTES)
    if digest[4] & 1:
        made = _POOL[at : at + _BYTES].copy()
    else:
        made = np.tile(_POOL[at : at + 64], _BYTES // 64)
    made[: len(digest)] = np.frombuffer(digest, np.uint8)
    return made.reshape(FRAME)


def checksum(observation: np.ndarray, number: int) -> int:
    """Of a frame and the number of its row."""
    return zlib.crc32(np.ascontiguousarray(observation), number & 0xFFFFFFFF)


def _place(env: int, row: int) -> int:
    return (row + 3 * (env % 3)) % PERIOD  # none begins with a final row


def is_terminated(env: int, row: int) -> bool:
    return _place(env, row) == _TERMINATED


def is_truncated(env: int, row: int) -> bool:
    return _place(env, row) == _TRUNCATED


def is_final(env: int, row: int) -> bool:
    """Whether a row holds but the observation that its episode ended with."""
    return _place(env, row) == _FINAL


def ends(env: int, row: int) -> bool:
    """Whether the row after this one starts an episode."""
    return is_truncated(env, row) or is_final(env, row)


@lru_cache(maxsize=8192)
def row(env: int, number: int) -> dict[str, np.ndarray]:
    """All fields of a row but ``step``, which depends on when a writer began."""
    observation = frame(env, number)
    final = is_final(env, number)
    return {
        "observation": observation,
        "action": np.int64(0 if final else number % 6),
        "reward": np.float32(0 if final else (number % 33 - 16) / 4),
        "terminated": np.bool_(is_terminated(env, number)),
        "truncated": np.bool_(is_truncated(env, number)),
        "is_final": np.bool_(final),
        "number": np.int64(0 if final else number),
        "checksum": np.uint32(0 if final else checksum(observation, number)),
    }


def rows(env: int, start: int, stop: int) -> dict[str, np.ndarray]:
    """Consecutive rows of one env, each field an array."""
    made = [row(env, number) for number in range(start, stop)]
    if not made:
        made = [row(env, 0)]
        return {name: np.stack([one[name] for one in made])[:0] for name in made[0]}
    return {name: np.stack([one[name] for one in made]) for name in made[0]}


def priorities(ids: np.ndarray, generation: int) -> np.ndarray:
    """Those of some rows or windows after the update of that number: no two updates are alike."""
    return 1 + (ids * 2_654_435_761 + generation) % 9973 / 16


def wrong(buffer, *, steps: list[np.ndarray] | None = None, most: int = 1 << 30) -> list[str]:
    """What any retained row of a buffer has that it should not have.

    Parameters
    ----------
    buffer : diskreplay.ReplayBuffer
    steps : list of ndarray, optional
        For each env the ``step`` that each row from 0 on should have.
    most : int
        Rows of each env to look at, the newest.

    Returns
    -------
    list of str
        A line for each field of each env that is wrong.
    """
    found = []
    envs = buffer.num_envs
    for env, (first, count) in enumerate(buffer.bounds.tolist()):
        first = max(first, count - most)
        if first >= count:
            continue
        expected = rows(env, first, count)
        if steps is not None:
            expected["step"] = np.asarray(steps[env][first:count])
        ids = np.arange(first, count) * envs + env
        for field, values in zip(expected, buffer.take(list(expected), ids), strict=True):
            if (
                values.shape != expected[field].shape
                or (values.astype(expected[field].dtype) != expected[field]).any()
            ):
                differ = (values != expected[field]).reshape(len(values), -1).any(axis=1)
                at = (first + np.flatnonzero(differ))[:5].tolist()
                found.append(f"{field} of env {env}, rows {at}, retained {first} to {count}")
    return found
