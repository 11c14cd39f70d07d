"""Draws the README's figure: ``python tools/bench/plot.py RESULTS.json... OUT.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # after the backend is chosen

OURS, THEIRS = "#2a6f97", "#b8b8b8"
MOST = 100  # longer bars, compared with the shortest, leave nothing of the others


def prioritized(results: list[dict]) -> dict[int, list[dict]]:
    """The prioritized runs of the lowest n-step, by number of frames."""
    runs = [run for result in results for run in result["runs"] if run["kind"] == "prioritized"]
    runs = [run for run in runs if run.get("samples")]
    lowest = min(run["n_step"] for run in runs)
    sizes = sorted({run["frames"] for run in runs})
    return {n: [r for r in runs if r["frames"] == n and r["n_step"] == lowest] for n in sizes}


def bars(axes: plt.Axes, runs: list[dict], value, title: str) -> None:
    runs = sorted(runs, key=value)
    names = [run["contender"] for run in runs]
    colours = [OURS if name.startswith("diskreplay") else THEIRS for name in names]
    values = [value(run) for run in runs]
    end = max(v for v in values if v <= MOST * values[0])
    drawn = axes.barh(names, [min(v, end) for v in values], color=colours)
    labels = [f"{v:,.0f}" + " (cut)" * (v > end) for v in values]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.2)


def main() -> None:
    *sources, target = sys.argv[1:]
    by_size = prioritized([json.loads(Path(source).read_text()) for source in sources])
    figure, rows = plt.subplots(len(by_size), 2, figsize=(11, 2.6 * len(by_size)), squeeze=False)
    for (left, right), (frames, runs) in zip(rows, by_size.items(), strict=True):
        bars(
            left, runs, lambda run: run["samples"]["sample"]["median"],
            f"{frames:,} frames: prioritized sample of 32, us (median)",
        )  # fmt: skip
        bars(
            right, runs, lambda run: run["memory"]["anonymous"] / 1e6,
            f"{frames:,} frames: anonymous memory, MB",
        )  # fmt: skip
    figure.tight_layout(w_pad=2)
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
