"""A batch that was drawn, and its reader: from what is to be read to the arrays."""

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from diskreplay.batch import Batch, WindowMemory
from diskreplay.errors import CorruptSegmentError, InvalidInputError
from diskreplay.sampling.row_index import BEFORE, BEFORE_NEXT, Plan
from diskreplay.schema import Schema
from diskreplay.store import machine
from diskreplay.store.column import Column
from diskreplay.store.field import Field
from diskreplay.store.read_job import JOB
from diskreplay.store.reading_pool import pool
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store

_OTHERS = 40  # bytes of a transition's numbers, from its reward to its probability
_NOTHING = np.empty(0, np.uint8)


class DrawnBatch(NamedTuple):
    """A batch that was drawn and not read yet. The store's `rwlock` is held.

    `numbers` are the random numbers it was drawn with.
    """

    ids: np.ndarray
    probability: np.ndarray
    weight: np.ndarray
    plan: Plan
    store: Store
    guard: ReadGuard
    numbers: list[np.ndarray]
    reader: "BatchReader"

    def read(
        self, out: Batch | None = None, *, threads: int = 1, contiguous: bool = False
    ) -> Batch | None:
        """The batch, see `BatchReader.read`."""
        return self.reader.read(self, out, threads, contiguous)


class BatchReader:
    """Reads the frames and other fields of drawn batches.

    Needs no lock: a drawn batch holds the store's `rwlock`.

    Parameters
    ----------
    schema : Schema
    stack_size, update_horizon : int
    repeat_first : bool
        Whether the episode's first frame stands before it in stacks, instead of zeros.
    """

    def __init__(
        self, schema: Schema, stack_size: int, update_horizon: int, *, repeat_first: bool
    ) -> None:
        from diskreplay.store import batch_kernels

        self._kernels = batch_kernels
        self._schema, self._stack, self._horizon = schema, stack_size, update_horizon
        self._repeat = repeat_first
        self._memory = WindowMemory()
        frames = stack_size + min(stack_size, update_horizon)
        self._bytes = frames * row_bytes(schema.observations) + row_bytes(schema.actions)
        self._bytes += row_bytes(schema.extras.values()) + _OTHERS
        self._most = machine.memory() // self._bytes
        # How many batches to ask the kernel for in advance, see batch_kernels.windows. Only Linux
        # says how many page faults a thread had.
        self._advice = np.array([0, 16 if sys.platform == "linux" else 0], np.int64)
        self._rusage = np.zeros(32, np.int64)

    def check_fits(self, size: int) -> None:
        """Refuse so many transitions where `machine.memory` cannot hold them, with an
        `InvalidInputError`."""
        if size > self._most:
            refuse_size("batch_size", size, self._bytes)

    def read(
        self, drawn: DrawnBatch, out: Batch | None, threads: int, contiguous: bool
    ) -> Batch | None:
        """The batch that was drawn, in `out` if given, and release the `rwlock`.

        So many threads read its frames; if `contiguous`, both stacks are C-contiguous arrays. None
        if what was read changed meanwhile, which happens to a reader of a live store only.
        """
        store, plan, schema = drawn.store, drawn.plan, self._schema
        columns = store.columns
        try:
            windows = self._memory.take(len(plan.rows)) if out is None else out._windows
            pairs = [
                self._stacks(columns[f.name], plan, windows, threads, contiguous)
                for f in schema.observations
            ]
            actions = [self._rows(columns[f.name], drawn.ids) for f in schema.actions]
            extras = {name: self._rows(columns[name], drawn.ids) for name in schema.extras}
        except CorruptSegmentError:
            if drawn.guard.has_moved_on():
                return None
            raise
        finally:
            drawn.guard.release()
        if schema.is_flat:  # asking the spaces takes some microseconds
            (observation, following), action = pairs[0], actions[0]
        else:
            observation, following = (
                schema.observation.unflatten(parts) for parts in zip(*pairs, strict=True)
            )
            action = schema.action.unflatten(actions)
        arrays = {
            "observation": observation,
            "action": action,
            "reward": plan.reward,
            "next_observation": following,
            "discount": plan.discount,
            "terminated": plan.terminated,
            "truncated": plan.truncated,
            "steps": plan.steps,
            "id": drawn.ids,
            "weight": drawn.weight,
            "probability": drawn.probability,
            **extras,
        }
        if out is None:
            self._memory.give(windows)
            return Batch(arrays, windows)
        out._arrays = arrays
        return out

    def _stacks(
        self,
        column: Column[Any],
        plan: Plan,
        windows: dict[str, np.ndarray],
        threads: int,
        contiguous: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Observation and next observation stacks of one field."""
        field, stack, horizon, kernels = column.field, self._stack, self._horizon, self._kernels
        size, rows = len(plan.rows), plan.rows
        width = stack if contiguous else stack + horizon
        name = f"{field.name} stack" if contiguous else field.name
        window = reused(windows, name, (size, width, *field.shape), field.dtype)
        following, apart = None, _NOTHING
        if contiguous or (horizon < stack and not kernels.fit_windows(rows, horizon)):
            shape = (size, stack, *field.shape)
            following = reused(windows, f"{field.name} next", shape, field.dtype)
            apart = flat(following)
        if self._advice[0] > 0:
            kernels.advise(column.table.array, rows)
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

    def _rows(self, column: Column[Any], ids: np.ndarray) -> np.ndarray:
        """One field's value in the row of each transition."""
        out = np.empty((len(ids), *column.field.shape), column.field.dtype)
        failed = self._kernels.take(column.table.array, ids, flat(out), column.scratch(len(ids)))
        if failed:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        return out


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


def refuse_size(name: str, size: int, bytes_: int) -> NoReturn:
    """Say of an argument that a batch of so many transitions or windows, of so many bytes each, is
    larger than the memory that this process may have. While it was drawn, the system would kill
    some process.

    Raises
    ------
    InvalidInputError
    """
    raise InvalidInputError(
        f"{name}: {size:,} found, which take {size * bytes_ / 2**30:,.1f} GiB of memory or more, "
        f"and this process may have {machine.memory() / 2**30:,.1f} GiB; ask for fewer at a time"
    )


def row_bytes(fields: Iterable[Field]) -> int:
    """Bytes of a row of all of these."""
    return sum(field.row_bytes for field in fields)


def check_out(out: object) -> None:
    """Refuse what is no batch to be filled."""
    if out is not None and type(out) is not Batch:  # one of windows is another kind
        raise InvalidInputError(f"out: a Batch expected, found {type(out).__name__}")
