"""How many threads read a batch, in how many parts; what they read is for `test_batch_reader`."""

import os
import threading

import pytest

from diskreplay.store import reading_pool
from diskreplay.store.read_job import JOB, TAKEN
from diskreplay.store.reading_pool import ReadingPool

PART = 1 << 16


class Offers(ReadingPool):
    """One without threads, which remembers who was asked to help."""

    def __init__(self):
        super().__init__()
        self.offered = []

    def offer(self, job, helpers):
        self.offered.append((job, helpers))


@pytest.mark.parametrize(
    ("size", "pieces", "threads", "parts", "readers"),
    [
        (100 * PART, 100, 1, 1, 1),  # the caller alone: nothing to divide
        (100 * PART, 100, 4, 16, 4),  # four parts for each
        (100 * PART, 10, 4, 10, 4),  # no more than there are pieces
        (9 * PART, 100, 4, 9, 4),  # no smaller than a part has to be
        (9 * PART - 1, 100, 4, 8, 4),
        (3 * PART, 100, 4, 3, 3),  # not more threads than parts
        (2 * PART - 1, 100, 4, 1, 1), (0, 100, 4, 1, 1), (100 * PART, 0, 4, 1, 1),
    ],
)  # fmt: skip
def test_parts_of_a_job(size, pieces, threads, parts, readers):
    pool = Offers()
    job, found = pool.job(size, pieces, threads)
    assert found == readers
    assert len(job) == JOB + parts
    assert job[TAKEN] == -1  # nobody may take any yet
    assert not job[[at for at in range(len(job)) if at != TAKEN]].any()
    if readers == 1:
        assert pool.offered == []
    else:
        ((offered, helpers),) = pool.offered
        assert offered is job
        assert helpers == readers - 1


@pytest.fixture
def helped(monkeypatch):
    """A pool whose threads only note what they were given, until they are let go."""
    jobs, here, go_on = [], threading.Semaphore(0), threading.Event()

    def help_(queue):
        while (job := queue.get()) is not None:
            jobs.append(job)
            here.release()
            go_on.wait()

    monkeypatch.setattr(reading_pool, "_help", help_)
    pool = ReadingPool()
    yield pool, jobs, here
    go_on.set()
    for _ in pool._threads:
        pool._jobs.put(None)
    for thread in pool._threads:
        thread.join()


def test_threads_are_started_when_they_are_first_asked_for_and_stay(helped):
    pool, jobs, here = helped
    assert pool._threads == []
    pool.offer("one", 2)
    for _ in range(2):
        here.acquire()
    assert jobs == ["one"] * 2
    first = list(pool._threads)
    assert len(first) == 2
    assert all(thread.daemon for thread in first)
    pool.offer("two", 1)
    assert pool._threads == first
    pool.offer("three", 3)
    here.acquire()  # by the third: the first two are busy
    assert pool._threads[:2] == first
    assert len(pool._threads) == 3


def test_threads_that_cannot_be_had_are_done_without(helped, monkeypatch):
    pool, _jobs, here = helped
    pool.offer("one", 1)
    here.acquire()

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        pool.offer("two", 5)
    assert len(pool._threads) == 1
    assert pool._jobs.qsize() == 1  # for the one that there is, and no more


def test_what_a_signal_handler_raises_is_not_taken_for_that(helped, monkeypatch):
    class OfAHandler(RuntimeError):
        """Not the type that `threading` raises."""

    pool, _jobs, _here = helped

    def interrupted(_thread):
        raise OfAHandler

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(OfAHandler):
            pool.offer("one", 1)
    assert pool._threads == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_none_of_its_parents_threads(helped):
    pool, _jobs, here = helped
    pool.offer("one", 1)
    here.acquire()
    pool.offer("two", 1)  # waits
    pid = os.fork()
    if not pid:
        os._exit(int(bool(pool._threads) or pool._jobs.qsize()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(pool._threads) == 1
