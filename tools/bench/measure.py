"""Fills one contender with the stream and takes all its figures, inside a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
from contender import BATCH, Contender, Setup, allocated_bytes, file_identities
from floors import Floor, MappedFrames
from memory import Memory, available_memory
from registry import contenders
from stream import Cursor, Stream
from timing import Timed, Timing, time_in_turn

WARMUP_ADDS = 300
"""Adds before the clock starts: allocation and compilation happen in the first of them."""
SINGLE_ADDS = 5_000
"""Single adds that are timed at the end of a fill in bulk."""
SAVED_ROWS = 4_755
"""New rows before a save: 32 MiB of frames, a segment."""
MEMORY_SHARE = 0.9


def measure_contender(
    name: str,
    setup: dict[str, Any],
    stream: str,
    floor_file: str | None,
    calls: int,
    budget_s: float,
    checkpoint: str | None,
) -> Iterator[dict[str, Any]]:
    """All figures of one buffer, without and with saving; `checkpoint`: where, None: don't."""
    settings = Setup(**setup | {"directory": Path(setup["directory"])})
    contender = contenders()[name](settings)
    _check_memory(contender.needs(settings).memory, "the buffer")
    cursor = Stream(Path(stream)).cursor()
    contender.build()
    figures: dict[str, Any] = {"add": _fill(contender, cursor, settings.frames)}
    contender.settle()
    figures["memory_filled"] = Memory.now().as_dict()
    figures["disk_bytes"] = contender.disk_bytes()
    if settings.prioritized:
        figures["update"] = _time_updates(contender, calls, budget_s).as_dict()
    figures |= _time_samples(contender, floor_file, calls, budget_s)
    figures["memory"] = Memory.now().as_dict()
    figures["extras"] = contender.extras()
    if checkpoint is not None:
        yield figures | {"save": {"failed": "saving ended the process"}}
        figures["save"] = _time_save(contender, cursor, Path(checkpoint), settings)
    contender.close()
    yield figures


def _check_memory(needed: int, what: str) -> None:
    available = available_memory()
    if needed > MEMORY_SHARE * available:
        raise MemoryError(
            f"does not fit: {what} needs {needed / 1e9:.1f} GB of memory, "
            f"{available / 1e9:.1f} GB are available"
        )


def _fill(contender: Contender, cursor: Cursor, frames: int) -> dict[str, Any]:
    """Add `frames` steps; the clock runs only inside `add`, single steps only.

    ``us_a_step`` is the wall clock of the calls, whatever they waited for included;
    ``us_a_step_settled`` adds the wait for the work they left behind; ``cpu_us_a_step`` counts
    every thread of the process, that work included.
    """
    for piece in cursor.pieces(WARMUP_ADDS):
        contender.add(contender.prepare(piece))
    rest = frames - WARMUP_ADDS
    timed_rows = min(SINGLE_ADDS, rest) if contender.bulk_fill else rest
    for piece in cursor.pieces(rest - timed_rows):
        contender.extend(piece)
    wall = cpu = 0
    for piece in cursor.pieces(timed_rows):
        prepared = contender.prepare(piece)
        begin, cpu_begin = perf_counter_ns(), process_time_ns()
        contender.add(prepared)
        wall += perf_counter_ns() - begin
        cpu += process_time_ns() - cpu_begin
    begin, cpu_begin = perf_counter_ns(), process_time_ns()
    contender.settle()
    settled = perf_counter_ns() - begin
    cpu += process_time_ns() - cpu_begin
    return {
        "us_a_step": wall / timed_rows / 1000,
        "us_a_step_settled": (wall + settled) / timed_rows / 1000,
        "cpu_us_a_step": cpu / timed_rows / 1000,
        "steps": timed_rows,
    }


def _time_updates(contender: Contender, calls: int, budget_s: float) -> Timing:
    """Each update is of the batch just drawn, as a learner's; priorities end up spread out."""
    rng = np.random.default_rng(1)
    sample = contender.samplers()["sample"]

    def draw() -> tuple:
        return contender.ids(sample()), rng.exponential(size=BATCH) + 1e-6

    update = {"update": Timed(contender.update_priorities, draw)}
    return time_in_turn(update, calls=calls, budget_s=budget_s)["update"]


def _time_samples(
    contender: Contender, floor_file: str | None, calls: int, budget_s: float
) -> dict[str, Any]:
    """Every sampler, in turns with the mapped floor, so that their ratio survives noise."""
    things = {name: Timed(call) for name, call in contender.samplers().items()}
    mapped = MappedFrames(Path(floor_file)) if floor_file else None
    if mapped:
        things["floor"] = Floor(mapped.frames, contender.setup.n_step).timed()
    timings = time_in_turn(things, calls=calls, budget_s=budget_s * len(things))
    things.clear()
    if mapped:
        mapped.close()
    floor = timings.pop("floor", None)
    return {
        "floor": floor and floor.as_dict(),
        "samples": {
            name: timing.as_dict() | {"ratio": timing.median / floor.median if floor else None}
            for name, timing in timings.items()
        },
    }


def _time_save(
    contender: Contender, cursor: Cursor, checkpoint: Path, setup: Setup
) -> dict[str, Any]:
    """Save with `SAVED_ROWS` new since the last save; count what this save put on the disk.

    A contender that always writes everything is saved once, which takes it as long.
    """
    known: set[tuple[int, int]] = set()
    try:
        _check_memory(contender.needs(setup).saving_memory, "saving")
        if contender.incremental_save:
            contender.save(checkpoint, 1)
            known = file_identities(checkpoint)
        for piece in cursor.pieces(SAVED_ROWS):
            contender.extend(piece)
        begin = perf_counter()
        contender.save(checkpoint, 2)
        seconds = perf_counter() - begin
    except Exception as error:  # a peer's save may fail in any way; its other figures stand
        return {"failed": f"{type(error).__name__}: {error}".removeprefix("MemoryError: ")}
    return {
        "seconds": seconds,
        "new_bytes": allocated_bytes(checkpoint, known),
        "rows_since_last": SAVED_ROWS,
    }
