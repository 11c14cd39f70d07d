"""The power goes out while a command replaces what is there: the old is there, or the new one.

Exports and new stores of other sizes, in images of file systems as in `blackout`. What a command
leaves is imported again, so it is compared row by row and not by its bytes.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import blackout
import crew
import numpy as np
from gymnasium.spaces import Box, Discrete
from workload import Promise

import diskreplay
from diskreplay.cli.app import main

ROWS = 300
# What is called with a store, and what reads the result, if that is no store. Not CSV: a table may
# be left without its description, as `to_csv` says.
COMMANDS: dict[str, tuple[list[str], list[str] | None]] = {
    "parquet": (["export", "--out", "out.parquet"], ["import", "out.parquet"]),
    "npz": (["export", "--out", "out.npz"], ["import", "out.npz"]),
    "parts": (
        ["export", "--out", "out", "--format", "parquet", "--partition", "episodes",
         "--episodes-per-file", "2"],
        ["import", "out"],
    ),
    "dopamine": (
        ["export", "--out", "out", "--format", "dopamine", "--suffix", "7"],
        ["import", "out", "--suffix", "7"],
    ),
    "convert": (["convert", "--out", "out", "--compressor", "zstd"], None),
    "trim": (["trim", "--out", "out", "--capacity", "200"], None),
    "merge": (["merge", "--out", "out"], None),
}  # fmt: skip


def run(
    *,
    commands: list[str] | None = None,
    file_systems: list[str] | None = None,
    rounds: int = 4,
    cuts: int = 10,
    seed: int = 0,
    workers: int = 2,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Cut the power so often in each of so many rounds, of each command on each file system.

    Returns
    -------
    dict
        ``cuts``, how many ``old`` and ``new`` results were found, and ``failures``.
    """
    totals: Counter = Counter()
    failures = []
    jobs = [
        (command, name, cuts, seed + its)
        for its in range(rounds)
        for command in commands or COMMANDS
        for name in file_systems or blackout.usable()
    ]
    for outcome in crew.run(_round, jobs, workers=workers, limit_s=600.0):
        command, name, _cuts, its = outcome.job
        what = f"{command} on {name}, seed {its}"
        found, wrong = (Counter(), [outcome.trouble]) if outcome.trouble else outcome.value
        totals += found
        failures += [f"{what}: {one}" for one in wrong]
        say(f"{what}: {dict(found)}, {len(wrong)} failures")
    return {**totals, "failures": failures}


def _round(job: tuple[str, str, int, int]) -> tuple[Counter, list[str]]:
    command, name, cuts, seed = job
    file_system, chance = blackout.FILE_SYSTEMS[name], random.Random(seed)
    found, wrong = Counter(), []
    blackout.mount_for_oneself()
    with tempfile.TemporaryDirectory(prefix="torture-", dir=crew.MEMORY) as directory:
        base = Path(directory)
        for number in (1, 2):
            _make_store(base / str(number), number)
        image = blackout.make(file_system, base / "image")
        with blackout.mounted(image, base / "at", file_system) as root:
            _call(command, root, base / "1")
            old = _result(command, root)
            os.sync()
            power = blackout.Power(root, image, cuts, chance, each=chance.choice((3, 6, 12)))
            with power:
                power.promised(Promise("amid", ()))
                _call(command, root, base / "2")
                power.cut("the end", Promise("done", ()))
            new = _result(command, root)
        assert old != new
        for copy, where, promise in power.copies:
            with blackout.mounted(copy, base / "at", file_system) as root:
                try:
                    result = _result(command, root)
                except BaseException as error:
                    result = f"{type(error).__name__}: {error}"
            copy.unlink()
            found["cuts"] += 1
            if result == new:
                found["new"] += 1
            elif result == old and promise.step == "amid":
                found["old"] += 1
            else:
                wrong.append(f"{where}: {result if isinstance(result, str) else 'other rows'}")
    return found, wrong


def _make_store(path: Path, number: int) -> None:
    frames = np.random.default_rng(number).integers(0, 255, (ROWS + 1, 12, 12), np.uint8)
    with diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (12, 12), "uint8"), action_space=Discrete(4),
        capacity=400, seed=number,
    ) as buffer:  # fmt: skip
        for row in range(ROWS):
            ends = row % 50 == 49
            following = frames[row + 1] if ends else None
            buffer.add(frames[row], row % 4, float(1000 * number + row), ends, False, following)


def _call(command: str, root: Path, store: Path) -> None:
    first, *options = COMMANDS[command][0]
    _main(root, [first, str(store), *options, "--force"])


def _result(command: str, root: Path) -> list[float]:
    """The rewards of what a command has left: each of them is of one store and row."""
    reading = COMMANDS[command][1]
    with tempfile.TemporaryDirectory(dir=crew.MEMORY) as directory:
        path = root / "out"
        if reading is not None:
            path = Path(directory) / "store"
            _main(root, [*reading, "--out", str(path)])
        with diskreplay.open(path) as buffer:
            found = buffer.take("reward", np.arange(*buffer.bounds[0])).tolist()
        del buffer
        return found


def _main(root: Path, arguments: list[str]) -> None:
    """Run the command line here. `SystemExit`, with what it said, if it failed."""
    said = io.StringIO()
    with (
        contextlib.chdir(root),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        mock.patch.object(sys, "argv", ["diskreplay", *arguments]),
    ):
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise SystemExit(f"{ended.code}: {said.getvalue()}") from None
