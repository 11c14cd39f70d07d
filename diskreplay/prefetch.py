"""Batches read ahead on a background thread."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from diskreplay.batch import Batch
from diskreplay.errors import ClosedError

if TYPE_CHECKING:
    from diskreplay.buffer import Draft, ReplayBuffer


class _Job:
    """A draft on its way to becoming a batch."""

    __slots__ = ("batch", "done", "draft", "error")

    def __init__(self, draft: "Draft") -> None:
        self.draft = draft
        self.batch: Batch | None = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class Prefetcher:
    """An endless iterator of batches; made by `ReplayBuffer.prefetch`.

    Taking a batch draws the one that is `depth` ahead, on the taking thread and in microseconds;
    the background thread reads its frames. So the draws depend on what was added and updated before
    each take, and never on how the threads were scheduled.

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
        self._thread = threading.Thread(target=self._read, name="diskreplay prefetch", daemon=True)
        # Running before the first draw: a second one may wait at the gate for the first to be read.
        self._thread.start()
        try:
            self.refill()
        except BaseException:
            self.close()
            raise

    @property
    def depth(self) -> int:
        """Batches under way."""
        return self._depth

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The oldest batch under way; draws another one to take its place.

        Raises
        ------
        ClosedError
            After `close`, of this or of the buffer.
        CorruptSegmentError, EmptyBufferError
            As `ReplayBuffer.sample`.
        """
        if self._closed:
            raise ClosedError("the prefetcher is closed; call buffer.prefetch() again")
        if self._in_hand is not None:
            self._spare.append(self._in_hand)
            self._in_hand = None
        with self._buffer._lock:  # or a save between the two would put one batch too many back
            self.refill()
            self._draw()
            job = self._jobs.popleft()
        job.done.acquire()
        if job.error is not None:
            raise job.error
        while job.batch is None:
            # A reader's tail changed under it. Drawn again here and not on the background thread,
            # which must never wait for the buffer's lock: its holder may be waiting at the gate for
            # the batches that only that thread can finish.
            job.batch = self._buffer._fill(self._buffer._draw(self._size, self._beta))
        self._in_hand = job.batch
        return job.batch

    def _draw(self) -> None:
        job = _Job(self._buffer._draw(self._size, self._beta))
        self._jobs.append(job)
        self._work.put(job)

    def _read(self) -> None:
        while (job := self._work.get()) is not None:
            try:
                out = self._spare.pop() if self._spare else None
                job.batch = self._buffer._fill(job.draft, out)
            except BaseException as error:  # handed to the thread that takes the batch
                job.error = error
            finally:
                job.done.release()

    def drain(self) -> None:
        """Put all batches under way back: the numbers they were drawn with come again."""
        while self._jobs:
            job = self._jobs.pop()
            job.done.acquire()  # its gate is left
            self._buffer._stream.put_back(job.draft.numbers)
            if job.batch is not None:
                self._spare.append(job.batch)

    def refill(self) -> None:
        """Draw as many batches as are missing."""
        while not self._closed and len(self._jobs) < self._depth:
            self._draw()

    def close(self) -> None:
        """Stop the thread and put the batches under way back. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        with self._buffer._lock:
            self.drain()
        self._work.put(None)
        self._thread.join()
        self._buffer._prefetchers.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
