"""Windows that were drawn, and their reader: from what is to be read to the arrays."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from diskreplay import spaces
from diskreplay.batch import Reused, WindowMemory
from diskreplay.batch_reader import flat, reused
from diskreplay.errors import CorruptSegmentError
from diskreplay.sampling.window import Window, WindowPlan
from diskreplay.schema import Schema
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.store.column import Column
from diskreplay.store.reading_pool import pool
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store


class DrawnSequences(NamedTuple):
    """Windows that were drawn and not read yet. The store's `rwlock` is held.

    `numbers` are the random numbers they were drawn with; `cursor` is what that of the queue of new
    windows was before, if there is one.
    """

    anchors: np.ndarray
    probability: np.ndarray
    weight: np.ndarray
    plan: WindowPlan
    store: Store
    guard: ReadGuard
    numbers: list[np.ndarray]
    cursor: np.ndarray | None
    reader: "SequenceReader"

    def read(self, out: SequenceBatch | None = None, *, threads: int = 1) -> SequenceBatch | None:
        """The batch, see `SequenceReader.read`."""
        return self.reader.read(self, out, threads)


class SequenceReader:
    """Reads the frames and other fields of drawn windows.

    Needs no lock: what was drawn holds the store's `rwlock`.

    Parameters
    ----------
    schema : Schema
    stack_size : int
    window : Window
    fields : collection of str
        ``"action"`` and extras that are read at each position.
    state : collection of str
        Extras that are read at the first valid one only.
    has_to_go : bool
        Whether batches have returns to go.
    """

    def __init__(
        self,
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
        self._schema, self._stack, self._window = schema, stack_size, window
        self._has_action, self._has_to_go = "action" in fields, has_to_go
        self._extras = [name for name in schema.extras if name in fields and name not in state]
        self._state = [name for name in schema.extras if name in state]
        self._memory, self._plans = WindowMemory(), Reused[WindowPlan]()

    def plan_of(self, size: int) -> WindowPlan:
        """The memory of a plan of so many windows, which nobody else has."""
        plan = self._plans.take(lambda plan: len(plan.ids) == size and plan.is_free)
        return plan or WindowPlan(self._window, size, self._stack)

    def read(
        self, drawn: DrawnSequences, out: SequenceBatch | None, threads: int
    ) -> SequenceBatch | None:
        """The batch that was drawn, in `out` if given, and release the `rwlock`.

        So many threads read its frames. None if what was read changed meanwhile, which happens to a
        reader of a live store only.
        """
        store, plan, schema = drawn.store, drawn.plan, self._schema
        columns = store.columns
        try:
            held = self._memory.take() if out is None else out._windows
            frames = [
                self._frames(columns[f.name], plan.frames, held, threads)
                for f in schema.observations
            ]
            actions = [
                self._take(columns[f.name], plan.transitions, held)
                for f in schema.actions if self._has_action
            ]  # fmt: skip
            extras = {
                name: self._take(columns[name], plan.transitions, held) for name in self._extras
            }
            state = {name: self._take(columns[name], plan.state, held) for name in self._state}
        except CorruptSegmentError:
            if drawn.guard.has_moved_on():
                return None
            raise
        finally:
            drawn.guard.release()
        observation, action = frames[0], actions
        if not schema.is_flat:  # asking the spaces takes some microseconds
            observation = spaces.unflatten(schema.observation_space, frames)
            action = [spaces.unflatten(schema.action_space, actions)] if actions else []
        shown = plan.shown()
        to_go = shown.pop("returns_to_go")
        arrays = {
            "observation": observation,
            **({"action": action[0]} if action else {}),
            **shown,
            "anchor": drawn.anchors,
            "weight": drawn.weight,
            "probability": drawn.probability,
            **({"returns_to_go": to_go} if self._has_to_go else {}),
            **extras,
            **state,
        }
        self._plans.give(plan)
        if out is None:
            self._memory.give(held)
            return SequenceBatch(arrays, held)
        out._arrays = arrays
        return out

    def _frames(
        self, column: Column, ids: np.ndarray, held: dict[str, np.ndarray], threads: int
    ) -> np.ndarray:
        frames = self._take(column, ids, held, threads)
        if self._stack == 1 or self._window.crosses:
            return frames
        windows, width, *shape = frames.shape
        position = frames.strides[1]
        return np.lib.stride_tricks.as_strided(
            frames, (windows, width - self._stack + 1, self._stack, *shape),
            (frames.strides[0], position, position, *frames.strides[2:]),
        )  # fmt: skip

    def _take(
        self, column: Column, ids: np.ndarray, held: dict[str, np.ndarray], threads: int = 1
    ) -> np.ndarray:
        """One field's value in each row, zeros for negative ids."""
        field, kernels, windows = column.field, self._kernels, len(ids)
        out = reused(held, field.name, ids.shape + field.shape, field.dtype)
        ids = ids.reshape(-1)
        reads = min(len(ids), kernels.READS)
        if threads == 1 or not windows:
            failed = kernels.take(column.table.array, ids, flat(out), column.scratch(reads))
        else:
            job, threads = pool.job(out.nbytes, windows, threads)
            failed = kernels.take_parts(
                column.table.array, ids, len(ids) // windows, flat(out),
                column.scratch(reads, threads), threads, job,
            )  # fmt: skip
        if failed:
            column.complain(*divmod(-(1 + failed), column.num_envs))
        return out
