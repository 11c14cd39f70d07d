"""Tianshou's calls of replay buffers, where the larger arrays are on disk."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBuffer
from tianshou.data.batch import create_value

from diskreplay.integrations.batch_leaves import is_storable, leaves, path_of
from diskreplay.integrations.disk_batch import DiskBatch
from diskreplay.integrations.tianshou_leaves import DiskOptions
from diskreplay.integrations.tianshou_pickle import PickledBuffer
from diskreplay.locks import one_call
from diskreplay.slot_view import SlotView


class BufferOnDisk(PickledBuffer):
    """Mixin of Tianshou's buffers: `_meta` has its larger leaves on disk.

    Takes the options that `DiskReplayBuffer` describes; all else is for Tianshou's constructor.
    """

    # Whether what observations led to is asked for next; then its indices and its frames.
    _reads_both = False
    _ahead: tuple[np.ndarray, np.ndarray] | None = None

    def __init__(
        self,
        *args: Any,
        path: str | os.PathLike[str] | None = None,
        min_bytes: int = 1024,
        compressor: str | Mapping[str, str] = "auto",
        checkpoints: str | os.PathLike[str] | None = None,
        keep: int | None = 4,
        pickle: str = "reference",
        next_of: bool = False,
        stack: int | Mapping[str, int] = 1,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._set_up(
            DiskOptions(path, min_bytes, compressor, checkpoints, keep, pickle, next_of, stack)
        )

    @one_call
    def add(self, batch: Any, buffer_ids: Any = None) -> Any:
        """As Tianshou's. The transitions are on disk, whatever kills the process, when it returns.

        Raises
        ------
        StorageError
            The disk is full, say.
        """
        if not self._meta.get_keys() and self._required_keys_for_add - {"done"} <= {
            *batch.get_keys()
        }:
            self._allocate(self._template(batch, buffer_ids))
        with self._adding():
            return super().add(batch, buffer_ids)

    @one_call
    def sample(self, batch_size: int | None) -> Any:
        """As Tianshou's."""
        return super().sample(batch_size)

    @one_call
    def reset(self, keep_statistics: bool = False) -> None:
        """As Tianshou's; see `LaneOnDisk.reset`."""
        if self._rows is None:
            super().reset(keep_statistics)
            return
        self._rows.slots._check_open()
        self._rows.slots._turn()  # before: what is refused then would be forgotten here alone
        with self._rows.taking_out():  # or of several lanes some would be forgotten, and others not
            super().reset(keep_statistics)

    @contextlib.contextmanager
    def _adding(self) -> Iterator[None]:
        """What is set in the block are new rows."""
        if self._rows is None:
            yield
            return
        self._rows.slots._turn()  # before: Tianshou counts rows first
        before = self._places()
        with self._rows.adding():
            try:
                yield
            except BaseException:
                self._count_what_is_there(before)
                raise
        if self._rows.has_new_keys:
            self._rows.has_new_keys = False
            self._warn_of_memory()

    def _template(self, batch: Any, buffer_ids: Any) -> Batch:
        """What `add` will set of a batch, with one row."""
        is_vector = "buffers" in self.__dict__
        stack = not is_vector and buffer_ids is None
        made = Batch()
        keys = set(batch.get_keys())
        for key in keys & set(self._reserved_keys) if is_vector else keys:
            made.__dict__[key] = batch[key]
        for key in ("terminated", "truncated"):
            made.__dict__[key] = np.asarray(made[key]).astype(np.bool_)
        made.__dict__["done"] = np.logical_or(made.terminated, made.truncated)
        made.__dict__["rew"] = np.asarray(made.rew).astype(float)
        if not self._save_obs_next:
            made.pop("obs_next", None)
        if self._save_only_last_obs:
            for key in {"obs", "obs_next"} & set(made.get_keys()):
                made.__dict__[key] = made[key][-1] if stack else made[key][:, -1]
        found = create_value(made, 1, stack)
        assert isinstance(found, Batch)
        return found

    @one_call
    def update(self, buffer: ReplayBuffer) -> np.ndarray:
        """As Tianshou's."""
        if len(buffer) and self.maxsize and not self._meta.get_keys():
            template: Any = buffer._meta[np.arange(1)]
            self._allocate(template)
        with self._adding():
            return super().update(buffer)

    @one_call
    def set_batch(self, batch: Any) -> None:
        """As Tianshou's; the rows of a batch in memory are copied to the disk."""
        if isinstance(batch, DiskBatch):
            super().set_batch(batch)
            return
        assert len(batch) == self.maxsize
        assert set(batch.get_keys()).issubset(self._reserved_keys)
        self._restore_originals()
        if not self._meta.get_keys():
            self._allocate(batch[np.arange(1)])
        # In a buffer that has some, the same transitions count as before, in their order.
        with contextlib.nullcontext() if len(self) else self._adding():
            self._meta[np.arange(self.maxsize)] = batch

    @one_call
    def dropnull(self) -> None:
        """As Tianshou's."""
        rows = self._rows
        memory = {} if rows is None else self._memory()
        super().dropnull()
        if rows is not None:
            kept = self._meta
            self._take(rows, memory)
            if kept.get_keys():
                with self._adding():
                    self._meta[np.arange(len(kept))] = kept
            self._share()

    @one_call
    def set_array_at_key(
        self, seq: Any, key: str, index: Any = None, default_value: Any = None
    ) -> None:
        """As Tianshou's; an array that is on disk is written there.

        A HER buffer takes back the goals that it has relabelled for a sample first. Tianshou's own
        keeps them, and sets old values over the new ones later.
        """
        names = {} if self._rows is None else self._there.names
        path = path_of(key)
        if path not in names:
            super().set_array_at_key(seq, key, index, default_value)
            return
        self._restore_originals()
        at = np.arange(self.maxsize)[slice(None) if index is None else index]
        self._there.slots.put(
            at, {names[path]: np.broadcast_to(seq, (len(at), *np.shape(seq)[1:]))}
        )

    def __getitem__(self, index: Any) -> Any:
        """As Tianshou's; frames that stacks of `obs` and of `obs_next` share are read once."""
        self._reads_both = not self._save_obs_next and isinstance(self._meta.get("obs"), SlotView)
        try:
            return super().__getitem__(index)
        finally:
            self._reads_both, self._ahead = False, None

    def get(
        self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None
    ) -> Any:
        """As Tianshou's; all frames of all stacks are read in one go."""
        value = self._meta.get(key)
        stack_num = self.stack_num if stack_num is None else stack_num
        if stack_num == 1 or not _reads(value):
            return super().get(index, key, default_value, stack_num)
        at = np.array(index) if isinstance(index, list) else index
        if self._ahead is not None and key == "obs":
            following, frames = self._ahead
            if np.array_equal(following, at):
                return frames
        stack = [at]
        for _ in range(stack_num - 1):
            stack.append(self.prev(stack[-1]))
        if self._reads_both and key == "obs" and np.ndim(at) == 1:
            self._reads_both = False
            following = np.asarray(self.next(at))
            ends = following == at
            # Not so of negative indices, and of slots that `reset` took out.
            if (ends | (np.asarray(self.prev(following)) == at)).all():
                frames = value[np.stack([*stack[::-1], following], axis=1)]
                led = frames[:, 1:].copy()
                led[ends] = frames[ends, :-1]
                self._ahead = following, led
                return frames[:, :-1]
        where = np.stack([np.asarray(each) for each in stack[::-1]], axis=np.ndim(at))
        return value[where]


def _reads(value: Any) -> bool:
    """Whether an index of several axes reads the same here as one of one axis after the other."""
    if isinstance(value, Batch):
        values = [each for _, each in leaves(value)]
        return bool(values) and all(is_storable(each) for each in values) and _is_filled(value)
    return is_storable(value)


def _is_filled(batch: Batch) -> bool:
    return all(
        len(value.get_keys()) and _is_filled(value)
        for value in batch.values() if isinstance(value, Batch)
    )  # fmt: skip
