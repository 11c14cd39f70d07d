"""ReAgent's checkpoint files, written from a ring and read into one."""

import os
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from diskreplay.compat.base import Facade
from diskreplay.compat.reagent.elements import native_rewards
from diskreplay.compat.reagent.signature import Element, Signature
from diskreplay.compat.reagent.sum_tree import LARGEST, SumTree
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.convert.gz_files import STORE_PREFIX, GzFiles
from diskreplay.convert.npy_gz import npy_pieces
from diskreplay.convert.source_files import SourceFiles
from diskreplay.convert.unpickling import PickledSumTree, pickled_sum_tree
from diskreplay.errors import CorruptCheckpointError, SchemaError
from diskreplay.locks import one_call
from diskreplay.store import checkpoint_names
from diskreplay.store.paths import local

_BYTES_AT_ONCE = 16 << 20


class Checkpointing(Signature, Facade):
    """Saves and loads a `ReplayBuffer`, of which this is a part."""

    # Set by the buffer when it is made.
    _checkpoint_format: str
    _replay_capacity: int
    sum_tree: SumTree  # of one with priorities

    def _read(self, element: Element, slots: np.ndarray) -> np.ndarray:
        """An element of the rows in these slots, from the store."""
        if element.is_empty:
            return np.empty((len(slots), *element.shape), element.dtype)
        return self._ring.read(element.column, slots)

    @one_call
    def save(self, checkpoint_dir: str | os.PathLike[str], iteration_number: int) -> None:
        """Write a checkpoint.

        Parameters
        ----------
        checkpoint_dir : path
            Created if it is missing.
        iteration_number : int
            The suffix. The files of four iterations before are removed.

        Raises
        ------
        SuffixError
            It is no plain name.
        LockedError
            Another process writes files of this suffix there.
        StorageError
            No half-written file is left.

        Notes
        -----
        ReAgent's files are gzipped copies of the whole ring, written as a stream: for a million
        frames a matter of minutes. With ``checkpoint_format="native"`` it takes milliseconds, see
        `diskreplay.ReplayBuffer.save`.
        """
        if self._checkpoint_format == "native":
            self._hand_over(self._ring, closing=False)
            self._ring.save(checkpoint_dir, iteration_number)
            return
        files = GzFiles(local(checkpoint_dir, "checkpoint_dir"), iteration_number)
        contents: dict[str, Iterable[bytes]] = {}
        for name, element in self._stored.items():
            shape = (self._replay_capacity, *element.shape)
            contents[STORE_PREFIX + name] = npy_pieces(shape, element.dtype, self._chunks(element))
        for name, value in self._public():
            if isinstance(value, np.ndarray):
                contents[name] = npy_pieces(value.shape, value.dtype, [value])
            elif isinstance(value, SumTree):
                contents[name] = [pickled_sum_tree(value.leaves, value.max_recorded_priority)]
            else:
                contents[name] = [pickle.dumps(value)]
        files.write(contents)
        if isinstance(iteration_number, int | np.integer):
            stale = int(iteration_number) - checkpoint_names.CHECKPOINT_DURATION
            if stale >= 0:
                GzFiles(files.directory, stale).remove(contents)

    @one_call
    def load(self, checkpoint_dir: str | os.PathLike[str], suffix: int | str) -> None:
        """Go back to a checkpoint of either kind, ReAgent's own included; all or nothing.

        Parameters
        ----------
        checkpoint_dir : path
        suffix : int or str
            The iteration.

        Raises
        ------
        CheckpointNotFoundError
            A file is missing (a ``FileNotFoundError``).
        SchemaError
            The rows do not fit this buffer (a ``ValueError``).
        CorruptCheckpointError, FormatError
            A file is damaged, or is a pickle of anything but numbers, strings and sum trees.
        NotFiniteError
            A float32 reward is NaN or infinite (a ``ValueError``).

        Notes
        -----
        Validity and the place in the episode, which are not in ReAgent's files, are found out
        again. Arrays are read as streams into a new store, which then takes the place of this one.
        """
        files = GzFiles(local(checkpoint_dir, "checkpoint_dir"), suffix)
        native = checkpoint_names.path_of(files.directory, self._ring.name, suffix).is_dir()
        if native and (self._checkpoint_format == "native" or not files.has("add_count")):
            with self._replacing(lambda: self._recall(self._ring)) as fresh:
                fresh.load(checkpoint_dir, suffix)
                self._align(fresh)
            return
        public, found = dict(self._public()), dict[str, Any]()
        source = SourceFiles(files.directory, files.all)
        with source:
            files.check_present([*(STORE_PREFIX + name for name in self._stored), *public])
            self._check_specs(files)
            count = files.add_count()
            for name, value in public.items():
                if name != "add_count":
                    is_array = isinstance(value, np.ndarray)
                    found[name] = files.array(name) if is_array else files.value(name)
        trees = {name: found.pop(name) for name in public if isinstance(public[name], SumTree)}
        for name, tree in trees.items():
            if not isinstance(tree, PickledSumTree) or len(tree.leaves) < self._replay_capacity:
                raise CorruptCheckpointError(
                    f"{files.path(name)}: a sum tree of {self._replay_capacity} leaves expected"
                )
            if tree.leaves.max() > LARGEST:
                raise CorruptCheckpointError(
                    f"{files.path(name)}: a priority of {tree.leaves.max()} found, at most "
                    f"{LARGEST:g} expected"
                )

        def recall() -> None:
            self._recall(self._ring)
            vars(self).update(found)

        with self._replacing(recall, max(count - self._replay_capacity, 0)) as fresh, source:
            fresh.notes = dict(self._ring.notes)
            self._copy_rows(files, count, fresh, trees.get("sum_tree"))
        if "sum_tree" in trees:  # also of slots that no row is in yet
            unused = np.arange(count, self._replay_capacity)
            self.sum_tree.set_many(unused, trees["sum_tree"].leaves[unused])

    def _public(self) -> list[tuple[str, Any]]:
        """All attributes that a checkpoint has besides the columns."""
        return [(name, value) for name, value in vars(self).items() if name[0] != "_"]

    def _chunks(self, element: Any) -> Iterator[np.ndarray]:
        row_bytes = element.dtype.itemsize * int(np.prod(element.shape))
        at_once = max(1, _BYTES_AT_ONCE // max(row_bytes, 1))
        for start in range(0, self._replay_capacity, at_once):
            slots = np.arange(start, min(start + at_once, self._replay_capacity))
            yield self._read(element, slots)

    def _check_specs(self, files: GzFiles) -> None:
        for name, element in self._stored.items():
            expected = (self._replay_capacity, *element.shape), element.dtype
            shape, dtype = files.spec(name)
            if (shape, dtype) != expected:
                raise SchemaError(
                    f"{files.path(STORE_PREFIX + name)}: {dtype} of shape {shape} found, "
                    f"{expected[1]} of shape {expected[0]} expected; load it into a buffer made "
                    "with the arguments of the one that was saved"
                )

    def _copy_rows(
        self, files: GzFiles, count: int, fresh: SlotBuffer, tree: PickledSumTree | None
    ) -> None:
        """Fill `fresh` with the rows of the files, oldest first."""
        capacity = self._replay_capacity
        parts = [c["terminal"] for c in files.in_time_order(["terminal"], count, capacity)]
        terminal = np.concatenate([np.empty(0, np.uint8), *parts])
        step, is_padding = self._episodes(terminal, known_start=count <= capacity)
        slots = np.arange(fresh.base, count) % capacity
        columns = {name: e for name, e in self._stored.items() if not e.is_empty}
        nothing = [element.column for element in self._signature if element.is_empty]
        done = 0
        for chunk in files.in_time_order(list(columns), count, capacity):
            rows = slice(done, done + len(chunk["terminal"]))
            filled = {columns[name].column: values for name, values in chunk.items()}
            filled |= {
                "terminated": terminal[rows] != 0,
                "truncated": np.zeros(len(terminal[rows]), np.bool_),
                "step": step[rows],
                "is_final": is_padding[rows],
                **dict.fromkeys(nothing, np.zeros(rows.stop - rows.start, np.uint8)),
            }
            if "reward" not in filled:
                filled["reward"] = native_rewards(chunk["reward"])
            if tree is not None:  # the priorities that rows came with
                came_with = tree.leaves[slots[rows]].astype(np.float32)
                filled |= dict.fromkeys(fresh.fields.keys() - filled.keys(), came_with)
            fresh.extend(filled)
            done = rows.stop
        if tree is not None:
            fresh.weights.set(slots, tree.leaves[slots])
            fresh.notes |= {
                "max_recorded_priority": tree.max_recorded_priority,
                "weighed": count,
            }

    def _episodes(
        self, terminal: np.ndarray, *, known_start: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The place of each row in its episode, int32, and whether it is padding.

        Where the beginning of the first episode is gone, its rows count from the stack size on: no
        stack can be whole that would need what is gone.
        """
        rows = np.arange(len(terminal))
        start = np.concatenate([[0 if known_start else -self._stack_size], rows[terminal != 0] + 1])
        place = rows - start[np.searchsorted(start, rows, "right") - 1]
        return place.astype(np.int32), place < self._stack_size - 1
