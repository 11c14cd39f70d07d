"""Windows that were drawn, and their reader: from what is to be read to the arrays."""

import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from diskreplay.batch import MOST_KEPT
from diskreplay.batch_reader import refuse_size
from diskreplay.errors import CorruptSegmentError
from diskreplay.sampling.window import Window, WindowPlan
from diskreplay.schema import Schema
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.stack_reader import flat, reused
from diskreplay.store import machine
from diskreplay.store.column import Column
from diskreplay.store.read_job import READS
from diskreplay.store.reading_pool import pool
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store


class SequenceMemory:
    """Memory of one batch: its plan, and the arrays that its fields are read into.

    Filled again when nobody looks at any of it any more. Whatever depends on nothing but the size
    of a batch is made here, once: where other work runs between two batches, each call of NumPy
    comes from memory again.

    Attributes
    ----------
    plan : WindowPlan
    windows : dict of str to ndarray
        The arrays by field. Empty until a batch is read into them.
    reads : list of Read
        How they are filled.
    shown : dict of str to ndarray, dict or tuple
        What a batch shows of all this. It refers to this dict, and each array that it makes of one
        to the memory behind that.
    scratch : ndarray of int64
        For kernels, with one thread.
    """

    __slots__ = ("_alone", "_kept", "plan", "reads", "scratch", "shown", "windows")

    def __init__(self, plan: WindowPlan, scratch: np.ndarray) -> None:
        self.plan, self.scratch, self.shown = plan, scratch, dict[str, Any](plan.shown)
        self.windows: dict[str, np.ndarray] = {}
        self.reads: list[Read] = []
        self.keep()

    def keep(self) -> None:
        """Remember what refers to all this while nobody else does: now."""
        self._kept = [self.plan.block, self.shown, *self.windows.values()]
        self._alone = list(map(sys.getrefcount, self._kept))

    def fits(self, size: int) -> bool:
        """Whether a batch of so many windows may be put here."""
        return self.plan.size == size and list(map(sys.getrefcount, self._kept)) == self._alone


class Read(NamedTuple):
    """A field of a batch: its name, the rows, and where its values go, as bytes."""

    name: str
    rows: np.ndarray
    out: np.ndarray


class DrawnSequences(NamedTuple):
    """Windows that were drawn and not read yet. The store's `rwlock` is held.

    `numbers` are the random numbers they were drawn with; `new` are the anchors that were handed
    out because they were new.
    """

    memory: SequenceMemory
    store: Store
    guard: ReadGuard
    numbers: list[np.ndarray]
    new: np.ndarray
    reader: "SequenceReader"

    @property
    def plan(self) -> WindowPlan:
        """What they consist of."""
        return self.memory.plan

    @property
    def probability(self) -> np.ndarray:
        """Of each window in one draw."""
        return self.memory.plan.probability

    def read(self, out: SequenceBatch | None = None, *, threads: int = 1) -> SequenceBatch | None:
        """The batch, see `SequenceReader.read`."""
        return self.reader.read(self, out, threads)


class SequenceReader:
    """Reads the frames and other fields of drawn windows of one store.

    Needs no lock: what was drawn holds the store's `rwlock`.

    Parameters
    ----------
    fields : collection of str
        ``"action"`` and extras that are read at each position.
    state : collection of str
        Extras that are read at the first valid one only.
    has_to_go : bool
        Whether batches have returns to go.
    """

    def __init__(
        self,
        columns: Mapping[str, Column[Any]],
        schema: Schema,
        stack_size: int,
        window: Window,
        *,
        fields: Collection[str],
        state: Collection[str],
        has_to_go: bool,
    ) -> None:
        from diskreplay.store import batch_kernels

        self._kernels = batch_kernels
        self._columns, self._schema = columns, schema
        self._stack, self._window, self._has_to_go = stack_size, window, has_to_go
        self._observations = [field.name for field in schema.observations]
        self._actions = [field.name for field in schema.actions if "action" in fields]
        self._extras = [name for name in schema.extras if name in fields and name not in state]
        self._state = [name for name in schema.extras if name in state]
        self._kept: list[SequenceMemory] = []
        one = self._plan(1)
        read = (ids.size * columns[name].field.row_bytes for name, ids, _rows in self._fields(one))
        self._bytes = one.block.nbytes + sum(read)  # of a window

    def check_fits(self, size: int, name: str = "batch_size") -> None:
        """Refuse so many windows where `machine.memory` cannot hold them, with an
        `InvalidInputError` that is about the argument `name`."""
        if size * self._bytes > machine.memory():
            refuse_size(name, size, self._bytes)

    def _plan(self, size: int) -> WindowPlan:
        return WindowPlan(self._window, size, self._stack, has_to_go=self._has_to_go)

    def memory_for(self, size: int, name: str = "batch_size") -> SequenceMemory:
        """Memory of a batch of so many windows, which nobody else has. Needs the buffer's lock:
        another thread may give memory back meanwhile, but not take it. `name` as for
        `check_fits`."""
        kept = self._kept
        for _ in range(len(kept)):
            memory = kept.pop()  # of the newest batch: the caches have it
            if memory.fits(size):
                return memory
            kept.insert(0, memory)
        self.check_fits(size, name)
        plan = self._plan(size)
        most = min(max(len(plan.transition_rows), len(plan.frame_rows)), READS)
        scratches = [self._columns[name].scratch(most) for name, *_ in self._fields(plan)]
        return SequenceMemory(plan, max(scratches, key=len))

    def _fields(self, plan: WindowPlan) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """The fields that are read, with the rows of each in their shape, and flat."""
        frames = plan.frames, plan.frame_rows
        transitions, state = (plan.transitions, plan.transition_rows), (plan.state, plan.state)
        return [
            *((name, *frames) for name in self._observations),
            *((name, *transitions) for name in (*self._actions, *self._extras)),
            *((name, *state) for name in self._state),
        ]

    def read(
        self, drawn: DrawnSequences, out: SequenceBatch | None, threads: int
    ) -> SequenceBatch | None:
        """The batch that was drawn, in `out` if given, and release the `rwlock`.

        So many threads read its frames. None if what was read changed meanwhile, which happens to a
        reader of a live store only.
        """
        memory, columns, take = drawn.memory, self._columns, self._kernels.take
        scratch = memory.scratch
        try:
            if out is not None:
                reads = self._reads(memory.plan, out._windows)
            else:
                if not memory.reads:
                    memory.reads = self._reads(memory.plan, memory.windows)
                    memory.shown = self._shown(memory.windows, memory.plan.shown)
                    memory.keep()
                reads = memory.reads
            for name, rows, places in reads:
                column = columns[name]
                if threads != 1 and len(rows) and name in self._observations:
                    failed = self._take_parts(column, memory.plan.size, rows, places, threads)
                else:
                    failed = take(column.table.array, rows, places, scratch)
                if failed:
                    column.complain(*divmod(-(1 + failed), column.num_envs))
        except CorruptSegmentError:
            if drawn.guard.has_moved_on():
                return None
            raise
        finally:
            drawn.guard.release()
        if out is None:
            batch = SequenceBatch({}, dict(memory.windows), memory.shown)
        else:
            batch = out
            batch._made, batch._shared = self._shown(out._windows, {}), memory.shown
        # Not before the batch refers to it: another thread that draws now would take it.
        self._kept.append(memory)
        del self._kept[:-MOST_KEPT]
        return batch

    def _reads(self, plan: WindowPlan, windows: dict[str, np.ndarray]) -> list[Read]:
        """How to fill arrays, of which those that do not fit are made anew."""
        reads = []
        for name, ids, rows in self._fields(plan):
            field = self._columns[name].field
            out = reused(windows, name, ids.shape + field.shape, field.dtype)
            reads.append(Read(name, rows, flat(out)))
        return reads

    def _take_parts(
        self, column: Column[Any], windows: int, rows: np.ndarray, out: np.ndarray, threads: int
    ) -> Any:
        job, threads = pool.job(len(out), windows, threads)
        scratch = column.scratch(min(len(rows), READS), threads)
        return self._kernels.take_parts(
            column.table.array, rows, len(rows) // windows, out, scratch, threads, job
        )

    def _shown(
        self, windows: dict[str, np.ndarray], planned: dict[str, np.ndarray]
    ) -> dict[str, Any]:
        """What a batch shows of the fields, and of what was planned."""
        schema, frames = self._schema, [windows[name] for name in self._observations]
        if self._stack > 1 and not self._window.crosses:
            frames = [self._stacked(each) for each in frames]
        shown: dict[str, Any] = {"observation": schema.observation.unflatten(frames)}
        if self._actions:
            actions = [windows[name] for name in self._actions]
            shown["action"] = schema.action.unflatten(actions)
        extras = {name: windows[name] for name in (*self._extras, *self._state)}
        return shown | planned | extras

    def _stacked(self, frames: np.ndarray) -> np.ndarray:
        windows, width, *shape = frames.shape
        position = frames.strides[1]
        # Views of it refer to `frames`; those of what `as_strided` makes would refer to that only.
        return np.ndarray(
            (windows, width - self._stack + 1, self._stack, *shape), frames.dtype, frames,
            strides=(frames.strides[0], position, position, *frames.strides[2:]),
        )  # fmt: skip
