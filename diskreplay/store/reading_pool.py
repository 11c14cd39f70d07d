"""Threads that read parts of batches beside the thread that wants them, for all buffers."""

import os
import queue
import threading

import numpy as np


class ReadingPool:
    """Threads that wait for jobs, as `kernels.help_read` has them.

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

    def offer(self, job: np.ndarray, helpers: int) -> None:
        """Have up to so many threads help with a job that the caller begins now.

        It does not matter whether he does: what a job refers to is looked at by those only who
        have taken a part of it, and `kernels.windows` waits for them.
        """
        while len(self._threads) < helpers:
            thread = threading.Thread(target=_help, args=(self._jobs,), name="diskreplay reading")
            thread.daemon = True
            thread.start()
            self._threads.append(thread)
        for _ in range(helpers):
            self._jobs.put(job)


def _help(jobs: "queue.SimpleQueue[np.ndarray]") -> None:
    from diskreplay.store import kernels

    while True:
        kernels.help_read(jobs.get())


pool = ReadingPool()
