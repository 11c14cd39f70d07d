"""The power goes out at every point of a workload: what was promised is there afterwards.

A workload runs once while a recorder writes down what it does to the disk; for each point of that
trace the states that a disk may be left in (see `disk`) are made real, and opened. Some of them are
opened while that is recorded as well, and the power goes out again.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import crew
from disk import Disk, State
from examiner import Examiner, Figures, another_boot
from recording import CUT, MARK, Recorder
from workload import Allowed, Promise, Setting, Workload

SETTINGS = (
    Setting("packed"),
    Setting("raw", compressor="raw", seed=1),
    Setting("large", large=True, seed=2),
    Setting("two envs", num_envs=2, seed=3),
    Setting("small columns end", already=4070, seed=4),
    Setting("large, two envs, raw", num_envs=2, large=True, compressor="raw", seed=5),
    Setting("64 envs that drift apart", num_envs=64, drift=True, already=120, seed=6, hidden=256,
            segment_rows=16, env_group=24, steps=26),
    Setting("masks, wide rows, raw", num_envs=3, drift=True, already=100, compressor="raw",
            hidden=2048, seed=7),
    Setting("masks, several blocks", num_envs=3, drift=True, already=100, segment_rows=16,
            large=True, seed=8),
    Setting("masks, rows written into files, raw", num_envs=3, drift=True, already=100,
            compressor="raw", large=True, many=True, hidden=1024, seed=9),
    Setting("rows that are let go", num_envs=2, lets_go=True, seed=10),
    Setting("rows that are let go, raw", num_envs=3, drift=True, compressor="raw", large=True,
            lets_go=True, seed=11),
)  # fmt: skip


_POINTS_OF_A_JOB = 400


@lru_cache(maxsize=1)  # a worker does one part of a setting after the other
def record(setting: Setting) -> tuple[list[tuple], int]:
    """The trace of a workload, and how many calls it made."""
    with (
        tempfile.TemporaryDirectory(dir=crew.MEMORY) as directory,
        setting.maintenance_in_line() as clock,
    ):
        root = Path(directory)
        told: list[Callable[[Promise], None]] = []
        workload = Workload(setting, root, lambda promise: [tell(promise) for tell in told], clock)
        workload.prepare()
        with Recorder(root) as recorder:
            told.append(recorder.mark)
            workload.run()
            recorder.check()
        return recorder.events, recorder.calls


def cuts(events: list[tuple]) -> Iterator[tuple[int, str, Disk, Any]]:
    """The points where the power may go out: number, what was last ("" at a mark), the disk, and
    the promise of the last mark."""
    disk, promise = Disk(), None
    for number, (kind, *arguments) in enumerate(events):
        if kind == MARK:
            promise = arguments[0]
        elif kind != CUT:
            getattr(disk, kind)(*arguments)
            continue
        if promise is not None:
            yield number, arguments[0] if kind == CUT else "", disk, promise


def record_recovery(examiner: Examiner, state: State, promise: Promise) -> tuple[list[tuple], int]:
    """The trace of opening what was left, adding rows, and closing."""
    setting = examiner.setting
    with tempfile.TemporaryDirectory(dir=crew.MEMORY) as directory, setting.maintenance_in_line():
        root = Path(directory)
        state.write_to(root)
        (root / "run").mkdir(exist_ok=True)
        with another_boot(0), warnings.catch_warnings(), Recorder(root) as recorder:
            warnings.simplefilter("ignore", RuntimeWarning)
            recorder.mark(promise)
            buffer = setting.make(root / "run" / "replay")
            rows = examiner.recognised(buffer, promise)
            live = tuple(replace(allowed, versions=None) for allowed in promise.live)
            recorder.mark(replace(promise, live=live))  # all latents are about to be new ones
            rows = examiner.written_to(buffer, rows)
            after = examiner.further(rows)
            first = tuple(buffer.bounds[:, 0].tolist())
            durable, size = tuple(buffer._rows.store.durable_count.tolist()), tuple(map(len, after))

            def mark(step: str, *live: Allowed) -> None:
                recorder.mark(Promise(f"{step} after a cut", live, promise.saved, promise.present))

            mark("add", Allowed(after, durable, size, first))
            examiner.go_on(buffer, rows)
            buffer.flush()
            mark("close", Allowed(after, size, size, first))
            buffer.close()
            mark("after close", Allowed(after, size, size, first))
            recorder.check()
        return recorder.events, recorder.calls


def explore(
    setting: Setting,
    *,
    samples: int = 20,
    singly: bool = True,
    again: int = 200,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda cuts: None,
) -> Figures:
    """Cut the power at each `every`-th point of one workload.

    Parameters
    ----------
    samples, singly
        As for `Disk.states`.
    again : int
        Of so many states that were opened, one is opened while a second cut is prepared; 0 for
        none.
    start, stop : int
        The first of these points, and one behind the last. Neighbours have much in common, which is
        opened once only.
    seconds : float, optional
        Stop after so long.
    advance : callable
        Told how many points were tried.
    """
    figures = Figures()
    events, figures.calls = record(setting)
    examiner, chance = Examiner(setting, figures), random.Random(seed)
    ends = None if seconds is None else time.monotonic() + seconds

    def attempt(where: str, state: State, promise: Promise) -> bool:
        before = figures.opened
        try:
            examiner.examine(state, promise)
        except Exception as error:
            figures.failures.append(f"{where}: {type(error).__name__}: {error}")
            return False
        return figures.opened > before

    def cut(
        name: str, events: list[tuple], every: int, start: int, stop: int | None, again: int
    ) -> None:
        for at, (number, last, disk, promise) in enumerate(cuts(events)):
            if stop is not None and at >= stop:
                return
            if at < start or (at - start) % every:
                continue
            for how, state in disk.states(chance, samples, singly=singly and bool(again)):
                if ends is not None and time.monotonic() > ends:
                    return
                figures.states += 1
                where = f"{name}, event {number} ({last or 'a mark'}), {promise.step}, {how}"
                good = attempt(where, state, promise)
                if good and again and figures.opened % again == 0:
                    recovery, calls = record_recovery(examiner, state, promise)
                    figures.calls += calls
                    cut(f"{where}, and again", recovery, 1, 0, None, 0)
            figures.cuts += 1
            advance(1)

    cut(setting.name, events, every, start, stop, again)
    return figures


def run(
    *,
    every: int = 1,
    samples: int = 20,
    extremes: bool = False,
    again: int = 500,
    settings: list[int] | None = None,
    workers: int = os.cpu_count() or 1,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Every setting, in parts of some hundred points.

    Parameters
    ----------
    every, samples, again
        As for `explore`.
    extremes : bool
        At each point only the two extreme states, and the samples.
    settings : list of int, optional
        Their numbers; all by default.
    say : callable
        Told how each part went, as it ends: all of it takes hours.
    """

    def part(job: tuple[int, int, int]) -> dict[str, Any]:
        number, start, stop = job
        figures = explore(
            SETTINGS[number], samples=samples, singly=not extremes, again=again, every=every,
            start=start, stop=stop, seed=start,
        )  # fmt: skip
        return vars(figures)

    total: dict[str, Any] = vars(Figures())
    jobs = []
    for number in range(len(SETTINGS)) if settings is None else settings:
        events, _calls = record(SETTINGS[number])
        points, step = sum(1 for _ in cuts(events)), _POINTS_OF_A_JOB * every
        jobs += [(number, start, min(start + step, points)) for start in range(0, points, step)]
    for outcome in crew.run(part, jobs, workers=workers, limit_s=1e6):
        if outcome.trouble:
            total["failures"].append(f"{outcome.job}: {outcome.trouble}")
            continue
        for name, value in outcome.value.items():
            total[name] += value
        say(f"{SETTINGS[outcome.job[0]].name}, from point {outcome.job[1]}: {_told(outcome.value)}")
    return total


def _told(figures: dict[str, Any]) -> str:
    cuts, states, opened = (f"{figures[name]:,}" for name in ("cuts", "states", "opened"))
    return f"{cuts} points, {states} states, {opened} opened, {len(figures['failures'])} failures"
