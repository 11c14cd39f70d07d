"""How large a closed store of Atari frames is, and how soon a fresh process has its first batch.

    python tools/bench/sizes.py [100000] [1000000] [--stream 50000]

Random play of five games, recorded once; longer stores play it again, which blocks of 8 frames know
nothing of. One env, stack 4, all fields. `raw` is what the same rows take as plain arrays.
"""

from __future__ import annotations

import argparse
import os
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

FIRST_BATCH = (
    "import sys, diskreplay; b = diskreplay.open(sys.argv[1], mode='a'); b.sample(32); b.close()"
)


def record(stream: Stream, path: Path, rows: int, compressor: str) -> tuple[float, float]:
    """Fill a store and close it; seconds a row, and how many times smaller than raw it is."""
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
    buffer.close()
    files = (os.lstat(Path(base) / name) for base, _, names in os.walk(path) for name in names)
    return taken / rows, raw / sum(512 * file.st_blocks for file in files)


def first_batch(path: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of a process that opens the store and samples;
    the best of five."""
    found = []
    for _ in range(5):
        before, began = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-c", FIRST_BATCH, path], check=True)
        clock, after = time.perf_counter() - began, os.times()
        used = after.children_user + after.children_system
        found.append((clock, used - before.children_user - before.children_system))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=int, nargs="*", default=[100_000])
    parser.add_argument("--stream", type=int, default=50_000, help="steps that are played")
    options = parser.parse_args()
    cache = Path.home() / ".cache" / "diskreplay-bench"
    stream = find_stream(cache, options.stream) or record_stream(cache, options.stream)
    for rows in options.rows:
        for compressor in ("lz4", "zstd"):
            with tempfile.TemporaryDirectory(prefix="sizes-") as directory:
                path = Path(directory, "store")
                seconds, times = record(stream, path, rows, compressor)
                clock, processor = first_batch(path)
            print(
                f"{rows} rows, {compressor}: {times:.1f} x smaller than raw; add "
                f"{1e6 * seconds:.1f} us of the calling thread; a process to its first batch "
                f"{clock:.2f} s, {processor:.2f} s of processors",
                flush=True,
            )


if __name__ == "__main__":
    main()
