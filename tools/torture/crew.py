"""Jobs in processes of their own: one that dies, hangs or eats memory is seen, and named."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A directory in memory, for stores that only a process's death, or a model, does harm to. Each
worker has its own."""
_FORK = multiprocessing.get_context("fork")  # cheap: what the parent imported is there


@dataclass(frozen=True)
class Outcome:
    """How one job went.

    Attributes
    ----------
    job : object
    value : object
        What it returned; None if it did not.
    trouble : str or None
        A traceback, the signal that ended it, or that it took too long.
    """

    job: Any
    value: Any
    trouble: str | None


class _Worker:
    def __init__(self, work: Callable[[Any], Any], memory: int | None) -> None:
        self.pipe, theirs = _FORK.Pipe()
        self._room = tempfile.mkdtemp(prefix="torture-", dir=MEMORY)
        self.process = _FORK.Process(target=_serve, args=(self, theirs, work, memory))
        self.process.start()
        theirs.close()
        self.job: Any = None
        self.until = 0.0

    def give(self, job: Any, limit_s: float) -> None:
        self.job, self.until = job, time.monotonic() + limit_s
        self.pipe.send(job)

    def end(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.clear()  # what a job was cut amid is not left there
        return self.process.exitcode

    def clear(self) -> None:
        shutil.rmtree(self._room, ignore_errors=True)

    def enter(self) -> None:
        """In the process itself: files in memory go with it, and it goes with who asks."""
        global MEMORY
        MEMORY = self._room
        self.pipe.close()  # with a copy of it open, nobody would see that the other end is gone


def _serve(
    worker: _Worker, pipe: Connection, work: Callable[[Any], Any], memory: int | None
) -> None:
    worker.enter()
    if memory is not None:
        pages = Path("/proc/self/statm").read_text().split()[0]
        used = int(pages) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked is told of it, and ends this process
    while True:
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):  # who asked was killed
            return worker.clear()
        try:
            answer = work(job), None
        except BaseException:  # whatever it is, it is told and not lost
            answer = None, traceback.format_exc()
        try:
            pipe.send(answer)
        except ConnectionError:
            return worker.clear()


def run(
    work: Callable[[Any], Any],
    jobs: Iterable[Any],
    *,
    workers: int = 2,
    limit_s: float = 60.0,
    memory: int | None = None,
) -> Iterator[Outcome]:
    """Have each job done in one of some forked processes; outcomes as they come.

    Parameters
    ----------
    work : callable
        Called with a job; jobs and results are pickled.
    limit_s : float
        For one job; then its process is killed and another one goes on.
    memory : int, optional
        Bytes of address space that a process may take beyond what it begins with.

    Notes
    -----
    Ctrl-C ends it, and whoever asks goes on with the outcomes that there are: some runs take hours.
    """
    jobs = iter(jobs)
    crew: list[_Worker] = []
    outcome: Outcome | None = None
    try:
        for job in jobs:
            crew.append(_Worker(work, memory))
            crew[-1].give(job, limit_s)
            if len(crew) == workers:
                break
        while crew:
            left = min(worker.until for worker in crew) - time.monotonic()
            ready = wait([worker.pipe for worker in crew], max(left, 0))
            now = time.monotonic()
            for worker in list(crew):
                if worker.pipe in ready:
                    try:
                        outcome = Outcome(worker.job, *worker.pipe.recv())
                    except (EOFError, ConnectionResetError):
                        worker.process.join()
                        code = worker.process.exitcode
                        outcome = Outcome(worker.job, None, f"the process died, exit code {code}")
                elif now >= worker.until:
                    outcome = Outcome(worker.job, None, f"not done after {limit_s} s")
                else:
                    continue
                alive = worker.process.is_alive() and worker.pipe in ready
                job = next(jobs, _NONE)
                if job is _NONE or not alive:
                    worker.end()
                    crew.remove(worker)
                    if job is _NONE:
                        worker = None
                    else:
                        worker = _Worker(work, memory)
                        crew.append(worker)
                if worker is not None:  # it is in the crew all the time: Ctrl-C ends it, too
                    worker.give(job, limit_s)
                yield outcome
                outcome = None
    except KeyboardInterrupt:
        print("stopped: the figures are of what was done by then", file=sys.stderr)
        if outcome is not None:  # it came, and nobody has had it
            yield outcome
    finally:
        for worker in crew:
            worker.end()


_NONE = object()
