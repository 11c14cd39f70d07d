"""Goes round a ring for long, and looks whether anything grows."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay

_SAMPLES = 60
_BATCHES = 50
WATCHED = {
    # name: (unit, most that it may grow from the first full ring on, as a share and absolutely)
    "anonymous_mib": ("MiB", 0.05, 16.0),
    "files": ("files", 0.02, 8.0),
    "open_files": ("descriptors", 0.0, 1.0),
    "mappings": ("mappings", 0.05, 24.0),
    "disk_mib": ("MiB", 0.05, 8.0),
    "save_ms": ("ms", 0.5, 50.0),
    "batch_us": ("us", 0.5, 100.0),
}


def run(
    *,
    rows: int = 1_000_000,
    envs: int = 16,
    frames: int = 100_000,
    capacity: int | None = None,
    directory: Path | None = None,
    plot: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Record `rows` of `envs` low-dimensional envs, then `frames` of one env with frames.

    Parameters
    ----------
    capacity : int, optional
        Of the ring; a million, or a tenth of what is recorded if that is less.
    plot : Path, optional
        A PNG of what was sampled on the way.

    Returns
    -------
    dict
        For each of the two runs its series, the growth of each from the first full ring on, and
        ``failures``.
    """
    figures: dict[str, Any] = {"failures": []}
    for name, total, recorder, num_envs in (
        ("rows", rows, _LowDimensional, envs), ("frames", frames, _Frames, 1)
    ):  # fmt: skip
        if not total:
            continue
        keeps = capacity or min(1_000_000, max(total // 10, 2000))
        with tempfile.TemporaryDirectory(prefix="torture-", dir=directory) as base:
            figures[name] = _endure(Path(base), recorder, num_envs, total, keeps, say)
        figures["failures"] += [
            f"{name}: {what} grew by {found['growth']:.3g} {found['unit']} from "
            f"{found['level']:.4g}, {found['allowed']:.3g} allowed"
            for what, found in figures[name]["flatness"].items()
            if not found["flat"]
        ]
    if plot is not None:
        _plot(figures, plot)
    return figures


class _LowDimensional:
    """Steps of some envs, 17 numbers each."""

    options: ClassVar[dict[str, Any]] = {
        "observation_space": Box(-np.inf, np.inf, (17,), "float32"),
        "action_space": Box(-1, 1, (6,), "float32"),
    }

    def __init__(self, buffer: diskreplay.ReplayBuffer) -> None:
        rng, envs = np.random.default_rng(0), buffer.num_envs
        self._buffer, self._call = buffer, 0
        self._observations = rng.normal(size=(64, envs, 17)).astype(np.float32)
        self._actions = rng.uniform(-1, 1, (64, envs, 6)).astype(np.float32)
        self._rewards = rng.normal(size=(64, envs)).astype(np.float32)
        self._never = np.zeros(envs, np.bool_)

    def __call__(self) -> None:
        at = self._call % 64
        truncated = np.arange(len(self._never)) * 61 % 1000 == self._call % 1000
        self._buffer.add(
            self._observations[at], self._actions[at], self._rewards[at], self._never, truncated,
            self._observations[at - 1],
        )  # fmt: skip
        self._call += 1


class _Frames:
    """Frames of one env that move and pack as those of a game do."""

    options: ClassVar[dict[str, Any]] = {
        "observation_space": Box(0, 255, (84, 84), "uint8"),
        "action_space": Discrete(6),
        "stack_size": 4,
        "update_horizon": 3,
    }

    def __init__(self, buffer: diskreplay.ReplayBuffer) -> None:
        self._buffer, self._call = buffer, 0
        self._screen = np.full((84, 84), 87, np.uint8)
        self._screen[:14] = np.random.default_rng(0).integers(0, 256, (14, 84))

    def __call__(self) -> None:
        frame, i = self._screen.copy(), self._call
        frame[20 + i % 50 : 24 + i % 50, 5:8] = 236
        frame[20 + i * 7 % 60, i * 5 % 80 : i * 5 % 80 + 3] = i % 256
        self._buffer.add(frame, i % 6, float(i % 3), i % 1009 == 0, False)
        self._call += 1


def _endure(
    base: Path, recorder: type, envs: int, total: int, capacity: int, say: Callable[[str], None]
) -> dict[str, Any]:
    series: dict[str, list[float]] = {name: [] for name in ("recorded", "seconds", *WATCHED)}
    began = time.monotonic()
    path = base / "store"
    with diskreplay.PrioritizedReplayBuffer(
        path, capacity=capacity, num_envs=envs, seed=0, **recorder.options
    ) as buffer:
        record = recorder(buffer)
        recorded = 0
        for sample in range(1, _SAMPLES + 1):
            while recorded < total * sample // _SAMPLES:
                record()
                recorded += envs
            started = time.perf_counter()
            buffer.save(base / "checkpoints", sample)
            saved = time.perf_counter()
            for _ in range(_BATCHES):
                batch = buffer.sample(32)
                buffer.update_priorities(batch.id, np.abs(batch.reward) + 0.1)
            sampled = time.perf_counter()
            for name, value in {
                "recorded": recorded,
                "seconds": time.monotonic() - began,
                "save_ms": 1000 * (saved - started),
                "batch_us": 1e6 * (sampled - saved) / _BATCHES,
                **_looked_at(path),
            }.items():
                series[name].append(value)
            if sample % 10 == 0:
                say(f"{recorded:,} rows, {series['anonymous_mib'][-1]:.0f} MiB")
    return {
        "recorded": recorded,
        "capacity": capacity,
        "rounds": recorded / capacity,
        "seconds": time.monotonic() - began,
        "flatness": _flatness(series, capacity),
        "series": series,
    }


def _looked_at(path: Path) -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    with open("/proc/self/maps") as file:
        mappings = sum(1 for _ in file)
    files = size = 0
    for base, _dirs, names in os.walk(path):
        for name in names:
            try:
                size += os.stat(os.path.join(base, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # sealed or deleted since
            files += 1
    return {
        "anonymous_mib": int(status["RssAnon"].split()[0]) / 1024,
        "open_files": len(os.listdir("/proc/self/fd")),
        "mappings": mappings,
        "files": files,
        "disk_mib": size / 2**20,
    }


def _flatness(series: dict[str, list[float]], capacity: int) -> dict[str, dict[str, Any]]:
    """Growth from the first full ring (and half as much again) to the end, by the slope of
    Theil (1950) and Sen (1968): the median of those between all pairs, which single outliers do
    not move."""
    at = np.array(series["recorded"], float)
    full = at >= 1.5 * capacity
    found = {}
    for name, (unit, share, absolute) in WATCHED.items():
        x, y = at[full], np.array(series[name], float)[full]
        if len(x) < 8:
            continue
        level, growth = growth_of(x, y)
        allowed = max(share * level, absolute)
        found[name] = {
            "unit": unit, "level": level, "growth": growth, "allowed": allowed,
            "flat": bool(growth <= allowed),
        }  # fmt: skip
    return found


def growth_of(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The median of `y`, and how much it grew."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    low, high = np.triu_indices(len(x), 1)
    slope = np.median((y[high] - y[low]) / (x[high] - x[low]))
    return float(np.median(y)), float(slope * (x[-1] - x[0]))


def _plot(figures: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = [name for name in ("rows", "frames") if name in figures]
    figure, axes = plt.subplots(
        len(WATCHED), len(runs), squeeze=False, figsize=(6 * len(runs), 12), sharex="col",
        layout="constrained",
    )  # fmt: skip
    for column, run_name in zip(axes.T, runs, strict=True):
        found = figures[run_name]
        column[0].set_title(f"{found['recorded']:,} {run_name} through {found['capacity']:,}")
        for axis, (name, (unit, *_)) in zip(column, WATCHED.items(), strict=True):
            axis.plot(found["series"]["recorded"], found["series"][name], linewidth=1)
            axis.set_ylim(bottom=0)
            axis.set_ylabel(f"{name.rpartition('_')[0] or name}, {unit}")
        column[-1].set_xlabel("rows recorded")
    figure.savefig(path, dpi=110)
    plt.close(figure)
