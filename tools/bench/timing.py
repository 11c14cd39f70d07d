"""Timing calls: each one on its own, several things in turn, so that noise hits all alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Microseconds a call."""

    median: float
    p99: float
    mean: float
    calls: int

    @classmethod
    def of(cls, nanoseconds: list[int]) -> Timing:
        us = np.asarray(nanoseconds, np.float64) / 1000
        return cls(
            float(np.median(us)), float(np.percentile(us, 99)), float(us.mean()), len(nanoseconds)
        )

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Timed:
    """`call` is timed with what the untimed `before` returned as its arguments."""

    call: Callable[..., Any]
    before: Callable[[], tuple] | None = None


def time_in_turn(
    things: dict[str, Timed],
    *,
    calls: int,
    budget_s: float,
    block: int = 50,
    warmup: int = 100,
) -> dict[str, Timing]:
    """Time each thing `calls` times, in blocks that take turns.

    A thing that has used up its share of `budget_s` is called less often.  Results are dropped
    as soon as the next call returns, as in a training loop.
    """
    share_ns = int(budget_s * 1e9 / len(things))
    taken: dict[str, list[int]] = {name: [] for name in things}
    spent = dict.fromkeys(things, 0)
    for thing in things.values():
        _run(thing, warmup, share_ns // 10)
    unfinished = list(things)
    while unfinished:
        for name in list(unfinished):
            begin = perf_counter_ns()
            todo = min(block, calls - len(taken[name]))
            taken[name] += _run(things[name], todo, share_ns - spent[name])
            spent[name] += perf_counter_ns() - begin
            if len(taken[name]) >= calls or spent[name] >= share_ns:
                unfinished.remove(name)
    return {name: Timing.of(samples) for name, samples in taken.items()}


def _run(thing: Timed, calls: int, budget_ns: int) -> list[int]:
    """Up to `calls` timed calls, at least one, stopping when `budget_ns` have passed."""
    samples: list[int] = []
    started = perf_counter_ns()
    result = None
    for _ in range(calls):
        arguments = thing.before() if thing.before else ()
        begin = perf_counter_ns()
        result = thing.call(*arguments)
        end = perf_counter_ns()
        samples.append(end - begin)
        if end - started >= budget_ns:
            break
    del result
    return samples


class Queue:
    """How long this thread could have run and had no processor, by Linux; else always 0.

    Taken from the time by the clock, it leaves what a quiet machine would take, but for caches and
    memory that others use too.
    """

    def __init__(self) -> None:
        try:
            self._figures = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._figures = -1

    def seconds(self) -> float:
        if self._figures < 0:
            return 0.0
        return int(os.pread(self._figures, 100, 0).split()[1]) * 1e-9

    def close(self) -> None:
        if self._figures >= 0:
            os.close(self._figures)
