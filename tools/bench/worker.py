"""The process that measures one thing: ``python worker.py TASK JSON``.

Its result is the file that the task's ``result`` names.  Tasks: ``contender`` (fill one buffer
and measure it), ``floors``, ``vector_add``, ``first_batch`` (load a checkpoint and sample),
``facades``, ``record`` (a store to look into) and ``look``.
A task yields its figures, and may yield them again with more in them: what was written stays
if the process dies later.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

STARTED = perf_counter()
Figures = Iterator[dict[str, Any]]


def main() -> None:
    task, arguments = sys.argv[1], json.loads(sys.argv[2])
    result = Path(arguments.pop("result"))
    # If memory runs out after all, let it be this process that is killed.
    Path("/proc/self/oom_score_adj").write_text("1000")
    for figures in TASKS[task](**arguments):
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(figures))
        partial.rename(result)
    if task != "first_batch":
        # Frameworks may take long to unload, or crash; nothing is left to be written.
        sys.stdout.flush()
        os._exit(0)


def contender(**arguments: Any) -> Figures:
    from measure import measure_contender

    return measure_contender(**arguments)


def floors(
    frames: int, floor_file: str, n_steps: list[int], calls: int, budget_s: float
) -> Figures:
    from floors import Floor, MappedFrames, read_frames
    from timing import time_in_turn

    mapped = MappedFrames(Path(floor_file))
    plain = read_frames(Path(floor_file), frames)
    things = {}
    for n_step in n_steps:
        things[f"RAM, n-step {n_step}"] = Floor(plain, n_step).timed()
        things[f"mapped, n-step {n_step}"] = Floor(mapped.frames, n_step).timed()
    timings = time_in_turn(things, calls=calls, budget_s=budget_s * len(things))
    yield {name: timing.as_dict() for name, timing in timings.items()}


def vector_add(stream: str, directory: str, frames: int, compressor: str) -> Figures:
    from stream import Stream
    from vector_add import time_vector_add

    yield time_vector_add(Stream(Path(stream)), Path(directory), frames, compressor)


def first_batch(name: str, setup: dict[str, Any], checkpoint: str) -> Figures:
    """Load, sample once, and end as programs end; the caller times the whole process."""
    from contender import Setup
    from registry import contenders

    setup["directory"] = Path(setup["directory"])
    loaded = contenders()[name](Setup(**setup))
    begin = perf_counter()
    loaded.load(Path(checkpoint))
    ready = perf_counter()
    loaded.samplers()["sample"]()
    sampled = perf_counter()
    yield {
        "import_s": begin - STARTED,
        "load_s": ready - begin,
        "sample_s": sampled - ready,
    }


def facades(**arguments: Any) -> Figures:
    from facades import run

    yield run(**arguments)


def record(stream: str, directory: str, frames: int) -> Figures:
    from looking import record

    yield record(stream, Path(directory), frames)


def look(directory: str, task: str) -> Figures:
    from looking import LOOKS

    yield {task: LOOKS[task](Path(directory))}


TASKS = {
    "facades": facades,
    "record": record,
    "look": look,
    "contender": contender,
    "floors": floors,
    "vector_add": vector_add,
    "first_batch": first_batch,
}

if __name__ == "__main__":
    main()
