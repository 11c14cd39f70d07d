"""The Atari stream every contender is fed with: real frames, recorded once, read from disk.

A recorded stream is a directory:

``frames.bin``
    uint8, ``(steps + episodes, 84, 84)``: the frames of the first episode, then the frame it
    ended with (its final observation), then the second episode, and so on.  So the
    observation of a step and its next observation are always neighbours.
``steps.npz``
    ``action`` int64, ``reward`` float32, ``terminated`` and ``truncated`` bool, all
    ``(steps,)``; ``episode_length`` int64 and ``episode_game`` int64, both ``(episodes,)``.
``about.json``
    games, wrapper settings, seed and package versions.

A benchmark of a million rows plays the recorded episodes again and again, in order.  That
changes neither what a sampler does nor what compression by blocks of a few rows reaches; it
would flatter a contender that removes duplicates across episodes, and none does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FRAME_SHAPE = (84, 84)
FRAME_BYTES = 84 * 84
NUM_ACTIONS = 18
STACK = 4
PIECE_STEPS = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive steps of one episode, at most `PIECE_STEPS` of them.

    ``frames`` has ``STACK - 1`` leading frames (zeros before an episode's first frame), the
    observation of every step, and the observation after the last step.  It is a view of a
    buffer that the next piece overwrites.
    """

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    starts: bool

    def __len__(self) -> int:
        return len(self.action)

    @property
    def ends(self) -> bool:
        """Whether the last step ended its episode."""
        return bool(self.terminated[-1] or self.truncated[-1])

    @property
    def observation(self) -> np.ndarray:
        """``(steps, 84, 84)``, a view."""
        return self.frames[STACK - 1 : -1]

    @property
    def next_observation(self) -> np.ndarray:
        """``(steps, 84, 84)``, a view."""
        return self.frames[STACK:]

    def stacks(self) -> np.ndarray:
        """``(steps + 1, STACK, 84, 84)``, a view: what a frame-stacking wrapper hands over."""
        windows = np.lib.stride_tricks.sliding_window_view(self.frames, STACK, axis=0)
        return np.moveaxis(windows, -1, 1)


class Stream:
    """A recorded stream, opened for reading."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.about = json.loads((directory / "about.json").read_text())
        with np.load(directory / "steps.npz") as steps:
            self.action = steps["action"]
            self.reward = steps["reward"]
            self.terminated = steps["terminated"]
            self.truncated = steps["truncated"]
            self.episode_length = steps["episode_length"]
            self.episode_game = steps["episode_game"]
        ends = np.cumsum(self.episode_length)
        self.first_step = ends - self.episode_length
        self.first_frame = self.first_step + np.arange(len(ends))

    def __len__(self) -> int:
        return len(self.action)

    @property
    def episodes(self) -> int:
        return len(self.episode_length)

    @property
    def frames_path(self) -> Path:
        return self.directory / "frames.bin"

    def cursor(self) -> Cursor:
        """A reader at the first step of the first episode."""
        return Cursor(self)


class Cursor:
    """Reads a stream piece by piece, for ever; each call goes on where the last one stopped.

    Frames are read into one reused buffer rather than mapped, so that the stream costs a
    measured process neither page faults while it adds nor file-backed memory.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._episode = 0
        self._step = 0
        self._buffer = np.empty((STACK + PIECE_STEPS, *FRAME_SHAPE), np.uint8)

    def pieces(self, steps: int) -> Iterator[Piece]:
        """Yield pieces that hold exactly `steps` steps in all."""
        with self._stream.frames_path.open("rb", buffering=0) as file:
            while steps > 0:
                piece = self._next(file, steps)
                steps -= len(piece)
                yield piece

    def _next(self, file, limit: int) -> Piece:
        stream, episode, begin = self._stream, self._episode, self._step
        length = int(stream.episode_length[episode])
        count = min(PIECE_STEPS, limit, length - begin)
        history = min(begin, STACK - 1)
        frames = self._buffer[: STACK + count]
        frames[: STACK - 1 - history] = 0
        wanted = frames[STACK - 1 - history :]
        file.seek(int(stream.first_frame[episode] + begin - history) * FRAME_BYTES)
        if file.readinto(memoryview(wanted).cast("B")) != wanted.nbytes:
            raise EOFError(f"{stream.frames_path} is shorter than steps.npz says; record it again")
        first = int(stream.first_step[episode]) + begin
        rows = slice(first, first + count)
        self._step = begin + count
        if self._step == length:
            self._episode, self._step = (episode + 1) % stream.episodes, 0
        return Piece(
            frames,
            stream.action[rows],
            stream.reward[rows],
            stream.terminated[rows],
            stream.truncated[rows],
            starts=begin == 0,
        )
