"""The calls that draw transitions of a buffer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from diskreplay import given_numbers, validation
from diskreplay.actor_rows import ActorRows
from diskreplay.batch import Batch
from diskreplay.batch_reader import DrawnBatch, check_out
from diskreplay.call_guard import Read
from diskreplay.distribution import Distribution, UniformDistribution
from diskreplay.handover import handovers_to
from diskreplay.indexed_store import IndexedStore
from diskreplay.options import Beta
from diskreplay.prefetch import MOST_DEPTH, MOST_THREADS, Prefetcher
from diskreplay.store.rwlock import ReadGuard


class TransitionSource(ActorRows):
    """The calls of `ReplayBuffer` that draw transitions, or read those that are named."""

    _distribution: Distribution = UniformDistribution()

    def sample(
        self,
        batch_size: int | None = None,
        *,
        beta: float | Callable[[int], float] | None = None,
        out: Batch | None = None,
        threads: int = 1,
        contiguous: bool = False,
    ) -> Batch:
        """Draw transitions, with replacement.

        Parameters
        ----------
        batch_size : int, optional
            Default: that of the constructor.
        beta : float or callable, optional
            Exponent of the importance weights, or a schedule: `add_count` to exponent. A schedule
            may not call the buffer (`ReentryError`). A uniform buffer has no use for it.
        out : Batch, optional
            An older batch of this buffer whose memory may be overwritten; it is filled and
            returned. One of another size gets new memory.
        threads : int
            How many read the frames. What is drawn does not depend on it.
        contiguous : bool
            Whether `observation` and `next_observation` are C-contiguous arrays that share nothing,
            instead of views of one gathered window: for code that copies or reshapes them anyway.

        Returns
        -------
        Batch

        Raises
        ------
        InvalidInputError
            `threads` is not from 1 to 64, or `batch_size` no whole number from 1 on, or more than
            memory holds, that of the machine or of its container.
        EmptyBufferError
            Nothing can be sampled yet.
        CorruptSegmentError
            Stored bytes do not match their checksum.

        Notes
        -----
        Costs little more than copying the frames. The lock is held while drawing only.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is not self.batch_size:
            size = given_numbers.whole("batch_size", size)
        check_out(out)
        if type(threads) is not int or threads != 1:
            threads = given_numbers.whole("threads", threads, most=MOST_THREADS)
        self._turn_when_drawn()
        return self._read_held(
            lambda guard: self._draw(size, beta, guard).read(
                out, threads=threads, contiguous=contiguous
            )
        )

    def gather(
        self,
        ids: np.ndarray,
        *,
        out: Batch | None = None,
        threads: int = 1,
        contiguous: bool = False,
    ) -> Batch:
        """The transitions with these ids, as `sample` would return them, with weights of 1.

        Parameters
        ----------
        ids : array_like of int, shape (batch,)
        out, threads, contiguous
            As for `sample`.

        Raises
        ------
        UnknownIdError
            An id was never handed out.
        NotSampleableError
            A row is evicted, pending, cut or final.
        """
        ids = validation.checked_ids(ids).copy()  # the batch has them, and nothing of the caller's
        check_out(out)
        threads = given_numbers.whole("threads", threads, most=MOST_THREADS)
        self._turn()
        return self._read_chosen(
            lambda rows, guard: rows.choose(ids, guard),
            lambda drawn: drawn.read(out, threads=threads, contiguous=contiguous),
        )

    def _read_chosen(
        self,
        choose: Callable[[IndexedStore, ReadGuard], DrawnBatch],
        read: Callable[[DrawnBatch], Read | None],
    ) -> Read:
        """What `read` makes of the batch that `choose` draws from the rows, under the lock."""

        def attempt(guard: ReadGuard) -> Read | None:
            with self._lock:
                drawn = choose(self._current().indexed(), guard)
            return read(drawn)

        return self._read_held(attempt)

    def sampleable_ids(self) -> np.ndarray:
        """The ids of all transitions that can be sampled now, env by env, oldest first. O(rows).

        Returns
        -------
        ndarray of int64
        """
        with self._turn():
            return self._current().indexed().index.sampleable_ids()

    def _new_guard(self) -> ReadGuard:
        return ReadGuard()

    def _draw(
        self, size: int, beta: float | Callable[[int], float] | None, guard: ReadGuard
    ) -> DrawnBatch:
        with self._lock:
            return self._current().indexed().draw(self._rng, size, self._exponent(beta), guard)

    def _exponent(self, beta: Beta | None) -> float:
        return self._distribution.exponent(beta, self._rows.add_count)

    def prefetch(
        self,
        depth: int = 2,
        batch_size: int | None = None,
        *,
        beta: float | Callable[[int], float] | None = None,
        threads: int = 1,
        contiguous: bool = False,
        device: Any = None,
        map: Callable[[Batch], Any] | None = None,
    ) -> Prefetcher:
        """Batches read ahead on background threads.

        Parameters
        ----------
        depth : int
            How many batches are under way: the batch that is taken was drawn `depth` takes ago,
            so its priorities are `depth` updates old. Never more and never less; the first take
            draws them all.
        batch_size, beta
            As for `sample`.
        threads : int
            How many threads read, each a batch of its own. What is drawn does not depend on it.
        contiguous : bool
            As for `sample`.
        device : str or torch.device, optional
            Give dicts of tensors on it instead, as `Batch.to_torch`. To a CUDA device they go from
            pinned memory on a stream of their own while the caller computes.
        map : callable, optional
            Called with each batch on the thread that read it; what it returns is given instead.
            With a `device` that has to be a batch, or arrays and tensors in dicts and tuples. It
            must not draw from the buffer or add to it. With several threads it is called on
            several at once. What it raises comes in place of that batch, which does not come again.

        Returns
        -------
        Prefetcher
            An endless iterator and context manager, with ``close()``. A batch is valid until the
            next one is taken, and so are tensors of it on the CPU: the memory is used again.
            The buffer keeps it until it is closed, or until nobody has the buffer any more.

        Raises
        ------
        InvalidInputError
            `depth` is not from 1 to 1,024, `threads` not from 1 to 64, or `batch_size` is no whole
            number from 1 on; `beta` is neither a schedule nor a finite number from 0 on; PyTorch
            does not find the `device`, or `map` cannot be called.
        UsageError
            1,024 prefetchers of this buffer are open.
        ClosedError

        Notes
        -----
        Taking a batch asks for another one, which a background thread draws before the next
        `add`, `update_priorities` or `sample` changes anything: what is drawn depends on the order
        of calls and not on timing. Making a prefetcher draws nothing: it may be done before there
        is anything to sample, and when does not matter.

        `save` puts the batches under way back and draws them again. After a `load` they are drawn
        too, by the first call that changes or draws anything, so that a run that goes on and a run
        that is resumed there get the same ones. A resumed run gets them from a prefetcher of the
        same depth and batch size, whenever it makes it (of several alike in the order in which they
        were made): until then they wait. Only a schedule that was given here as `beta` is unknown
        until then: make its prefetcher before the next save. A run that needs none of them calls
        ``prefetch(depth, batch_size).close()`` after the `load`: its first `sample` gets what was
        put back. `map` is called for what is drawn again too, so what it gives should depend on
        the batch alone: seed what it draws with ``batch.id``, say.
        """
        depth = given_numbers.whole("depth", depth, most=MOST_DEPTH)
        threads = given_numbers.whole("threads", threads, most=MOST_THREADS)
        size = given_numbers.whole("batch_size", batch_size, optional=True) or self.batch_size
        given_numbers.asked_exponent(beta)
        handovers = handovers_to(device, map)
        with self._turn():
            self._check_open()
            return self._prefetchers.get(self, depth, size, beta, threads, handovers, contiguous)
