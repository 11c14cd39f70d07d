"""Rows read while a writer may evict them."""

from collections.abc import Sequence

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import NotSampleableError

_FIRST_MARGIN, _FURTHER = 64, 8  # rows left to a writer that is faster than we are


def ids_at(bounds: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The ids of retained rows by their places: all rows of an env after those of the one before.

    Parameters
    ----------
    bounds : ndarray of int64, shape (num_envs, 2)
        As `ReplayBuffer.bounds`.
    places : ndarray of int, shape (n,)
    """
    ends = np.cumsum(bounds[:, 1] - bounds[:, 0])
    envs = np.searchsorted(ends, places, side="right")
    return (bounds[envs, 1] - (ends[envs] - places)) * len(bounds) + envs


def read_rows(
    buffer: ReplayBuffer, env: int, start: int, stop: int, names: Sequence[str]
) -> tuple[int, list[np.ndarray]]:
    """Several fields of consecutive rows of one env, as far as they are still retained.

    Parameters
    ----------
    start, stop : int
        Row numbers.
    names : sequence of str
        Fields.

    Returns
    -------
    int
        The first row that was read: `start`, or later where the writer of a live store evicted rows
        meanwhile; `stop` if nothing is left.
    list of ndarray, each of shape (stop - first, *shape)
        Copies.
    """
    read = []
    for name in names:
        margin = 0
        while True:
            start = min(max(start, int(buffer.bounds[env, 0]) + margin), stop)
            try:
                ids = np.arange(start, stop) * buffer.num_envs + env
                read.append((start, buffer.take(name, ids)))
                break
            except NotSampleableError:
                margin = margin * _FURTHER or _FIRST_MARGIN
    return start, [values[start - first :] for first, values in read]
