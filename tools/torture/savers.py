"""Several writers that save into one directory, in threads and in processes that all believe to be
number 1, as in containers; some are killed. What was acknowledged is whole."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import content
import specimen

import diskreplay
from diskreplay.check.verify import verify

WRITERS = 3
_SPAWN = multiprocessing.get_context("spawn")
_PATIENCE_S = 400.0
_KEPT = diskreplay.CHECKPOINT_DURATION
_MOST_ROWS = 1500


class Failed(AssertionError):
    """A checkpoint that was acknowledged is not what it was, or something was left behind."""


def run(
    *,
    seconds: float = 60.0,
    seed: int = 0,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run each part for so long.

    Returns
    -------
    dict
        For each part the saves that were acknowledged, those that were looked at, the kills, and
        ``failures``.
    """
    figures: dict[str, Any] = {"failures": []}
    for shared in (True, False):
        for name, part in (("threads", threads), ("processes", processes)):
            label = f"{name}, {'one name' if shared else 'names of their own'}"
            say(label)
            with tempfile.TemporaryDirectory(prefix="torture-", dir=directory) as base:
                try:
                    figures[label] = part(Path(base), seconds, shared=shared, seed=seed)
                except (Failed, diskreplay.DiskReplayError) as error:
                    figures["failures"].append({"part": label, "trouble": f"{error!r}"})
    return figures


def _name(writer: int, shared: bool) -> str:
    return "replay" if shared else f"writer{writer}"


def _save(
    base: Path,
    writer: int,
    shared: bool,
    rng: random.Random,
    tell: Callable[[tuple[str, int]], None],
    going: Callable[[], bool],
) -> None:
    """Record and save until told otherwise; `tell` of each checkpoint and the rows it has."""
    options = specimen.OPTIONS | {"name": _name(writer, shared)}
    path = base / f"store{writer}"
    shutil.rmtree(path, ignore_errors=True)  # of one that was killed
    with diskreplay.PrioritizedReplayBuffer(path, **options) as buffer:
        number = 0
        while going() and buffer.bounds[0, 1] < _MOST_ROWS:
            specimen.add(buffer, int(buffer.bounds[0, 1]) + rng.randint(1, 40))
            number += rng.randint(0, 1)
            suffix = number if rng.random() < 0.8 else f"text-{number % 3}"
            saved = buffer.save(base / "checkpoints", suffix)
            tell((saved.name, int(buffer.bounds[0, 1])))


# -- what has to be true


def _look(base: Path, told: list[tuple[str, int]], names: set[str], under_way: bool) -> int:
    """Hold the directory against what was acknowledged; how many checkpoints are there.

    `under_way`: a writer was killed, and its last save may be there without having been told of.
    """
    directory = base / "checkpoints"
    there = {path.name: path for path in directory.iterdir() if not path.name.startswith(".")}
    rows_of: dict[str, set[int]] = {}
    for name, rows in told:
        rows_of.setdefault(name, set()).add(rows)
    for name in names:
        numbers = [int(n.rpartition(".")[2]) for n in rows_of if _is_number(n, name)]
        for number in sorted(numbers)[-_KEPT:]:
            # A number that was not told of may be higher, and have retired one that was.
            if f"{name}_ckpt.{number}" not in there and not under_way:
                raise Failed(f"{name}_ckpt.{number} was acknowledged and is not there")
    for name in rows_of:
        if "_ckpt.text-" in name and name not in there:
            raise Failed(f"{name} was acknowledged and is not there")
    for name, path in there.items():
        if not verify(path).clean:
            raise Failed(f"{name}: {verify(path).findings[:3]}")
        with diskreplay.open(path) as reader:
            rows = int(reader.bounds[0, 1])
            if not under_way and rows not in rows_of.get(name, ()):
                raise Failed(f"{name} has {rows} rows, and those saved had {rows_of.get(name)}")
            if wrong := content.wrong(reader, steps=[specimen.steps(0, rows)]):
                raise Failed(f"{name}: {wrong[:3]}")
    return len(there)


def _is_number(name: str, prefix: str) -> bool:
    return name.startswith(f"{prefix}_ckpt.") and name.rpartition(".")[2].isdigit()


def _sweep(base: Path, names: set[str]) -> None:
    """One more save of each name finds nobody at work, and leaves nothing half made."""
    for number, name in enumerate(sorted(names)):
        options = specimen.OPTIONS | {"name": name}
        with diskreplay.PrioritizedReplayBuffer(base / f"last{number}", **options) as buffer:
            specimen.add(buffer, 20)
            buffer.save(base / "checkpoints", "last")
    left = [path.name for path in (base / "checkpoints").iterdir() if path.name.startswith(".")]
    left = [name for name in left if (base / "checkpoints" / name).is_dir()]
    if left:
        raise Failed(f"left behind: {left}")


# -- threads


def threads(base: Path, seconds: float, *, shared: bool, seed: int = 0) -> dict[str, Any]:
    """Buffers of one process."""
    told: list[tuple[str, int]] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(writer: int) -> None:
        rng = random.Random(seed + writer)
        try:
            while not stop.is_set():
                _save(base, writer, shared, rng, told.append, lambda: not stop.is_set())
        except BaseException as error:  # of whatever kind: it is raised below
            failures.append(error)
            stop.set()

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(WRITERS)]
    for worker in workers:
        worker.start()
    stop.wait(seconds)
    until = time.monotonic() + _PATIENCE_S
    while len(told) < 2 * WRITERS and not stop.is_set() and time.monotonic() < until:
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join(_PATIENCE_S)
        if worker.is_alive():
            raise Failed("a writer hangs")
    if failures:
        raise Failed(f"a save failed: {failures[0]!r}") from failures[0]
    names = {_name(writer, shared) for writer in range(WRITERS)}
    there = _look(base, told, names, under_way=False)
    _sweep(base, names)
    return {"acknowledged": len(told), "there": there}


# -- processes


def _work(base: Path, writer: int, shared: bool, seed: int, pipe: Connection) -> None:
    """What a writing process does; it believes to be process 1, as in a container."""
    os.getpid = lambda: 1
    rng = random.Random(seed)
    try:
        while not pipe.poll():
            _save(base, writer, shared, rng, pipe.send, lambda: not pipe.poll())
        pipe.send("done")
    except BaseException as error:
        pipe.send(f"{error!r}")
        raise


def processes(base: Path, seconds: float, *, shared: bool, seed: int = 0) -> dict[str, Any]:
    """Processes, of which one is killed now and then, and begins anew."""
    rng = random.Random(seed)
    told: list[tuple[str, int]] = []
    counts: Counter = Counter()
    crew: dict[Connection, Any] = {}

    def start(writer: int) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=partial(_work, base, writer, shared, rng.randrange(1 << 30), theirs), daemon=True
        )
        process.start()
        theirs.close()
        crew[ours] = writer, process

    def listen(limit_s: float, ended: Callable[[str], None]) -> None:
        for pipe in wait(list(crew), limit_s):
            with contextlib.suppress(EOFError, ConnectionResetError):
                said = pipe.recv()
                told.append(said) if isinstance(said, tuple) else ended(said)

    def failed(said: str) -> None:
        raise Failed(f"a save failed: {said}")

    for writer in range(WRITERS):
        start(writer)
    try:
        until, patience = time.monotonic() + seconds, time.monotonic() + _PATIENCE_S
        while time.monotonic() < until or len(told) < 4 * WRITERS:
            if time.monotonic() > max(until, patience):
                raise Failed("the writers hang")
            listen(0.05, failed)
            if len(told) > 2 * WRITERS and rng.random() < 0.03:
                pipe = rng.choice(list(crew))
                writer, process = crew.pop(pipe)
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                with contextlib.suppress(EOFError, ConnectionResetError):
                    while pipe.poll():  # what it told before it died
                        said = pipe.recv()
                        told.append(said) if isinstance(said, tuple) else failed(said)
                pipe.close()
                counts["kills"] += 1
                start(writer)
        for pipe in crew:
            pipe.send("enough")
        done: list[str] = []
        while len(done) < len(crew):
            if time.monotonic() > patience + seconds + _PATIENCE_S:
                raise Failed("the writers do not end")
            listen(1.0, lambda said: done.append(said) if said == "done" else failed(said))
    finally:
        for pipe, (_writer, process) in crew.items():
            process.kill()
            process.join()
            pipe.close()
    names = {_name(writer, shared) for writer in range(WRITERS)}
    there = _look(base, told, names, under_way=counts["kills"] > 0)
    _sweep(base, names)
    return {"acknowledged": len(told), "there": there, "kills": counts["kills"]}
