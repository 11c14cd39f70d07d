"""The process that goes on after the kill, as a restarted training run would."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from demo_parts import training
from demo_parts.journal import Kind, Record, Reporter
from demo_parts.training import Step

RECORDED = "after-the-checkpoint.npz"


def main(directory: str, descriptor: int, suffix: str) -> None:
    """Load a checkpoint, then add the steps that process 1 recorded after it, and train on them."""
    report = Reporter(descriptor)
    start = time.perf_counter()
    buffer = training.make_buffer(Path(directory, "replay"))
    opened = time.perf_counter()
    # The steps that follow continue the episode that was open, so it has to be open again. A run
    # whose environment starts anew does without resume_episodes.
    buffer.load(Path(directory, "checkpoints"), suffix, resume_episodes=True)
    report(Record(Kind.READY, 0, 0, opened - start, time.perf_counter() - opened))
    steps = recorded_steps(Path(directory, RECORDED))
    training.train(buffer, steps, report, Path(directory, "checkpoints"))
    buffer.close()
    report(Record(Kind.DONE, 0, 0, 0, 0))


def recorded_steps(path: Path) -> Iterator[Step]:
    """The steps of some consecutive rows. Nothing is read before the first is asked for."""
    with np.load(path) as archive:
        rows = {name: archive[name] for name in archive.files}
    yield from steps_of(rows)


def steps_of(rows: dict[str, np.ndarray]) -> Iterator[Step]:
    """What was added to get these rows, which start with a transition's."""
    count = len(rows["action"])
    for t in range(count):
        if rows["is_final"][t]:
            continue
        has_final = t + 1 < count and rows["is_final"][t + 1]
        yield Step(
            rows["observation"][t],
            int(rows["action"][t]),
            float(rows["reward"][t]),
            bool(rows["terminated"][t]),
            bool(rows["truncated"][t]),
            rows["observation"][t + 1] if has_final else None,
        )
