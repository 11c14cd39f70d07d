"""Batches read ahead on background threads."""

import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from diskreplay import fork
from diskreplay.closing import Closing
from diskreplay.errors import ClosedError, ForkedError, FormatError, UsageError
from diskreplay.handover import Handover
from diskreplay.locks import Lock, busy_in, wait_for
from diskreplay.options import Beta
from diskreplay.prefetch_job import Job, gone, let_end, work_off
from diskreplay.signals import undisturbed
from diskreplay.store import machine
from diskreplay.thread_start import try_to_start

MOST_DEPTH = 1024  # each batch under way takes memory: more is a slip of the finger
MOST_PREFETCHERS = 1024  # of a buffer
MOST_THREADS = 64  # of a prefetcher


class UnderWay(NamedTuple):
    """What a checkpoint says of a prefetcher, in the order in which they were made.

    Batches under way are not saved: with what is, they are drawn again, by the run that goes on and
    by the one that is resumed. `beta` is what the exponent was, which may have come from a
    schedule, and None for the buffer's own. `turn` is the place among those that draw; -1 if
    nothing was under way.
    """

    depth: int
    batch_size: int
    beta: float | None
    turn: int

    @classmethod
    def parse(cls, attributes: Any, transition_bytes: int) -> "list[UnderWay]":
        """What the group's attribute ``prefetch`` lists.

        Parameters
        ----------
        transition_bytes : int
            Memory that a batch takes for each of its transitions.

        Raises
        ------
        FormatError
            It is damaged; or more was under way than the memory of this process holds, which a run
            with as much cannot have had.
        """
        found = []
        if isinstance(attributes, list) and len(attributes) > MOST_PREFETCHERS:
            raise FormatError(
                f"the attribute prefetch is damaged: {len(attributes):,} prefetchers found, at "
                f"most {MOST_PREFETCHERS:,} expected"
            )
        for entry in attributes if isinstance(attributes, list) else [attributes]:
            match entry:
                case [int(depth), int(batch_size), int() | float() | None as beta, int(turn)] if (
                    1 <= depth <= MOST_DEPTH and 1 <= batch_size <= 1 << 30
                    and 0 <= (beta or 0) <= sys.float_info.max and -1 <= turn < len(attributes)
                    and bool not in map(type, entry)
                ):  # fmt: skip
                    found.append(cls(depth, batch_size, beta, turn))
                case _:
                    raise FormatError(f"the attribute prefetch is damaged ({entry!r:.60})")
        drawn = sum(each.depth * each.batch_size for each in found if each.turn >= 0)
        if drawn * transition_bytes > machine.memory():
            raise FormatError(
                f"the attribute prefetch lists {drawn:,} transitions under way: they take "
                f"{drawn * transition_bytes / 2**30:,.1f} GiB, and this process may have "
                f"{machine.memory() / 2**30:,.1f} GiB"
            )
        return found


class DrawSource(Protocol):
    """A buffer, a view of one, or a union: what `Prefetcher` asks of them.

    A view has the lock of its buffer, and prefetchers of its own.
    """

    @property
    def _lock(self) -> Lock: ...
    @property
    def _prefetchers(self) -> Any: ...
    def _new_guard(self) -> Any:
        """What `_draw` holds. Whoever asks for it releases it, wherever Ctrl-C comes."""

    def _draw(self, size: int, beta: Any, guard: Any) -> Any:
        """Draw a batch, which holds `guard` until it is read. Needs the lock."""

    def _draw_pending(self) -> None:
        """Wait until what was asked of all prefetchers is drawn. Without the lock."""


class Prefetcher(Closing):
    """An endless iterator of batches; made by `ReplayBuffer.prefetch` and `Sequences.prefetch`.

    Taking a batch asks for the one that is `depth` ahead, which a background thread draws at once
    and then reads; the first take asks for all up to it. Whatever changes the buffer or draws from
    it waits for these draws first, and all threads of all prefetchers draw in the order in which
    they were asked: so the draws depend on what was added and updated before each take, and neither
    on when a prefetcher was made, nor on how many threads there are and how they were scheduled.

    A batch is valid until the next one is taken, when its memory is given to another batch.

    Parameters
    ----------
    buffer : DrawSource
        For whom it draws.
    depth, batch_size : int
    beta : float or callable or None
        As for `ReplayBuffer.sample`.
    threads : int
        How many read, each a batch of its own.
    handovers : callable
        Gives a `Handover`, one for each batch under way and one for that in hand.
    contiguous : bool
        As for `ReplayBuffer.sample`.
    claimed : bool
        Whether somebody has it; `resume` makes some that wait for the one who will.

    Attributes
    ----------
    lost : ndarray of int64
        Anchors of the new windows (``online``) of the last batch that came as an error: they do not
        come again, and ``gather(lost)`` reads them.
    """

    def __init__(
        self,
        buffer: DrawSource,
        depth: int,
        batch_size: int,
        beta: Beta | None,
        threads: int = 1,
        handovers: Callable[[], Handover] = Handover,
        *,
        contiguous: bool = False,
        claimed: bool = True,
    ) -> None:
        self._claimed, self._pid = claimed, fork.pid
        self._buffer, self._others = buffer, buffer._prefetchers
        self._depth, self._size, self._beta = depth, batch_size, beta
        self._options = {"contiguous": True} if contiguous else {}  # of `read`
        self._jobs: deque[Job] = deque()
        self._work: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._handovers = handovers
        self._spare: list[Handover] = []
        self._in_hand: Handover | None = None
        self._closed = False
        self.lost = np.empty(0, np.int64)
        self._taking = Lock()
        self._most_threads = threads
        self._threads: list[threading.Thread] = []  # until they have something to do
        self._over = threading.Event()
        weakref.finalize(self, let_end, self._work, self._threads, self._over).atexit = False

    @property
    def depth(self) -> int:
        """Batches under way."""
        return self._depth

    @property
    def under_way(self) -> list[Job]:
        """What was drawn and not taken yet, in the order of the draws."""
        return [job for job in list(self._jobs) if job.drawn_batch is not None]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The oldest batch under way, or what was made of it; asks for another one to take its
        place. After Ctrl-C the next call gives what this one waited for, or the batch behind it
        where it was just about to be returned.

        Raises
        ------
        ClosedError
            After `close`, of this or of the buffer.
        ForkedError
            In a forked child: the threads are the parent's.
        UsageError
            The system lets this process start no thread; call again when it does.
        CorruptSegmentError, EmptyBufferError
            As `ReplayBuffer.sample`; and whatever the function `map` raised.
        """
        if fork.pid != self._pid:
            raise ForkedError(
                f"made by process {self._pid}, which has its threads, and this is its child "
                f"{fork.pid}: open the store with mode='r' here and call its prefetch()"
            )
        whose = _buffer_of(self._buffer)
        whose._turn()
        return busy_in(whose._busy_sets, self._take)

    def _take(self) -> Any:
        with self._taking:
            if self._closed:
                raise ClosedError("the prefetcher is closed; call buffer.prefetch() again")
            # Nobody's first: if Ctrl-C came, two batches would get the memory of one that stood in
            # both places.
            done_with, self._in_hand = self._in_hand, None
            if done_with is not None:
                self._spare.append(done_with)
            while True:
                with self._buffer._lock:  # a save on another thread puts what is under way back
                    self._others.draw_resumed()
                    self._others.put_back_void()
                    self.refill()
                    if len(self._jobs) == self._depth:  # else a take that Ctrl-C ended has asked
                        self._ask()
                    job = self._jobs[0]
                    if job.can_be_taken:
                        self._jobs.popleft()  # not before: what Ctrl-C ends comes at the next take
                        break
                wait_for(job.done)
                self._make(job)
            if job.error is not None:
                self._let_go(job)
                if job.drawn_batch is None:  # nothing to draw: nor was there for those behind it
                    self._buffer._draw_pending()
                    with self._buffer._lock:
                        self._others.put_back([self])
                self.lost = job.lost()
                raise job.error
            assert job.handover is not None
            self._in_hand = job.handover
            return self._in_hand.give(job.made)

    def _make(self, job: Job) -> None:
        """Have what can be taken of a batch that a thread has done with: where a reader's tail
        changed under it, or it was read before anybody said what to make of it.

        It stays among those under way, so that a save on another thread may put it back meanwhile.
        """
        try:
            while not (job.can_be_taken or job.cancelled):
                if job.batch is None:
                    self._draw_here(job, self._beta)
                    continue
                handover = self._take_spare()
                handover.wait()
                made = handover.make(job.batch)
                with self._buffer._lock:
                    if not job.cancelled:  # else another batch has the job's own by now
                        self._let_go(job)
                        job.handover, job.made = handover, made
        except Exception as error:  # comes with the batch, as from the thread
            job.error = error

    def _ask(self) -> None:
        """Have a thread draw and read a batch. With the buffer's lock held."""
        if self._over.is_set():
            raise gone()
        while len(self._threads) < self._most_threads:
            given = weakref.ref(self), self._work, _buffer_of(self._buffer)._busy_sets
            thread = threading.Thread(
                target=work_off, args=given, name="diskreplay prefetch", daemon=True
            )
            with undisturbed():  # `close` waits for those that are listed, and would miss one
                if try_to_start(thread):
                    self._threads.append(thread)
                elif self._threads:
                    break
                else:
                    raise UsageError(
                        "the prefetcher cannot start a thread: end other threads, or allow more "
                        "(ulimit -u, or pids.max of a container), and call again; sample() needs "
                        "none"
                    )
        job = self._others.new_job()
        try:
            self._others.last_asked = job.number, job.drawn
            self._jobs.append(job)
            self._work.put(job)
        except BaseException:  # Ctrl-C: the thread has to pass it on, since the next waits for it
            job.cancelled = True
            if job in self._jobs:
                self._jobs.remove(job)
            self._work.put(job)  # perhaps a second time
            raise

    def draw_and_read(self, job: Job) -> None:
        """Do all of a job, on a thread of this.

        A draw is read before the next is made: a thread never waits for the buffer's lock while it
        holds `rwlock` for a batch of its own, for which the lock's holder may wait. And a thread
        that waits for the draw before its own waits for one that was begun before.
        """
        buffer = self._buffer
        guard: Any = None
        try:
            try:
                if not job.cancelled:  # before the draw, which locks files
                    job.handover = self._take_spare()
                    job.handover.wait()
                wait_for(job.before)  # it may be another prefetcher's
                with buffer._lock:
                    if not job.cancelled:
                        guard = buffer._new_guard()
                        job.drawn_batch = buffer._draw(self._size, self._beta, guard)
            finally:
                job.drawn.release()
            if job.drawn_batch is not None and job.handover is not None:
                job.batch = job.drawn_batch.read(job.handover.batch, **self._options)
                if job.batch is not None:
                    job.made = job.handover.make(job.batch)
            elif job.cancelled:
                self._let_go(job)
        except BaseException as error:  # handed to the thread that takes the batch
            job.error = error
        finally:
            if guard is not None:  # held where a draw, or a read of a union's member, failed
                guard.release()
            job.done.release()

    def _take_spare(self) -> Handover:
        try:
            return self._spare.pop()
        except IndexError:  # or another thread was faster
            return self._handovers()

    def _let_go(self, job: Job) -> None:
        """Nobody takes it: its memory is for another batch."""
        if job.handover is not None:
            self._spare.append(job.handover)

    def wait_until_drawn(self) -> None:
        """Wait until what was asked for is drawn. Not with the buffer's lock held."""
        for job in list(self._jobs):
            if job.drawn.locked():
                wait_for(job.drawn)

    def wait_until_read(self) -> None:
        """Wait until what was drawn is read. With the buffer's lock held: no more is drawn then."""
        for job in self.under_way:
            wait_for(job.done)

    def _cancel(self) -> list[tuple[int, Any]]:
        """Give up all batches under way, after `wait_until_read`; those that were drawn, each with
        its number. See `put_back`."""
        jobs = list(self._jobs)
        self._jobs.clear()
        drawn = []
        for job in jobs:
            job.cancelled = True
            if job.drawn_batch is not None:
                drawn.append((job.number, job.drawn_batch))
                self._let_go(job)
        return drawn

    def refill(self) -> None:
        """Ask for as many batches as are missing. With the buffer's lock held."""
        while not self._closed and len(self._jobs) < self._depth:
            self._ask()

    def _draw_here(self, job: Job, beta: Beta | None) -> None:
        """Draw and read a batch on this thread; again, if what was drawn could not be read."""
        guard = self._buffer._new_guard()
        try:
            with self._buffer._lock:  # else a thread would draw the next batch with these numbers
                if job.cancelled:  # meanwhile
                    return
                if job.drawn_batch is not None:
                    self._others.undo(job)
                job.drawn_batch = self._buffer._draw(self._size, beta, guard)
            job.batch = job.drawn_batch.read(**self._options)
        finally:
            guard.release()  # Ctrl-C may have come before it was read

    def redraw(self, beta: Beta | None) -> None:
        """Draw and read as many batches as are missing, now. With the buffer's lock held."""
        while len(self._jobs) < self._depth:
            job = self._others.new_job()
            with undisturbed():  # or the numbers of a batch that was drawn could be lost
                try:
                    self._others.last_asked = job.number, job.drawn
                    self._draw_here(job, beta)
                except Exception as error:  # comes with the batch, as from the thread
                    job.error = error
                finally:  # after a second Ctrl-C too: what is asked for next waits for it
                    job.drawn.release()
                    job.done.release()
                    if job.drawn_batch is not None or job.error is not None:
                        self._jobs.append(job)  # else its numbers would never come again

    def claim(
        self, depth: int, batch_size: int, beta: Any, threads: int,
        handovers: Callable[[], Handover], contiguous: bool,
    ) -> bool:  # fmt: skip
        """Give it to the one who asks for such a prefetcher, if it waits for somebody."""
        if self._claimed or (self._depth, self._size) != (depth, batch_size):
            return False
        self._claimed, self._beta, self._most_threads = True, beta, threads
        self._handovers = handovers
        if contiguous:
            self._options = {"contiguous": True}
            for job in self._jobs:  # read before anybody could say so
                if job.batch is not None:
                    job.batch.separate_stacks()
        return True

    def close(self) -> None:
        """Stop the threads and put the batches under way back. Closing twice is fine."""
        if fork.pid != self._pid:
            self._closed = True  # a child's copy: the threads are the parent's
        if self._closed:  # by the end of its buffer too, whose turn nobody can have any more
            return
        whose = _buffer_of(self._buffer)
        whose._turn()
        with undisturbed():  # or threads would stay
            busy_in(whose._busy_sets, self._shut)

    def _shut(self) -> None:
        with self._taking:
            if self._closed:
                return
            self._buffer._draw_pending()
            with self._buffer._lock:
                self._others.put_back([self])
                self._closed = True  # not before: a second Ctrl-C ends the waiting, and it is open
                self._others.forget(self)
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _buffer_of(drawn_from: DrawSource) -> Any:
    """The buffer itself, of which a view takes the turns too."""
    return getattr(drawn_from, "_buffer", drawn_from)
