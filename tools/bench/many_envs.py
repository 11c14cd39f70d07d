"""One `add` of hundreds or thousands of envs, and what comes with it: files, opening, saving.

    python tools/bench/many_envs.py [256-lz4 256-raw 4096 16384 ...]

Frames are moving squares over bands, 84x84, which lz4 takes to a fiftieth; vectors are 60 float32
and actions 8. Each is recorded for a given number of steps.
Times are by the clock, those of `add` without the time in which the thread had no processor though
it could have run: run it on a quiet machine all the same. Of the thread, and of all threads, and of
a sample, is processor time.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from gymnasium.spaces import Box, Discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from timing import Queue

import diskreplay

KINDS = {  # envs, compressor, capacity, steps
    "256-lz4": (256, "lz4", 100_000, 1200),
    "256-lz4-million": (256, "lz4", 1_000_000, 8000),  # the ring turns
    "256-raw": (256, "raw", 100_000, 800),
    "256-raw-million": (256, "raw", 1_000_000, 6500),
    "4096": (4096, "raw", 4_000_000, 600),
    "16384": (16384, "raw", 4_000_000, 200),
}


def frames(count: int) -> np.ndarray:
    """Frames that differ from each other in little, as those of games do."""
    made = np.zeros((count, 84, 84), np.uint8)
    made[:] = (np.arange(84)[:, None] // 12 * 20).astype(np.uint8)
    for i in range(count):
        x, y = i * 2 % 76, i * 3 % 76
        made[i, y : y + 6, x : x + 6] = 236
    return made


def measure(name: str, where: Path) -> dict[str, float]:
    """Record, save, close and open again; seconds, but for the first two, which are counts."""
    envs, compressor, capacity, steps = KINDS[name]
    if envs < 1000:
        some = frames(512)
        shown = [np.ascontiguousarray(some[(np.arange(envs) * 3 + k) % 512]) for k in range(16)]
        spaces = Box(0, 255, (84, 84), "uint8"), Discrete(4)
        action = np.ones(envs, np.int64)
    else:
        rng = np.random.default_rng(0)
        shown = [rng.normal(size=(envs, 60)).astype("float32") for _ in range(4)]
        spaces = Box(-10, 10, (60,), "float32"), Box(-1, 1, (8,), "float32")
        action = np.zeros((envs, 8), "float32")
    reward, no = np.ones(envs), np.zeros(envs, bool)
    buffer = diskreplay.ReplayBuffer(
        where / "store", observation_space=spaces[0], action_space=spaces[1], capacity=capacity,
        num_envs=envs, compressor=compressor,
    )  # fmt: skip
    queue, clock, taken, used = Queue(), time.perf_counter, [], time.process_time()
    for step in range(steps):
        began, queued = clock(), queue.seconds()
        buffer.add(shown[step % len(shown)], action, reward, no, no)
        taken.append(clock() - began - queue.seconds() + queued)
        if not step:
            used, used_here = time.process_time(), time.thread_time()
    used, used_here = time.process_time() - used, time.thread_time() - used_here
    began, queued = clock(), queue.seconds()
    buffer.flush()
    flushed = clock() - began - queue.seconds() + queued
    queue.close()
    found = {
        "files": sum(path.is_file() for path in (where / "store").rglob("*")),
        "mappings": Path("/proc/self/maps").read_text().count(str(where)),
        "first add": taken[0],
        "add, mean a step of an env": sum(taken) / steps / envs,
        "with the flush": (sum(taken) + flushed) / steps / envs,
        "but for the first one": sum(taken[1:]) / (steps - 1) / envs,
        "of the thread": used_here / (steps - 1) / envs,
        "of all threads": used / (steps - 1) / envs,
        "longest add": max(taken[1:]),
    }
    if len(turned := taken[capacity // envs + 1 :]) >= 1000:
        found["once the ring has turned"] = sum(turned) / len(turned) / envs
        found["the last thousand of them"] = sum(taken[-1000:]) / 1000 / envs
        found["their median"] = median(taken[-1000:]) / envs
    drawn = []
    for _ in range(100):
        began = time.thread_time()
        buffer.sample(256)
        drawn.append(time.thread_time() - began)
    found["sample of 256"] = median(drawn)
    began = clock()
    buffer.save(where / "checkpoints", 1)
    found["save"], began = clock() - began, clock()
    buffer.close()
    found["close"], began = clock() - began, clock()
    diskreplay.open(where / "store", mode="a").close()
    found["open and close"] = clock() - began
    return found


def main() -> None:
    for name in sys.argv[1:] or KINDS:
        where = Path(tempfile.mkdtemp(prefix="many-envs-"))
        try:
            found = measure(name, where)
        finally:
            shutil.rmtree(where)
        said = (
            f"{key} {value:.0f}" if value >= 20 else f"{key} {value * 1e6:.2f} us"
            if value < 1e-3 else f"{key} {value * 1e3:.0f} ms"
            for key, value in found.items()
        )  # fmt: skip
        print(f"{name}: {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
