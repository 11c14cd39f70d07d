"""Leaves a Ray cluster with shards, writers and a learner alone for long, and looks whether any
process, Ray's object store or the disk grows."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shards
from endurance import growth_of
from loopback_cluster import LoopbackCluster

_SAMPLES = 60
_FROM = 0.2  # of the time: until then caches fill, and the ring
_ALLOWED = {"MiB": (0.05, 16.0), "descriptors": (0.05, 8.0), "processes": (0.0, 1.0)}
_KINDS = {
    "shards": r"ray::Shard", "coordinator": r"ray::Coordinator", "raylets": r"/raylet\b",
    "gcs": r"gcs_server", "learner": r"shard_learner\.py", "other": r"",
}  # fmt: skip
_FIRST_OF = (("MiB", "memory"), ("descriptors", "descriptors"), ("processes", "number"))


def run(
    *,
    seconds: float = 600.0,
    transport: str = "call",
    capacity: int = 16_000,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Let four writers add round and round a ring, and a learner draw, set priorities and save.

    Parameters
    ----------
    seconds : float
    transport : {"call", "graph"}
        Of the learner.
    capacity : int
        Rows of the ring.

    Returns
    -------
    dict
        ``added`` steps, ``batches``, ``flatness`` of each thing that was watched: its level, the
        growth from a fifth of the time on, and what is allowed; ``series``; ``failures``.
    """
    figures = shards.Figures(None)
    with shards.ray_and_room(directory) as (cluster, base):
        with shards.Round(
            cluster, base / "round", f"growth-{transport}", figures, transport, capacity
        ) as one:
            found = _watch(cluster, one, seconds, say)
    found["failures"] = figures.failures + [
        f"{what} grew by {one['growth']:.3g} {one['unit']} from {one['level']:.4g}, "
        f"{one['allowed']:.3g} allowed"
        for what, one in found["flatness"].items() if not one["flat"]
    ]  # fmt: skip
    return found


def _watch(
    cluster: LoopbackCluster, one: shards.Round, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    one.settle()
    series: dict[str, list[float]] = defaultdict(list)
    units: dict[str, str] = {}
    began = time.monotonic()
    for sample in range(_SAMPLES):
        time.sleep(max(0.0, began + seconds * (sample + 1) / _SAMPLES - time.monotonic()))
        one.check()
        series["seconds"].append(time.monotonic() - began)
        looked = _looked_at({*cluster.processes(), one.learner, os.getpid()})
        looked["MiB", "Ray's object store"] = _store_mib(cluster.address)
        looked["MiB", "disk"] = _disk_mib(one.directory)
        for (unit, name), value in looked.items():
            series[name].append(value)
            units[name] = unit
        if sample % 10 == 9:
            store = series["Ray's object store"][-1]
            say(f"{series['seconds'][-1]:.0f} s, {one.batches} batches, {store:.1f} MiB in Ray")
    flatness = {}
    at = series["seconds"]
    start = next(i for i, when in enumerate(at) if when >= _FROM * seconds)
    for name, unit in units.items():
        if len(series[name]) == len(at):  # it was there all the time
            level, growth = growth_of(at[start:], series[name][start:])
            share, absolute = _ALLOWED[unit]
            allowed = max(share * level, absolute)
            flatness[name] = {
                "unit": unit, "level": level, "growth": growth, "allowed": allowed,
                "flat": growth <= allowed,
            }  # fmt: skip
    return {
        "seconds": seconds, "added": one.added, "batches": one.batches, "saved": one.saved,
        "flatness": flatness, "series": dict(series),
    }  # fmt: skip


def _looked_at(pids: set[int]) -> dict[tuple[str, str], float]:
    """Anonymous memory, open files and number of the processes of each kind."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = Path(f"/proc/{pid}/status").read_text()
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has ended
        memory = re.search(r"RssAnon:\s+(\d+)", status)
        if memory is None:
            continue
        kind = next(name for name, pattern in _KINDS.items() if re.search(pattern, command))
        kind = "writers" if pid == os.getpid() else kind
        values = int(memory[1]) / 1024, files, 1
        for (unit, what), value in zip(_FIRST_OF, values, strict=True):
            found[unit, f"{what} of {kind}"] += value
    return dict(found)


def _store_mib(address: str) -> float:
    """What all nodes have in Ray's object store."""
    from ray._private import internal_api

    reply = internal_api.get_memory_info_reply(internal_api.get_state_from_address(address))
    return float(reply.store_stats.object_store_bytes_used / 2**20)


def _disk_mib(directory: Path) -> float:
    size = 0
    for base, _dirs, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(os.path.join(base, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted since
    return size / 2**20
