"""How batches reach PyTorch and JAX: in this process, from a thread, from a loader's workers.

    python tools/bench/hand_over.py [--rounds 7] [--batches 200]

20,000 frames of moving squares, 84x84 in lz4, stacks of 4, 3 steps, prioritized, batch 32. The ways
take turns, round by round; of each the fastest round counts, by the clock. What is not installed is
left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from gymnasium.spaces import Box, Discrete
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import diskreplay
from diskreplay.integrations.torch import SampleStream, TransitionDataset
from tools.bench.many_envs import frames


def drawn(buffer: diskreplay.ReplayBuffer) -> Iterator[None]:
    """Batches that nobody looks at."""
    while True:
        yield buffer.sample()


def epochs(loader: DataLoader) -> Iterator[dict]:
    """One after the other."""
    while True:
        yield from loader


def ways(path: Path, buffer: diskreplay.ReplayBuffer) -> dict[str, Callable[[], Iterator]]:
    """What is measured, by its name."""
    stream, dataset = SampleStream(path, 32), TransitionDataset(path)
    found = {
        "sample()": lambda: drawn(buffer),
        "sample().to_torch()": lambda: (batch.to_torch() for batch in drawn(buffer)),
        "prefetch(2, device='cpu')": lambda: buffer.prefetch(2, device="cpu"),
        "SampleStream": lambda: iter(stream),
        "SampleStream(prefetch=2)": lambda: iter(SampleStream(path, 32, prefetch=2)),
        "SampleStream.loader()": lambda: iter(stream.loader()),
        "SampleStream.loader(num_workers=1)": lambda: iter(stream.loader(num_workers=1)),
        "SampleStream.loader(num_workers=2)": lambda: iter(stream.loader(num_workers=2)),
        "TransitionDataset.loader(32, shuffle=True)": lambda: epochs(
            dataset.loader(32, shuffle=True)
        ),
        "... without its collate": lambda: epochs(DataLoader(dataset, 32, shuffle=True)),
    }
    if importlib.util.find_spec("jax"):
        found["sample().to_jax()"] = lambda: (batch.to_jax() for batch in drawn(buffer))
        found["prefetch(2, map=lambda batch: batch.to_jax())"] = lambda: buffer.prefetch(
            2, map=lambda batch: batch.to_jax()
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as directory,
        diskreplay.PrioritizedReplayBuffer(
            Path(directory) / "store", observation_space=Box(0, 255, (84, 84), "uint8"),
            action_space=Discrete(6), capacity=20_000, stack_size=4, update_horizon=3, seed=0,
        ) as buffer,
    ):  # fmt: skip
        shown = frames(512)
        for row in range(20_000):
            end = row % 900 == 899
            final = shown[row % 512] if end else None
            buffer.add(shown[row % 512], row % 6, 0.0, end, False, final)
        buffer.flush()
        running = {name: make() for name, make in ways(buffer.path, buffer).items()}
        taken: dict[str, list[float]] = {name: [] for name in running}
        for round_ in range(options.rounds + 1):  # the first one starts threads and workers
            for name, batches in running.items():
                begun = time.perf_counter()
                for _ in islice(batches, options.batches):
                    pass
                if round_:
                    taken[name].append((time.perf_counter() - begun) / options.batches)
        first = min(taken["sample()"])
        for name, times in taken.items():
            print(f"| `{name}` | {min(times) * 1e6:,.0f} us | {min(times) / first:.1f} x |")
        running.clear()


if __name__ == "__main__":
    main()
