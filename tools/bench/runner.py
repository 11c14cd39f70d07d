"""Runs the benchmark: one worker process after the other, whatever happens to any of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

from contender import Contender, Setup
from floors import write_frames
from import_time import measure_imports
from looking import LOOKS
from memory import available_memory, total_memory
from recorder import find_stream, record_stream
from registry import contenders, is_ours
from stream import FRAME_BYTES, Stream

WORKER = Path(__file__).with_name("worker.py")
IMPORTS = "imports"
FLOORS = "floors"
VECTOR_ADD = "vector add"
FACADES = "facades"
LOOKING = "looking"
MOST_FACADE_FRAMES = 100_000


@dataclass(frozen=True)
class Options:
    """What to measure and how long."""

    sizes: tuple[int, ...]
    n_steps: tuple[int, ...]
    names: tuple[str, ...]
    """Contenders, and the parts that are no contender."""
    kinds: tuple[str, ...]
    stream_steps: int
    calls: int
    budget_s: float
    timeout_s: float
    cache: Path
    workdir: Path


@dataclass
class Runner:
    """Measures everything in `options`; `results` grows and is handed to `save` each time."""

    options: Options
    results: dict[str, Any]
    say: Callable[[str], None]
    save: Callable[[dict[str, Any]], None]
    stream: Stream = field(init=False)

    def run(self) -> None:
        options = self.options
        self.stream = self._stream()
        self.results["stream"] = self.stream.about
        if IMPORTS in options.names:
            self.say("import times")
            self._keep("imports", measure_imports(self._environment()))
        for frames in options.sizes:
            floor_file = options.workdir / f"frames-{frames}.bin"
            self.say(f"{frames:,} frames: writing the floor's file")
            write_frames(self.stream, frames, floor_file)
            if FLOORS in options.names:
                self._floors(frames, floor_file)
            if VECTOR_ADD in options.names:
                self._vector_add(frames)
            if FACADES in options.names and frames <= MOST_FACADE_FRAMES:
                self._facades(frames)
            if LOOKING in options.names:
                self._looking(frames)
            # Contenders innermost: what stands side by side in a table was measured in a row.
            for n_step in options.n_steps:
                for kind in options.kinds:
                    for name, contender in contenders().items():
                        if name in options.names and kind in contender.kinds:
                            self._contender(contender, frames, n_step, kind, floor_file)
            floor_file.unlink()

    def _stream(self) -> Stream:
        steps = self.options.stream_steps
        found = find_stream(self.options.cache, steps)
        if found:
            return found
        self.say(f"recording {steps:,} steps of Atari, once")
        tenth = steps // 10
        said = 0

        def progress(done: int) -> None:
            nonlocal said
            if done // tenth > said:
                said = done // tenth
                self.say(f"recording: {done:,} of {steps:,} steps")

        return record_stream(self.options.cache, steps, progress=progress)

    def _floors(self, frames: int, floor_file: Path) -> None:
        self.say(f"{frames:,} frames: floors")
        if frames * FRAME_BYTES > 0.9 * available_memory():
            outcome: dict[str, Any] = {"failed": "does not fit in memory"}
        else:
            outcome = self._work(
                "floors",
                {
                    "frames": frames,
                    "floor_file": str(floor_file),
                    "n_steps": self.options.n_steps,
                    "calls": self.options.calls,
                    "budget_s": self.options.budget_s,
                },
            )
        self._keep("floors", {"frames": frames, **outcome}, append=True)

    def _vector_add(self, frames: int) -> None:
        for compressor in ("raw", "auto"):
            self.say(f"{frames:,} frames: vector add, {compressor}")
            directory = self._fresh("vector")
            outcome = self._work(
                "vector_add",
                {
                    "stream": str(self.stream.directory),
                    "directory": str(directory),
                    "frames": frames,
                    "compressor": compressor,
                },
            )
            shutil.rmtree(directory, ignore_errors=True)
            run = {"frames": frames, "compressor": compressor, **outcome}
            self._keep("vector_add", run, append=True)

    def _facades(self, frames: int) -> None:
        self.say(f"{frames:,} frames: the older APIs")
        outcome = self._work(
            "facades",
            {
                "stream": str(self.stream.directory),
                "frames": frames,
                "calls": self.options.calls,
                "budget_s": self.options.budget_s,
            },
        )
        self._keep("facades", {"frames": frames, **outcome}, append=True)

    def _looking(self, frames: int) -> None:
        directory = self._fresh("looking")
        arguments = {"stream": str(self.stream.directory), "directory": str(directory)}
        self.say(f"{frames:,} frames: looking into a store, exporting it")
        outcome = self._work("record", arguments | {"frames": frames})
        for task in LOOKS:  # each in a process of its own, so that its memory is its own
            if "failed" not in outcome:
                outcome |= self._work("look", {"directory": str(directory), "task": task})
        shutil.rmtree(directory, ignore_errors=True)
        self._keep("looking", {"frames": frames, **outcome}, append=True)

    def _contender(
        self, contender: type[Contender], frames: int, n_step: int, kind: str, floor_file: Path
    ) -> None:
        self.say(f"{frames:,} frames: {contender.name}, {kind}, n-step {n_step}")
        directory = self._fresh("buffer")
        checkpoint = self._fresh("checkpoint")
        setup = Setup(frames, n_step, kind, directory)
        needs = contender.needs(setup)
        # A save does not depend on either, so one of them is enough.
        saves = n_step == min(self.options.n_steps) and kind == contender.kinds[0]
        run: dict[str, Any] = {
            "contender": contender.name,
            "frames": frames,
            "n_step": n_step,
            "kind": kind,
            "version": _version(contender.distribution),
        }
        setup_json = {
            "frames": frames,
            "n_step": n_step,
            "kind": kind,
            "directory": str(directory),
        }
        # Beside a buffer that fills the page cache, the floor's file would push it out.
        floor_fits = needs.memory + needs.disk + frames * FRAME_BYTES < 0.9 * total_memory()
        free = shutil.disk_usage(self.options.workdir).free
        if run["version"] is None:
            outcome: dict[str, Any] = {"failed": "not installed"}
        elif (disk := needs.disk + needs.saved * saves) > free:
            outcome = {
                "failed": f"does not fit: needs {disk / 1e9:.1f} GB of disk, "
                f"{free / 1e9:.1f} GB are free"
            }
        else:
            outcome = self._work(
                "contender",
                {
                    "name": contender.name,
                    "setup": setup_json,
                    "stream": str(self.stream.directory),
                    "floor_file": str(floor_file) if floor_fits else None,
                    "calls": self.options.calls,
                    "budget_s": self.options.budget_s,
                    "checkpoint": str(checkpoint) if saves else None,
                },
            )
        if "seconds" in outcome.get("save", {}):
            shutil.rmtree(directory, ignore_errors=True)
            outcome["first_batch"] = self._first_batch(contender.name, setup_json, checkpoint)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(checkpoint, ignore_errors=True)
        self._keep("runs", run | outcome, append=True)

    def _first_batch(self, name: str, setup: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        """The whole wall clock of a fresh process; the first run only warms the caches."""
        for warm in (False, True):
            shutil.rmtree(setup["directory"], ignore_errors=True)
            begin = perf_counter()
            outcome = self._work(
                "first_batch", {"name": name, "setup": setup, "checkpoint": str(checkpoint)}
            )
            outcome["process_s"] = perf_counter() - begin
            if "failed" in outcome or (not warm and outcome["process_s"] > 60):
                break
        return outcome

    def _work(self, task: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The worker's result, or ``{"failed": why}``."""
        result = self.options.workdir / "result.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, str(WORKER), task]
        log = self.options.workdir / "worker.log"
        with log.open("w+") as output:
            try:
                code = subprocess.run(
                    [*command, json.dumps(arguments | {"result": str(result)})],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=self.options.timeout_s,
                    env=self._environment(),
                ).returncode
            except subprocess.TimeoutExpired:
                return {"failed": f"took longer than {self.options.timeout_s:.0f} s"}
        if result.exists():
            return json.loads(result.read_text())
        return {"failed": _reason(log.read_text(), code)}

    def _environment(self) -> dict[str, str]:
        """One BLAS thread: the learner's step is one core's work; the rest is as users have it."""
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": str(self.options.workdir),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all modules
        return environment

    def _fresh(self, name: str) -> Path:
        path = self.options.workdir / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def _keep(self, key: str, figures: Any, append: bool = False) -> None:
        if append:
            self.results.setdefault(key, []).append(figures)
        else:
            self.results[key] = figures
        if isinstance(figures, dict) and "failed" in figures:
            self.say(f"  {figures['failed']}")
        self.save(self.results)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "source" if is_ours(distribution) else None


def _reason(log: str, code: int) -> str:
    """Why a worker ended, in one line: its last exception, or the signal that ended it."""
    if code < 0:
        return f"ended by signal {-code}"
    errors = re.findall(r"^[\w.]*(?:Error|Exception|NotFound)\b.*", log, re.MULTILINE)
    reason = errors[-1] if errors else f"ended with status {code}"
    return reason.removeprefix("MemoryError: ")
