"""How fast a store is sampled here and now, from memory and from the disk."""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import diskreplay
from diskreplay.batch import Batch

_WARM_UP = 20  # batches; the first ones compile, or fetch from Numba's cache, and allocate
_COLD_ROUNDS = 5


@dataclass(frozen=True)
class Speed:
    """Figures of one way to sample."""

    batches: int
    median_us: float
    """Microseconds a batch."""
    p90_us: float
    bytes_per_second: float
    """Of the arrays of a batch, at the median."""


@dataclass(frozen=True)
class Bench:
    """What `bench` found."""

    batch_size: int
    batch_bytes: int
    """Of all arrays of a batch; frames that two of them share count twice."""
    warm: Speed
    cold: Speed | None
    """The first batch after the system was asked to forget the files; None where it did not."""
    why_not_cold: str | None


def bench(path: Path, *, batch_size: int | None = None, seconds: float = 2.0) -> Bench:
    """Sample a store, read-only.

    Parameters
    ----------
    batch_size : int, optional
        Default: that of the store.
    seconds : float
        How long to sample from memory. The rounds from the disk take what they take: each opens
        the store again, since pages that are mapped cannot be forgotten.

    Raises
    ------
    EmptyBufferError
        There is nothing to sample.
    """
    with diskreplay.open(path) as buffer:
        sample = _sampling(buffer, batch_size)
        for _ in range(_WARM_UP):
            batch = sample()
        size, volume = len(batch), _volume(batch)
        del batch
        warm: list[Any] = []
        until = perf_counter() + seconds
        while not warm or perf_counter() < until:
            warm.append(_timed(sample))
    cold, why_not = _cold(path, batch_size)
    return Bench(
        size, volume, _speed(warm, volume), _speed(cold, volume) if cold else None, why_not
    )


def _sampling(buffer: diskreplay.ReplayBuffer, size: int | None) -> Callable[[], Batch]:
    return lambda: buffer.sample(size)


def _cold(path: Path, batch_size: int | None) -> tuple[list[float], str | None]:
    if not hasattr(os, "posix_fadvise"):
        return [], "this system has no call that makes it forget a file"
    times = []
    for _ in range(_COLD_ROUNDS):
        _forget(path)
        with diskreplay.open(path) as buffer:
            len(buffer)  # the index is made of the small fields: not a part of sampling
            before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
            times.append(_timed(_sampling(buffer, batch_size)))
            if resource.getrusage(resource.RUSAGE_SELF).ru_inblock == before:
                return [], (
                    "the system kept the files in memory: another process has them mapped, they "
                    "are not written to the disk yet, or there is no disk below them"
                )
    return times, None


def _forget(path: Path) -> None:
    for base, _dirs, names in os.walk(path):
        for name in names:
            try:
                fd = os.open(os.path.join(base, name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # the writer has sealed or deleted it
                continue
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _timed(sample: Callable[[], Batch]) -> float:
    began = perf_counter()
    sample()
    return perf_counter() - began


def _speed(times: list[float], volume: int) -> Speed:
    median, p90 = np.quantile(times, (0.5, 0.9)).tolist()
    return Speed(len(times), median * 1e6, p90 * 1e6, volume / median)


def _volume(part: Any) -> int:
    """Bytes of all arrays in a batch, or in a part of it."""
    if isinstance(part, np.ndarray):
        return part.nbytes
    if isinstance(part, Batch):
        return sum(map(_volume, part.asdict().values()))
    return sum(map(_volume, part.values() if isinstance(part, dict) else part))
