"""The results as plain tables of text, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from contender import PRIORITIZED, UNIFORM
from stream import FRAME_BYTES
from targets import judge

Results = dict[str, Any]


@dataclass
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)


def all_tables(results: Results) -> Iterator[Table]:
    sizes = sorted({run["frames"] for run in results.get("runs", ())})
    for frames in sizes:
        for n_step in sorted({run["n_step"] for run in _runs(results, frames=frames)}):
            yield sampling_table(results, frames, n_step)
        yield storage_table(results, frames)
    if results.get("floors"):
        yield floors_table(results)
    yield from (
        table
        for table in (
            prefetch_table(results),
            vector_table(results),
            facades_table(results),
            looking_table(results),
            imports_table(results),
            targets_table(results),
            failures_table(results),
        )
        if table.rows
    )


def sampling_table(results: Results, frames: int, n_step: int) -> Table:
    """A row for each way to sample; add and update are those of the prioritized buffer."""
    table = Table(
        f"{frames:,} frames, n-step {n_step}: microseconds",
        (
            "",
            "add a step",
            "sample 32, prioritized",
            "p99",
            "x floor",
            "sample 32, uniform",
            "p99",
            "x floor",
            "update 32",
        ),
    )
    runs = _runs(results, frames=frames, n_step=n_step)
    for name in dict.fromkeys(run["contender"] for run in runs):
        by_kind = {run["kind"]: run for run in runs if run["contender"] == name}
        prioritized, uniform = by_kind.get(PRIORITIZED, {}), by_kind.get(UNIFORM, {})
        for sampler in _samplers(by_kind.values()):
            first = sampler == "sample"
            table.rows.append(
                (
                    name if first else f"{name}, {sampler.removeprefix('sample ')}",
                    _us((prioritized or uniform).get("add", {}).get("us_a_step")) if first else "",
                    *_sample_cells(prioritized, sampler),
                    *_sample_cells(uniform, sampler),
                    _us(prioritized.get("update", {}).get("median")) if first else "",
                )
            )
    return table


def storage_table(results: Results, frames: int) -> Table:
    table = Table(
        f"{frames:,} frames: memory, disk, saving, resuming",
        (
            "",
            "anonymous MB",
            "file-backed MB",
            "on disk MB",
            "raw frames / disk",
            "save s",
            "new MB a save",
            "process to first batch s",
        ),
    )
    raw = frames * FRAME_BYTES
    for run in _runs(results, frames=frames):
        if "memory" not in run or "save" not in run:
            continue
        save, first = run["save"], run.get("first_batch", {})
        disk = run["disk_bytes"]
        table.rows.append(
            (
                run["contender"],
                _mb(max(run["memory"]["anonymous"], run["memory_filled"]["anonymous"])),
                _mb(run["memory"]["file_backed"]),
                _mb(disk) if disk else "-",
                f"{raw / disk:.1f}" if disk else "-",
                f"{save['seconds']:.3f}" if "seconds" in save else "failed",
                _mb(save.get("new_bytes")),
                f"{first['process_s']:.2f}" if "import_s" in first else "-",
            )
        )
    return table


def floors_table(results: Results) -> Table:
    table = Table(
        "The floors: np.take of 32 windows, microseconds", ("frames", "floor", "median", "p99")
    )
    for floors in results["floors"]:
        for name, timing in floors.items():
            if isinstance(timing, dict):
                frames = f"{floors['frames']:,}"
                table.rows.append((frames, name, _us(timing["median"]), _us(timing["p99"])))
    return table


def prefetch_table(results: Results) -> Table:
    table = Table(
        "diskreplay, prefetch(depth=2) beside a learner's step of 1 ms: microseconds",
        (
            "frames",
            "n-step",
            "",
            "wait median",
            "mean",
            "p99",
            "step alone",
            "step beside",
            "slower, median",
            "mean",
        ),
    )
    for run in results.get("runs", ()):
        prefetch = run.get("extras", {}).get("prefetch")
        if prefetch:
            wait = prefetch["wait"]
            table.rows.append(
                (
                    f"{run['frames']:,}",
                    str(run["n_step"]),
                    run["contender"],
                    _us(wait["median"]),
                    _us(wait["mean"]),
                    _us(wait["p99"]),
                    _us(prefetch["alone"]["median"]),
                    _us(prefetch["step"]["median"]),
                    f"{prefetch['slowdown_median']:+.1%}",
                    f"{prefetch['slowdown_mean']:+.1%}",
                )
            )
    return table


def vector_table(results: Results) -> Table:
    table = Table(
        "diskreplay, adding 256 environments a call: microseconds a step of one environment",
        ("frames", "compressor", "add", "with the final flush", "CPU, all threads", "longest call"),
    )
    for run in results.get("vector_add", ()):
        if "failed" not in run:
            table.rows.append(
                (
                    f"{run['frames']:,}",
                    run["compressor"],
                    _us(run["us_a_step"]),
                    _us(run["us_a_step_flushed"]),
                    _us(run["cpu_us_a_step"]),
                    _us(run["call_max_us"]),
                )
            )
    return table


def facades_table(results: Results) -> Table:
    """Each API beside the engine it sits on, and its original where that installs."""
    table = Table(
        "The older APIs: microseconds, and how often the engine's own",
        ("frames", "", "add", "x engine", "x original", "sample 32", "x engine", "x original"),
    )
    for run in results.get("facades", ()):
        for name, figures in run.items():
            if not isinstance(figures, dict) or "sample" not in figures:
                continue
            add, sample = figures["add_us"], figures["sample"]["median"]
            beside = [run.get(figures[key], {}) for key in ("engine", "rival")]
            table.rows.append(
                (
                    f"{run['frames']:,}",
                    name,
                    _us(add),
                    *(_times(add, other.get("add_us")) for other in beside),
                    _us(sample),
                    *(_times(sample, other.get("sample", {}).get("median")) for other in beside),
                )
            )
    return table


def looking_table(results: Results) -> Table:
    """What the commands and exports take, lz4 frames."""
    table = Table("diskreplay, looking into a store and exporting it", ("frames", "what", "figure"))
    for run in results.get("looking", ()):
        frames = f"{run['frames']:,}"
        if "info" in run:
            table.rows.append((frames, "info, whole process", f"{run['info']['seconds']:.2f} s"))
        if "to_pandas" in run:
            rate = run["to_pandas"]["rows_a_second"]
            table.rows.append((frames, "to_pandas, no observations", f"{rate / 1e6:.2f} M rows/s"))
        for name, what in (
            ("parquet", "to_parquet with frames as bytes"),
            ("pictures", "iter_frames with frames as PNGs"),
        ):
            if name in run:
                seconds, peak = run[name]["seconds"], _mb(run[name]["peak_anonymous"])
                rows = f" ({run[name]['rows']:,} rows)" if "rows" in run[name] else ""
                table.rows.append((frames, what, f"{seconds:.1f} s{rows}, {peak} MB anonymous"))
        if "verify" in run:
            rate = run["verify"]["bytes_a_second"] / 1e9
            size = _mb(run["verify"]["bytes"])
            table.rows.append((frames, "verify", f"{rate:.2f} GB/s of {size} MB on disk"))
    return table


def imports_table(results: Results) -> Table:
    table = Table("Import, whole process", ("statement", "seconds", "ratio", "heavy modules"))
    imports = results.get("imports", {})
    if "ratio" in imports:
        table.rows = [
            ("import numpy, zarr, gymnasium", f"{imports['allowed_s']:.3f}", "1", ""),
            (
                "import diskreplay",
                f"{imports['diskreplay_s']:.3f}",
                f"{imports['ratio']:.2f}",
                ", ".join(imports["loaded"]) or "none",
            ),
        ]
    return table


def targets_table(results: Results) -> Table:
    table = Table("What it must reach", ("what", "reach", "figure", ""))
    for verdict in judge(results):
        mark = {True: "reached", False: "MISSED", None: "not measured"}[verdict.reached]
        table.rows.append((verdict.what, verdict.reach, verdict.figure, mark))
    return table


def failures_table(results: Results) -> Table:
    table = Table("Not measured", ("", "frames", "n-step", "kind", "why"))
    for run in results.get("runs", ()):
        for part in (run, run.get("save", {}), run.get("first_batch", {})):
            if "failed" in part:
                table.rows.append(
                    (
                        run["contender"],
                        f"{run['frames']:,}",
                        str(run["n_step"]),
                        run["kind"] if part is run else "saving, loading",
                        part["failed"],
                    )
                )
    for key in ("imports", "floors", "vector_add"):
        parts = results.get(key, [])
        for part in [parts] if isinstance(parts, dict) else parts:
            if "failed" in part:
                table.rows.append((key, f"{part.get('frames', '')}", "", "", part["failed"]))
    return table


def measured_notes(results: Results) -> dict[str, str]:
    """The notes of those contenders that were measured, and their versions."""
    notes = {}
    for run in results.get("runs", ()):
        if run["contender"] not in notes and "failed" not in run:
            note = results["notes"][run["contender"]]
            notes[run["contender"]] = f"{run['version']}. {note}"
    return notes


def _runs(results: Results, **wanted: Any) -> list[dict[str, Any]]:
    runs = results.get("runs", ())
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def _samplers(runs: Any) -> list[str]:
    names = [name for run in runs for name in run.get("samples", {})]
    return list(dict.fromkeys(names)) or ["sample"]


def _sample_cells(run: dict[str, Any], sampler: str) -> tuple[str, str, str]:
    if "failed" in run:
        return "failed", "", ""
    timing = run.get("samples", {}).get(sampler)
    if timing is None:
        return "-", "", ""
    ratio = timing["ratio"]
    return _us(timing["median"]), _us(timing["p99"]), f"{ratio:.2f}" if ratio else "-"


def _times(figure: float, other: float | None) -> str:
    return f"{figure / other:.2f}" if other else ""


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _mb(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.0f}"
