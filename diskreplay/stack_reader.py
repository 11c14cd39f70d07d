"""Both observation stacks of planned transitions, read into memory that a batch shows."""

import sys
from typing import Any

import numpy as np

from diskreplay.batch import NEXT
from diskreplay.sampling.row_index import AHEAD, BEFORE, BEFORE_NEXT, ENV, ROW
from diskreplay.store.column import Column
from diskreplay.store.field import Field
from diskreplay.store.read_job import JOB
from diskreplay.store.reading_pool import pool
from diskreplay.store.stored_blocks import BlockColumn, StoredBlocks

_NOTHING = np.empty(0, np.uint8)


class StackReader:
    """Reads the observation stacks of one buffer's batches; options as for `BatchReader`."""

    def __init__(self, stack_size: int, update_horizon: int, *, repeat_first: bool) -> None:
        from diskreplay.store import batch_kernels

        self._kernels = batch_kernels
        self._stack, self._horizon, self._repeat = stack_size, update_horizon, repeat_first
        # How many batches to ask the kernel for in advance, see `batch_kernels.note_faults`. Only
        # Linux says how many page faults a thread had.
        self._advice = np.array([0, 16 if sys.platform == "linux" else 0], np.int64)
        self._rusage = np.zeros(32, np.int64)

    def read(
        self,
        column: Column[Any] | BlockColumn,
        rows: np.ndarray,
        windows: dict[str, np.ndarray],
        threads: int,
        contiguous: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Observation and next observation stacks of one field.

        Parameters
        ----------
        column : Column or BlockColumn
        rows : ndarray of int64, shape (batch, 5)
            As a `Plan` has them; of a `BlockColumn` as `in_blocks` makes them.
        windows : dict of str to ndarray
            Memory by name, which is read into where it fits; what is read into is in it then.
        threads : int
        contiguous : bool
        """
        field, stack, horizon, kernels = column.field, self._stack, self._horizon, self._kernels
        size = len(rows)
        width = stack if contiguous else stack + horizon
        # A leaf has no parts, so no field has these names, by which a batch knows them, too.
        name = f"{field.name}/stack" if contiguous else field.name
        window = reused(windows, name, (size, width, *field.shape), field.dtype)
        following, apart = None, _NOTHING
        if contiguous or (horizon < stack and not kernels.fit_windows(rows, horizon)):
            shape = (size, stack, *field.shape)
            following = reused(windows, field.name + NEXT, shape, field.dtype)
            apart = flat(following)
        if isinstance(column, Column):  # what came is in memory
            self._advise(column, rows)
        job, threads = pool.job(window.nbytes, size, threads)
        parts = len(job) - JOB
        failed = kernels.windows(
            column.table.array, rows, stack, horizon, self._advice, self._rusage, flat(window),
            width, apart, column.scratch(2 * -(-size // parts), threads), threads, job,
        )  # fmt: skip
        if failed:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        if self._repeat:
            _repeat_first(window, stack, rows[:, BEFORE])
            # Else the next stack has part of this padding, or comes later.
            if following is None and horizon >= stack:
                _repeat_first(window[:, horizon:], stack, rows[:, BEFORE_NEXT])
            elif following is not None:
                _repeat_first(following, stack, rows[:, BEFORE_NEXT])
        if following is None:
            following = window[:, horizon:]
        if stack == 1:
            return window[:, 0], following[:, 0]
        return window[:, :stack], following

    def blocks(self, column: Column[Any], rows: np.ndarray) -> StoredBlocks | None:
        """The blocks that all stacks of some rows are in; None where the rows themselves are fewer
        bytes. `read` has them from a `BlockColumn`."""
        self._advise(column, rows)
        frames = self._stack + min(self._stack, self._horizon)
        return StoredBlocks.of(
            column, spans(rows), len(rows) * frames * column.field.row_bytes, self._advice,
            self._rusage,
        )  # fmt: skip

    def _advise(self, column: Column[Any], rows: np.ndarray) -> None:
        if self._advice[0] > 0:
            self._kernels.advise(column.table.array, rows)


def spans(rows: np.ndarray) -> np.ndarray:
    """The rows that both stacks of planned transitions lie in: env, first row, and the row behind
    the last one; int64 of shape (batch, 3)."""
    found = np.empty((len(rows), 3), np.int64)
    found[:, 0], found[:, 1] = rows[:, ENV], rows[:, ROW] - rows[:, BEFORE]
    found[:, 2] = rows[:, ROW] + np.where(rows[:, BEFORE_NEXT] < 0, 0, rows[:, AHEAD]) + 1
    return found


def in_blocks(rows: np.ndarray, field: Field, first: int) -> np.ndarray:
    """Planned rows as a `BlockColumn` has them, where the span of the first of them is `first`."""
    found = rows.copy()
    begin = rows[:, ROW] - rows[:, BEFORE]
    found[:, ENV] = np.arange(first, first + len(rows))
    found[:, ROW] -= begin - begin % field.block_rows
    return found


def _repeat_first(stacks: np.ndarray, stack: int, before: np.ndarray) -> None:
    """Put the first frame of each stack, behind so many others of which `before` are the episode's,
    into the places before the episode's start."""
    for i in np.flatnonzero((before >= 0) & (before < stack - 1)).tolist():
        first = stack - 1 - int(before[i])
        stacks[i, :first] = stacks[i, first]


def flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def reused(
    arrays: dict[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """An array of this shape: the one kept under `name` if it fits, else a new one.

    One that came from a file or another process may be read-only, and kernels ask nobody.
    """
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != dtype or not array.flags.carray:
        array = arrays[name] = np.empty(shape, dtype)
    return array
