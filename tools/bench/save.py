"""How long `save` takes, and how long an `add` on another thread waits for it.

    python tools/bench/save.py [--rows 1000000] [--only lz4 raw 256-lz4 256-raw vectors]

Prioritized buffers that are full. One thread adds a step after the other, and between two of them
looks at the clock; the other one saves, changes some priorities and saves again. What a call waits
is what is left of its time by the clock without the time for which its thread had no processor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from many_envs import frames
from timing import Queue

import diskreplay

KINDS = {  # envs, compressor, shape of an observation
    "lz4": (1, "lz4", (84, 84)), "raw": (1, "raw", (84, 84)), "256-lz4": (256, "lz4", (84, 84)),
    "256-raw": (256, "raw", (84, 84)), "vectors": (1, "raw", (23,)),
}  # fmt: skip


class Adder(threading.Thread):
    """Adds steps until it is stopped; `waits` are (when it ended, seconds) of each call."""

    def __init__(self, buffer: diskreplay.ReplayBuffer, step: tuple, pause: float) -> None:
        super().__init__()
        self._buffer, self._step, self._pause = buffer, step, pause
        self.stopped, self.waits = False, []

    def run(self) -> None:
        queue = Queue()
        while not self.stopped:
            time.sleep(self._pause)
            queued, began = queue.seconds(), time.perf_counter()
            self._buffer.add(*self._step)
            ended = time.perf_counter()
            self.waits.append((ended, ended - began - queue.seconds() + queued))
        queue.close()


def measure(name: str, rows: int, directory: Path) -> None:
    envs, compressor, shape = KINDS[name]
    pixels = len(shape) == 2
    buffer = diskreplay.PrioritizedReplayBuffer(
        directory / "store", observation_space=Box(0, 255, shape, "uint8" if pixels else "float32"),
        action_space=Discrete(4), capacity=rows, num_envs=envs, compressor=compressor, seed=0,
    )  # fmt: skip
    shown = frames(512) if pixels else np.zeros((512, *shape), np.float32)
    no = np.zeros(envs, bool)
    if envs == 1:
        steps = [(shown[k], 1, 1.0, False, False) for k in range(512)]
    else:
        actions, rewards = np.ones(envs, np.int64), np.ones(envs)
        steps = [
            (shown[(np.arange(envs) * 3 + k) % 512], actions, rewards, no, no) for k in range(16)
        ]
    for number in range(rows // envs + 100):
        buffer.add(*steps[number % len(steps)])
    rng, said = np.random.default_rng(0), []
    for number in range(4):
        adder = Adder(buffer, steps[0], 0.0005)
        adder.start()
        time.sleep(0.05)
        before, began = time.thread_time(), time.perf_counter()
        path = buffer.save(directory / "checkpoints", number)
        ended, used = time.perf_counter(), time.thread_time() - before
        time.sleep(0.05)
        adder.stopped = True
        adder.join()
        during = [w for at, w in adder.waits if began < at and at - w < ended]
        new = sum(
            512 * file.stat().st_blocks  # holes take none
            for file in path.rglob("*") if file.is_file() and file.stat().st_nlink <= 2
            and file.stat().st_mtime >= time.time() - (ended - began) - 1
        )  # fmt: skip
        said.append((ended - began, used, max(during, default=0.0), new))
        if number == 1:  # from here on some priorities are other ones
            ids = buffer.sample(1024).id
            buffer.update_priorities(ids, rng.random(len(ids)) + 0.1)
    best = [statistics.median(column) for column in zip(*said[1:], strict=True)]
    print(
        f"{name}, {rows} rows: save {best[0]:.3f} s ({best[1]:.3f} s of the thread), an add beside "
        f"it waits {1e3 * best[2]:.1f} ms at most; written {best[3] / 2**20:.1f} MiB",
        flush=True,
    )
    buffer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="save-") as directory:
            measure(name, options.rows, Path(directory))


if __name__ == "__main__":
    main()
