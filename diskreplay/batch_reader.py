"""A batch that was drawn, and its reader: from what is to be read to the arrays."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from diskreplay.batch import Batch, WindowMemory
from diskreplay.errors import CorruptSegmentError, InvalidInputError
from diskreplay.packed_batch import BlockStacks, PackedBatch
from diskreplay.sampling.row_index import Plan
from diskreplay.schema import Schema
from diskreplay.stack_reader import StackReader, flat
from diskreplay.store import machine
from diskreplay.store.column import Column
from diskreplay.store.field import Field
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store
from diskreplay.store.stored_blocks import StoredBlocks

_OTHERS = 40  # bytes of a transition's numbers, from its reward to its probability


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

    def packed(self) -> PackedBatch | None:
        """The batch as it is sent, see `BatchReader.packed`."""
        return self.reader.packed(self)


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

        self._kernels, self._schema = batch_kernels, schema
        self._stacks = StackReader(stack_size, update_horizon, repeat_first=repeat_first)
        self._memory = WindowMemory()
        frames = stack_size + min(stack_size, update_horizon)
        self._bytes = frames * row_bytes(schema.observations) + row_bytes(schema.actions)
        self._bytes += row_bytes(schema.extras.values()) + _OTHERS
        self._most = machine.memory() // self._bytes

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
        rows = drawn.plan.rows
        try:
            windows = self._memory.take(len(rows)) if out is None else out._windows
            arrays = self._arrays(
                drawn, lambda column: self._stacks.read(column, rows, windows, threads, contiguous)
            )
        finally:
            drawn.guard.release()
        if arrays is None:
            return None
        if out is None:
            self._memory.give(windows)
            return Batch(arrays, windows)
        out._arrays = arrays
        return out

    def packed(self, drawn: DrawnBatch) -> PackedBatch | None:
        """As `read`, of what is sent to another process: where it takes less, frames in the blocks
        that they are stored in."""
        rows = drawn.plan.rows
        windows: dict[str, np.ndarray] = {}
        blocks: dict[str, StoredBlocks] = {}

        def stacks(column: Column[Any]) -> tuple[Any, Any]:
            name = column.field.name
            found = self._stacks.blocks(column, rows) if column.field.packed else None
            if found is None:
                return self._stacks.read(column, rows, windows, 1, False)
            blocks[name] = found
            return BlockStacks(name, following=False), BlockStacks(name, following=True)

        try:
            windows |= self._memory.take(len(rows))
            arrays = self._arrays(drawn, stacks)
        finally:
            drawn.guard.release()
        if arrays is None:
            return None
        self._memory.give(windows)
        sent = PackedBatch.of(Batch(arrays, windows))
        return sent._replace(blocks=blocks, rows=rows) if blocks else sent

    def _arrays(
        self, drawn: DrawnBatch, stacks: Callable[[Column[Any]], tuple[Any, Any]]
    ) -> dict[str, Any] | None:
        """What a batch shows, of which `stacks` reads both stacks of a column. None if what was
        read changed meanwhile."""
        store, plan, schema = drawn.store, drawn.plan, self._schema
        columns = store.columns
        try:
            pairs = [stacks(columns[f.name]) for f in schema.observations]
            actions = [self._rows(columns[f.name], drawn.ids) for f in schema.actions]
            extras = {name: self._rows(columns[name], drawn.ids) for name in schema.extras}
        except CorruptSegmentError:
            if drawn.guard.has_moved_on():
                return None
            raise
        if schema.is_flat:  # asking the spaces takes some microseconds
            (observation, following), action = pairs[0], actions[0]
        else:
            observation, following = (
                schema.observation.unflatten(parts) for parts in zip(*pairs, strict=True)
            )
            action = schema.action.unflatten(actions)
        return {
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

    def _rows(self, column: Column[Any], ids: np.ndarray) -> np.ndarray:
        """One field's value in the row of each transition."""
        out = np.empty((len(ids), *column.field.shape), column.field.dtype)
        failed = self._kernels.take(column.table.array, ids, flat(out), column.scratch(len(ids)))
        if failed:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        return out


def refuse_size(name: str, size: int, bytes_: int) -> NoReturn:
    """Say of an argument, with an `InvalidInputError`, that a batch of so many transitions or
    windows, of so many bytes each, is larger than the memory that this process may have. While it
    was drawn, the system would kill some process."""
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
