"""What diskreplay set out to reach, and whether these results do.  A report, not an assertion.

Every bound is judged at the largest size that was measured, "at both sizes" at every size.
Comparisons with peers use each one's ratio to the mapped floor measured beside it in the same
process, where there is one, since the machine's speed drifts over a long run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from contender import PRIORITIZED, UNIFORM
from registry import is_ours
from stream import FRAME_BYTES

RAW = "diskreplay raw"
LZ4 = "diskreplay lz4"
OUT = "sample out="
PLAIN = "sample"
MIB = 2**20


@dataclass(frozen=True)
class Verdict:
    """`reached` is None where a figure is missing."""

    what: str
    reach: str
    figure: str
    reached: bool | None


def judge(results: dict[str, Any]) -> list[Verdict]:
    runs = [run for run in results.get("runs", ()) if "failed" not in run]
    if not runs:
        return list(_imports(results))
    largest = max(run["frames"] for run in runs)
    at_largest = [run for run in runs if run["frames"] == largest]
    return [
        *_floor_ratio(at_largest, RAW, PRIORITIZED, 1.4),
        *_against_peers(runs, RAW, lambda run: True, "every peer"),
        *_floor_ratio(at_largest, LZ4, PRIORITIZED, 3.2),
        *_against_peers(
            runs,
            LZ4,
            lambda run: run["contender"] in ("Tianshou", "flashbax"),
            "Tianshou, flashbax",
        ),
        *_prefetch(at_largest),
        *_floor_ratio(at_largest, RAW, UNIFORM, 1.25),
        *_updates(at_largest),
        *_adds(at_largest, results),
        *_saves(at_largest, runs),
        *_storage(at_largest),
        *_imports(results),
    ]


def _floor_ratio(runs: list[dict], name: str, kind: str, bound: float) -> Iterator[Verdict]:
    """Like with like: the floor reuses its output, so the sample does; the plain one is shown."""
    for run in _of(runs, name, kind):
        ratio = run["samples"][OUT]["ratio"]
        plain = run["samples"][PLAIN]["ratio"]
        figure = "no floor beside it"
        if ratio:
            figure = f"{ratio:.2f} x with out= ({plain:.2f} x with new arrays)"
        yield Verdict(
            f"{kind} sample, {name}, n-step {run['n_step']}",
            f"at most {bound} x the mapped floor",
            figure,
            ratio and ratio <= bound,
        )


def _against_peers(runs: list[dict], name: str, is_rival: Any, rivals: str) -> Iterator[Verdict]:
    for run in _of(runs, name, PRIORITIZED):
        peers = [
            peer
            for peer in runs
            if not is_ours(peer["contender"])
            and is_rival(peer)
            and (peer["frames"], peer["n_step"], peer["kind"])
            == (run["frames"], run["n_step"], run["kind"])
        ]
        what = f"prioritized sample, {name}, {run['frames']:,} frames, n-step {run['n_step']}"
        if not peers:
            yield Verdict(what, f"no slower than {rivals}", "no peer measured", None)
            continue
        speeds = [(*_comparable(run, peer), peer["contender"]) for peer in peers]
        ours, theirs, peer = max(speeds, key=lambda speed: speed[0] / speed[1])
        yield Verdict(
            what, f"no slower than {rivals}", f"{ours:.2f}, {peer} {theirs:.2f}", ours <= theirs
        )


def _comparable(run: dict, peer: dict) -> tuple[float, float]:
    ours, theirs = run["samples"][PLAIN], peer["samples"][PLAIN]
    if ours["ratio"] and theirs["ratio"]:
        return ours["ratio"], theirs["ratio"]
    return ours["median"], theirs["median"]


def _prefetch(runs: list[dict]) -> Iterator[Verdict]:
    for run in runs:
        prefetch = run.get("extras", {}).get("prefetch")
        if prefetch is None:
            continue
        what = f"prefetch, {run['contender']}, n-step {run['n_step']}"
        wait, slower = prefetch["wait"], prefetch["slowdown_median"]
        yield Verdict(
            f"{what}: wait",
            "at most 30 us a batch",
            f"mean {wait['mean']:.1f} us (median {wait['median']:.1f})",
            wait["mean"] <= 30,
        )
        yield Verdict(
            f"{what}: the learner's step",
            "slowed by less than 10 %",
            f"{slower:+.1%} (mean {prefetch['slowdown_mean']:+.1%})",
            slower < 0.1,
        )


def _updates(runs: list[dict]) -> Iterator[Verdict]:
    peer = _fastest_peer(runs, lambda run: run.get("update", {}).get("median"))
    for name in (RAW, LZ4):
        for run in _of(runs, name, PRIORITIZED):
            ours = run["update"]["median"]
            yield Verdict(
                f"update_priorities(32), {name}, n-step {run['n_step']}",
                "no slower than the fastest peer",
                f"{ours:.1f} us, {_name(peer, 'us')}",
                peer and ours <= peer[0],
            )


def _adds(runs: list[dict], results: dict[str, Any]) -> Iterator[Verdict]:
    prioritized = [run for run in runs if run["kind"] == PRIORITIZED]
    peer = _fastest_peer(prioritized, lambda run: run["add"]["us_a_step"])
    for name in (RAW, LZ4):
        for run in _of(runs, name, PRIORITIZED):
            ours = run["add"]["us_a_step"]
            yield Verdict(
                f"add, one step, {name}, n-step {run['n_step']}",
                "at most a quarter of the fastest peer's",
                f"{ours:.1f} us (CPU, all threads: {run['add']['cpu_us_a_step']:.1f}), "
                f"{_name(peer, 'us')}",
                peer and ours <= peer[0] / 4,
            )
    vector = [run for run in results.get("vector_add", ()) if "failed" not in run]
    for run in vector:
        if run["frames"] == max(run["frames"] for run in vector) and run["compressor"] == "auto":
            yield Verdict(
                "add, 256 steps a call, lz4",
                "at most 2 us a step",
                f"{run['us_a_step']:.2f} us (with the final flush {run['us_a_step_flushed']:.2f})",
                run["us_a_step"] <= 2,
            )


def _saves(runs: list[dict], all_runs: list[dict]) -> Iterator[Verdict]:
    def seconds(run: dict) -> float | None:
        return run.get("save", {}).get("seconds")

    for name in (RAW, LZ4):
        for run in _of(runs, name, PRIORITIZED):
            ours = seconds(run)
            if ours is None:
                continue
            new = run["save"]["new_bytes"]
            yield Verdict(
                f"save, {name}",
                "under 0.25 s and 64 MiB of new bytes",
                f"{ours:.3f} s, {new / MIB:.1f} MiB",
                ours < 0.25 and new < 64 * MIB,
            )
            peer = _fastest_peer(runs, seconds) or _fastest_peer(all_runs, seconds)
            yield Verdict(
                f"save, {name}, beside peers",
                "at most a tenth of the fastest peer's time",
                f"{ours:.3f} s, {_name(peer, 's')}",
                peer and ours <= peer[0] / 10,
            )
            first = run.get("first_batch", {}).get("process_s")
            yield Verdict(
                f"fresh process to first batch, {name}",
                "under a second",
                f"{first:.2f} s" if first else "not measured",
                first and first < 1,
            )


def _storage(runs: list[dict]) -> Iterator[Verdict]:
    for name in (RAW, LZ4):
        for run in _of(runs, name, PRIORITIZED)[:1]:
            anonymous = max(run["memory"]["anonymous"], run["memory_filled"]["anonymous"])
            yield Verdict(
                f"anonymous memory, {name}",
                "under 250 MB",
                f"{anonymous / 1e6:.0f} MB",
                anonymous < 250e6,
            )
    for run in _of(runs, LZ4, PRIORITIZED)[:1]:
        ratio = run["frames"] * FRAME_BYTES / run["disk_bytes"]
        frames_alone = run["extras"]["statistics"]["observation_ratio"]
        yield Verdict(
            "disk, lz4, five games mixed",
            "at least 15 x smaller than raw",
            f"{ratio:.1f} x (whole store; the frames alone {frames_alone:.1f} x)",
            ratio >= 15,
        )


def _imports(results: dict[str, Any]) -> Iterator[Verdict]:
    imports = results.get("imports", {})
    if "ratio" in imports:
        loaded = ", ".join(imports["loaded"]) or "none of them"
        yield Verdict(
            "import diskreplay",
            "no Numba, pandas, matplotlib, torch; 1.5 x of numpy, zarr, gymnasium",
            f"{loaded}; {imports['ratio']:.2f} x",
            not imports["loaded"] and imports["ratio"] <= 1.5,
        )


def _of(runs: list[dict], name: str, kind: str) -> list[dict]:
    return [run for run in runs if (run["contender"], run["kind"]) == (name, kind)]


def _fastest_peer(runs: list[dict], figure: Any) -> tuple[float, str, int] | None:
    measured = [
        (figure(run), run["contender"], run["frames"])
        for run in runs
        if not is_ours(run["contender"]) and figure(run) is not None
    ]
    return min(measured, default=None)


def _name(peer: tuple[float, str, int] | None, unit: str) -> str:
    return f"{peer[1]} {peer[0]:.3g} {unit} at {peer[2]:,} frames" if peer else "no peer measured"
