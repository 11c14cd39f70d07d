"""The process that is killed."""

import contextlib
import time
from pathlib import Path

from demo_parts import pong, training
from demo_parts.journal import Kind, Record, Reporter


def main(directory: str, descriptor: int) -> None:
    """Play, record, sample and save until the end, which comes from outside."""
    report = Reporter(descriptor)
    start = time.perf_counter()
    buffer = training.make_buffer(Path(directory, "replay"))
    report(Record(Kind.READY, 0, 0, time.perf_counter() - start, 0))
    with contextlib.suppress(BrokenPipeError):  # the director is gone, and with it the reason
        training.train(buffer, pong.play(seed=0), report, Path(directory, "checkpoints"))
