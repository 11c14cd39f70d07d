"""PyTorch: batches as tensors, data sets over a store for `torch.utils.data.DataLoader`, and a run
that is saved with its rows (`RunState`).

Epochs over every transition, each once, and batches drawn as the buffer draws them::

    for batch in TransitionDataset("runs/pong/replay").loader(256, shuffle=True):
        ...

    for batch in SampleStream("runs/pong/replay", batch_size=256, batches=10_000):
        ...

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

from diskreplay.extensions import needed
from diskreplay.store.paths import local

with needed("diskreplay.integrations.torch needs PyTorch", "torch"):
    import torch
    from torch.utils.data import (
        DataLoader,
        Dataset,
        IterableDataset,
        default_collate,
        get_worker_info,
    )

from diskreplay import fork
from diskreplay.batch import mapped
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import ShapeError
from diskreplay.given_numbers import whole
from diskreplay.integrations.device_copies import handovers_to
from diskreplay.integrations.run_state import RunState
from diskreplay.integrations.tensors import Tensors, to_torch
from diskreplay.opening import open as open_buffer
from diskreplay.prefetch import MOST_DEPTH

__all__ = [
    "RunState",
    "SampleStream",
    "TransitionDataset",
    "Transitions",
    "handovers_to",
    "to_torch",
]


class TransitionDataset(Dataset[Any]):
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
    (as `loader` gives it) it gets that batch as it is; PyTorch's own takes it apart and copies
    it. Pickling passes the path and the ids: 8 bytes a transition.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ReplayBuffer,
        ids: Sequence[int] | np.ndarray | None = None,
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

    def __getitem__(self, index: Any) -> Any:
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

    def loader(
        self, batch_size: int, *, shuffle: bool = False, num_workers: int = 0, **options: Any
    ) -> DataLoader[Any]:
        """A loader of whole batches.

        Parameters
        ----------
        batch_size, shuffle, num_workers, **options
            As for `torch.utils.data.DataLoader`. Workers pay where a batch takes longer to read
            than to pass from process to process: see docs/torch.md.
        """
        return DataLoader(
            self, batch_size, shuffle=shuffle, num_workers=num_workers, collate_fn=self.collate,
            **options,
        )  # fmt: skip

    @staticmethod
    def collate(samples: "list[Tensors] | Transitions") -> Tensors:
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


class Transitions(Sequence[Tensors]):
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

    def __getitem__(self, index: Any) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return mapped(lambda tensor: tensor[index], self.batch)


class SampleStream(IterableDataset[Any]):
    """Batches as a reader of the store draws them: uniformly or by priority, with replacement.

    In the process that trains and writes, ``buffer.prefetch(depth, device=...)`` does this, with
    the priorities of this moment. A stream is for other processes, and for what wants a data set.

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
    prefetch : int
        So many batches are read ahead on a thread, where it is iterated in the process itself; 0:
        none. Then a batch is valid until the next one is taken. Workers of a loader read ahead
        anyway.

    Notes
    -----
    It makes its own batches: `loader` gives a `torch.utils.data.DataLoader` that takes them as they
    are, for what wants one. Leave its workers out: passing a batch between processes takes many
    times as long as drawing it, see docs/torch.md.

    Priorities are those of the writer's last `flush`, `save` or `close`; rows that came later have
    the largest. So a stream beside a run that trains is behind it: the run has to flush.

    Each pass draws its seed from PyTorch's default generator, which a loader seeds differently in
    each worker and each epoch (the worker's ``get_worker_info().seed``): ``torch.manual_seed``, or
    the loader's ``generator``, makes the batches reproducible. The store's own generator is left
    alone.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ReplayBuffer,
        batch_size: int | None = None,
        *,
        batches: int | None = None,
        beta: float | Callable[[int], float] | None = None,
        prefetch: int = 0,
    ) -> None:
        self.batch_size = whole("batch_size", batch_size, optional=True)
        self.batches = whole("batches", batches, optional=True, most=1 << 62)
        self.prefetch = whole("prefetch", prefetch, least=0, most=MOST_DEPTH)
        self.path, self.beta = _path(store), beta
        open_buffer(self.path).close()  # what is wrong with it is said here, not by a worker

    def __iter__(self) -> Iterator[Tensors]:
        """The batches of one pass, or this worker's share of them."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        # With the worker's number: a worker_init_fn may have seeded all of them alike.
        seed = np.random.SeedSequence([int(torch.randint(2**63 - 1, ())), number])
        # Not the writer's generator, with which all workers would draw the same.
        with open_buffer(self.path, seed=np.random.default_rng(seed)) as buffer:
            mine = count() if self.batches is None else range(number, self.batches, workers)
            if self.prefetch == 0 or worker is not None:  # what a worker gives away has to stay
                for _ in mine:
                    yield to_torch(buffer.sample(self.batch_size, beta=self.beta))
                return
            with buffer.prefetch(
                self.prefetch, self.batch_size, beta=self.beta, device="cpu"
            ) as ahead:
                for _ in mine:
                    yield next(ahead)

    def loader(self, *, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
        """A loader of the batches as they are, with the options of
        `torch.utils.data.DataLoader`."""
        return DataLoader(self, batch_size=None, num_workers=num_workers, **options)

    def __len__(self) -> int:
        """Batches of one pass. An endless stream has no length (a ``TypeError``)."""
        if self.batches is None:
            raise TypeError("an endless SampleStream has no length; give it batches=")
        return self.batches


def _path(store: str | os.PathLike[str] | ReplayBuffer) -> Path:
    path = store.path if isinstance(store, ReplayBuffer) else local(store, "store")
    return path.absolute()
