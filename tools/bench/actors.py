"""Rows of actors in processes of their own: a ring for each, beside one `multiprocessing.Queue`.

    python tools/bench/actors.py [--actors 16] [--rows 2000] [--rounds 3]

Frames of 84x84 in lz4, moving squares. Each actor adds so many rows as fast as it can. Figures are
processor time a row: of the actor from the making of the row on, and of the learner's process,
which does nothing else. The two ways take turns, each round with stores of its own; the medians
count.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import diskreplay
from tools.bench.many_envs import frames

CHUNK = 32
EPISODE = 500


def make(path: Path, actors: int) -> diskreplay.ReplayBuffer:
    return diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (84, 84), "uint8"), action_space=Discrete(6),
        capacity=20_000 * actors, num_envs=actors, stack_size=4, update_horizon=3,
    )  # fmt: skip


def add_by_ring(writer: diskreplay.EnvWriter, rows: int, seen: np.ndarray, told: Any) -> None:
    assert writer.waiting == 0
    began = time.process_time()
    for number in range(rows):
        writer.add(
            seen[number % len(seen)], number % 6, 1.0, number % EPISODE == EPISODE - 1, False
        )
    told.send(time.process_time() - began)
    writer.close()


def add_by_queue(env: int, queue: Any, rows: int, seen: np.ndarray, told: Any) -> None:
    began = time.process_time()
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        chunk: dict[str, list] = {
            name: [] for name in
            ("observation", "action", "reward", "terminated", "truncated", "step", "is_final")
        }  # fmt: skip
        for number in range(start, stop):
            chunk["observation"].append(seen[number % len(seen)])
            chunk["action"].append(number % 6)
            chunk["reward"].append(1.0)
            chunk["terminated"].append(number % EPISODE == EPISODE - 1)
            chunk["truncated"].append(False)
            chunk["step"].append(number % EPISODE)
            chunk["is_final"].append(False)
        queue.put((env, {name: np.array(values) for name, values in chunk.items()}))
    queue.close()
    queue.join_thread()  # its thread pickles
    told.send(time.process_time() - began)


def round_of(way: str, actors: int, rows: int, seen: np.ndarray) -> tuple[float, float, float]:
    """Microseconds a row of an actor and of the learner, and rows a second."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="actors-") as directory:
        buffer = make(Path(directory) / "store", actors)
        buffer.extend(
            {name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in buffer.fields.items()}
        )  # fmt: skip - kernels are loaded
        queue = context.Queue(4 * actors)
        ends = [context.Pipe(duplex=False) for _ in range(actors)]
        arguments: list[tuple] = [(env, queue) for env in range(actors)]
        if way == "ring":
            arguments = [(writer,) for writer in buffer.env_writers()]
        target = add_by_ring if way == "ring" else add_by_queue
        processes = [
            context.Process(target=target, args=(*given, rows, seen, told))
            for given, (_, told) in zip(arguments, ends, strict=True)
        ]
        began, clock = time.process_time(), time.monotonic()
        for process in processes:
            process.start()
        taken = 0
        while taken < actors * rows:
            if way == "ring":
                time.sleep(0.005)
                taken = int(buffer.bounds[:, 1].sum()) - 1
            else:
                env, columns = queue.get()
                taken += len(buffer.extend(columns, env))
        seconds, learner = time.monotonic() - clock, time.process_time() - began
        of_actors = sum(told.recv() for told, _ in ends)
        for process in processes:
            process.join()
        buffer.close()
    total = actors * rows
    return 1e6 * of_actors / total, 1e6 * learner / total, total / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2000, help="of each actor")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    seen = frames(256)
    found: dict[str, list] = {"ring": [], "queue": []}
    for number in range(options.rounds):
        for way in ("ring", "queue") if number % 2 else ("queue", "ring"):
            found[way].append(round_of(way, options.actors, options.rows, seen))
    sums = {}
    print(f"{options.actors} actors, load {os.getloadavg()[0]:.0f}")
    for way, rounds in found.items():
        actor, learner, rate = (median(column) for column in zip(*rounds, strict=True))
        sums[way] = median(a + b for a, b, _ in rounds)
        print(
            f"{way:6} actor {actor:6.1f} us, learner {learner:6.1f} us, sum {sums[way]:6.1f} us, "
            f"{rate:8.0f} rows/s"
        )
    print(f"ring / queue {sums['ring'] / sums['queue']:.2f}")


if __name__ == "__main__":
    main()
