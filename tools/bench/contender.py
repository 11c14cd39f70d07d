"""What every contender is asked to do, so that one worker can measure them all."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from stream import FRAME_BYTES, Piece

BATCH = 32
GAMMA = 0.99
ALPHA = 0.6
BETA = 0.4
PRIORITIZED = "prioritized"
UNIFORM = "uniform"


@dataclass(frozen=True)
class Setup:
    """One buffer to build: its size, its sampler and where it may write."""

    frames: int
    n_step: int
    kind: str
    directory: Path
    seed: int = 0

    @property
    def prioritized(self) -> bool:
        return self.kind == PRIORITIZED


@dataclass(frozen=True)
class Needs:
    """What a contender needs, in bytes, by its own layout; checked before it is started."""

    memory: int = 0
    disk: int = 0
    """The live buffer's files."""
    saved: int = 0
    """A checkpoint."""
    saving_memory: int = 0
    """Memory that saving takes on top."""


class Contender(ABC):
    """One replay buffer, used as its documentation recommends for stacked Atari frames.

    A worker process calls `build`, then for each piece of the stream `prepare` (not timed) and
    `add` (timed), then the callables of `samplers`, `update_priorities`, and `save`; another
    process calls `load`.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    """The distribution whose version is reported."""
    kinds: ClassVar[tuple[str, ...]] = (PRIORITIZED, UNIFORM)
    note: ClassVar[str] = ""
    """How it was used and what its figures leave out, for the report's footnotes."""
    bulk_fill: ClassVar[bool] = False
    """Filled by `extend`, since single adds are too slow; single adds are timed at the end."""
    incremental_save: ClassVar[bool] = False
    """A save writes what is new since the last one, rather than everything."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @classmethod
    def needs(cls, setup: Setup) -> Needs:
        """By default each frame once in memory, and once in a checkpoint."""
        frames = setup.frames * FRAME_BYTES
        return Needs(memory=frames, saved=frames)

    @abstractmethod
    def build(self) -> None:
        """Create the empty buffer."""

    @abstractmethod
    def prepare(self, piece: Piece) -> Any:
        """What the caller of `add` would hold anyway: stacked observations, tensors.  Untimed."""

    @abstractmethod
    def add(self, prepared: Any) -> None:
        """Add the piece, one call a step."""

    def extend(self, piece: Piece) -> None:
        """Add the piece in the fastest documented way."""
        self.add(self.prepare(piece))

    def settle(self) -> None:  # noqa: B027
        """Return when no background work is left."""

    @abstractmethod
    def samplers(self) -> dict[str, Callable[[], Any]]:
        """Callables that each return a batch of 32; the first, ``sample``, is the usual way."""

    def ids(self, batch: Any) -> Any:
        """The ids that `update_priorities` takes, of a batch of the first sampler."""
        raise NotImplementedError

    def update_priorities(self, ids: Any, priorities: np.ndarray) -> None:
        raise NotImplementedError

    @abstractmethod
    def save(self, directory: Path, number: int) -> None:
        """Write a checkpoint into `directory`, as the documentation recommends."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """In a fresh process, instead of `build`: be ready to sample from the checkpoint."""

    def disk_bytes(self) -> int:
        """Allocated bytes of the live buffer's files."""
        return allocated_bytes(self.setup.directory)

    def extras(self) -> dict[str, Any]:
        """Further figures that only this contender has."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of files and threads."""


def stacks_last_axis(piece: Piece) -> np.ndarray:
    """``(steps + 1, 84, 84, STACK)``, copied: observations as a stacking wrapper hands them over.

    Row ``i`` is step ``i``'s observation, row ``i + 1`` its next observation.
    """
    return np.ascontiguousarray(np.moveaxis(piece.stacks(), 1, -1))


def stacks_first_axis(piece: Piece) -> np.ndarray:
    """``(steps + 1, STACK, 84, 84)``, copied."""
    return np.ascontiguousarray(piece.stacks())


def allocated_bytes(directory: Path, known: set[tuple[int, int]] | None = None) -> int:
    """Disk blocks of the files below `directory`, each file once; files in `known` not at all."""
    seen = set(known or ())
    total = 0
    for status in _files(directory):
        identity = (status.st_dev, status.st_ino)
        if identity not in seen:
            seen.add(identity)
            total += status.st_blocks * 512
    return total


def file_identities(directory: Path) -> set[tuple[int, int]]:
    """Device and inode of every file below `directory`."""
    return {(status.st_dev, status.st_ino) for status in _files(directory)}


def _files(directory: Path):
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root, name)
            try:
                yield path.stat()
            except FileNotFoundError:
                continue
