"""Copies of batches on a device, by way of pinned memory that is filled again and again.

For CUDA after PyTorch's rules for asynchronous copies: a copy from pinned memory is queued on a
stream of its own (``non_blocking=True``); an event behind it is waited for by the stream of the one
who takes the batch before that computes with it, and by the thread that reads before it writes to
the pinned memory again; and the allocator is told which stream uses the copies (`record_stream`).
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from diskreplay.batch import Batch, mapped
from diskreplay.errors import InvalidInputError
from diskreplay.handover import Handover, Map
from diskreplay.integrations.tensors import Tensors, placed


class Transfer:
    """How tensors get to a device: each is there when `copy` returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory to copy from."""
        return torch.empty(shape, dtype=dtype)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy on the device."""
        return tensor.to(self.device, copy=True)

    def mark(self) -> Any:
        """An event behind all copies that were begun."""

    def wait(self, event: Any) -> None:
        """Wait until these are done: what they were made from may be written to."""

    def join(self, event: Any, copies: list[torch.Tensor]) -> None:
        """Have what is queued from now on, by this thread, come after these."""


class CudaTransfer(Transfer):
    """On a stream of its own, beside what else the device does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            return tensor.to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def join(self, event: torch.cuda.Event, copies: list[torch.Tensor]) -> None:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for copy in copies:  # they were allocated on the other stream
            copy.record_stream(current)


class DeviceCopies(Handover):
    """Makes tensors on a device of a batch. After its first batch the frames are read into memory
    of the transfer's and copied from there; smaller arrays are put into such memory first.

    Parameters
    ----------
    transfer : Transfer
    map : callable, optional
        What it returns is copied instead of the batch.
    """

    def __init__(self, transfer: Transfer, map: Map | None) -> None:
        super().__init__(map)
        self._transfer = transfer
        self._windows: list[tuple[np.ndarray, torch.Tensor]] = []  # views of one memory
        self._staged: dict[Any, list[torch.Tensor]] = {}  # of the other arrays, by their kind
        self._used: Counter[Any] = Counter()
        self._moved: list[torch.Tensor] = []
        self._event: Any = None

    def wait(self) -> None:
        if self._event is not None:
            self._transfer.wait(self._event)
            self._event = None

    def make(self, batch: Batch) -> Tensors:
        arrays = _arrays(super().make(batch))
        self._moved = []
        self._used.clear()
        try:
            tensors = placed(arrays, self._move)
        finally:  # of what was begun, after an error too
            self._event = self._transfer.mark()
        self._take_over(batch)
        return tensors

    def give(self, made: Tensors) -> Tensors:
        moved, self._moved = self._moved, []
        self._transfer.join(self._event, moved)
        return made

    def _move(self, array: np.ndarray) -> torch.Tensor:
        memory = next((own for view, own in self._windows if view is array), None)
        if memory is None:
            memory = self._stage(torch.from_numpy(array))
        self._moved.append(self._transfer.copy(memory))
        return self._moved[-1]

    def _stage(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the transfer's memory."""
        kind = tensor.shape, tensor.dtype
        alike, place = self._staged.setdefault(kind, []), self._used[kind]
        if place == len(alike):
            alike.append(self._transfer.memory(*kind))
        self._used[kind] += 1
        return alike[place].copy_(tensor)

    def _take_over(self, batch: Batch) -> None:
        """Have the next frames read into the transfer's memory."""
        had, self._windows = self._windows, []
        for name, array in batch._windows.items():
            known = [pair for pair in had if pair[0] is array]
            if not known:
                memory = self._transfer.memory(array.shape, torch.from_numpy(array).dtype)
                known = [(memory.numpy(), memory)]
                batch._windows[name] = known[0][0]
            self._windows += known


class Tensored(Handover):
    """Makes tensors on the CPU of a batch: they are its memory."""

    def make(self, batch: Batch) -> Tensors:
        return mapped(torch.from_numpy, _arrays(super().make(batch)))


def handovers_to(device: Any, map: Map | None) -> Callable[[], Handover]:
    """What makes the handovers to a device, for a prefetcher.

    Parameters
    ----------
    device : torch.device or str
    map : callable, optional
        What is called with the tensors of each batch, and whose result is handed over.

    Raises
    ------
    InvalidInputError
        PyTorch does not know or does not find it.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"device: {device!r} found: {error}") from error
    if found.type == "cpu":
        return partial(Tensored, map)
    if found.type != "cuda":
        return partial(DeviceCopies, Transfer(found), map)
    count = torch.cuda.device_count()
    if (found.index or 0) >= count:
        raise InvalidInputError(
            f"device: {device!r} found, and PyTorch finds {count} CUDA devices here; "
            "device='cpu' gives tensors of the batch's memory"
        )
    return partial(DeviceCopies, CudaTransfer(found), map)


def _arrays(value: Any) -> Any:
    """A batch, or what a `map` made of it, as arrays in dicts and tuples."""
    if isinstance(value, Batch):
        return value.asdict()
    if not isinstance(value, dict | tuple):
        raise InvalidInputError(
            "map: with a device a batch, or arrays and tensors in dicts and tuples expected, found "
            f"{type(value).__name__}"
        )
    return mapped(_array, value)


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().numpy()
    if isinstance(leaf, np.ndarray):
        return leaf
    raise InvalidInputError(
        f"map: with a device arrays and tensors expected, found {type(leaf).__name__}"
    )
