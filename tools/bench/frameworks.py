"""Each framework's own replay buffer beside ours, called as the framework calls it.

    python tools/bench/frameworks.py sb3 frames [--rows 100000] [--rounds 12]
    python tools/bench/frameworks.py tianshou vectors --rows 1000000
    python tools/bench/frameworks.py tianshou-defaults frames --rows 12000

Each buffer is in a process of its own, filled with the same steps; the processes take turns, in
both orders, so that what else runs hits all alike. Times are those of the calling thread on a
processor: other work disturbs them less than it disturbs the clock, and other threads (packing,
syncing) are not in them. ``frames`` are random play of Pong, 84x84, in stacks of 4; ``vectors`` are
23 float32, and 6 of an action. ``tianshou-defaults`` stores whole stacks, and what they led to.
Batches are tensors where the framework makes some. Prints rows of a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

import numpy as np
from memory import Memory

BLOCK = 2000  # steps that are added in turn
BATCHES = {"frames": 32, "vectors": 256}
STACK = 4
VECTOR, ACTION = 23, 6
PLAYED = 20_000
ENVS = 8  # of Tianshou's vectorized buffer
RECORDS = 256  # of torchrl's `extend`
OWN, LZ4, RAW = "own", "lz4", "raw"
SHARED = "+shared"  # behind one of ours: frames that rows share are stored once


# -- what is recorded


def play(path: Path) -> None:
    """Random play of Pong: frames, and where episodes end."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    frames, ends = [], []
    for _ in range(PLAYED):
        frames.append(observation)
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        ends.append(terminated or truncated)
        if ends[-1]:
            observation, _ = env.reset()
    np.savez(path, frames=np.stack(frames), ends=np.array(ends))


class Steps:
    """The steps of one environment, for ever; those of several are further on in the same play."""

    def __init__(self, data: str, played: Path) -> None:
        self.data = data
        if data == "frames":
            with np.load(played) as found:
                self.frames, self.ends = found["frames"], found["ends"]
        else:
            rng = np.random.default_rng(0)
            self.frames = rng.normal(size=(PLAYED, VECTOR)).astype(np.float32)
            self.ends = np.arange(PLAYED) % 1000 == 999

    def spaces(self, stacked: bool) -> tuple[Any, Any]:
        from gymnasium.spaces import Box, Discrete

        if self.data == "vectors":
            low = np.full(VECTOR, -np.inf, np.float32)
            return Box(low, -low), Box(-1.0, 1.0, (ACTION,), np.float32)
        return Box(0, 255, (STACK, 84, 84) if stacked else (84, 84), np.uint8), Discrete(6)

    def one(self, start: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float, bool]]:
        """Observation, what it led to, action, reward and end of each step, frames stacked."""
        stack = None
        action = np.zeros(ACTION, np.float32) if self.data == "vectors" else np.array(1)
        for at in range(start, 1 << 40):
            at %= PLAYED
            end = bool(self.ends[at])
            following = self.frames[at if end else (at + 1) % PLAYED]
            if self.data == "vectors":
                yield self.frames[at], following, action, 0.5, end
                continue
            if stack is None:
                stack = np.zeros((STACK, 84, 84), np.uint8)
                stack[-1] = self.frames[at]
            led = np.concatenate([stack[1:], following[None]])
            yield stack, led, action, 0.5, end
            stack = None if end else led


# -- the frameworks: each gives `add(steps, timed)`, `sample()`, `save(directory)`


class SB3:
    def __init__(self, steps: Steps, kind: str, rows: int, path: Path) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        from diskreplay.integrations.sb3 import DiskReplayBuffer

        spaces = steps.spaces(stacked=True)
        disk: dict[str, Any] = {"path": path, "compressor": kind}
        if steps.data == "frames":
            disk["frame_stack"] = STACK
        kind_of, options = (ReplayBuffer, {}) if kind == OWN else (DiskReplayBuffer, disk)
        self.buffer = kind_of(rows, *spaces, device="cpu", **options)
        self._steps, self._batch = steps.one(0), BATCHES[steps.data]

    def add(self, count: int, timed: Callable) -> None:
        made = []
        for _ in range(count):
            seen, led, action, reward, end = next(self._steps)
            made.append((
                seen[None], led[None], action.reshape(1, -1), np.array([reward], np.float32),
                np.array([end]), [{}],
            ))  # fmt: skip
        for step in made:
            timed(self.buffer.add, 1, *step)

    def sample(self) -> None:
        self.buffer.sample(self._batch)

    def save(self, directory: Path) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(directory / "buffer.pkl", self.buffer)


class Tianshou:
    options: Mapping[str, Any] = MappingProxyType(
        {"stack_num": STACK, "ignore_obs_next": True, "save_only_last_obs": True}
    )

    def __init__(self, steps: Steps, kind: str, rows: int, path: Path) -> None:
        from tianshou.data import VectorReplayBuffer

        from diskreplay.integrations.tianshou import DiskVectorReplayBuffer

        options: dict[str, Any] = {}
        if steps.data == "frames":
            options = dict(self.options)
        kind_of = VectorReplayBuffer
        if kind != OWN:
            kind_of = DiskVectorReplayBuffer
            options |= {"path": path, "compressor": kind.removesuffix(SHARED)}
            if kind.endswith(SHARED):
                options |= {"next_of": True, "stack": STACK}
            if steps.data == "vectors":
                options["min_bytes"] = 64
        self.buffer = kind_of(rows, ENVS, **options)
        self._steps = [steps.one(env * PLAYED // ENVS) for env in range(ENVS)]
        self._batch = BATCHES[steps.data]

    def add(self, count: int, timed: Callable) -> None:
        from tianshou.data import Batch

        made = []
        for _ in range(count // ENVS):
            seen, led, action, reward, end = map(
                np.stack, zip(*map(next, self._steps), strict=True)
            )
            made.append(Batch(
                obs=seen, act=action, rew=reward, terminated=end, truncated=np.zeros(ENVS, bool),
                obs_next=led, info=Batch(),
            ))  # fmt: skip
        for batch in made:
            timed(self.buffer.add, ENVS, batch)

    def sample(self) -> None:
        self.buffer.sample(self._batch)

    def save(self, directory: Path) -> None:
        import pickle

        with open(directory / "buffer.pkl", "wb") as file:
            pickle.dump(self.buffer, file)


class TianshouDefaults(Tianshou):
    """With Tianshou's default options, of an environment that stacks its frames."""

    options: Mapping[str, Any] = MappingProxyType({})


class TorchRL:
    def __init__(self, steps: Steps, kind: str, rows: int, path: Path) -> None:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

        from diskreplay.integrations.torchrl import DiskStorage

        self.storage = (
            LazyMemmapStorage(rows, scratch_dir=path)
            if kind == OWN
            else DiskStorage(rows, path=path, compressor=kind, next_of=steps.data == "frames",
                             min_bytes=64)
        )  # fmt: skip
        self.buffer = TensorDictReplayBuffer(
            storage=self.storage, batch_size=BATCHES[steps.data], **self._sampler()
        )
        self._steps, self._episode = steps.one(0), 0

    def _sampler(self) -> dict[str, Any]:
        return {}

    def add(self, count: int, timed: Callable) -> None:
        import torch
        from tensordict import TensorDict

        made = []
        for start in range(0, count, RECORDS):
            size = min(RECORDS, count - start)
            seen, led, action, reward, end = map(
                np.stack, zip(*(next(self._steps) for _ in range(size)), strict=True)
            )
            if seen.ndim == 4:  # torchrl's transforms stack: a record has one frame
                seen, led = seen[:, -1], led[:, -1]
            episode = self._episode + np.cumsum(end) - end
            self._episode += int(end.sum())
            tensors = [torch.as_tensor(part) for part in (seen, led, action, reward, end, episode)]
            seen, led, action, reward, end, episode = tensors
            made.append(TensorDict({
                "pixels": seen, "action": action, "episode": episode,
                "next": TensorDict({
                    "pixels": led, "reward": reward[:, None].float(), "done": end[:, None],
                    "terminated": end[:, None],
                }, [size]),
            }, [size]))  # fmt: skip
        for records in made:
            timed(self.buffer.extend, len(records), records)

    def sample(self) -> None:
        self.buffer.sample()

    def save(self, directory: Path) -> None:
        self.storage.dumps(directory / "storage")


class Slices(TorchRL):
    """torchrl's `SliceSampler`: slices of 16 records in a batch of 1,024."""

    def __init__(self, steps: Steps, kind: str, rows: int, path: Path) -> None:
        super().__init__(steps, kind, rows, path)
        self.buffer._batch_size = 1024

    def _sampler(self) -> dict[str, Any]:
        from torchrl.data.replay_buffers.samplers import SliceSampler

        return {"sampler": SliceSampler(slice_len=16, end_key=("next", "done"), cache_values=False)}


FRAMEWORKS = {
    "sb3": SB3, "tianshou": Tianshou, "tianshou-defaults": TianshouDefaults, "torchrl": TorchRL,
    "slices": Slices,
}  # fmt: skip


# -- a process for each buffer


class Timer:
    """Calls, and notes the microseconds of this thread on a processor for each row."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def __call__(self, call: Callable, rows: int, *arguments: Any) -> None:
        began = time.thread_time_ns()
        call(*arguments)
        self.taken.append((time.thread_time_ns() - began) / 1000 / rows)


def serve(framework: str, data: str, kind: str, rows: int, played: str, place: str) -> None:
    import torch

    torch.set_num_threads(1)
    steps = Steps(data, Path(played))
    before = Memory.now()
    contender = FRAMEWORKS[framework](steps, kind, rows, Path(place) / "store")
    print("{}", flush=True)
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        timed = Timer()
        answer: Any = timed.taken
        if what == "add":
            contender.add(int(count), timed)
        elif what == "sample":
            for _ in range(int(count)):
                timed(contender.sample, 1)
        elif what == "save":
            directory = Path(place) / "saved"
            directory.mkdir()
            began = time.perf_counter()
            contender.save(directory)
            seconds = time.perf_counter() - began
            answer = {"seconds": seconds, "bytes": on_disk(directory)}
        else:
            now = Memory.now()
            answer = {
                "anonymous": now.anonymous - before.anonymous, "mapped": now.file_backed,
                "disk": on_disk(Path(place) / "store"),
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }  # fmt: skip
        print(json.dumps(answer), flush=True)


def on_disk(directory: Path) -> int:
    """Bytes that its files take; of links to one file once."""
    if not directory.exists():
        return 0
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512
             for s in (path.lstat() for path in directory.rglob("*"))}  # fmt: skip
    return sum(files.values())


class Side:
    def __init__(self, options: argparse.Namespace, kind: str, played: Path, room: Path) -> None:
        place = room / kind
        place.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", options.framework, options.data, kind,
             str(options.rows), str(played), str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.read()
        self.adds: list[float] = []
        self.samples: list[float] = []

    def read(self) -> Any:
        line = self.process.stdout.readline()
        while line and line[0] not in "[{":
            line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side has died; what it said is above")
        return json.loads(line)

    def ask(self, line: str) -> Any:
        print(line, file=self.process.stdin, flush=True)
        return self.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("data", choices=BATCHES)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=12, help="of samples")
    parser.add_argument("--calls", type=int, default=50, help="a round")
    parser.add_argument(
        "--only", nargs="*", default=[OWN, LZ4, RAW],
        help="of own, lz4, raw, and for tianshou-defaults lz4+shared and raw+shared",
    )  # fmt: skip
    options = parser.parse_args()
    options.rows = options.rows or (100_000 if options.data == "frames" else 1_000_000)
    kinds = options.only if options.data == "frames" else [k for k in options.only if k != LZ4]
    room = Path(tempfile.mkdtemp(prefix="frameworks-"))
    try:
        played = room / "played.npz"
        if options.data == "frames":
            play(played)
        sides = {kind: Side(options, kind, played, room) for kind in kinds}
        for number in range(-(-options.rows // BLOCK)):
            for side in list(sides.values())[:: 1 if number % 2 else -1]:
                side.adds += side.ask(f"add {BLOCK}")
        for number in range(options.rounds + 1):
            for side in list(sides.values())[:: 1 if number % 2 else -1]:
                taken = side.ask(f"sample {options.calls}")
                side.samples += taken if number else []  # the first round fills caches
        for kind, side in sides.items():
            about, saved = side.ask("about"), side.ask("save")
            adds = side.adds[len(side.adds) // 10 :]  # the first ones compile, and make the store
            print(
                f"| {options.framework}, {kind} | {median(adds):.1f} ({mean(adds):.1f}) | "
                f"{median(side.samples):.0f} ({mean(side.samples):.0f}) | "
                f"{about['anonymous'] / 1e6:,.0f} + {about['mapped'] / 1e6:,.0f} mapped | "
                f"{about['disk'] / 1e6:,.0f} | {saved['seconds']:.2f} s, "
                f"{saved['bytes'] / 1e6:,.1f} MB |",
                flush=True,
            )
            side.process.stdin.close()
            side.process.wait()
    finally:
        shutil.rmtree(room)


if __name__ == "__main__":
    serve(*sys.argv[2:5], int(sys.argv[5]), *sys.argv[6:]) if sys.argv[1] == "--serve" else main()
