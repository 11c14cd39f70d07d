"""The leaves of a storage of records, on disk and in memory, and what writes them together."""

import functools
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from diskreplay.integrations.disk_tensor import DiskTensor
from diskreplay.integrations.record_log import RecordLog
from diskreplay.locks import Lock, turn_of

_Staged = list[tuple[np.ndarray, torch.Tensor]]


class Seen(NamedTuple):
    """A leaf of some records, as it was read."""

    slots: np.ndarray
    tensor: torch.Tensor
    version: int


class Kept(NamedTuple):
    """The leaves on disk of the records that an index names."""

    asked: tuple[torch.Tensor, ...]
    versions: list[int]
    state: tuple[int, np.ndarray]
    leaves: dict[str, Seen]

    def is_for(self, index: Any, log: RecordLog) -> bool:
        """Whether these are the very tensors, and the log is as it was."""
        if type(index) is not tuple or len(index) != len(self.asked):
            return False
        known, rows = log.state
        return (
            all(one is other for one, other in zip(index, self.asked, strict=True))
            and [part._version for part in index] == self.versions
            and known == self.state[0] and rows is self.state[1]
        )  # fmt: skip


class _Looked(threading.local):
    """What a thread has looked at."""

    kept: Kept | None = None
    noting: dict[str, Seen] | None = None

    offered: dict[str, Seen] | None = None  # None: no record is read whole


def _holders(seen: Seen) -> int:
    return sys.getrefcount(seen.tensor)


_NOBODY_ELSE = _holders(Seen(np.empty(0), torch.empty(0), 0))  # has such a tensor


class RecordShelf:
    """What a log has, as tensors.

    Parameters
    ----------
    log : RecordLog
    device : torch.device
    notes : dict
        Of the log: ``shape``, the record axes, and what else it is to remember.

    Attributes
    ----------
    shape : tuple of int
    slots : Tensor of int64, of that shape
    leaves : dict of tuple of str to DiskLeaf
        By their keys.
    memory : dict of str to Tensor, shape (slots, *shape)
        The leaves that are in memory, by name; another view of them is in the storage.
    """

    def __init__(self, log: RecordLog, device: torch.device, notes: Mapping[str, Any]) -> None:
        self.log, self.device, self.notes = log, device, notes
        self.shape = shape = tuple(notes["shape"])
        self.slots = torch.arange(log.slots).view(shape)
        self.memory: dict[str, torch.Tensor] = {}
        self.leaves = {leaf.key: DiskLeaf(self, name) for name, leaf in log.layout.leaves.items()}
        self._staged: dict[str, _Staged] | None = None
        self._looked = _Looked()
        self._lock = Lock()

    def _turn(self) -> Lock:
        """The lock, for a call that is to begin: not amid one of the buffer, for whose end whoever
        has the lock may wait. Within `together` this thread has it."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return self._lock
        return turn_of(self._lock, "the storage", self.log.buffer)

    def make(self, name: str) -> torch.Tensor:
        """The tensor of a leaf, of shape ``(*records, *shape)``."""
        leaf = DiskLeaf(self, name)
        if self.log.layout.leaves[name].on_disk:
            return DiskTensor(leaf, self.slots)
        memory = torch.zeros((self.log.slots, *leaf.shape), dtype=leaf.dtype, device=self.device)
        self.memory[name] = memory
        return memory.view(*self.shape, *leaf.shape)

    def recall(self, slots: np.ndarray) -> None:
        """Put the leaves in memory there, as the rows have them."""
        for name, memory in self.memory.items():
            leaf = DiskLeaf(self, name)
            memory[torch.from_numpy(slots)] = leaf.made(self.log.read(name, slots))

    # -- reading

    def check(self, index: Any, length: int) -> None:
        """Refuse records that a repair has set aside, see `RecordLog.check`. The index is along the
        record axes, of which the first one has this length."""
        if self.log.lost:
            self.log.check(self.slots[:length][index].numpy())

    @contextmanager
    def looking(self, index: tuple[torch.Tensor, ...]) -> Iterator[None]:
        """What is read of leaves on disk within is kept for `once_more` with this index."""
        looked, state = self._looked, self.log.state  # what is written while this reads is news
        looked.kept, looked.noting = None, {}
        try:
            yield
            if not any(part.is_inference() for part in index):  # of these nobody counts versions
                versions = [part._version for part in index]
                looked.kept = Kept(index, versions, state, looked.noting)
        finally:
            looked.noting = None

    @contextmanager
    def once_more(self, index: Any) -> Iterator[None]:
        """What `looking` kept for this index, and nobody else has, is what is read within.

        A sampler may look at the records that it has chosen, at their flags say, and have nothing
        of them when the buffer reads the same ones as a batch. What was written to since is read
        anew: in the store, and in memory as torch counts it. It does not count what is written
        through ``numpy()`` or ``.data``: whoever changes a tensor so, that came from the storage by
        an index, and asks for records by the very same index, finds what they wrote.
        """
        looked = self._looked
        kept, looked.kept = looked.kept, None
        looked.offered = kept.leaves if kept is not None and kept.is_for(index, self.log) else {}
        try:
            yield
        finally:
            looked.offered = None

    def read(self, leaf: "DiskLeaf", slots: np.ndarray) -> torch.Tensor:
        """A leaf of these records: what was kept of it, or what it reads."""
        if self.log.lost:
            self.log.check(slots)
        looked, name = self._looked, leaf.name
        offered = None if looked.offered is None else looked.offered.pop(name, None)
        if (
            offered is not None and _holders(offered) == _NOBODY_ELSE
            and offered.version == offered.tensor._version
            and np.array_equal(offered.slots, slots)
        ):  # fmt: skip
            tensor = offered.tensor
        else:
            tensor = self._one_of_both(leaf, slots)
        if looked.noting is not None and not tensor.is_inference():
            looked.noting[name] = Seen(slots, tensor, tensor._version)
        return tensor

    def _one_of_both(self, leaf: "DiskLeaf", slots: np.ndarray) -> torch.Tensor:
        """What a leaf reads. Where records are read whole, the leaf that shares its frames comes
        next: it is read in the same go, and offered."""
        looked, pair = self._looked, self.log.layout.pair(leaf.name)
        if looked.offered is None or pair is None or torch.is_inference_mode_enabled():
            return leaf.made(self.log.read(leaf.name, slots))
        both = self.log.read_both(pair[0], slots)
        if both is None:
            return leaf.made(self.log.read(leaf.name, slots))
        # Not the two parts of one tensor: a change of one counts as a change of the other there.
        made = dict(zip(pair, map(leaf.made, both), strict=True))
        tensor = made.pop(leaf.name)
        ((other, twin),) = made.items()
        looked.offered[other] = Seen(slots, twin, twin._version)
        return tensor

    # -- writing

    @contextmanager
    def together(self, slots: np.ndarray, moves: bool) -> Iterator[None]:
        """What is written to leaves within goes to the disk at the end, or not at all.

        `slots`, int64 of shape (records,), are those that are written, each once; `moves` is
        whether the storage's cursor moves.
        """
        with self._turn():
            where = torch.from_numpy(slots)
            before = {name: memory[where] for name, memory in self.memory.items()}
            self._staged = {}
            try:
                yield
                staged, self._staged = self._staged, None
                self._commit(slots, staged, moves)
            except BaseException:
                for name, values in before.items():
                    self.memory[name][where] = values
                raise
            finally:
                self._staged = None

    def put(self, slots: np.ndarray, values: Mapping[str, torch.Tensor], moves: bool) -> None:
        """Write whole records, each slot once: what `together` does, where all leaves are at hand,
        of their dtypes and of shape (records, *shape)."""
        with self._turn():
            kept = {name: _apart(values[name].to(self.device), memory)
                    for name, memory in self.memory.items()}  # fmt: skip
            self.log.put(slots, {name: _stored(value) for name, value in values.items()}, moves)
            where = torch.from_numpy(slots)
            for name, memory in self.memory.items():
                memory[where] = kept[name]

    def stage(self, name: str, slots: np.ndarray, values: torch.Tensor) -> None:
        """Write values of a leaf on disk: now, or with others."""
        with self._turn():
            one = slots.reshape(-1), values.reshape(-1, *values.shape[slots.ndim :])
            if self._staged is not None:
                self._staged.setdefault(name, []).append(one)
            elif len(one[0]):
                self._commit(one[0], {name: [one]}, False)

    def _commit(self, slots: np.ndarray, staged: dict[str, _Staged], moves: bool) -> None:
        columns = {}
        where = torch.from_numpy(slots)
        for name in self.log.layout.leaves:
            parts = staged.get(name, [])
            if name in self.memory:
                columns[name] = _stored(self.memory[name][where])
            elif len(parts) == 1 and np.array_equal(parts[0][0], slots):
                columns[name] = _stored(parts[0][1])
            else:
                columns[name] = self._patched(name, slots, parts)
        self.log.put(slots, columns, moves)

    def _patched(self, name: str, slots: np.ndarray, parts: _Staged) -> np.ndarray:
        """What rows have, and what was written to some of them."""
        column = self.log.read(name, slots)
        for written, values in parts:
            order = np.argsort(written, kind="stable")
            found = np.searchsorted(written[order], slots, side="right") - 1  # the last one counts
            there = (found >= 0) & (written[order][found] == slots)
            column[there] = _stored(values)[order[found[there]]]
        return column

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordShelf, (self.log, self.device, self.notes)


class DiskLeaf:
    """One leaf of a shelf, as `disk_tensor.Leaf`."""

    def __init__(self, shelf: RecordShelf, name: str) -> None:
        leaf = shelf.log.layout.leaves[name]
        self._shelf, self.name, self.device = shelf, name, shelf.device
        self.dtype: torch.dtype = getattr(torch, leaf.dtype)
        self._as_bytes = stored_dtype(self.dtype) is None
        self.shape = leaf.shape[:-1] if self._as_bytes else leaf.shape

    def read(self, slots: np.ndarray) -> torch.Tensor:
        """See `disk_tensor.Leaf`."""
        return self._shelf.read(self, slots)

    def made(self, values: np.ndarray) -> torch.Tensor:
        """What was read, as a tensor of this leaf."""
        read = torch.from_numpy(values)
        if self._as_bytes:
            read = read.view(self.dtype).squeeze(-1)
        return read.to(self.device)

    def write(self, slots: np.ndarray, values: torch.Tensor) -> None:
        """See `disk_tensor.Leaf`."""
        self._shelf.stage(self.name, slots, values)


@functools.cache
def stored_dtype(dtype: torch.dtype) -> np.dtype | None:
    """What NumPy calls it; None where it has nothing like it, or a store cannot have it."""
    if dtype.is_complex:
        return None
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _stored(values: torch.Tensor) -> np.ndarray:
    values = values.detach().cpu().contiguous()
    if stored_dtype(values.dtype) is None:
        values = values.unsqueeze(-1).view(torch.uint8)
    return values.numpy()


def _apart(values: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own: torch writes no tensor to itself by an index."""
    shared = values.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    return values.clone() if shared else values
