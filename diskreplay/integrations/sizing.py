"""How much disk a buffer of an environment's steps takes, from a sample that is recorded."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError
from diskreplay.opening import open as open_buffer
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store.priorities import chunk_rows

__all__ = ["CodecSize", "Sizes", "make", "sizes"]

CODECS = ("raw", "lz4", "zstd")
_PRIORITY_BYTES = 8  # a row
_LEAST = 1000  # steps of a sample: fewer say little of what compresses
_USUAL = 10_000


class CodecSize(NamedTuple):
    """What one codec makes of the sample."""

    codec: str
    """That of frames and of other large fields."""
    row_bytes: float
    """Bytes on disk that a row takes, all fields and its priority."""
    disk_bytes: int
    """What a store of so many rows as the capacity takes, all fields and priorities."""


class Sizes(NamedTuple):
    """What `sizes` finds."""

    observation_space: gymnasium.Space[Any]
    """Of one frame, as it was recorded."""
    rows: int
    """How many were recorded."""
    plain_bytes: int
    """Bytes of so many rows as the capacity, as plain arrays."""
    codecs: tuple[CodecSize, ...]


def make(env_id: str, *, preprocess: bool = True) -> gymnasium.Env:
    """An environment as agents commonly see it.

    Parameters
    ----------
    env_id : str
        As for `gymnasium.make`.
    preprocess : bool
        Whether an Atari game (``ALE/...``) gives frames of 84x84 in grey, each the fourth
        (`gymnasium.wrappers.AtariPreprocessing`), or what the game draws.

    Raises
    ------
    InvalidInputError
        Gymnasium does not know it, or lacks a package for it.
    """
    try:
        if not env_id.startswith("ALE/"):
            return gymnasium.make(env_id)
        import ale_py

        gymnasium.register_envs(ale_py)
        if not preprocess:
            return gymnasium.make(env_id)
        return gymnasium.wrappers.AtariPreprocessing(gymnasium.make(env_id, frameskip=1))
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidInputError(
            f"env: {env_id!r} cannot be made: {error}; for Atari games: "
            "pip install 'diskreplay[atari]'"
        ) from error


def sizes(env: gymnasium.Env, capacity: int, *, steps: int | None = None, seed: int = 0) -> Sizes:
    """Record random play with each codec, and say what a full buffer takes.

    Parameters
    ----------
    env : gymnasium.Env
        Played and closed.
    capacity : int
        Rows of the buffer to be sized.
    steps : int, optional
        How many to record, at least 1,000 and at most `capacity`. Default: 10,000, or `capacity` if
        that is less.
    seed : int
        Of the environment and its actions.

    Returns
    -------
    Sizes
        Rows compress as random play does. Those of a trained agent may take more or less.

    Raises
    ------
    InvalidInputError
        `capacity` or `steps` is below 1,000, or `steps` is above `capacity`.

    Notes
    -----
    Writes the sample into a temporary directory (``TMPDIR``), once for each codec, and removes it.
    Not in it are the segment of each field that a ring has beyond its capacity, and checkpoints,
    which keep rows that left the store since.
    """
    if capacity < _LEAST:
        raise InvalidInputError(f"capacity: at least {_LEAST} rows expected, found {capacity}")
    if steps is None:
        steps = min(_USUAL, capacity)
    if not _LEAST <= steps <= capacity:
        raise InvalidInputError(
            f"steps: {_LEAST} to the capacity ({capacity}) expected, found {steps}"
        )
    with tempfile.TemporaryDirectory(prefix="diskreplay-size-") as room:
        paths = {codec: Path(room, codec) for codec in CODECS}
        options: dict[str, Any] = {
            "observation_space": env.observation_space, "action_space": env.action_space,
            "capacity": capacity, "seed": seed,
        }  # fmt: skip
        with env, contextlib.ExitStack() as opened:
            _play(env, [
                opened.enter_context(PrioritizedReplayBuffer(path, compressor=codec, **options))
                for codec, path in paths.items()
            ], steps, seed)  # fmt: skip
        codecs = [_size(codec, path, capacity) for codec, path in paths.items()]
        with open_buffer(paths["raw"]) as raw:
            figures = raw.statistics()
    whole = round(figures.raw_bytes / figures.rows * capacity)
    return Sizes(env.observation_space, figures.rows, whole, tuple(codecs))


def _size(codec: str, path: Path, capacity: int) -> CodecSize:
    """Of a store that was closed. A packed field costs what its blocks do; files of another one are
    made larger than the rows in them, which a full buffer has not."""
    with open_buffer(path) as buffer:
        figures = buffer.statistics()
        columns = buffer._rows.store.columns
        row_bytes = sum(
            (its.disk_bytes if columns[name].field.packed else its.raw_bytes) / figures.rows
            for name, its in figures.fields.items()
        )
    rows = chunk_rows(capacity, 1)
    ranked = -(-capacity // rows) * rows * _PRIORITY_BYTES
    return CodecSize(codec, row_bytes + _PRIORITY_BYTES, round(row_bytes * capacity) + ranked)


def _play(env: gymnasium.Env, buffers: Sequence[ReplayBuffer], steps: int, seed: int) -> None:
    """Random play into all buffers."""
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        for buffer in buffers:
            buffer.add(observation, action, reward, terminated, truncated, following)
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
