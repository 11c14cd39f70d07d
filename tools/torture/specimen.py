"""A small store, a checkpoint and files of each other kind, to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import content
import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.convert import gz_checkpoint, npz, parquet

CAPACITY, SEGMENT = 96, 16
SPACES = {
    "observation_space": Box(0, 255, content.FRAME, "uint8"),
    "action_space": Discrete(6),
}
OPTIONS = {
    **SPACES, "capacity": CAPACITY, "stack_size": 2, "update_horizon": 2,
    "extras": content.EXTRAS, "segment_rows": SEGMENT, "seed": 3,
}  # fmt: skip
ROWS, ROWS_OF_A_KILL, _RECORDED = 150, 141, 125
"""Rows that `make` records; what a buffer holds beyond them was never added. Of the store that was
killed the record names fewer: the rest only its commit page counts."""
PARTS = {62: 500, 66: 900, 128: 300}  # rows that begin one, and their steps
LIVE = "is_final/live"  # the private files of a store
MANIFEST = "is_final/saved/manifest.json"  # of a checkpoint


def add(buffer: diskreplay.ReplayBuffer, count: int) -> None:
    """Record rows of one env until there are `count`."""
    first = int(buffer.bounds[0, 1])
    made = content.rows(0, first, count)
    made["step"] = steps(0, count)[first:]
    buffer.extend(made)


def steps(env: int, count: int) -> np.ndarray:
    """What ``step`` is in the rows of a run that was never cut, but for parts of episodes."""
    step, found = 0, []
    for row in range(count):
        step = PARTS.get(row, step)
        found.append(step)
        step = 0 if content.ends(env, row) else step + 1
    return np.array(found, np.int32)


def make(directory: Path) -> dict[str, Path]:
    """Write all specimens; the names of `KINDS` and where each one is."""
    places = {name: directory / name for name in KINDS}
    for compressor in ("lz4", "raw"):
        path = directory / f"store-{compressor}"
        with diskreplay.PrioritizedReplayBuffer(path, **OPTIONS, compressor=compressor) as buffer:
            if compressor == "lz4":
                add(buffer, _RECORDED)
                buffer.flush()
                maintenance = buffer._rows.store.maintenance
                with maintenance.lock:  # no file is renamed meanwhile
                    add(buffer, ROWS_OF_A_KILL)
                    maintenance.run()
                    shutil.copytree(path, places["store-killed"])
            add(buffer, ROWS)
            ids = buffer.sampleable_ids()
            buffer.update_priorities(ids, 1.0 + ids % 7)
            buffer.flush()
            if compressor == "lz4":
                buffer.save(directory / "checkpoint", 1)
                npz.to_npz(buffer, _inside(places["npz"], "rows.npz"))
                parquet.to_parquet(buffer, _inside(places["parquet"], "rows.parquet"))
                gz_checkpoint.write(buffer, places["gz"], 1, flavour="dopamine")
    return places


def _inside(directory: Path, name: str) -> Path:
    directory.mkdir()
    return directory / name


KINDS = ("store-lz4", "store-raw", "store-killed", "checkpoint", "gz", "npz", "parquet")


def warm_up(directory: Path) -> None:
    """Import and compile all that a trial may call, so that a forked one has it."""
    directory.mkdir()
    with diskreplay.PrioritizedReplayBuffer(directory / "warm", **OPTIONS) as buffer:
        add(buffer, 60)
        buffer.sample(4)
        buffer.gather(buffer.sampleable_ids()[:2])
        buffer.flush()
