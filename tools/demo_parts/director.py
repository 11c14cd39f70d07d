"""The whole, in order."""

import fcntl
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import diskreplay
from demo_parts import conclusion, evidence, processes, report, resumer, sheet, training
from demo_parts.conclusion import Reopened, Resumed
from demo_parts.journal import Journal
from demo_parts.paths import CHECKPOINTS, REPLAY, RUN, SHEET
from demo_parts.report import console

MIN_FRAMES = 20_000
EARLIEST, LATEST = 30.0, 38.0  # seconds: when the kill may come; later where frames come slowly
ENOUGH_BATCHES = 20  # to compare after a resume; with fewer, an older checkpoint is tried as well


class Failure(Exception):
    """The demonstration cannot go on."""


def main() -> int:
    """Run the demonstration; the exit status."""
    console.print("[bold]diskreplay[/bold]: record Pong, be killed, lose nothing, resume\n")
    with Path(__file__).open() as lock:  # on the script, since the run's directory is replaced
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0 if _show() else 1
        except BlockingIOError:
            console.print("The demonstration is running already, and uses the same directory.")
            return 2
        except Failure as failure:
            console.print(f"failed: {failure}", style="red", markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("interrupted")
            return 130


def _show() -> bool:
    if RUN.exists():
        shutil.rmtree(RUN)
    RUN.mkdir()
    _compile()
    recorded = _record_and_kill()
    reopened, after_kill = _reopen(recorded)
    resumed, after_resume = _resume(recorded)
    with diskreplay.open(REPLAY) as buffer:
        statistics = buffer.statistics()
        sheet.draw(buffer.sample(12), SHEET)
    console.print(conclusion.table(recorded, statistics, reopened, resumed))
    holds = conclusion.judge(after_kill, resumed, after_resume)
    conclusion.point_to_files()
    return holds


def _compile() -> None:
    """Let Numba compile, or load what it compiled before, so that the figures are without that."""
    start = time.perf_counter()
    with console.status("Loading the kernels (compiled at the first run)"):
        with (
            tempfile.TemporaryDirectory() as checkpoints,
            training.make_buffer(None) as buffer,
        ):
            for _ in range(20):
                buffer.add(np.zeros(training.SHAPE, np.uint8), 0, 0.0, False, False)
            batch = buffer.sample()
            buffer.update_priorities(batch.id, np.ones(len(batch)))
            buffer.save(checkpoints, 0)
            buffer.load(checkpoints, 0)
            buffer.sample()
    if (seconds := time.perf_counter() - start) > 4:
        console.print(f"Compiled the kernels in {seconds:.0f} s; that is done once.")


# -- recording


def _record_and_kill() -> Journal:
    """A training process, killed at a random moment; what it had acknowledged."""
    console.print(
        "A process plays Pong with a random policy into a prioritized store, samples and updates "
        f"priorities every {training.LEARN_EVERY}th frame, and saves checkpoints. "
        f"After {MIN_FRAMES:,} frames it is killed at a random moment."
    )
    with processes.Training("record", RUN) as recording, report.progress("frames") as bars:
        journal = recording.journal
        task = bars.add_task("playing", total=MIN_FRAMES, note="")

        def shown(over: bool) -> bool:
            bars.update(
                task, completed=journal.frames,
                note=f"{len(journal.batches):,} batches, {journal.last_saved or 0} checkpoints",
            )  # fmt: skip
            return over

        alive = recording.follow(lambda: shown(journal.frames >= MIN_FRAMES))
        bars.update(task, description="waiting for the kill", total=None)
        now = recording.seconds
        moment = random.uniform(max(EARLIEST, now), max(LATEST, now + 5))
        alive = alive and recording.follow(lambda: shown(recording.seconds >= moment))
        recording.kill()
        status = recording.wait()
        if not alive or status != -signal.SIGKILL:
            raise Failure(f"the recorder ended by itself ({status}):\n{recording.last_words()}")
    console.print(
        f"SIGKILL came after {moment:.3f} s; {journal.frames:,} frames, {len(journal.batches):,} "
        f"batches and {journal.last_saved} checkpoints were acknowledged by then."
    )
    return journal


# -- after the kill


def _reopen(recorded: Journal) -> tuple[Reopened, evidence.RowsFound]:
    start = time.perf_counter()
    with training.make_buffer(REPLAY) as buffer:
        opened = time.perf_counter()
        buffer.sample()
        sampled = time.perf_counter()
        buffer.flush()  # from here on the rows are plain Zarr
        found = _compare_rows(buffer, recorded)
    return Reopened(opened - start, sampled - opened), found


def _compare_rows(buffer: diskreplay.ReplayBuffer, recorded: Journal) -> evidence.RowsFound:
    stored = buffer.statistics().rows
    with report.progress("rows") as bars:
        task = bars.add_task("reading all rows with zarr-python", total=stored, note="")
        return evidence.compare_rows(
            buffer.zarr(), stored, recorded, lambda rows: bars.advance(task, rows)
        )


def _resume(recorded: Journal) -> tuple[list[Resumed], evidence.RowsFound]:
    """Resume from the newest checkpoint, in a new process.

    The kill can come right after a save, and leave little or nothing to compare. Then the one
    before is resumed as well.
    """
    resumes: list[Resumed] = []
    for suffix in _suffixes():
        resumes.append(_resume_from(suffix, recorded))
        if sum(resume.found.compared for resume in resumes) >= ENOUGH_BATCHES:
            break
    with diskreplay.open(REPLAY) as buffer:
        return resumes, _compare_rows(buffer, recorded)


def _suffixes() -> list[int]:
    found = [int(path.suffix[1:]) for path in CHECKPOINTS.glob("replay_ckpt.*")]
    if not found:
        raise Failure(f"there is no checkpoint in {CHECKPOINTS}")
    return sorted(found, reverse=True)


def _resume_from(suffix: int, recorded: Journal) -> Resumed:
    with diskreplay.open(CHECKPOINTS / f"replay_ckpt.{suffix}") as saved:
        since, rows = saved.add_count, saved.statistics().rows
    steps = RUN / resumer.RECORDED
    with diskreplay.open(REPLAY) as buffer:
        stop = buffer.statistics().rows
        np.savez(steps, **evidence.read_rows(buffer.zarr(), rows, stop))
    with processes.Training("resume", RUN, str(suffix)) as resumed:
        journal = resumed.journal
        with console.status(f"Resuming from checkpoint {suffix} in a new process"):
            resumed.follow(lambda: bool(journal.batches))
            first_batch = resumed.seconds
            status = resumed.wait()
        if status or not journal.done:
            raise Failure(f"the resumed process failed ({status}):\n{resumed.last_words()}")
    steps.unlink()
    found = evidence.compare_batches(recorded, journal, suffix, since)
    return Resumed(found, journal, first_batch)
