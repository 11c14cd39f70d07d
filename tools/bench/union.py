"""What a union costs beside one buffer that holds the same transitions.

    python tools/bench/union.py [--rounds 8]

All in one process, in turn, so that whatever else the machine does falls on all. Processor time of
this thread a sample, and how often as much as the one buffer. `vectors` are 60 floats a row, drawn
256 at a time by priority, from 1,000 rows a store; `frames` are 84 x 84 bytes, stacks of four, 32
at a time, raw.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay

KINDS = {
    "vectors": (Box(-9, 9, (60,), np.float32), {}, 256, (1, 4, 16, 64)),
    "frames": (Box(0, 255, (84, 84), np.uint8), {"stack_size": 4, "compressor": "raw"}, 32, (1, 4)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    for kind, (space, options, batch, stores) in KINDS.items():
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            samplers = {"one buffer": made(directory / "one", space, 1000 * max(stores), options)}
            stack.enter_context(samplers["one buffer"])
            for count in stores:
                members = [
                    stack.enter_context(made(directory / f"{count}-{i}", space, 1000, options))
                    for i in range(count)
                ]
                union = diskreplay.ReplayUnion(members)
                samplers[f"union of {count}"] = stack.enter_context(union)
            times: dict[str, list[float]] = {name: [] for name in samplers}
            for round_ in range(rounds + 1):
                for name, sampler in samplers.items():
                    began = time.thread_time()
                    for _ in range(300):
                        sampler.sample(batch)
                    if round_:
                        times[name].append((time.thread_time() - began) / 300 * 1e6)
        for name, found in times.items():
            ratio = median(a / b for a, b in zip(found, times["one buffer"], strict=True))
            print(f"{kind:8} {name:12} {median(found):8.0f} us  {ratio:5.2f} x")


def made(path: Path, space: Box, rows: int, options: dict) -> diskreplay.PrioritizedReplayBuffer:
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=space, action_space=Discrete(4), capacity=rows + 100, **options
    )
    rng = np.random.default_rng(rows)
    for i in range(rows):
        seen = rng.integers(0, 9, space.shape).astype(space.dtype)
        buffer.add(seen, i % 4, 1.0, i % 100 == 99, False)
    return buffer


if __name__ == "__main__":
    main()
