"""A learner whose own step takes a millisecond, while a thread prefetches its batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Any

import numpy as np
from contender import BATCH
from timing import Timing

STEP_US = 1000
DEPTH = 2


class Learner:
    """A step of many small matrix products, which let go of the GIL as a framework's do."""

    def __init__(self, side: int = 128, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._left, self._right = rng.random((2, side, side), np.float32)
        self._out = np.empty_like(self._left)
        self.products = 1
        self._calibrate()

    def step(self) -> None:
        for _ in range(self.products):
            np.matmul(self._left, self._right, out=self._out)

    def _calibrate(self) -> None:
        """Choose how many products take `STEP_US` alone, from the fastest of many runs."""
        self.products = 20
        fastest = min(self.time_alone(300))
        self.products = max(1, round(self.products * STEP_US * 1000 / fastest))

    def time_alone(self, steps: int) -> list[int]:
        """Nanoseconds of each of `steps` steps with nothing beside them."""
        taken = []
        for _ in range(steps):
            begin = perf_counter_ns()
            self.step()
            taken.append(perf_counter_ns() - begin)
        return taken

    def time_with(self, batches: Iterator[Any]) -> tuple[list[int], list[int]]:
        """Nanoseconds waited for each batch, and of each step, until `batches` ends."""
        waits, steps = [], []
        begin = perf_counter_ns()
        for _ in batches:
            got = perf_counter_ns()
            self.step()
            done = perf_counter_ns()
            waits.append(got - begin)
            steps.append(done - got)
            begin = perf_counter_ns()
        return waits, steps


def time_prefetch(buffer: Any, batches: int = 1000, rounds: int = 4) -> dict[str, Any]:
    """Waits and slow-down with ``buffer.prefetch(depth=2)``, rounds taking turns with none."""
    learner = Learner()
    alone: list[int] = []
    waits: list[int] = []
    steps: list[int] = []
    for _ in range(rounds):
        alone += learner.time_alone(batches // rounds)
        with buffer.prefetch(depth=DEPTH, batch_size=BATCH) as prefetched:
            learner.time_with(islice(prefetched, 20))
            round_waits, round_steps = learner.time_with(islice(prefetched, batches // rounds))
        waits += round_waits
        steps += round_steps
    figures = {"alone": Timing.of(alone), "wait": Timing.of(waits), "step": Timing.of(steps)}
    return {
        **{name: timing.as_dict() for name, timing in figures.items()},
        "slowdown_median": figures["step"].median / figures["alone"].median - 1,
        "slowdown_mean": figures["step"].mean / figures["alone"].mean - 1,
    }
