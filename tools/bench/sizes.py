"""How large a closed store of Atari frames is, what a batch costs, and how soon a fresh process has
its first one.

    python tools/bench/sizes.py [100000] [1000000] [--codecs lz4 zstd] [--stream 50000]

Random play of five games, recorded once; longer stores play it again, which blocks of 8 frames know
nothing of. One env, stack 4, all fields. "Smaller than raw" is beside the same rows as plain
arrays. What adding and a batch take is processor time of the calling thread, so other work on the
machine counts little: what it does to the caches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gymnasium.spaces import Box, Discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recorder import find_stream, record_stream
from stream import FRAME_SHAPE, NUM_ACTIONS, STACK, Stream

import diskreplay

BATCH, CALLS = 32, 1000
FIRST_BATCH = (
    "import sys, diskreplay; b = diskreplay.open(sys.argv[1], mode='a'); b.sample(32); b.close()"
)


def record(stream: Stream, path: Path, rows: int, compressor: str) -> tuple[float, float, float]:
    """Fill a store, sample from it and close it; seconds a row and a batch, and how many times
    smaller than raw it is."""
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, FRAME_SHAPE, "uint8"), stack_size=STACK,
        action_space=Discrete(NUM_ACTIONS), capacity=rows, compressor=compressor, seed=0,
    )  # fmt: skip
    taken = 0.0
    for piece in stream.cursor().pieces(rows):
        steps = zip(
            piece.observation, piece.action.tolist(), piece.reward.tolist(),
            piece.terminated.tolist(), piece.truncated.tolist(), piece.next_observation,
            strict=True,
        )  # fmt: skip
        began = time.thread_time()
        for step in steps:
            buffer.add(*step)
        taken += time.thread_time() - began
    raw = buffer.statistics().raw_bytes
    batch = statistics.median(one_batch(buffer) for _ in range(CALLS))
    buffer.close()
    files = (os.lstat(Path(base) / name) for base, _, names in os.walk(path) for name in names)
    return taken / rows, batch, raw / sum(512 * file.st_blocks for file in files)


def one_batch(buffer: diskreplay.PrioritizedReplayBuffer) -> float:
    """Seconds of this thread for a prioritized batch."""
    began = time.thread_time()
    buffer.sample(BATCH)
    return time.thread_time() - began


def first_batch(path: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of a process that opens the store and samples;
    the best of five. The first of them writes the bytecode of the modules, which an installed
    package has."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(5):
        before, began = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-c", FIRST_BATCH, path], check=True, env=environment)
        clock, after = time.perf_counter() - began, os.times()
        used = after.children_user + after.children_system
        found.append((clock, used - before.children_user - before.children_system))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=int, nargs="*", default=[100_000])
    parser.add_argument("--codecs", nargs="+", default=["lz4", "zstd"])
    parser.add_argument("--stream", type=int, default=50_000, help="steps that are played")
    options = parser.parse_args()
    cache = Path.home() / ".cache" / "diskreplay-bench"
    stream = find_stream(cache, options.stream) or record_stream(cache, options.stream)
    for rows in options.rows:
        for compressor in options.codecs:
            with tempfile.TemporaryDirectory(prefix="sizes-") as directory:
                path = Path(directory, "store")
                seconds, batch, times = record(stream, path, rows, compressor)
                clock, processor = first_batch(path)
            print(
                f"{rows} rows, {compressor}: {times:.1f} x smaller than raw; add "
                f"{1e6 * seconds:.1f} us and a batch of {BATCH} {1e6 * batch:.0f} us of the "
                f"calling thread; a process to its first batch "
                f"{clock:.2f} s, {processor:.2f} s of processors",
                flush=True,
            )


if __name__ == "__main__":
    main()
