"""A learner of a sharded buffer in a process of its own, to be killed: it samples and updates ahead
of itself, checks every batch, and saves now and then.

    python tools/torture/shard_learner.py ADDRESS NAME BOARD CHECKPOINTS SEED TRANSPORT
"""

from __future__ import annotations

import faulthandler
import sys
import time
from pathlib import Path
from typing import Any

import hashed_steps
import loopback_cluster
import numpy as np

BATCH, AT_ONCE = 64, 4
LONG_S = 5.0
SLOTS = ("batches", "longest_us", "saving", "saved", "not_saved", "stop", "ready", "save_us")
MOST_SHARDS = 16


class Board:
    """Counts that a learner writes and its torturer reads; they outlive both.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        size = len(SLOTS) + MOST_SHARDS
        if not path.exists():
            np.zeros(size, np.int64).tofile(path)
        self._numbers = np.memmap(path, np.int64, "r+")

    def __getitem__(self, name: str) -> int:
        return int(self._numbers[SLOTS.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self._numbers[SLOTS.index(name)] = value

    @property
    def last_of(self) -> np.ndarray:
        """For each shard the last batch that had something of it."""
        return self._numbers[len(SLOTS) :]


def learn(
    address: str, name: str, base: Path, checkpoints: Path, seed: int, transport: Any
) -> None:
    """Until the board says to stop."""
    ray = loopback_cluster.connect(address)
    from diskreplay.errors import ShardsLostError
    from diskreplay.ray import ShardedReplayBuffer
    from diskreplay.ray.sharded_checkpoint import CheckpointDirectory

    board, rng = Board(base / "board"), np.random.default_rng(seed)
    replay = ShardedReplayBuffer.connect(name, seed=seed, transport=transport)
    there = [int(suffix) for suffix in CheckpointDirectory(checkpoints, name).suffixes()]
    number = max([0, *there])
    next_save = time.monotonic() + rng.uniform(0.0, 2.0)
    with replay.prefetch(2, AT_ONCE, BATCH) as batches:
        next(batches)  # of whoever starts, the first one is no wait
        board["ready"] = 1
        while not board["stop"]:
            began = time.monotonic()
            faulthandler.dump_traceback_later(LONG_S)  # into the log: where it waits
            batch = next(batches)
            faulthandler.cancel_dump_traceback_later()
            board["longest_us"] = max(
                board["longest_us"], int(1e6 * (time.monotonic() - began))
            )  # fmt: skip
            if wrong := hashed_steps.wrong_in(batch):
                with open(base / "wrong", "a") as file:
                    print(wrong, file=file)
            replay.update_priorities(batch.id, rng.uniform(0.1, 3.0, BATCH), batch.generation)
            board["batches"] += 1
            board.last_of[np.unique(batch.id >> 48)] = board["batches"]
            time.sleep(0.02)
            if time.monotonic() < next_save:
                continue
            number += 1
            board["saving"], began = number, time.monotonic()
            try:
                replay.save(checkpoints, number, keep=3)
                board["saved"] = number
                board["save_us"] = int(1e6 * (time.monotonic() - began))
            except ShardsLostError:
                board["not_saved"] += 1
            finally:
                board["saving"] = 0
            next_save = time.monotonic() + rng.uniform(0.5, 2.0)
    replay.disconnect()
    ray.shutdown()


if __name__ == "__main__":
    address, name, base, checkpoints, seed, transport = sys.argv[1:]
    learn(address, name, Path(base), Path(checkpoints), int(seed), transport)
