"""A batch that was asked for: what becomes of it until somebody takes it."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from diskreplay.batch import Batch
from diskreplay.brief import brief
from diskreplay.errors import ClosedError
from diskreplay.handover import Handover

_NONE = np.empty(0, np.int64)


class Job:
    """A batch that was asked for: drawn, then read, then made into what is taken.

    Parameters
    ----------
    number : int
        Counts the jobs of all prefetchers of a buffer, in the order in which they are asked for.
    before : Lock
        `drawn` of the job before this one.
    """

    def __init__(self, number: int, before: threading.Lock) -> None:
        self.number, self.before = number, before
        self.drawn_batch: Any = None
        self.batch: Batch | None = None
        self.handover: Handover | None = None
        self.made: Any = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.begun, self.drawn, self.done = (threading.Lock() for _ in range(3))
        self.drawn.acquire()
        self.done.acquire()

    @property
    def can_be_taken(self) -> bool:
        """Whether there is what the one who takes it gets: what was made of it, or an error."""
        return not self.done.locked() and (self.made is not None or self.error is not None)

    def give_up(self) -> None:
        """Nobody draws it any more: who waits for it is told so."""
        self.error = gone()
        self.drawn.release()
        self.done.release()

    def lost(self) -> np.ndarray:
        """Anchors of the new windows that it had, which nobody gets where it ends with an error:
        they were handed out. The error has a note of them."""
        anchors: np.ndarray = getattr(self.drawn_batch, "new", _NONE)  # transitions are never new
        if len(anchors) and self.error is not None:
            self.error.add_note(
                f"{len(anchors):,} new windows of this batch do not come again: gather() reads "
                f"them by their anchors, {brief(anchors.tolist(), 200)}, which are all in `lost` "
                "of the prefetcher"
            )
        return anchors


def work_off(
    found: Callable[[], Any], jobs: "SimpleQueue[Job | None]", busy: Sequence[set[int]]
) -> None:
    """Have one job after the other done, of those that no other thread has begun, up to a None.

    Parameters
    ----------
    found : weakref.ref of Prefetcher
        Whose they are. While this waits nothing here holds it: a buffer that nobody has any more,
        with its prefetchers, lets go of its store.
    jobs : SimpleQueue
    busy : sequence of set of int
        Of each buffer that is drawn from, the threads on which no call of it comes to its end, of a
        `__del__` say: it would wait for the draws that are made here.
    """
    me = threading.get_ident()
    for threads in busy:
        threads.add(me)
    while (job := jobs.get()) is not None:
        prefetcher = found()
        if job.begun.acquire(blocking=False):  # else it came twice
            if prefetcher is not None:
                prefetcher.draw_and_read(job)
            else:
                job.give_up()
        del job, prefetcher
    for threads in busy:
        threads.discard(me)


def gone() -> ClosedError:
    """The error for who takes from a prefetcher by the `__del__` of what is garbage with it."""
    return ClosedError("the prefetcher is garbage, and its threads are gone: close it before that")


def let_end(
    jobs: "SimpleQueue[Job | None]", threads: Sequence[threading.Thread], over: threading.Event
) -> None:
    """Let these threads come to their end, whose prefetcher is gone."""
    over.set()  # first: who asks for another batch behind it would wait for ever
    for _ in threads:
        jobs.put(None)
