"""Stores as checkpoints that ReAgent's and Dopamine's replay buffers load."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.gz_files import STORE_PREFIX, GzFiles
from diskreplay.convert.npy_gz import npy_pieces
from diskreplay.convert.unpickling import pickled_set, pickled_sum_tree
from diskreplay.errors import InvalidInputError
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import resolved
from diskreplay.validation import one_of

_BYTES_AT_ONCE = 4 << 20


def write(
    buffer: ReplayBuffer,
    directory: str | os.PathLike[str],
    suffix: int | str,
    *,
    flavour: Literal["reagent", "dopamine"] = "reagent",
    stack_size: int | None = None,
    capacity: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a store as a checkpoint that ReAgent or Dopamine loads.

    Parameters
    ----------
    buffer : ReplayBuffer
        Of one env, whose observation and action are single arrays.
    directory : path
        Created if it is missing.
    suffix : int or str
    flavour : {"reagent", "dopamine"}
        Dopamine's has ``invalid_range`` and, for truncated episodes, ``episode_end_indices``.
        ReAgent knows no truncation: the last step of a truncated or cut episode is written as
        terminal there, so that no window reaches into the next episode.
    stack_size : int, optional
        Of the buffer that will load the files, default that of `buffer`: so many zero rows less one
        precede each episode, whatever `buffer.stack_padding` is: both know no other padding.
    capacity : int, optional
        Slots, the ``replay_capacity`` of the buffer that will load the files. Default: that of
        `buffer`. With padding not all rows may have room; the newest do.
    progress : callable, optional
        Called as ``progress(rows, rows_in_all)``, for each column from the start.

    Returns
    -------
    Path
        `directory`.

    Raises
    ------
    InvalidInputError, SuffixError
    LockedError
        Another export to this suffix is under way.
    StorageError
        No half-written file is left; what was there before under this suffix is. A kill leaves
        either that or the new checkpoint: `load`, `read` and the next export find it. While the
        files take their places there is no ``add_count``, without which the originals read none.

    Notes
    -----
    Final rows are left out: neither reads what follows a terminal. Priorities are written as
    ``sum_tree``, where ``priority ** alpha`` is what ReAgent calls a priority; a row whose window
    is not whole yet gets the largest. Discrete actions become int32, as both have them.
    """
    one_of("flavour", flavour, ("reagent", "dopamine"))
    if buffer.num_envs != 1 or not {"observation", "action"} <= buffer.fields.keys():
        raise InvalidInputError(
            "such files hold one env, one observation array and one action array; write each env "
            "or part from a store of its own"
        )
    directory = resolved(directory)
    check_outside(directory / STORE_PREFIX)
    files = GzFiles(directory, suffix)
    stack_size = buffer.stack_size if stack_size is None else stack_size
    rows, ended, cut = _layout(buffer, stack_size)
    slots = max(capacity or buffer.capacity or len(rows), 1)
    lacks_older = len(rows) > slots or buffer.bounds[0, 0] > 0
    rows, ended, cut = rows[-slots:], ended[-slots:], cut[-slots:]
    add_count = len(rows)
    if lacks_older and add_count == slots:
        add_count += slots  # the same cursor, and as the originals say that older rows are gone
    contents: dict[str, Iterable[bytes]] = {}
    shape: tuple[int, ...]
    dtype: np.dtype
    for name in ("observation", "action", "reward", "terminal", *buffer.extras):
        if name == "terminal":
            shape, dtype = (), np.dtype(np.uint8)
            chunks = iter([ended if flavour == "dopamine" else ended | cut])
        else:
            shape, dtype = buffer.fields[name]
            if name == "action" and isinstance(buffer.action_space, gym_spaces.Discrete):
                dtype = np.dtype(np.int32)
            chunks = _column(buffer, name, rows, progress)
        padded = _padded(chunks, slots - len(rows), shape, dtype)
        contents[STORE_PREFIX + name] = npy_pieces((slots, *shape), dtype, padded)
    attributes = {"add_count": np.array(add_count)}
    if flavour == "dopamine":
        first = add_count - buffer.update_horizon
        attributes["invalid_range"] = np.arange(first, add_count + stack_size) % slots
        contents["episode_end_indices"] = [pickled_set(np.flatnonzero(ended | cut).tolist())]
    for name, array in attributes.items():
        contents[name] = npy_pieces(array.shape, array.dtype, [array])
    if isinstance(buffer, PrioritizedReplayBuffer):
        tree = pickled_sum_tree(*_priorities(buffer, rows, slots), package=flavour)
        contents["sum_tree"] = [tree]
    files.write(contents)
    return directory


def _layout(buffer: ReplayBuffer, stack_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row of each slot, -1 for padding; whether it ends an episode; whether it does so without
    a termination."""
    first, count = buffer.bounds[0]
    ids = np.arange(first, count)
    step, is_final, terminated, truncated = (
        buffer.take(name, ids) for name in ("step", "is_final", "terminated", "truncated")
    )
    follows = np.ones(len(ids), np.bool_)  # the episode of the row before
    follows[1:] = step[1:] == step[:-1] + 1
    follows &= (step > 0) & ~np.isin(ids, buffer.begins)
    begins = np.flatnonzero(~follows)
    real = np.flatnonzero(~is_final)
    # Of the rows that are written: whether they are the first that is written of their episode.
    episode = np.searchsorted(begins, real, "right")
    starts = np.ones(len(real), np.bool_)
    starts[1:] = episode[1:] != episode[:-1]
    ends = np.append(starts[1:], False)
    if len(real):  # the newest episode is open, unless its last row says that it is not
        ends[-1] = terminated[real[-1]] | truncated[real[-1]] | (real[-1] != len(ids) - 1)
        starts[0] = step[real[0]] == 0 or real[0] > 0  # else its beginning is evicted
    gaps = np.where(starts, stack_size - 1, 0)
    rows = np.full(len(real) + gaps.sum(), -1)
    places = np.arange(len(real)) + np.cumsum(gaps)
    rows[places] = ids[real]
    ended, cut = np.zeros((2, len(rows)), np.bool_)
    ended[places] = ends & terminated[real]
    cut[places] = ends & ~terminated[real]
    return rows, ended, cut


def _column(
    buffer: ReplayBuffer, name: str, rows: np.ndarray, progress: Callable[[int, int], None] | None
) -> Iterator[np.ndarray]:
    shape, dtype = buffer.fields[name]
    at_once = _at_once(shape, dtype)
    for start in range(0, len(rows), at_once):
        yield buffer.take(name, rows[start : start + at_once])
        if progress:
            progress(min(start + at_once, len(rows)), len(rows))


def _padded(
    chunks: Iterator[np.ndarray], more: int, shape: tuple[int, ...], dtype: np.dtype
) -> Iterator[np.ndarray]:
    """`chunks`, and then zeros for slots that no row is in."""
    yield from chunks
    at_once = _at_once(shape, dtype)
    for start in range(0, more, at_once):
        yield np.zeros((min(at_once, more - start), *shape), dtype)


def _at_once(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return max(1, _BYTES_AT_ONCE // max(dtype.itemsize * math.prod(shape), 1))


def _priorities(
    buffer: PrioritizedReplayBuffer, rows: np.ndarray, slots: int
) -> tuple[np.ndarray, float]:
    """What each slot's leaf is, and the largest."""
    tree = buffer.tree
    real = rows >= 0
    leaves = np.zeros(slots)
    leaves[: len(rows)][real] = tree.get(rows[real] % tree.capacity)
    figures = buffer.statistics().priorities
    largest = figures.largest_seen**buffer.alpha if figures else 1.0
    newest = np.zeros(len(rows), np.bool_)
    newest[-buffer.update_horizon :] = True
    pending = newest & real & (leaves[: len(rows)] == 0)
    leaves[: len(rows)][pending] = largest
    return leaves, largest
