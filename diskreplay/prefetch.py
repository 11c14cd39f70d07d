"""Batches read ahead on a background thread."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from diskreplay.batch import Batch
from diskreplay.errors import ClosedError
from diskreplay.store.gate import Visit

if TYPE_CHECKING:
    from diskreplay.buffer import ReplayBuffer
    from diskreplay.gathering import Draft


class _Job:
    """A batch that was asked for: drawn, then read, then taken."""

    def __init__(self) -> None:
        self.draft: Draft | None = None
        self.batch: Batch | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.drawn, self.done = threading.Lock(), threading.Lock()
        self.drawn.acquire()
        self.done.acquire()


class Prefetcher:
    """An endless iterator of batches; made by `ReplayBuffer.prefetch`.

    Taking a batch asks for the one that is `depth` ahead, which the background thread draws at once
    and then reads. Whatever changes the buffer or draws from it waits for that draw first: so the
    draws depend on what was added and updated before each take, and never on how the threads were
    scheduled.

    A batch is valid until the next one is taken, when its memory is given to another batch.
    """

    def __init__(
        self,
        buffer: "ReplayBuffer",
        depth: int,
        batch_size: int,
        beta: float | Callable[[int], float] | None,
    ) -> None:
        self._buffer, self._depth, self._size, self._beta = buffer, depth, batch_size, beta
        self._jobs: deque[_Job] = deque()
        self._work: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._spare: list[Batch] = []
        self._in_hand: Batch | None = None
        self._closed = False
        self._taking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="diskreplay prefetch", daemon=True)
        self._thread.start()
        self.refill()

    @property
    def depth(self) -> int:
        """Batches under way."""
        return self._depth

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The oldest batch under way; asks for another one to take its place.

        Raises
        ------
        ClosedError
            After `close`, of this or of the buffer.
        CorruptSegmentError, EmptyBufferError
            As `ReplayBuffer.sample`.
        """
        with self._taking:
            if self._closed:
                raise ClosedError("the prefetcher is closed; call buffer.prefetch() again")
            if self._in_hand is not None:
                self._spare.append(self._in_hand)
                self._in_hand = None
            with self._buffer._lock:  # a save on another thread puts all batches under way back
                self.refill()
                self._ask()
                job = self._jobs.popleft()
            job.done.acquire()
            if job.error is not None:
                if job.draft is None:  # nothing to draw: nor was there for those behind it
                    with self._buffer._lock:
                        self.drain()
                raise job.error
            while job.batch is None:  # a reader's tail changed under it
                job.batch = self._buffer._draw(self._size, self._beta, Visit()).read()
            self._in_hand = job.batch
            return job.batch

    def _ask(self) -> None:
        job = _Job()
        self._jobs.append(job)
        self._work.put(job)

    def _run(self) -> None:
        """Draw and read one batch after the other.

        A draw is read before the next is made: this thread never waits for the buffer's lock while
        a draft of its own is inside the gate, where the lock's holder may be waiting.
        """
        buffer = self._buffer
        while (job := self._work.get()) is not None:
            try:
                try:
                    with buffer._lock:
                        if not job.cancelled:
                            job.draft = buffer._draw(self._size, self._beta, Visit())
                finally:
                    job.drawn.release()
                if job.draft is not None:
                    out = self._spare.pop() if self._spare else None
                    job.batch = job.draft.read(out)
            except BaseException as error:  # handed to the thread that takes the batch
                job.error = error
            finally:
                job.done.release()

    def settle(self) -> None:
        """Wait until what was asked for is drawn. Not with the buffer's lock held."""
        for job in list(self._jobs):
            if job.drawn.locked():
                with job.drawn:
                    pass

    def drain(self) -> None:
        """Put all batches under way back: the numbers they were drawn with come again.

        With the buffer's lock held: what is not drawn by now will not be.
        """
        jobs = list(self._jobs)
        self._jobs.clear()
        numbers = []
        for job in jobs:
            job.cancelled = True
            if job.draft is not None:
                job.done.acquire()  # its gate is left
                numbers += job.draft.numbers
                if job.batch is not None:
                    self._spare.append(job.batch)
        self._buffer._stream.put_back(numbers)

    def refill(self) -> None:
        """Ask for as many batches as are missing."""
        while not self._closed and len(self._jobs) < self._depth:
            self._ask()

    def close(self) -> None:
        """Stop the thread and put the batches under way back. Closing twice is fine."""
        with self._taking:
            if self._closed:
                return
            self._closed = True
        with self._buffer._lock:
            self.drain()
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._buffer._prefetchers.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
