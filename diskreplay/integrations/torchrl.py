"""torchrl: a storage whose big leaves are on disk.

::

    from diskreplay.integrations.torchrl import DiskStorage

    buffer = TensorDictReplayBuffer(
        storage=DiskStorage(1_000_000, path="runs/pong/replay"), sampler=PrioritizedSampler(...)
    )

It takes the place of `LazyTensorStorage`, with any sampler, writer and transform of torchrl.
``docs/torchrl.md`` says what differs.
"""

import contextlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.extensions import needed
from diskreplay.store import files
from diskreplay.store.paths import resolved

with needed("diskreplay.integrations.torchrl needs torchrl", "torchrl"):
    import torch
    from tensordict import LazyStackedTensorDict, TensorDict, is_tensor_collection, is_tensorclass
    from torch.utils import _pytree as pytree
    from torchrl.data import LazyTensorStorage, RoundRobinWriter
    from torchrl.data.replay_buffers.storages import Storage

from diskreplay.errors import CheckpointNotFoundError
from diskreplay.given_numbers import whole
from diskreplay.integrations.disk_tensor import plain
from diskreplay.integrations.record_layout import RecordLayout
from diskreplay.integrations.record_log import RecordLog
from diskreplay.integrations.record_shelf import RecordShelf
from diskreplay.integrations.torchrl_checkpointer import DiskStorageCheckpointer
from diskreplay.integrations.torchrl_records import (
    check,
    checked_stack,
    described,
    first,
    is_int,
    is_lazy,
    items,
    key,
    noted,
    once_each,
    others,
    put_back,
    rounded,
    stacked,
    whole_records,
)
from diskreplay.integrations.torchrl_run import SavedReplayBuffer
from diskreplay.one_checkpoint import loaded_with
from diskreplay.store.listing import Checkpoint, next_number

__all__ = ["DiskStorage", "DiskStorageCheckpointer", "SavedReplayBuffer"]

_MEMORY, _OTHERS = "memory.pt", "others.consolidated"  # of a checkpoint
_KEPT = 4  # checkpoints of state dicts


class DiskStorage(LazyTensorStorage):  # type: ignore[misc]
    """torchrl's `LazyTensorStorage` with the big leaves on disk, compressed, safe from a kill.

    Parameters
    ----------
    max_size : int
        Records.
    path : path, optional
        The store's directory, made with the first record or reopened: a run that goes on has its
        records again, and a `RoundRobinWriter` its place. None: a temporary one, which goes with
        the process.
    compressor : str or dict
        As for `diskreplay.ReplayBuffer`.
    min_bytes : int
        Leaves of that many bytes a record and more are on disk only. Smaller ones are on disk and
        in memory, where samplers look for ends of episodes.
    ndim : int
        Record axes, as for `LazyTensorStorage`.
    device : str or torch.device
        Where the leaves in memory are, and what is read.
    next_of : bool
        Store a big leaf ``("next", k)`` that is the next record's `k` once. Where it is not, both
        are stored: never is anything else read than what was written.
    stack : int or dict of str to int
        So many frames a record stacks along the first axis of its big leaves, of which only the
        newest is stored where the others are those of the record before. A dict says it by the last
        part of the leaves' keys: ``{"pixels": 4}``.

    Raises
    ------
    InvalidInputError
        An option makes no sense.
    FormatError, SchemaError
        `path` holds something else.
    LockedError
        Another process writes to it.

    Notes
    -----
    A record survives the death of the process when `set` returns, which `add` and `extend` call.
    """

    _default_checkpointer = DiskStorageCheckpointer
    device: Any
    max_size: int
    is_apart = False  # `state_dict` has no records: whoever asks saves them otherwise

    def __init__(
        self,
        max_size: int,
        *,
        path: str | os.PathLike[str] | None = None,
        compressor: str | Mapping[str, str] = "auto",
        min_bytes: int = 1024,
        ndim: int = 1,
        device: "torch.device | str" = "cpu",
        next_of: bool = False,
        stack: int | Mapping[str, int] = 1,
    ) -> None:
        self._shelf: RecordShelf | None = None
        super().__init__(whole("max_size", max_size, most=1 << 40), ndim=ndim, device=device)
        self._path = None if path is None else resolved(path, "path")
        self._compressor = compressor
        self._min_bytes = whole("min_bytes", min_bytes, least=0, most=1 << 62)
        self._next_of, self._stack = bool(next_of), checked_stack(stack)
        if self._path is not None and files.is_there(self._path / "zarr.json"):
            self._open(self._path)
            self._recall(np.flatnonzero(self._opened.log.rows >= 0))

    @property
    def path(self) -> Path | None:
        """The store's directory; None as long as a temporary one is not made."""
        if self._shelf is not None:
            return self._shelf.log.path
        return self._path

    @property
    def _opened(self) -> RecordShelf:
        assert self._shelf is not None
        return self._shelf

    def flush(self) -> None:
        """Make all records durable: a power cut does not take them."""
        if self._shelf is not None:
            self._shelf.log.flush()

    def close(self) -> None:
        """Close the store; the storage is of no use any more."""
        if self._shelf is not None:
            self._shelf.log.close()

    # -- the leaves

    def _init_standard(self, data: Any) -> None:
        if self.device == "auto":
            self.device = data.device
        is_td = is_tensor_collection(data)
        if isinstance(data, LazyStackedTensorDict):
            with contextlib.suppress(RuntimeError):  # ragged
                data = data.contiguous()
        batch = tuple(data.shape if is_td else pytree.tree_leaves(data)[0].shape)
        inner = batch[: self.ndim - 1]
        self.max_size = rounded(self.max_size, inner)
        shape = (self.max_size // int(np.prod(inner)), *inner)
        leaves = [
            described(key, tensor, self.ndim - 1, self._min_bytes, self._stack)
            for key, tensor in items(data)
        ]
        layout = RecordLayout(leaves, self._next_of)
        tree = None if is_td else pytree.treespec_dumps(pytree.tree_structure(data))
        if is_td:
            super()._init_standard(others(data, layout))
            if not self._storage.is_empty():
                warnings.warn(
                    f"{list(self._storage.keys(True, True))}: ragged leaves, and what is no "
                    "tensor, are in memory and in checkpoints, and gone after a kill",
                    stacklevel=2,
                )
        # Lists, as a store that is opened has them: another storage of this path compares them.
        whole_batch = [shape[0], *batch] if is_td else []
        notes = {"shape": list(shape), "batch": whole_batch, "tree": tree}
        self._make(layout, notes)

    def _open(self, source: Path) -> None:
        """Make the leaves that a store or checkpoint has."""
        found = noted(source, self.ndim, self.max_size)
        self.max_size = int(np.prod(found["shape"]))
        self._make(RecordLayout.parse(found), found)

    def _make(self, layout: RecordLayout, notes: Mapping[str, Any]) -> None:
        kept = {name: notes[name] for name in ("shape", "batch", "tree")}
        slots = int(np.prod(notes["shape"]))
        log = RecordLog(self._path, slots, layout, self._compressor, kept)
        self._furnish(RecordShelf(log, torch.device(self.device), kept))

    def _furnish(self, shelf: RecordShelf) -> None:
        """Have the leaves of a shelf as what this stores."""
        made = {name: shelf.make(name) for name in shelf.log.layout.leaves}
        if shelf.notes["tree"] is not None:
            tree = pytree.treespec_loads(shelf.notes["tree"])
            self._storage = pytree.tree_unflatten(list(made.values()), tree)
        else:
            if self._storage is None:
                batch = tuple(shelf.notes["batch"])
                self._storage = TensorDict({}, batch_size=batch, device=self.device)
            for name, leaf in shelf.log.layout.leaves.items():
                self._storage.set(key(leaf), made[name])
        self._shelf, self.initialized = shelf, True

    def _recall(self, slots: np.ndarray) -> None:
        """Take in what the rows of these slots have, and count the records."""
        self._opened.recall(slots)
        inner = int(np.prod(self._opened.shape[1:]))
        shown = np.flatnonzero(self._opened.log.rows >= 0)
        self._len = 0 if not len(shown) else (int(shown[-1]) // inner + 1) * inner

    # -- setting and getting

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write records; all leaves are on disk when this returns.

        Parameters
        ----------
        cursor : int, slice, Tensor, ...
            Where, along the record axes.
        data : TensorDict, Tensor or tree of tensors
            With the leaves of the first record, or some of them.
        set_cursor : bool
            Whether these are new records.

        Raises
        ------
        InvalidInputError, ShapeError, DtypeError
            Leaves are others than those of the first record. Nothing was written.
        DiskFullError, ReadOnlyError, ...
            As for `ReplayBuffer.extend`.
        """
        try:
            if isinstance(data, list):
                data = stacked(data)
            at, data = once_each(cursor, data)
            if self._shelf is None:
                self._init(data if is_int(at) else first(data))
            elif self._put(at, data, set_cursor):
                return
            elif is_tensor_collection(data):
                check(data, self._opened, self._storage, self.ndim - is_int(at))
            if is_tensorclass(data) and not is_tensorclass(self._storage):  # it was reopened
                self._storage = type(data).from_tensordict(self._storage)
        except BaseException:
            put_back(self, cursor, set_cursor)
            raise
        slots = self._opened.slots[at].reshape(-1).numpy()
        before = self._len, self._last_cursor
        try:
            with self._opened.together(slots, set_cursor):
                super().set(at, data, set_cursor=set_cursor)
        except BaseException:
            self._len = before[0]
            self._set_last_cursor(before[1])
            put_back(self, cursor, set_cursor)
            raise

    def _put(self, cursor: Any, data: Any, set_cursor: bool) -> bool:
        """Write whole records, past the leaves; False if this is something else."""
        is_plain = self.ndim == 1 and type(self._storage) is TensorDict
        values = whole_records(data, self._opened, is_int(cursor)) if is_plain else None
        if values is None:
            return False
        slots = self._opened.slots[cursor].reshape(-1).numpy()
        if any(len(value) != len(slots) for value in values.values()):
            return False
        self._opened.put(slots, values, set_cursor)
        if set_cursor:
            self._set_last_cursor(cursor)
            self._get_new_len(data, cursor)
        self._bump_mutation_revision()
        return True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def get(self, index: Any) -> Any:
        """Records, as `LazyTensorStorage.get`; of slices the leaves on disk are lazy.

        Raises
        ------
        CorruptSegmentError
            A repair has set one of them aside, and nothing was written there since. Of slices a
            leaf on disk raises it when it is read.
        """
        self._follow()
        if self._shelf is None:
            return super().get(index)
        if not is_lazy(index):  # else a leaf says so where it is read: samplers look at others
            self._shelf.check(index, self._len_along_dim0)
        with self._shelf.once_more(index):
            return super().get(index)

    def __getitem__(self, index: Any) -> Any:
        """As `get`."""
        is_sampled = type(index) is tuple and all(type(part) is torch.Tensor for part in index)
        if self._shelf is None or not is_sampled:  # so samplers look at what they have chosen
            return self.get(index)
        with self._shelf.looking(index):
            return self.get(index)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __len__(self) -> int:
        """Records."""
        self._follow()
        return int(self._len)

    def _follow(self) -> None:
        """In another process: take in what the writer did since."""
        if self._shelf is not None and self._shelf.log.is_reader:
            changed = self._shelf.log.follow()
            if changed is not None:
                self._recall(changed)

    def _empty(self) -> None:
        if self._shelf is not None:  # first: where it is refused, all records are there
            self._shelf.log.clear()
        super()._empty()

    # -- replay buffers that begin with records

    @property
    def checkpointer(self) -> Any:
        """What `dumps` and `loads` use."""
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, value: Any) -> None:
        Storage.checkpointer.fset(self, value)
        if self._shelf is None or self._shelf.log.cursor is None:
            return
        # A replay buffer does this when it has made its writer, which has yet to know.
        inner = int(np.prod(self._shelf.shape[1:]))
        for buffer in self._attached_entities:
            writer = getattr(buffer, "_writer", None)
            if isinstance(writer, RoundRobinWriter) and not writer._write_count:
                writer._cursor = (self._shelf.log.cursor // inner + 1) % self._shelf.shape[0]

    # -- saving

    def write(
        self, directory: Path, number: int | str, keep: int | None,
        attachments: Mapping[str, Any] | None = None,
    ) -> Path:  # fmt: skip
        """Write a checkpoint by hard links; as `diskreplay.ReplayBuffer.save`."""
        shelf, length = self._opened, int(self._len)
        leaves = {name: memory[:length] for name, memory in shelf.memory.items()}
        attached: dict[str, Any] = {
            **(attachments or {}),
            _MEMORY: lambda path: torch.save({"leaves": leaves, "len": length}, path),
        }
        if is_tensor_collection(self._storage):
            rest = others(self._storage, shelf.log.layout)
            if not rest.is_empty():
                attached[_OTHERS] = lambda path: rest.consolidate(path)
        return shelf.log.save(directory, number, attached, keep)

    def restore(self, checkpoint: Path) -> Checkpoint:
        """Go back to a checkpoint."""
        if not files.is_there(checkpoint):
            raise CheckpointNotFoundError(
                f"{checkpoint}: the records of this state are not there any more; the newest "
                f"{_KEPT} checkpoints of state dicts are kept, and those of dumps"
            )
        if self._shelf is None:
            self._open(checkpoint)
        noted(checkpoint, self.ndim, self.max_size)
        shelf = self._opened
        (saved, rest), found = loaded_with(
            checkpoint, _read, lambda: shelf.log.load(checkpoint), needs=_MEMORY
        )
        for name, values in saved["leaves"].items():
            shelf.memory[name].zero_()
            shelf.memory[name][: len(values)] = values
        if rest is not None:
            self._storage.update(rest)
        self._len = saved["len"]
        return found

    def state_dict(self) -> dict[str, Any]:
        """What refers to a checkpoint beside the store; of a temporary store, all records."""
        if self.is_apart:
            return {}
        if not self.initialized:
            return super().state_dict()
        state = {"initialized": True, "_len": int(self._len)}
        if self._path is None:
            if is_tensor_collection(self._storage):
                return {"_storage": self._storage.apply(plain).state_dict(), **state}
            return {"_storage": pytree.tree_map(plain, self._storage), **state}
        directory = Path(f"{self.path}.checkpoints")
        made = self.write(directory, next_number(directory), _KEPT)
        return {**state, "checkpoint": os.fspath(made)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to what `state_dict` gave, or to what that of another storage did."""
        if not state_dict:  # the records were saved apart
            return
        revision = self._mutation_revision
        if "checkpoint" in state_dict:
            self.restore(Path(state_dict["checkpoint"]))
        elif state_dict["initialized"]:
            data = state_dict["_storage"]
            if not isinstance(data, torch.Tensor):
                data = TensorDict().load_state_dict(data, strict=False)
            self.fill(data, state_dict["_len"])
        with self._mutation_revision_value.get_lock():
            self._mutation_revision_value.value = revision + 1  # as one change

    def fill(self, data: Any, length: int) -> None:
        """Have these records in place of all that there are."""
        rows = -(length // -int(np.prod(data.shape[1 : self.ndim])))
        data = data[:rows].clone()  # it may be what is in memory here
        self._empty()
        if rows:
            self.set(slice(0, rows), data, set_cursor=False)
        self._len = length

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if self._shelf is not None:  # its leaves are found by its path
            layout, is_td = self._shelf.log.layout, is_tensor_collection(self._storage)
            state["_storage"] = others(self._storage, layout) if is_td else None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._shelf is not None:
            self.__dict__.pop("_len_value", None)  # of its own: what it reads decides
            self._furnish(self._shelf)
            self._recall(np.flatnonzero(self._shelf.log.rows >= 0))


def _read(attached: Mapping[str, Path]) -> tuple[dict[str, Any], Any]:
    """What is in memory beside the records, and leaves that are no tensors."""
    rest = TensorDict.from_consolidated(attached[_OTHERS]) if _OTHERS in attached else None
    return torch.load(attached[_MEMORY], weights_only=True), rest
