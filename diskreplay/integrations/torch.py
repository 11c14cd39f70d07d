"""PyTorch: batches as tensors, data sets over a store for `torch.utils.data.DataLoader`, and a run
that is saved with its rows (`RunState`).

Epochs over every transition, each once, and batches drawn as the buffer draws them::

    dataset = TransitionDataset("runs/pong/replay")
    loader = DataLoader(dataset, batch_size=256, shuffle=True, collate_fn=dataset.collate)

    stream = SampleStream("runs/pong/replay", batch_size=256, batches=10_000)
    loader = DataLoader(stream, batch_size=None, num_workers=2)

Both give dicts of tensors with the names of a `diskreplay.Batch`. They open the store by its path,
read-only and anew in every process that reads: worker processes share neither mappings nor file
descriptors with their parent, whether they are forked or spawned, and a run may go on writing.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'diskreplay.integrations.torch needs PyTorch: pip install "diskreplay[torch]"',
        name=error.name,
    ) from error

from diskreplay import fork
from diskreplay.batch import Batch
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.integrations.run_state import RunState
from diskreplay.opening import open as open_buffer

__all__ = ["RunState", "SampleStream", "TransitionDataset", "Transitions", "to_torch"]

Tensors = dict[str, Any]  # tensors by name; an observation or action may be a dict or tuple of them


def to_torch(
    batch: Batch, device: str | torch.device = "cpu", *, non_blocking: bool = False
) -> Tensors:
    """The arrays of a batch as tensors.

    Parameters
    ----------
    batch : Batch
    device : str or torch.device
    non_blocking : bool
        Copy to a CUDA device by way of pinned memory, without waiting for it; work that is queued
        on the same CUDA stream sees the whole batch. The batch itself may be used again at once.
        No effect on the CPU.

    Returns
    -------
    dict of str to Tensor, or a dict or tuple of them
        Names, shapes and dtypes are those of the batch. On the CPU nothing is copied: a tensor
        shares its array's memory and keeps it alive. Elsewhere `observation` and
        `next_observation` share memory with each other where they do in the batch, so that their
        common frames are copied once.

    Notes
    -----
    On the CPU the tensors of a batch that will be filled again (``sample(out=...)``, or one taken
    from ``prefetch()``) change with it. PyTorch knows unsigned integers wider than 8 bits, but
    calculates with them only after a cast.
    """
    device = torch.device(device)
    bases: dict[int, tuple[np.ndarray, int]] = {}
    for array in _arrays(batch.asdict()):
        base = _base(array)
        bases[id(base)] = base, bases.get(id(base), (base, 0))[1] + array.nbytes
    # What several arrays show is moved once, unless they are small parts of it.
    shared = {key for key, (base, shown) in bases.items() if base.nbytes <= shown}
    moved: dict[int, torch.Tensor] = {}

    def tensor(array: np.ndarray) -> torch.Tensor:
        base = _base(array)
        if device.type == "cpu" or id(base) not in shared:
            return _move(torch.from_numpy(array), device, non_blocking)
        if id(base) not in moved:
            moved[id(base)] = _move(torch.from_numpy(base), device, non_blocking)
        size = array.itemsize
        offset = (array.ctypes.data - base.ctypes.data) // size
        return moved[id(base)].as_strided(array.shape, [s // size for s in array.strides], offset)

    return _mapped(tensor, batch.asdict())


def _base(array: np.ndarray) -> np.ndarray:
    """The contiguous array that `array` is a view of, or itself."""
    base = array.base
    like = isinstance(base, np.ndarray) and base.dtype == array.dtype and base.flags.c_contiguous
    return base if like else array


def _move(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
    if non_blocking and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=non_blocking)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of every leaf, in the same dicts and tuples."""
    if isinstance(value, dict):
        return {key: _mapped(function, inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(function, inner) for inner in value)
    return function(value)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
        return
    for inner in value.values() if isinstance(value, dict) else value:
        yield from _arrays(inner)


class TransitionDataset(Dataset):
    """Every transition of a store that can be sampled, by number.

    Parameters
    ----------
    store : path or ReplayBuffer
        A live store or a checkpoint. Of a buffer only the path is used: it must stay there.
    ids : array_like of int64, shape (transitions,), optional
        Which transitions, and in which order; for instance those of some episodes. All that can be
        sampled now by default, env by env, oldest first.

    Attributes
    ----------
    path : Path
    ids : ndarray of int64
        Of each item. They are chosen once: rows that are recorded later are not items.

    Notes
    -----
    A loader asks for a batch at a time, which is one gather. With ``collate_fn=dataset.collate``
    it gets that batch as it is; the default takes it apart and copies it. Pickling passes the path
    and the ids: 8 bytes a transition.
    """

    def __init__(
        self, store: str | os.PathLike | ReplayBuffer, ids: Sequence[int] | np.ndarray | None = None
    ) -> None:
        self.path = _path(store)
        self._reader: ReplayBuffer | None = None
        self._pid = fork.pid
        # Not kept open: a process that is forked after this inherits nothing.
        with open_buffer(self.path) as buffer:
            self.ids = buffer.sampleable_ids() if ids is None else np.array(ids, np.int64)
            if self.ids.ndim != 1:
                raise ShapeError(f"ids: one axis expected, found shape {self.ids.shape}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensors:
        """One transition: tensors without the batch axis.

        Raises
        ------
        IndexError
        NotSampleableError
            It was evicted since.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"transition {index}: the data set has {len(self)}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> "Transitions":
        """Transitions that are gathered together; a loader's batch before it is collated."""
        return Transitions(to_torch(self._buffer().gather(self.ids[np.asarray(indices)])))

    @staticmethod
    def collate(samples: Sequence[Tensors]) -> Tensors:
        """A loader's batch, not taken apart and put together again: for ``collate_fn``."""
        return samples.batch if isinstance(samples, Transitions) else default_collate(samples)

    def close(self) -> None:
        """Release the store in this process; it is opened again when needed."""
        if self._reader is not None and self._pid == fork.pid:
            self._reader.close()
        self._reader = None

    def _buffer(self) -> ReplayBuffer:
        """The reader of this process."""
        if self._reader is None or self._pid != fork.pid:
            self._reader, self._pid = open_buffer(self.path), fork.pid
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "ids": self.ids}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.path, self.ids = state["path"], state["ids"]
        self._reader, self._pid = None, fork.pid


class Transitions(Sequence):
    """Transitions of one batch as a sequence of samples.

    Attributes
    ----------
    batch : dict
        All of them, along the first axis; the samples are views of it.
    """

    def __init__(self, batch: Tensors) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["id"])

    def __getitem__(self, index: int) -> Tensors:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return _mapped(lambda tensor: tensor[index], self.batch)


class SampleStream(IterableDataset):
    """Batches as the store's buffer draws them: uniformly or by priority, with replacement.

    Parameters
    ----------
    store : path or ReplayBuffer
        A live store, which is followed, or a checkpoint. Of a buffer only the path is used.
    batch_size : int, optional
        Default: the buffer's own.
    batches : int, optional
        Batches of one pass, over all workers; endless by default.
    beta : float or callable, optional
        As for `diskreplay.ReplayBuffer.sample`. A callable is pickled for spawned workers.

    Notes
    -----
    Use it with ``DataLoader(stream, batch_size=None)``: it makes its own batches.

    Each pass draws its seed from PyTorch's default generator, which a loader seeds differently in
    each worker and each epoch (the worker's ``get_worker_info().seed``): ``torch.manual_seed``, or
    the loader's ``generator``, makes the batches reproducible. The store's own generator is left
    alone.
    """

    def __init__(
        self,
        store: str | os.PathLike | ReplayBuffer,
        batch_size: int | None = None,
        *,
        batches: int | None = None,
        beta: float | Callable[[int], float] | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("batches", batches)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{name}: a positive integer expected, found {value!r}")
        self.path = _path(store)
        self.batch_size, self.batches, self.beta = batch_size, batches, beta
        open_buffer(self.path).close()  # what is wrong with it is said here, not by a worker

    def __iter__(self) -> Iterator[Tensors]:
        """The batches of one pass, or this worker's share of them."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        # With the worker's number: a worker_init_fn may have seeded all of them alike.
        seed = np.random.SeedSequence([int(torch.randint(2**63 - 1, ())), number])
        # Not the writer's generator, with which all workers would draw the same.
        with open_buffer(self.path, seed=np.random.default_rng(seed)) as buffer:
            for _ in count() if self.batches is None else range(number, self.batches, workers):
                yield to_torch(buffer.sample(self.batch_size, beta=self.beta))

    def __len__(self) -> int:
        """Batches of one pass. An endless stream has no length (a ``TypeError``)."""
        if self.batches is None:
            raise TypeError("an endless SampleStream has no length; give it batches=")
        return self.batches


def _path(store: str | os.PathLike | ReplayBuffer) -> Path:
    return Path(store.path if isinstance(store, ReplayBuffer) else store).absolute()
