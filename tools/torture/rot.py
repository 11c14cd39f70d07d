"""Blocks that rot after they were read: each is read once, bytes of it change on the disk, and it
is read again. It comes back right, or not at all."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import content
import numpy as np
import specimen

import diskreplay

_FLIPS = 40


def run(
    *, rounds: int = 100, seed: int = 0, advance: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """So many times: a writer, a reader of its store and one of a checkpoint read all they have,
    some bytes of their packed files change, and they read it again.

    Returns
    -------
    dict
        ``reads`` after the rot, how many were ``refused``, and ``failures``.
    """
    counts: Counter = Counter()
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as base:
        for number in range(rounds):
            rng = random.Random(seed + number)
            place = Path(base) / str(number)
            try:
                counts.update(_one(place, rng))
            except AssertionError as error:
                failures.append({"seed": seed + number, "trouble": str(error)})
            shutil.rmtree(place)
            advance()
    return {"rounds": rounds, **counts, "failures": failures}


def _one(place: Path, rng: random.Random) -> Counter:
    counts: Counter = Counter()
    options = specimen.OPTIONS | {"compressor": rng.choice(("lz4", "zstd"))}
    with diskreplay.PrioritizedReplayBuffer(place / "store", **options) as buffer:
        specimen.add(buffer, specimen.ROWS)
        buffer.flush()
        saved = buffer.save(place / "checkpoints", 1)
        with diskreplay.open(place / "store") as reader, diskreplay.open(saved) as copy:
            everybody = (buffer, reader, copy)
            for one in everybody:
                if wrong := content.wrong(one):
                    raise AssertionError(f"before any rot: {wrong}")
                one.gather(one.sampleable_ids())
            _flip(place, rng)
            for one in everybody:
                counts.update(_read_again(one))
    return counts


def _flip(place: Path, rng: random.Random) -> None:
    """Flip bits of packed files, in place: of memory that is mapped."""
    shards = [path for path in place.rglob("observation/c.*") if path.is_file()]
    for path in rng.sample(shards, max(1, len(shards) // 2)):
        path.chmod(0o644)
        size = path.stat().st_size
        with open(path, "r+b") as file:
            for _ in range(rng.randint(1, _FLIPS)):
                file.seek(at := rng.randrange(size))
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def _read_again(buffer: diskreplay.ReplayBuffer) -> Counter:
    counts: Counter = Counter()
    first, count = buffer.bounds[0].tolist()
    ids = buffer.sampleable_ids()
    for row in range(first, count):
        counts["reads"] += 1
        try:
            frame = buffer.take("observation", [row])[0]
        except diskreplay.CorruptSegmentError:
            counts["refused"] += 1
            continue
        if not np.array_equal(frame, content.frame(0, row)):
            raise AssertionError(f"take: row {row} came back with other bytes")
    for some in np.array_split(ids, 12):
        for call in (lambda s=some: buffer.gather(s), lambda: buffer.sample(8)):
            counts["reads"] += 1
            try:
                batch = call()
            except diskreplay.CorruptSegmentError:
                counts["refused"] += 1
                continue
            for place, row in enumerate(batch.id.tolist()):
                if not np.array_equal(batch.observation[place, -1], content.frame(0, row)):
                    raise AssertionError(f"a batch: row {row} came back with other bytes")
    return counts
