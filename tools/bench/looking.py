"""Looking into a recorded store and taking it elsewhere, each task in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from contender import PRIORITIZED, Setup, allocated_bytes
from diskreplay_contender import DiskreplayLz4
from memory import Memory
from stream import Stream

REPEATS = 5


def record(stream: str, directory: Path, frames: int) -> dict[str, Any]:
    """Fill a store with lz4 frames and priorities, and close it."""
    setup = Setup(frames, 1, PRIORITIZED, directory)
    contender = DiskreplayLz4(setup)
    contender.build()
    for piece in Stream(Path(stream)).cursor().pieces(frames):
        contender.extend(piece)
    contender.close()
    return {"rows": frames, "disk_bytes": allocated_bytes(directory)}


def info(directory: Path) -> dict[str, Any]:
    """The whole process of ``diskreplay info``; the fastest of some, as files and caches allow."""
    command = [
        sys.executable,
        "-m",
        "diskreplay.cli.app",
        "info",
        str(directory / "live"),
        "--json",
    ]
    taken = []
    for _ in range(REPEATS):
        begin = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(perf_counter() - begin)
    return {"seconds": min(taken), "slowest": max(taken)}


def to_pandas(directory: Path) -> dict[str, Any]:
    """All transitions without observations, as one data frame; the second of two."""
    with _opened(directory) as buffer:
        for _ in range(2):
            begin = perf_counter()
            frame = buffer.to_pandas()
            seconds = perf_counter() - begin
    return {"rows": len(frame), "seconds": seconds, "rows_a_second": len(frame) / seconds}


def parquet(directory: Path) -> dict[str, Any]:
    """All transitions with their frames as bytes, in one file."""
    from diskreplay.convert.parquet import to_parquet

    out = directory / "all.parquet"
    with _opened(directory) as buffer, Peak() as peak:
        begin = perf_counter()
        to_parquet(buffer, out)
        seconds = perf_counter() - begin
    return {"seconds": seconds, "bytes": out.stat().st_size, "peak_anonymous": peak.anonymous}


def pictures(directory: Path) -> dict[str, Any]:
    """Data frames with PNGs, piece by piece."""
    from diskreplay.convert.pandas import iter_frames

    rows = 0
    with _opened(directory) as buffer, Peak() as peak:
        begin = perf_counter()
        for frame in iter_frames(buffer, observations="png"):
            rows += len(frame)
        seconds = perf_counter() - begin
    return {"rows": rows, "seconds": seconds, "peak_anonymous": peak.anonymous}


def verify(directory: Path) -> dict[str, Any]:
    """Every checksum of the store; the second of two, the files being in the page cache."""
    from diskreplay.check.verify import verify as verified

    for _ in range(2):
        report = verified(directory / "live")
    if not report.clean:
        raise RuntimeError(f"the store is not clean: {report.findings[0]}")
    return {
        "seconds": report.seconds,
        "bytes": report.bytes,
        "bytes_a_second": report.bytes / report.seconds,
    }


LOOKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "info": info,
    "to_pandas": to_pandas,
    "parquet": parquet,
    "pictures": pictures,
    "verify": verify,
}


class Peak:
    """The most anonymous memory of this process inside a ``with`` block, looked at all the time."""

    def __enter__(self) -> Peak:
        self.anonymous = Memory.now().anonymous
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.anonymous = max(self.anonymous, Memory.now().anonymous)

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()


def _opened(directory: Path) -> Any:
    import diskreplay

    return diskreplay.open(directory / "live")
