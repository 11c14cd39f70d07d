"""What came of it: the figures, the claims, and where to look."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from rich.table import Table

from demo_parts import evidence, report, training
from demo_parts.journal import Journal
from demo_parts.paths import CHECKPOINTS, REPLAY, ROOT, SHEET
from demo_parts.report import console, duration, median, percentile, size
from diskreplay.statistics import Statistics


class Reopened(NamedTuple):
    """How long things took after the kill, in seconds."""

    open: float
    first_batch: float


class Resumed(NamedTuple):
    """One resume in a new process."""

    found: evidence.BatchesFound
    journal: Journal
    first_batch: float  # seconds since the process was started


def table(
    recorded: Journal, statistics: Statistics, reopened: Reopened, resumed: list[Resumed]
) -> Table:
    """All figures."""
    newest = resumed[0]
    return report.table(
        [
            ("On disk", _sizes(recorded, statistics)),
            ("Each step", _steps(recorded.seconds)),
            ("Checkpoints", _checkpoints(recorded.seconds["save"], newest)),
            ("After the kill", _recovery(reopened, newest)),
        ]
    )


def _sizes(recorded: Journal, statistics: Statistics) -> list[tuple[str, str, str]]:
    tail, _ = evidence.disk_bytes(REPLAY / "is_final" / "live")
    return [
        ("frames", f"{recorded.frames:,}", f"room for {training.CAPACITY:,}"),
        ("raw size", size(statistics.raw_bytes), "as plain arrays, each frame once"),
        ("size on disk", size(statistics.disk_bytes), f"{size(tail)} is the tail, not packed yet"),
        ("ratio", f"{statistics.ratio:.1f} x", _ratio_of_full_segments()),
    ]


def _ratio_of_full_segments() -> str:
    """What remains when the store is so large that the tail no longer counts."""
    array = zarr.open_group(REPLAY, mode="r")["observation"]
    rows = (array.shards or array.chunks)[0]
    full = array.shape[0] // rows
    if not full:
        return "no segment is full yet"
    shards = (REPLAY / "observation" / f"c.{segment}.0.0.0" for segment in range(full))
    disk = sum(shard.stat().st_blocks * 512 for shard in shards)
    return f"{full * rows * math.prod(training.SHAPE) / disk:.0f} x in the {full} full segments"


def _steps(seconds: dict[str, list[float]]) -> list[tuple[str, str, str]]:
    mean = duration(float(np.mean(seconds["add"])))
    return [
        ("add a frame", median(seconds["add"]), f"median; mean {mean}"),
        (
            "sample 32, prioritized",
            median(seconds["sample"]),
            f"median; 99 % within {percentile(seconds['sample'], 99)}",
        ),
        ("update 32 priorities", median(seconds["update"]), "median"),
    ]


def _checkpoints(seconds: list[float], newest: Resumed) -> list[tuple[str, str, str]]:
    total, own = evidence.disk_bytes(CHECKPOINTS / f"replay_ckpt.{newest.found.suffix}")
    return [
        (
            "save",
            median(seconds),
            f"median of {len(seconds)}; slowest {duration(max(seconds))}",
        ),
        ("size of the newest", size(total), f"complete; {size(own)} of it its own"),
    ]


def _recovery(reopened: Reopened, newest: Resumed) -> list[tuple[str, str, str]]:
    seconds = newest.journal.seconds
    return [
        ("reopen the store", duration(reopened.open), "as the kill left it"),
        ("first batch from it", duration(reopened.first_batch), ""),
        ("load the checkpoint", median(seconds["load"]), "in a new process"),
        ("new process to first batch", duration(newest.first_batch), "from Python's start on"),
    ]


def judge(
    after_kill: evidence.RowsFound, resumed: list[Resumed], after_resume: evidence.RowsFound
) -> bool:
    """Print the claims; whether all of them held."""
    _judge_rows(after_kill, "After the kill nothing acknowledged is lost")
    for resume in resumed:
        _judge_batches(resume.found)
    _judge_rows(after_resume, "After the resume all of it is there again")
    batches = [resume.found for resume in resumed if resume.found.compared]
    return all(found.holds for found in (after_kill, after_resume, *batches)) and bool(batches)


def _judge_rows(found: evidence.RowsFound, claim: str) -> None:
    text = (
        f"{claim}: of {found.acknowledged:,} rows, read with zarr-python, "
        f"{found.missing:,} are missing and {found.different:,} differ."
    )
    if found.unacknowledged:
        text += f" The kill cut off the acknowledgement of {found.unacknowledged} more."
    report.verdict(found.holds, text)


def _judge_batches(found: evidence.BatchesFound) -> None:
    if not found.compared:
        console.print(
            f"Checkpoint {found.suffix} was so new that the killed run had sampled nothing after "
            "it; the one before is resumed instead."
        )
        return
    report.verdict(
        found.holds,
        f"A new process that loads checkpoint {found.suffix} draws the batches that the killed run "
        f"drew after saving it: of {found.compared:,} over {found.added:,} further adds, "
        f"{found.different:,} differ in any field.",
    )


def point_to_files() -> None:
    """Say what was left where, and how to look into it."""
    replay = _shortest(REPLAY)
    console.print("\nLeft for you to look into, until the next run:")
    for path in (replay, _shortest(CHECKPOINTS), _shortest(SHEET)):
        console.print(f"  {path}", markup=False, soft_wrap=True)
    console.print("Two commands to try:")
    for code in (
        f"import diskreplay; b = diskreplay.open('{replay}'); print(b, len(b)); "
        "print(b.sample(4).observation.shape)",
        f"import zarr; g = zarr.open_group('{replay}', mode='r'); print(g['observation'].info); "
        "print(g['reward'][:].sum())",
    ):
        python = _shortest(ROOT / ".venv" / "bin" / "python")
        console.print(f'  {python} -c "{code}"', markup=False, soft_wrap=True)


def _shortest(path: Path) -> str:
    return min(str(path), os.path.relpath(path), key=len)
