"""Steps, flags and rewards, as a row index is told of them from a store."""

from collections.abc import Collection

import numpy as np

from diskreplay.sampling.row_index import RowIndex
from diskreplay.store.store import Store

# Flags of a row, and columns of the index; see `row_index_kernels`, which is imported when needed.
TERMINATED, TRUNCATED, FINAL, BEGINS = 1, 2, 4, 16
_STEP, _FLAGS, _REWARD = 0, 1, 2
_COLUMNS = (
    ("step", _STEP, 0), ("reward", _REWARD, 0), ("terminated", _FLAGS, TERMINATED),
    ("truncated", _FLAGS, TRUNCATED), ("is_final", _FLAGS, FINAL),
)  # fmt: skip


def load(store: Store, index: RowIndex, begins: Collection[int]) -> None:
    """Fill an index, whose bounds are set, with all retained rows of a store.

    Parameters
    ----------
    begins : collection of int
        Ids of retained rows that begin an episode, though their steps do not say so.

    Raises
    ------
    CorruptSegmentError
    """
    check_steps(store)
    for name, column, flag in _COLUMNS:
        for row, envs, values, wanted in store.columns[name].pieces(store.first, store.count):
            # A rotten bool may be any byte, and the index keeps marks of its own beside these.
            bits = (values.view(np.uint8) != 0).astype(np.int32) * np.int32(flag) if flag else (
                values.view(np.int32)
            )  # fmt: skip
            index.load(column, row, envs, bits, wanted)
    index.ring[np.array(sorted(begins), np.int64) % index.size, _FLAGS] |= BEGINS


def read(
    store: Store, ids: np.ndarray, begins: Collection[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, flags and rewards of retained rows, int32, uint8 and float32 of shape (rows,), or a
    `CorruptSegmentError`."""
    flags, ends = np.zeros(len(ids), np.uint8), np.empty(len(ids), np.bool_)
    found = np.empty(len(ids), np.int32), flags, np.empty(len(ids), np.float32)
    for name, column, flag in _COLUMNS:
        store.columns[name].take(ids, ends if flag else found[column])
        if flag:
            flags |= (ends.view(np.uint8) != 0).view(np.uint8) * np.uint8(flag)
    if (found[_STEP] < 0).any():
        _refuse_step(store, int(ids[found[_STEP].argmin()]))
    if begins:
        flags[np.isin(ids, list(begins))] |= BEGINS
    return found


def ids_between(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The ids of the rows ``start[e]`` up to ``stop[e]`` of each env `e`, env by env."""
    rows, num_envs = stop - start, len(start)
    envs = np.repeat(np.arange(num_envs), rows)
    row = np.arange(len(envs)) - np.repeat(np.cumsum(rows) - rows - start, rows)
    return row * num_envs + envs


def check_steps(store: Store) -> None:
    """Refuse steps of retained rows that cannot be, with a `CorruptSegmentError`."""
    for row, envs, steps, wanted in store.columns["step"].pieces(store.first, store.count):
        if steps.min() < 0 and (bad := (steps < 0) & wanted).any():
            at, env = (int(found[0]) for found in np.nonzero(bad))
            _refuse_step(store, (row + at) * store.num_envs + envs.start + env)


def _refuse_step(store: Store, id_: int) -> None:
    """Refuse a row of a negative step: by rot, and the kernels go back by it, to other memory."""
    store.columns["step"].complain(*divmod(id_, store.num_envs))
