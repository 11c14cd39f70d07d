"""The two floors: `np.take` of the same windows from a plain array and from a mapped file.

Both copy 32 windows of ``STACK + n_step`` frames into one reused array.  ``mode="clip"`` is
what NumPy's documentation asks for with ``out=``: the default mode buffers the whole result.
Drawing the windows is not timed; a buffer has to do that too, and that is what the ratio shows.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from contender import BATCH
from stream import FRAME_BYTES, FRAME_SHAPE, STACK, Stream
from timing import Timed

MADV_POPULATE_READ = 22


class Floor:
    """Windows of `frames`, an array ``(rows, 84, 84)``, taken at random."""

    def __init__(self, frames: np.ndarray, n_step: int, seed: int = 0) -> None:
        window = STACK + n_step
        self._frames = frames
        self._offsets = np.arange(window)
        self._out = np.empty((BATCH, window, *FRAME_SHAPE), np.uint8)
        self._rng = np.random.default_rng(seed)
        self._starts = len(frames) - window

    def draw(self) -> tuple[np.ndarray]:
        return (self._rng.integers(self._starts, size=(BATCH, 1)) + self._offsets,)

    def copy(self, rows: np.ndarray) -> np.ndarray:
        return np.take(self._frames, rows, axis=0, out=self._out, mode="clip")

    def timed(self) -> Timed:
        return Timed(self.copy, self.draw)


class MappedFrames:
    """A file of frames mapped into memory with every page present: page cache warm."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        self.frames: np.ndarray | None = np.frombuffer(self._map, np.uint8).reshape(
            -1, *FRAME_SHAPE
        )
        try:
            self._map.madvise(MADV_POPULATE_READ)
        except OSError:  # Linux before 5.14
            int(self.frames.reshape(-1)[:: mmap.PAGESIZE].sum())

    def close(self) -> None:
        self.frames = None
        self._map.close()
        self._file.close()


def write_frames(stream: Stream, frames: int, path: Path) -> None:
    """Write the observations of the stream's first `frames` steps, as one plain file."""
    if path.exists() and path.stat().st_size == frames * FRAME_BYTES:
        return
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for piece in stream.cursor().pieces(frames):
            file.write(piece.observation)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_frames(path: Path, frames: int) -> np.ndarray:
    """The same frames in one plain array in memory."""
    return np.fromfile(path, np.uint8).reshape(frames, *FRAME_SHAPE)
