"""Reading a batch, setting priorities, adding vectors: diskreplay beside its peers, and the floors.

    python tools/bench/sampling.py [--rounds 12] [--only threads frames priorities vectors]
                                   [--realtime]

Each section is one process in which all contenders hold the same rows and take turns. Figures are
by the clock, a median over the rounds; `x` is the median of the ratios to the first of the section.
On a machine that others use, `--realtime` (Linux, root) gives the calls priority over all else for
a fraction of a second at a time. Peers that are not installed are left out.
"""

# ruff: noqa: B023 -- what a loop makes is called before it goes on

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

ROWS = 25_000  # of random play
MILLION = 1_000_000
Calls = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="sampling-") as place:
            for title, calls in SECTIONS[name](Path(place)):
                show(title, calls, options.rounds, options.realtime)


def show(title: str, calls: Calls, rounds: int, realtime: bool) -> None:
    """Time the calls in turn, and print them beside the first one."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    often = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        often[name] = max(int(0.04 / (time.perf_counter() - began)), 2)
    for _ in range(rounds):
        with first_of_all() if realtime else contextlib.nullcontext():
            for name, call in calls.items():
                call()
                began = time.perf_counter()
                for _ in range(often[name]):
                    call()
                taken[name].append((time.perf_counter() - began) / often[name])
    first = next(iter(taken.values()))
    print(f"\n#### {title}\n\n| | us | x |\n| --- | --- | --- |")
    for name, each in taken.items():
        ratio = median(one / other for one, other in zip(each, first, strict=True))
        print(f"| {name} | {1e6 * median(each):,.1f} | {ratio:.2f} |", flush=True)


@contextlib.contextmanager
def first_of_all() -> Iterator[None]:
    """Have all threads of this process run before those of others; the main thread before all."""

    def give(policy: int, of_main: int, of_others: int) -> None:
        for thread in map(int, os.listdir("/proc/self/task")):
            number = of_main if thread == os.getpid() else of_others
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(number))

    give(os.SCHED_FIFO, 9, 5)
    try:
        yield
    finally:
        give(os.SCHED_OTHER, 0, 0)
        time.sleep(0.1)


def play(place: Path) -> tuple[np.ndarray, list[bool]]:
    """Frames of random play of some games, and where episodes end."""
    from pair import play as record

    record(place)
    found = np.load(place / "frames.npz")
    return found["frames"][:ROWS], found["ends"][:ROWS].tolist()


def threads(place: Path) -> Iterator[tuple[str, Calls]]:
    """One thread and two, and stacks that are contiguous."""
    from gymnasium.spaces import Box, Discrete

    import diskreplay

    frames, ends = play(place)
    for compressor in ("lz4", "raw"):
        buffer = diskreplay.PrioritizedReplayBuffer(
            place / compressor, observation_space=Box(0, 255, (84, 84), "uint8"),
            action_space=Discrete(18), capacity=4 * ROWS, stack_size=4, compressor=compressor,
            seed=1,
        )  # fmt: skip
        for frame, end in zip(frames, ends, strict=True):
            buffer.add(frame, 1, 0.5, end, False)
        buffer.flush()
        for size in (32, 256, 1024):
            yield (
                f"{compressor}, {size} transitions: sample",
                {
                    "sample": lambda: buffer.sample(size),
                    "threads=2": lambda: buffer.sample(size, threads=2),
                    "contiguous=True": lambda: buffer.sample(size, contiguous=True),
                    "copied afterwards": lambda: _copied(buffer.sample(size)),
                    "contiguous=True, threads=2": lambda: buffer.sample(
                        size, threads=2, contiguous=True
                    ),
                },
            )
            for number in (1, 2):  # one after the other: each has threads that read ahead
                ahead = buffer.prefetch(3, size, threads=number)
                title = f"{compressor}, {size} transitions: prefetch(3, threads={number})"
                yield title, {"12 batches": lambda: [next(ahead) for _ in range(12)]}
                ahead.close()
        buffer.close()


def _copied(batch: Any) -> list[np.ndarray]:
    return [np.ascontiguousarray(each) for each in (batch.observation, batch.next_observation)]


def frames(place: Path) -> Iterator[tuple[str, Calls]]:
    """256 transitions of colour frames without stacks."""
    from gymnasium.spaces import Box, Discrete
    from windows import _colour

    import diskreplay

    grey, ends = play(place)
    colour = _colour(grey)
    rng, size, shape = np.random.default_rng(0), 256, colour.shape[1:]
    out = np.empty((2 * size, *shape), np.uint8)

    def floor() -> Any:
        first = rng.integers(ROWS - 1, size=(size, 1))
        return np.take(colour, (first + np.arange(2)).ravel(), axis=0, out=out, mode="clip")

    calls: Calls = {"np.take": floor}
    for compressor in ("lz4", "raw"):
        buffer = diskreplay.ReplayBuffer(
            place / compressor, observation_space=Box(0, 255, shape, "uint8"),
            action_space=Discrete(18), capacity=2 * ROWS, compressor=compressor, seed=1,
        )  # fmt: skip
        for frame, end in zip(colour, ends, strict=True):
            buffer.add(frame, 1, 0.5, end, False)
        buffer.flush()
        for number in (1, 2):
            calls[f"diskreplay {compressor}, threads={number}"] = (
                lambda buffer=buffer, number=number: buffer.sample(size, threads=number)
            )
    if find_spec("stable_baselines3"):
        from stable_baselines3.common.buffers import ReplayBuffer

        sb3 = ReplayBuffer(
            ROWS, Box(0, 255, shape, np.uint8), Discrete(18), device="cpu",
            optimize_memory_usage=True, handle_timeout_termination=False,
        )  # fmt: skip
        for row in range(ROWS - 1):
            sb3.add(
                colour[row], colour[row + 1], np.array([1]), np.array([0.5]),
                np.array([ends[row]]), [{}],
            )  # fmt: skip
        calls["SB3"] = lambda: sb3.sample(size)
    yield f"{size} transitions of {shape} frames, no stacks", calls


def priorities(place: Path) -> Iterator[tuple[str, Calls]]:
    """Setting and drawing among a million rows."""
    from diskreplay import SumTree

    rng = np.random.default_rng(0)
    leaves = rng.random(MILLION) + 0.01
    ours = SumTree(MILLION)
    ours.leaves[:] = leaves
    ours.rebuild()
    theirs = None
    if find_spec("tianshou"):
        from tianshou.data import PrioritizedReplayBuffer

        theirs = PrioritizedReplayBuffer(MILLION, alpha=0.6, beta=0.4)
        theirs.weight[np.arange(MILLION)] = leaves
        theirs._size = MILLION
    buffer = _million(place)
    for size in (32, 256, 1024):
        ids = [rng.integers(MILLION - 2, size=size) for _ in range(64)]
        new, at = rng.random(size), iter(range(1 << 60))
        calls: Calls = {
            "update_priorities": lambda: buffer.update_priorities(ids[next(at) % 64], new),
            "SumTree.set": lambda: ours.set(ids[next(at) % 64], new),
        }
        if theirs is not None:
            calls["Tianshou update_weight"] = lambda: theirs.update_weight(ids[next(at) % 64], new)
        yield f"{size} priorities of a million", calls
        calls = {"SumTree.stratified_sample": lambda: ours.stratified_sample(size, rng)}
        if theirs is not None:
            calls["Tianshou sample_indices"] = lambda: theirs.sample_indices(size)
        yield f"{size} drawn of a million", calls
    buffer.close()


def _million(place: Path) -> Any:
    """A buffer of a million short rows."""
    from gymnasium.spaces import Box, Discrete

    import diskreplay

    buffer = diskreplay.PrioritizedReplayBuffer(
        place / "million", observation_space=Box(-1, 1, (1,), "float32"),
        action_space=Discrete(2), capacity=MILLION, seed=1,
    )  # fmt: skip
    for first in range(0, MILLION, 50_000):
        step = np.arange(first, first + 50_000, dtype=np.int32)
        buffer.extend({
            "observation": np.zeros((50_000, 1), np.float32),
            "action": np.zeros(50_000, np.int64), "reward": np.zeros(50_000, np.float32),
            "terminated": np.zeros(50_000, bool), "truncated": np.zeros(50_000, bool),
            "step": step, "is_final": np.zeros(50_000, bool),
        })  # fmt: skip
    return buffer


def vectors(place: Path) -> Iterator[tuple[str, Calls]]:
    """Adding vectors of one env, and Dicts of them."""
    from gymnasium.spaces import Box, Dict

    import diskreplay

    goals = {"achieved_goal": 3, "desired_goal": 3, "observation": 10}
    kinds = {
        "a vector of 23": (Box(-9, 9, (23,), np.float32), np.zeros(23, np.float32)),
        "a Dict of vectors of 3, 3 and 10": (
            Dict({name: Box(-9, 9, (size,), np.float32) for name, size in goals.items()}),
            {name: np.zeros(size, np.float32) for name, size in goals.items()},
        ),
    }
    actions, action = Box(-1, 1, (6,), np.float32), np.zeros(6, np.float32)
    for number, (kind, (space, seen)) in enumerate(kinds.items()):
        calls: Calls = {}
        if find_spec("stable_baselines3"):
            from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

            of = ReplayBuffer if isinstance(seen, np.ndarray) else DictReplayBuffer
            sb3 = of(4 * ROWS, space, actions, device="cpu")
            reward, done = np.array([0.5], np.float32), np.array([False])
            calls["SB3, in memory"] = lambda: sb3.add(seen, seen, action, reward, done, [{}])
        for name in ("ReplayBuffer", "PrioritizedReplayBuffer"):
            buffer = getattr(diskreplay, name)(
                place / f"{name}{number}", observation_space=space, action_space=actions,
                capacity=4 * ROWS, seed=1,
            )  # fmt: skip
            for _ in range(ROWS):
                buffer.add(seen, action, 0.5, False, False)
            calls[f"diskreplay {name}"] = lambda buffer=buffer: buffer.add(
                seen, action, 0.5, False, False
            )
        yield f"add of {kind}", calls


SECTIONS: dict[str, Callable[[Path], Iterator[tuple[str, Calls]]]] = {
    "threads": threads, "frames": frames, "priorities": priorities, "vectors": vectors,
}  # fmt: skip


if __name__ == "__main__":
    main()
