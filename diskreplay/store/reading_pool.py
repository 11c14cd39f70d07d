"""Threads that read parts of batches beside the thread that wants them, for all buffers."""

import os
import queue
import threading

import numpy as np

from diskreplay.signals import undisturbed
from diskreplay.store.read_job import JOB, TAKEN
from diskreplay.thread_start import try_to_start

_PART_BYTES = 1 << 16  # that a thread reads at once, at least
_PARTS = 4  # for each thread, so that one that comes late, or is held up, is not waited for


class ReadingPool:
    """Threads that wait for jobs, as `batch_kernels.help_read` has them.

    They are started when they are first asked for, and wait without the GIL until the process ends.
    `concurrent.futures` would do too, but makes a future, with a condition, for each job, which
    nobody waits for here.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._jobs: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def job(self, size: int, pieces: int, threads: int) -> tuple[np.ndarray, int]:
        """A job, as the kernels want it, for the caller to begin now; others are asked to help.

        Parameters
        ----------
        size : int
            Bytes that are to be read.
        pieces : int
            Parts that it can be split into, at most.
        threads : int
            How many are to read, at most.

        Returns
        -------
        job : ndarray of int64
        threads : int
            How many there are to have scratch memory.
        """
        parts = 1
        if threads > 1:
            parts = max(min(size // _PART_BYTES, pieces, _PARTS * threads), 1)
            threads = min(threads, parts)
        job = np.zeros(JOB + parts, np.int64)
        job[TAKEN] = -1
        if threads > 1:
            self.offer(job, threads - 1)
        return job, threads

    def offer(self, job: np.ndarray, helpers: int) -> None:
        """Have up to so many threads help with a job that the caller begins now.

        It does not matter whether he does: what a job refers to is looked at by those only who
        have taken a part of it, and the kernel that reads it waits for them.
        """
        while len(self._threads) < helpers:
            thread = threading.Thread(target=_help, args=(self._jobs,), name="diskreplay reading")
            thread.daemon = True
            with undisturbed():  # or one more would be started the next time
                if not try_to_start(thread):
                    break  # those that there are do
                self._threads.append(thread)
        for _ in range(min(helpers, len(self._threads))):
            self._jobs.put(job)


def _help(jobs: "queue.SimpleQueue[np.ndarray]") -> None:
    from diskreplay.store import batch_kernels

    while True:
        batch_kernels.help_read(jobs.get())


pool = ReadingPool()
