"""Two checkouts of diskreplay beside each other: is a change slower than what was before?

    python tools/bench/pair.py OLD NEW [--rounds 30]

Each checkout runs in a process of its own, over stores with the same Atari frames. The two take
turns, in both orders, with the same calls; figures are the calling thread's processor time, which
other work on the machine disturbs less than it disturbs the clock. Read the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

CALLS = {
    "add lz4": 600, "add raw": 600, "add vectors": 3000, "add 16 envs": 600,
    "sample lz4": 150, "sample raw": 250, "sample vectors": 1000,
    "update_priorities": 400, "save lz4": 2, "save raw": 2,
}  # fmt: skip
GAMES = ("Pong", "Breakout", "Seaquest", "SpaceInvaders", "MsPacman")
STEPS = 5000  # of each game


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--python", default=sys.executable, help="for both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pair-") as beside:
        play(Path(beside))
        sides = [Side(options.python, root, Path(beside)) for root in (options.old, options.new)]
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in CALLS}
        for number in range(options.rounds + 1):
            for name in CALLS:
                order = sides if number % 2 else sides[::-1]
                seconds = {side: side.ask(name) for side in order}
                if number:  # the first round compiles kernels and fills caches
                    taken[name].append((seconds[sides[0]], seconds[sides[1]]))
        for side in sides:
            side.end()
    for name, pairs in taken.items():
        ratios = [new / old for old, new in pairs]
        low, _, high = quantiles(ratios, n=4)
        old, new = (1e6 * median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:18} old {old:10.2f} us, new {new:10.2f} us, new / old {median(ratios):.3f} "
            f"(quartiles {low:.3f} to {high:.3f})"
        )


def play(directory: Path) -> None:
    """Record what random play of some games shows."""
    import ale_py
    import gymnasium
    import numpy as np

    gymnasium.register_envs(ale_py)
    frames, ends = [], []
    for game in GAMES:
        env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(f"ALE/{game}-v5", frameskip=1))
        env.action_space.seed(1)
        observation, _ = env.reset(seed=1)
        for step in range(STEPS):
            frames.append(observation)
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ends.append(terminated or truncated or step == STEPS - 1)
            if ends[-1]:
                observation, _ = env.reset()
        env.close()
    np.savez(directory / "frames.npz", frames=np.stack(frames), ends=np.array(ends))


class Side:
    """One checkout in its process."""

    def __init__(self, python: str, root: Path, beside: Path) -> None:
        place = tempfile.mkdtemp(dir=beside)
        command = [python, __file__, "--serve", str(root.resolve()), str(beside), place]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def _read(self) -> float:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side has died; what it said is above")
        return json.loads(line)

    def ask(self, name: str) -> float:
        """Seconds a call."""
        print(name, CALLS[name], sep=":", file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(root: str, beside: str, place: str) -> None:
    """What a side does."""
    sys.path.insert(0, root)
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    import diskreplay

    if not diskreplay.__file__.startswith(root):
        raise SystemExit(f"{diskreplay.__file__} was imported, and not what is in {root}")
    recorded = np.load(Path(beside) / "frames.npz")
    frames, ends = recorded["frames"], recorded["ends"].tolist()
    vectors = {
        "observation_space": Box(-9, 9, (23,), "float32"),
        "action_space": Box(-1, 1, (6,), "float32"),
    }
    buffers = {
        name: diskreplay.PrioritizedReplayBuffer(
            f"{place}/{name}", observation_space=Box(0, 255, (84, 84), "uint8"),
            action_space=Discrete(18), capacity=100_000, stack_size=4, update_horizon=3,
            compressor=name, seed=1,
        )
        for name in ("lz4", "raw")
    }  # fmt: skip
    buffers["vectors"] = diskreplay.PrioritizedReplayBuffer(
        f"{place}/vectors", **vectors, capacity=100_000, seed=1
    )
    buffers["16 envs"] = diskreplay.ReplayBuffer(
        f"{place}/envs", **vectors, capacity=200_000, num_envs=16, seed=1
    )
    one = np.zeros(23, "f4"), np.zeros(6, "f4"), 0.5, False, False
    many = [np.zeros((16, *np.shape(value)), np.asarray(value).dtype) for value in one]
    rows = dict.fromkeys(buffers, 0)

    def add(name: str, calls: int) -> None:
        buffer, row = buffers[name], rows[name]
        if name in ("lz4", "raw"):
            for at in range(row, row + calls):
                buffer.add(frames[at % len(frames)], 1, 0.5, ends[at % len(ends)], False)
        else:
            step = one if name == "vectors" else many
            for _ in range(calls):
                buffer.add(*step)
        rows[name] += calls

    for name in buffers:
        add(name, len(frames) if name != "16 envs" else 3000)
        buffers[name].flush()
    saved = 0
    print(0.0, flush=True)
    for line in sys.stdin:
        name, _, calls = line.rstrip().partition(":")
        what, _, of = name.partition(" ")
        calls, buffer = int(calls), buffers.get(of, buffers["lz4"])
        ids = [buffer.sample(32).id for _ in range(20)] if what == "update_priorities" else []
        priorities, taken = np.linspace(0.1, 1.0, 32), 0.0
        if what == "save":
            for _ in range(calls):
                add(of, 37)
                saved += 1
                began = time.thread_time()
                buffer.save(f"{place}/checkpoints", saved)
                taken += time.thread_time() - began
        else:
            began = time.thread_time()
            if what == "add":
                add(of, calls)
            elif what == "sample":
                for _ in range(calls):
                    buffer.sample(32)
            else:
                for at in range(calls):
                    buffer.update_priorities(ids[at % len(ids)], priorities)
            taken = time.thread_time() - began
        print(json.dumps(taken / calls), flush=True)
    for buffer in buffers.values():
        buffer.close()


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "--serve" else main()
