"""Sequences as four learners sample them: diskreplay beside torchrl and flashbax, and a floor.

    python tools/bench/windows.py [--rounds 20] [--frames 25000]

The floor is one `np.take` of the windows' frames, with rows that are drawn already, others each
time; from a plain array, and from a mapped file. All contenders hold the same rows and take turns.
They are timed by the clock, and by the processor time of their thread: read the ratios.
Peers that are not installed are left out. torchrl makes no stacks in slices, no targets, no
burn-in masks; flashbax has none of these either, and its windows go over the ends of episodes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

EPISODE = 500
_DRAWS = 64


class Learner(NamedTuple):
    """What a learner asks for: windows of so many rows, and how."""

    name: str
    windows: int
    rows: int  # of a window
    stack: int
    options: dict[str, Any]
    frames: Callable[[np.ndarray], np.ndarray]  # from Atari frames to its observations


def _colour(frames: np.ndarray) -> np.ndarray:
    """Frames as 64 x 64 in three shades of one colour."""
    small = frames[:, 10:74, 10:74]
    return np.stack([small, small // 2, small // 4 * 3], axis=-1)


def _vectors(frames: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(frames.reshape(len(frames), -1)[:, :60], np.float32)


LEARNERS = (
    Learner(
        "R2D2, 64 x 125 frames, stack 4", 64, 125, 4,
        {"length": 80, "burn_in": 40, "stride": 40, "ends": "shift", "n_step": 5,
         "prioritized": True},
        lambda frames: frames,
    ),
    Learner(
        "Dreamer, 16 x 64 frames of 64x64x3", 16, 64, 1,
        {"length": 64, "ends": "cross", "ahead": 0, "arrival": True}, _colour,
    ),
    Learner(
        "TD-MPC2, 256 x 4 vectors of 60", 256, 4, 1, {"length": 3, "ahead": 1}, _vectors,
    ),
    Learner(
        "Decision Transformer, 64 x 20 vectors of 60", 64, 20, 1,
        {"length": 19, "ends": "pad", "ahead": 1, "returns_to_go": 1.0}, _vectors,
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--frames", type=int, default=25_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    frames = atari(options.frames)
    found: dict[str, dict[str, list[float]]] = {}
    for learner in LEARNERS:
        with tempfile.TemporaryDirectory(prefix="windows-") as directory:
            calls = dict(contenders(learner, learner.frames(frames), Path(directory)))
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            for number in range(options.rounds + 3):
                for name in calls if number % 2 else reversed(calls):
                    begin = time.perf_counter(), time.thread_time()
                    calls[name]()
                    if number >= 3:
                        ends = time.perf_counter(), time.thread_time()
                        taken[name].append((ends[0] - begin[0], ends[1] - begin[1]))
        found[learner.name] = {
            name: [1e3 * median(each) for each in zip(*both, strict=True)]
            for name, both in taken.items()
        }
        floor = found[learner.name]["floor"]
        shown = "\n".join(
            f"  {name:16} {clock:7.3f} ms ({clock / floor[0]:.1f} x)   processor {cpu:7.3f} ms "
            f"({cpu / floor[1]:.1f} x)"
            for name, (clock, cpu) in found[learner.name].items()
        )
        print(f"{learner.name}\n{shown}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def atari(count: int) -> np.ndarray:
    """Frames of random play of some games, one after the other."""
    from pair import play

    with tempfile.TemporaryDirectory(prefix="frames-") as directory:
        play(Path(directory))
        frames = np.load(Path(directory) / "frames.npz")["frames"]
    if count > len(frames):
        raise SystemExit(f"--frames: at most {len(frames)}")
    return frames[: count // EPISODE * EPISODE]


def columns_of(frames: np.ndarray) -> dict[str, np.ndarray]:
    """All rows, in episodes of one length that are truncated."""
    rows = len(frames)
    step = np.arange(rows, dtype=np.int32) % EPISODE
    return {
        "observation": frames, "action": np.zeros((rows, 6), np.float32),
        "reward": np.ones(rows, np.float32), "terminated": np.zeros(rows, bool),
        "truncated": step == EPISODE - 1, "step": step, "is_final": np.zeros(rows, bool),
    }  # fmt: skip


def contenders(
    learner: Learner, frames: np.ndarray, directory: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The floor and everybody that is installed, each as a call that samples one batch."""
    rng = np.random.default_rng(0)
    width = learner.rows + learner.stack - 1
    out = np.empty((learner.windows * width, *frames.shape[1:]), frames.dtype)

    # As many as are drawn between two of one's own turns in a long run: what was read has left the
    # caches, as it has for a sampler.
    starts = rng.integers(len(frames) - width, size=(_DRAWS, learner.windows, 1))
    rows = itertools.cycle((starts + np.arange(width)).reshape(_DRAWS, -1))
    directory.joinpath("mapped").write_bytes(frames.data)
    mapped = np.memmap(directory / "mapped", frames.dtype, "r", shape=frames.shape)
    for name, source in (("floor", frames), ("floor, mapped", mapped)):
        yield name, partial(_take, source, rows, out)
    for compressor in ("raw", "lz4") if frames.dtype == np.uint8 else ("raw",):
        yield f"diskreplay {compressor}", ours(learner, frames, directory / compressor, compressor)
    if find_spec("torchrl"):
        for kind in ("memmap", "RAM"):
            yield f"torchrl {kind}", torchrl(learner, frames, directory / kind, kind)
    if find_spec("flashbax"):
        yield "flashbax", flashbax(learner, frames)


def _take(source: np.ndarray, rows: Iterator[np.ndarray], out: np.ndarray) -> Any:
    return np.take(source, next(rows), axis=0, out=out, mode="clip")


def ours(learner: Learner, frames: np.ndarray, path: Path, compressor: str) -> Callable[[], Any]:
    from gymnasium.spaces import Box

    import diskreplay

    low, high = (0, 255) if frames.dtype == np.uint8 else (-np.inf, np.inf)
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(low, high, frames.shape[1:], frames.dtype),
        action_space=Box(-1, 1, (6,), "float32"), capacity=len(frames), stack_size=learner.stack,
        compressor=compressor,
    )  # fmt: skip
    columns = columns_of(frames)
    for start in range(0, len(frames), 5000):
        buffer.extend({name: column[start : start + 5000] for name, column in columns.items()})
    view = buffer.sequences(**learner.options, seed=1)
    return lambda: view.sample(learner.windows)


def torchrl(learner: Learner, frames: np.ndarray, path: Path, kind: str) -> Callable[[], Any]:
    from torchrl_contender import load_extension

    load_extension()
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SliceSampler

    count = len(frames)
    if kind == "memmap":
        path.mkdir()
        storage = LazyMemmapStorage(count, scratch_dir=path)
    else:
        storage = LazyTensorStorage(count)
    memory = TensorDictReplayBuffer(
        storage=storage, batch_size=learner.windows * learner.rows,
        sampler=SliceSampler(slice_len=learner.rows, traj_key="episode", cache_values=True),
    )  # fmt: skip
    columns = columns_of(frames)
    ended = torch.as_tensor(columns["truncated"])[:, None]
    for start in range(0, count, 5000):
        part = slice(start, start + 5000)
        memory.extend(
            TensorDict(
                {
                    "observation": torch.as_tensor(columns["observation"][part]),
                    "action": torch.as_tensor(columns["action"][part]),
                    "reward": torch.as_tensor(columns["reward"][part]),
                    "episode": torch.arange(start, start + len(ended[part])) // EPISODE,
                    ("next", "done"): ended[part],
                },
                batch_size=[len(ended[part])],
            )
        )
    return memory.sample


def flashbax(learner: Learner, frames: np.ndarray) -> Callable[[], Any]:
    import flashbax as fbx
    import jax
    import jax.numpy as jnp

    columns = {
        name: jnp.asarray(column)
        for name, column in columns_of(frames).items()
        if name in ("observation", "action", "reward", "truncated")
    }
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=1, sample_batch_size=learner.windows, sample_sequence_length=learner.rows,
        period=1, min_length_time_axis=learner.rows, max_length_time_axis=len(frames),
    )  # fmt: skip
    state = buffer.init({name: column[0] for name, column in columns.items()})
    add, sample = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
    for start in range(0, len(frames), 1000):
        part = {name: column[None, start : start + 1000] for name, column in columns.items()}
        state = add(state, part)
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 1000))
    return lambda: jax.block_until_ready(sample(state, next(keys)))


if __name__ == "__main__":
    main()
