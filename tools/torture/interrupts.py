"""Real signals at random moments of each call, whose handler raises an exception, as that of Ctrl-C
does. The last one is kept with its traceback, as a notebook keeps it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify

_FRAME = (8, 8)
_OPTIONS = {
    "observation_space": Box(0, 255, _FRAME, "uint8"), "action_space": Discrete(3),
    "capacity": 400, "stack_size": 2, "update_horizon": 2, "segment_rows": 32, "seed": 0,
    "compressor": "lz4", "batch_size": 8,
}  # fmt: skip
_PATIENCE_S = 120.0
_SOME = 20  # times that a call is made; a signal comes amid nearly all of them, or behind


class Cut(BaseException):
    """What the handler raises."""


class Failed(AssertionError):
    """A call left something behind, or rows are wrong."""


def run(
    *,
    seconds: float = 60.0,
    seed: int = 0,
    directory: Path | None = None,
) -> dict[str, Any]:
    """Cut calls, drawn at random, for so long. On the main thread.

    Returns
    -------
    dict
        How often each call was cut, the calls that ended with another error, and ``failures``: a
        call that was never cut is one, too.
    """
    base = Path(tempfile.mkdtemp(prefix="torture-", dir=directory))
    calls = Calls(base, random.Random(seed))
    before = signal.signal(signal.SIGALRM, _raise)
    made, cuts, others, failures = Counter[str](), Counter[str](), Counter[str](), list[str]()
    kept: BaseException | None = None
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not failures:
            name = calls.draw()
            try:
                made[name] += 1
                found = calls.cut(name)
                cuts[name] += isinstance(found, Cut)
                if isinstance(found, diskreplay.DiskReplayError):
                    others[f"{name}: {type(found).__name__}"] += 1
                kept = found or kept
                calls.check()
            except Cut as late:  # the handler was called late
                kept = late
            except (AssertionError, diskreplay.DiskReplayError) as error:
                failures.append(f"seed {seed}, after {name} was cut by {kept!r}: {error!r}")
        failures += [
            f"seed {seed}: {name} was made {times} times, and never cut"
            for name, times in made.items() if times >= _SOME and not cuts[name]
        ]  # fmt: skip
        if not failures:
            failures += calls.end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if not failures:  # else somebody looks at the stores, of which some are open
        shutil.rmtree(base)
    return {"seed": seed, "cuts": dict(cuts), "others": dict(others), "failures": failures}


def _raise(_number: int, _frame: object) -> None:
    raise Cut


class Calls:
    """Two buffers, a union of them, a view and a prefetcher, and what is called of them."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self._base, self._rng, self._stamp = base, rng, 0
        self.buffers = [
            diskreplay.PrioritizedReplayBuffer(base / name, **_OPTIONS) for name in ("one", "other")
        ]
        one, other = self.buffers
        for _ in range(300):
            self._add(one)
            self._add(other)
        self._union, self._view = diskreplay.ReplayUnion(self.buffers), one.sequences(4, name="w")
        self._prefetcher: Any = None
        ids = one.sample(8).id
        saved = base / "checkpoints"
        self._calls: dict[str, Callable[[], Any]] = {
            "add": lambda: self._add(one),
            "sample": lambda: one.sample(8),
            "gather": lambda: one.gather(one.sampleable_ids()[-8:]),
            "take": lambda: one.take("reward", one.sampleable_ids()[-8:]),
            "update": lambda: one.update_priorities(ids, np.ones(8)),
            "flush": one.flush,
            "save": lambda: one.save(saved, rng.randrange(4)),
            "load": lambda: one.load(saved),
            "episodes": one.episodes,
            "window": lambda: self._view.sample(4),
            "union": lambda: self._union.sample(8),
            "union update": lambda: self._union.update_priorities(self._ids, np.ones(8)),
            "union len": lambda: len(self._union),
            "prefetch": self._prefetch,
            "prefetch end": self._end_prefetch,
            "open": lambda: diskreplay.open(base / "one").close(),
        }
        self._ids = self._union.sample(8).id
        one.save(saved, 1)
        self._seconds = {}
        for name, call in self._calls.items():
            call()  # the first time takes longer
            began = time.perf_counter()
            call()
            self._seconds[name] = time.perf_counter() - began

    def _add(self, buffer: diskreplay.ReplayBuffer) -> None:
        self._stamp += 1
        frame = np.full(_FRAME, self._stamp % 250, np.uint8)
        end = self._stamp % 9 == 8
        buffer.add(frame, 0, float(self._stamp), end, False, frame + 1)

    def _prefetch(self) -> None:
        if self._prefetcher is None:
            self._prefetcher = self.buffers[0].prefetch(2, 8)
        next(self._prefetcher)

    def _end_prefetch(self) -> None:
        ended, self._prefetcher = self._prefetcher, None
        if ended is not None:
            ended.close()

    def draw(self) -> str:
        """The name of a call."""
        return self._rng.choice(list(self._calls))

    def cut(self, name: str) -> BaseException | None:
        """Call it, and let a signal come meanwhile, or behind it; what it raised."""
        moment = 2e-6 + 1.5 * self._rng.random() * self._seconds[name]
        end = time.monotonic() + moment + 0.2
        try:
            signal.setitimer(signal.ITIMER_REAL, moment)
            self._calls[name]()
            while time.monotonic() < end:  # that of a `__del__` goes no further
                pass
        except Cut as cut:
            return cut
        except diskreplay.DiskReplayError as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return error
        return None

    def check(self) -> None:
        """Nothing is held, and another thread gets on."""
        for buffer in self.buffers:
            store = buffer._rows.store
            for lock in (buffer._lock, store.rwlock, store.maintenance.lock):
                assert not lock._is_owned(), "a lock is held"
            assert threading.get_ident() not in buffer._busy, "busy"
            assert not store.maintenance.pausing, "the maintenance thread is paused"
            if self._prefetcher is None:
                # A thread of one whose `close` was cut may just read its last batch.
                end = time.monotonic() + _PATIENCE_S
                while store.rwlock._inside and time.monotonic() < end:
                    time.sleep(0.01)
                assert not store.rwlock._inside, "a reader is inside"
        done = []
        thread = threading.Thread(target=lambda: done.append(self._go_on()), daemon=True)
        thread.start()
        thread.join(_PATIENCE_S)
        assert done, "another thread hangs"

    def _go_on(self) -> None:
        for buffer in self.buffers:
            self._add(buffer)
            buffer.sample(4)
            self._look(buffer)
        len(self._union)

    def _look(self, buffer: diskreplay.ReplayBuffer) -> None:
        first, count = buffer.bounds[0].tolist()
        ids = np.arange(max(first, count - 40), count)
        frame, reward, final = buffer.take(["observation", "reward", "is_final"], ids)
        own = frame[~final]
        assert (own == own[:, :1, :1]).all(), "a row that is half there"
        assert (own[:, 0, 0] == reward[~final] % 250).all(), "a frame of another row"

    def end(self) -> list[str]:
        """Close all; what `verify` finds."""
        self._end_prefetch()
        found = []
        for buffer in self.buffers:
            self._look(buffer)
            buffer.close()
            found += [str(finding) for finding in verify(buffer.path).findings]
        left = sorted(os.listdir(self._base))
        if left != ["checkpoints", "one", "other"]:
            found.append(f"left behind: {left}")
        return found
