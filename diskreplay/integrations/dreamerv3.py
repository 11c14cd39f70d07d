"""DreamerV3's replay, ``embodied.replay.Replay``, with its rows on disk. Needs no ``embodied``.

The calls and what they return are those of the original
(https://github.com/danijar/dreamerv3, ``embodied/core/replay.py``); docs/dreamerv3.md says what
differs.
"""

import os
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import (
    CheckpointNotFoundError,
    InvalidInputError,
    NotSampleableError,
    UsageError,
)
from diskreplay.given_numbers import whole
from diskreplay.integrations.step_layout import StepLayout, row_ids, step_ids
from diskreplay.locks import Lock, turn_of
from diskreplay.one_checkpoint import loaded_with
from diskreplay.opening import checkpoints
from diskreplay.opening import open as open_buffer
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.store import files
from diskreplay.store.listing import next_number
from diskreplay.store.paths import local
from diskreplay.validation import one_of

__all__ = ["Replay"]

_EVEN_ROWS = 1 << 20  # up to here, any worker may have all of the capacity
_WAIT = 0.01
_ATTACHED = "order.npy", "queue.npy"


class Replay:
    """Steps of some workers, sampled as sequences of `length` that may go over ends of episodes.

    Parameters
    ----------
    length : int
        Steps in a sequence.
    capacity : int, optional
        Sequences kept: one begins at each step. The oldest leave.
    directory : path, optional
        Of the store and of checkpoints. None: a temporary store, and `save` does nothing.
    chunksize, save_wait
        Taken, and without meaning here.
    online : bool
        Whether new steps are handed out once, in sequences that do not overlap, before any is
        drawn.
    selector : optional
        One of ``embodied.replay.selectors``, in place of even draws. It is not saved.
    name : str
        For messages.
    seed : int
        Of even draws.
    workers : int
        How many there are, at most. Each has a share of the memory for the index.
    mutable : sequence of str
        Prefixes of the keys that `update` writes: the replay context.
    compressor : str or dict
        As for `ReplayBuffer`.

    Notes
    -----
    The keys of the first step say which fields there are; keys ``log/...`` are left out. A step
    survives the death of the process when `add` returns.
    """

    def __init__(
        self,
        length: int,
        capacity: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        chunksize: int = 1024,
        online: bool = False,
        selector: Any = None,
        save_wait: bool = False,
        name: str = "unnamed",
        seed: int = 0,
        *,
        workers: int = 16,
        mutable: Sequence[str] = ("enc/", "dyn/", "dec/"),
        compressor: str | Mapping[str, str] = "auto",
    ) -> None:
        self.length, self.name, self.online = whole("length", length), name, bool(online)
        self.capacity = whole("capacity", capacity, optional=True)
        self.directory = None if not directory else local(str(directory), "directory")
        self._lanes, self._seed = whole("workers", workers), seed
        self._mutable, self._compressor = tuple(mutable), compressor
        self._selector, self._queue = selector, deque[int]()  # of a selector: else the view has it
        self._lock = Lock()
        self._buffer: Any = None  # a ReplayBuffer, from the first step on
        self._items = 0
        self.metrics = {"samples": 0, "inserts": 0, "updates": 0}

    def _turn(self) -> Lock:
        """The lock, for a call that is to begin; or a `ReentryError`."""
        return turn_of(self._lock, f"replay {self.name!r}", self._buffer)

    # -- the store

    def _open(self, fields: Mapping[str, Sequence[Any]]) -> ReplayBuffer:
        """The buffer, made or opened; `fields` are shape and dtype of each key."""
        self._layout = StepLayout(fields, self._lanes, self._mutable)
        most = None
        if self.capacity is not None:  # of one worker; `_retire` keeps to the capacity of all
            most = self.capacity
            if most * self._lanes > _EVEN_ROWS:
                most = min(most, 2 * -(-most // self._lanes))
            most = (most + self.length) * self._lanes
        buffer = ReplayBuffer(
            None if self.directory is None else self.directory / "store", capacity=most,
            num_envs=self._lanes, seed=self._seed, compressor=self._compressor,
            **self._layout.options(),
        )  # fmt: skip
        self._most = None if most is None else most // self._lanes
        self._buffer = buffer
        self._workers = list(buffer.metadata.get("dreamerv3", {}).get("workers", []))
        self._note()
        view: dict[str, Any] = {"ends": "cross", "ahead": 0, "n_step": 1, "seed": self._seed}
        apart = self.length if self.online and self._selector is None else False
        self._train = buffer.sequences(self.length, name="train", online=apart, **view)
        self._report = buffer.sequences(self.length, name="report", **view)
        self._look()
        return buffer

    def _reopen(self) -> None:
        """Open the store if there is one from before: who asks wants to know what it holds."""
        if self._buffer is None and self.directory is not None:
            path = self.directory / "store"
            if files.is_there(path / "zarr.json"):
                with open_buffer(path) as there:  # one that was killed as it began says nothing
                    noted = there.metadata.get("dreamerv3")
                if noted is not None:
                    self._open(noted["layout"])

    def _note(self) -> None:
        noted = {"layout": self._layout.described(), "workers": self._workers}
        if self._buffer.metadata.get("dreamerv3") != noted:
            self._buffer.set_metadata({**self._buffer.metadata, "dreamerv3": noted})

    def _look(self, saved: np.ndarray | None = None) -> None:
        """Know the sequences of a store that was opened, or loaded with this saved order."""
        bounds = self._buffer.bounds
        self._first, self._rows = bounds[:, 0].copy(), bounds[:, 1].copy()
        self._gone = np.zeros(self._lanes, np.int64)
        counts = np.maximum(self._rows - self._first - self.length + 1, 0)
        lanes = np.repeat(np.arange(self._lanes), counts)
        ages = np.concatenate([np.arange(n, 0, -1) for n in counts])
        lanes = lanes[np.argsort(-ages, kind="stable")]  # as if the workers had taken turns
        if saved is not None:
            order, gone = np.split(saved, [-self._lanes])
            if (np.bincount(order, minlength=self._lanes) - gone == counts).all():
                lanes, self._gone = order, gone
        self._fifo, self._items = deque(lanes.tolist()), int(counts.sum())
        if self._selector is not None:
            for row, lane in self._known():
                self._select(row, lane)

    # -- adding

    def add(self, step: Mapping[str, Any], worker: Hashable = 0) -> None:
        """Record one step of a worker.

        Parameters
        ----------
        step : dict of str to array_like
            The same keys, shapes and dtypes each time.
        worker : hashable
            Known by its ``str``.

        Raises
        ------
        InvalidInputError, ShapeError, DtypeError, NotFiniteError, UsageError
            Nothing was recorded.
        """
        arrays = {k: np.asarray(v) for k, v in step.items() if not k.startswith("log/")}
        with self._turn():
            buffer = self._buffer
            if buffer is None:
                buffer = self._open(StepLayout.of(arrays))
            self._layout.check(arrays)
            lane = self._lane(worker)
            buffer.add(**self._layout.row(arrays, lane))
            self._insert(lane)

    def _lane(self, worker: Hashable) -> int:
        known = str(worker)
        if known not in self._workers:
            if len(self._workers) == self._lanes:
                raise UsageError(
                    f"replay {self.name!r}: worker {known} is one more than workers="
                    f"{self._lanes}; a store keeps that number, begin another one with more"
                )
            self._workers.append(known)
            self._note()
        return self._workers.index(known)

    def _insert(self, lane: int) -> None:
        self._rows[lane] += 1
        if self._most is not None and self._rows[lane] - self._first[lane] > self._most:
            self._drop(lane)  # the store let go of it: this worker has far more than its share
            self._gone[lane] += 1
        row = int(self._rows[lane]) - self.length
        if row >= self._first[lane]:
            self._fifo.append(lane)
            self._items += 1
            self.metrics["inserts"] += 1
            if self._selector is not None:
                self._select(row, lane)
                if self.online and row % self.length == 0:
                    self._queue.append(row * self._lanes + lane)
        if self.capacity is not None:
            self._retire(self.capacity)

    def _retire(self, most: float) -> None:
        """Let the oldest sequences go until there are so many."""
        before = self._items
        while self._items > most:
            lane = self._fifo.popleft()
            if self._gone[lane]:
                self._gone[lane] -= 1
            else:
                self._drop(lane)
        if self._items < before:
            # A store keeps the newest row of each worker, which matters with a length of 1 only.
            self._buffer.evict(np.clip(self._first, 0, np.maximum(self._rows - 1, 0)))

    def _drop(self, lane: int) -> None:
        if self._selector is not None:
            del self._selector[int(self._first[lane]) * self._lanes + lane]
        self._first[lane] += 1
        self._items -= 1

    def _select(self, row: int, lane: int) -> None:
        ids = (row + np.arange(self.length)) * self._lanes + lane
        self._selector[row * self._lanes + lane] = step_ids(ids)

    # -- sampling

    def __len__(self) -> int:
        """Sequences that can be drawn."""
        with self._turn():
            self._reopen()
            return self._items

    def sample(self, batch: int, mode: str = "train") -> dict[str, np.ndarray]:
        """Draw sequences; waits until there is one.

        Parameters
        ----------
        batch : int
        mode : {"train", "report", "eval"}
            New steps come first in ``"train"`` only.

        Returns
        -------
        dict of str to ndarray, shape (batch, length, ...)
            The keys of the steps, and ``stepid``, for `update`. ``is_first`` is True at the
            beginning of each sequence, ``is_last`` also before an episode begins.
        """
        one_of("mode", mode, ("train", "report", "eval"))
        while not (self._items or len(self)):  # most have some: without the lock
            time.sleep(_WAIT)
        if mode == "train":
            self.metrics["samples"] += batch
        if self._selector is not None:
            return self._layout.data(self._chosen(batch, mode))
        return self._layout.data((self._train if mode == "train" else self._report).sample(batch))

    def _chosen(self, batch: int, mode: str) -> SequenceBatch:
        while True:
            queue, new = self._queue, list[int]()
            try:
                with self._turn():
                    queue = self._queue
                    while mode == "train" and queue and len(new) < batch:
                        new.append(queue.popleft())
                        if not self._is_there(new[-1]):
                            new.pop()
                    drawn = [int(self._selector()) for _ in range(batch - len(new))]
                return self._train.gather(np.array(new + drawn))
            except BaseException as error:  # nobody gets these: they are to come again
                with self._lock:  # a queue that was loaded meanwhile is another one
                    queue.extendleft(reversed(new))
                if not isinstance(error, NotSampleableError):  # one has left meanwhile
                    raise

    def _is_there(self, number: int) -> bool:
        """Whether a sequence, by the id of its first row, has not left."""
        row, lane = divmod(number, self._lanes)
        return bool(self._first[lane] <= row <= self._rows[lane] - self.length)

    def dataset(self, batch: int, mode: str = "train") -> Iterator[dict[str, np.ndarray]]:
        """An endless iterator of what `sample` returns, as older versions have it."""
        while True:
            yield self.sample(batch, mode)

    def update(self, data: dict[str, np.ndarray]) -> int:
        """Write values back, of the replay context say, or priorities.

        Parameters
        ----------
        data : dict of str to ndarray
            ``stepid`` of shape (batch, steps, 20); ``priority`` of (batch, steps) for a selector;
            and mutable keys, of (batch, steps, *shape).

        Returns
        -------
        int
            How many steps have left since.
        """
        with self._turn():
            self._reopen()
        if self._buffer is None:
            raise UsageError(f"replay {self.name!r}: nothing was recorded or loaded yet")
        data = dict(data)
        ids = row_ids(data.pop("stepid"))
        self.metrics["updates"] += ids.size
        priority = data.pop("priority", None)
        for key in data:
            if key not in self._layout.extras:
                raise InvalidInputError(
                    f"replay {self.name!r}: {key!r} is not written again; those of these prefixes "
                    f"are: {', '.join(self._mutable)}"
                )
        if priority is not None:
            if not hasattr(self._selector, "prioritize"):
                raise UsageError(f"replay {self.name!r}: its selector has no priorities")
            with self._turn():
                self._selector.prioritize(step_ids(ids.reshape(-1)), np.ravel(priority))
        ignored = 0
        for key, values in data.items():
            flat = np.reshape(values, (ids.size, *self._layout.fields[key][0]))
            ignored = self._buffer.write(self._layout.extras[key], ids.reshape(-1), flat)
        return ignored

    def stats(self) -> dict[str, float]:
        """Figures since this was last asked, as the original has them; of `chunks` there are
        none."""
        items, m, index = len(self), dict(self.metrics), 0
        if self._buffer is not None:
            index = self._buffer._rows.indexed().index.ring.nbytes
        self.metrics = dict.fromkeys(m, 0)
        return {
            "items": items, "chunks": 0,
            "streams": 0 if self._buffer is None else len(self._workers),
            "ram_gb": index / 2**30, **m,
            "replay_ratio": self.length * m["samples"] / m["inserts"] if m["inserts"] else np.nan,
        }  # fmt: skip

    # -- saving

    def save(self) -> dict[str, int] | None:
        """Write a checkpoint by hard links; what it returns is for `load`.

        Called by ``elements.Checkpoint``, which keeps it. The newest four are kept.
        """
        with self._turn():
            self._reopen()
            if self.directory is None or self._buffer is None:
                return None
            place = self.directory / "checkpoints"
            number = next_number(place)
            order = np.concatenate([np.array(self._fifo, np.int32), self._gone.astype(np.int32)])
            queue = np.array(self._queue, np.int64)
            self._buffer.save(place, number, attachments={
                "order.npy": lambda path: np.save(path, order),
                "queue.npy": lambda path: np.save(path, queue),
            })  # fmt: skip
            return {"checkpoint": number}

    def load(
        self,
        data: Mapping[str, int] | None = None,
        directory: str | os.PathLike[str] | None = None,
        amount: int | None = None,
    ) -> None:
        """Go back to what `save` wrote: rows, generators, and which steps were handed out.

        Parameters
        ----------
        data : dict, optional
            What `save` returned; None takes the newest, if there is one.
        directory : path, optional
            Of another replay, whose checkpoint is loaded.
        amount : int, optional
            So many sequences at most, the newest.

        Raises
        ------
        CheckpointNotFoundError
            The one of `data` is gone.
        """
        source = self.directory if not directory else local(str(directory), "directory")
        if source is None:
            return
        with self._turn():
            self._reopen()
            place = source / "checkpoints"
            found = {c.number: c for c in checkpoints(place) if c.number is not None}
            if data is None and not found:
                return
            number = max(found) if data is None else data["checkpoint"]
            if number not in found:
                raise CheckpointNotFoundError(
                    f"{place}: no checkpoint {number}; there are: {sorted(found)}"
                )
            if self._buffer is None:
                with open_buffer(found[number].path) as saved:
                    self._open(saved.metadata["dreamerv3"]["layout"])
            before = list(self._known()) if self._selector is not None else []
            buffer = self._buffer
            path = found[number].path
            attached, _ = loaded_with(path, _read, lambda: buffer.load(place, number))
            for row, lane in before:
                del self._selector[row * self._lanes + lane]
            self._workers = list(self._buffer.metadata["dreamerv3"]["workers"])
            self._look(attached.get("order.npy"))
            self._retire(min(amount or np.inf, self.capacity or np.inf))
            goes_on = "queue.npy" in attached and self.online and self._selector is not None
            queue = attached["queue.npy"].tolist() if goes_on else ()
            self._queue = deque(filter(self._is_there, queue))

    def _known(self) -> Iterator[tuple[int, int]]:
        for lane in range(self._lanes):
            for row in range(self._first[lane], self._rows[lane] - self.length + 1):
                yield int(row), lane

    def close(self) -> None:
        """Close the store."""
        with self._turn():
            if self._buffer is not None:
                self._buffer.close()


def _read(attached: Mapping[str, Path]) -> dict[str, np.ndarray]:
    return {name: np.load(path) for name, path in attached.items() if name in _ATTACHED}
