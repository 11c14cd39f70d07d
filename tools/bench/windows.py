"""Sequences as four learners sample them: diskreplay beside its peers, and a floor.

    python tools/bench/windows.py [--rounds 20] [--frames 25000] [--only R2D2 vectors]
                                  [--batches 1] [--alone] [--quantile 0.5] [--realtime]

The floor is one `np.take` of the windows' frames, with rows that are drawn already, others each
time; from a plain array, and from a mapped file. A batch has more: "all fields" takes the actions,
rewards and ends of the same rows too. A batch of diskreplay makes an array when it is looked at:
those five and returns to go are, here. All contenders hold the same rows and take turns, of so many
batches: of one, the caches have lost its code and have other rows; of many, only the first finds
them so. They are timed by the clock, and by the processor time of all threads: read the ratios. On
a machine that others use, `--realtime` (Linux, root) gives each round priority over all else. Peers
that are not installed are left out: ``pip install diskreplay[bench]`` has all but Reverb, which
needs an environment of its own, with Python 3.11 and ``dm-reverb[tensorflow]`` (TensorFlow 2.15).

What they do less: nobody else makes stacks in windows, n-step targets or burn-in masks.

- torchrl: SliceSampler, evenly also for R2D2.
- flashbax: trajectory buffer on the CPU, by priority and with a period of 40 for R2D2, evenly else.
  Windows go over the ends of episodes.
- Tianshou: what its recurrent agents do, stacks of the observation as long as the window, by
  priority for R2D2; the newest action and reward of each only. A stack ends at the drawn row, and
  repeats the first row of an episode before its beginning.
- Reverb: a table of trajectories, one for each row (R2D2: each 40), by priority for R2D2. Its
  server is in this process, so that nothing goes over a socket; `Client.sample` of a batch, each
  column stacked. It keeps rows compressed, in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

EPISODE = 500
PEERS = ("torchrl", "flashbax", "tianshou", "reverb")
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
    parser.add_argument("--batches", type=int, default=1, help="of a turn, each timed")
    parser.add_argument("--only", nargs="*", default=[""], help="learners, by parts of their names")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument(
        "--quantile", type=float, default=0.5, help="of the batches; 0.25: quick ones"
    )
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from sampling import first_of_all

    frames = atari(options.frames)
    found: dict[str, dict[str, list[float]]] = {}
    for learner in LEARNERS:
        if not any(part in learner.name for part in options.only):
            continue
        with tempfile.TemporaryDirectory(prefix="windows-") as directory:
            peers = () if options.alone else PEERS
            calls = dict(contenders(learner, learner.frames(frames), Path(directory), peers))
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            order = np.random.default_rng(0)
            for number in range(options.rounds + 3):
                quiet = options.realtime and number >= 3
                with first_of_all() if quiet else contextlib.nullcontext():
                    # In another order each time: nobody is always behind himself or the same one.
                    for name in order.permutation(list(calls)).tolist():
                        for _ in range(options.batches):
                            begin = time.perf_counter(), time.process_time()
                            calls[name]()
                            ends = time.perf_counter(), time.process_time()
                            if number >= 3:
                                taken[name].append((ends[0] - begin[0], ends[1] - begin[1]))
        found[learner.name] = {
            name: [
                1e3 * float(np.quantile(each, options.quantile)) for each in zip(*both, strict=True)
            ]
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
    learner: Learner, frames: np.ndarray, directory: Path, peers: tuple[str, ...]
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
    # Each with memory of its own, as all contenders have it: in that of another one right before it
    # the caches would have what nobody else finds there.
    for name, source in (("floor", frames), ("floor, mapped", mapped)):
        yield name, partial(_take, source, rows, out.copy())
    yield "floor, all fields", all_fields(learner, frames, rows, out)
    for compressor in ("raw", "lz4") if frames.dtype == np.uint8 else ("raw",):
        new, filled, by_two = ours(learner, frames, directory / compressor, compressor)
        yield f"diskreplay {compressor}", new
        if compressor != "raw":
            yield f"{compressor}, two threads", by_two
        if not peers:  # right behind the other it would find the caches warm, as no peer does
            yield f"{compressor}, out=", filled
    found = [name for name in peers if find_spec(name)]
    if "torchrl" in found:
        for kind in ("memmap", "RAM"):
            yield f"torchrl {kind}", torchrl(learner, frames, directory / kind, kind)
    if "flashbax" in found:
        yield "flashbax", flashbax(learner, frames)
    if "tianshou" in found:
        yield "Tianshou", tianshou(learner, frames)
    if "reverb" in found:
        yield "Reverb", reverb(learner, frames)


def _take(source: np.ndarray, rows: Iterator[np.ndarray], out: np.ndarray) -> Any:
    return np.take(source, next(rows), axis=0, out=out, mode="clip")


def all_fields(
    learner: Learner, frames: np.ndarray, rows: Iterator[np.ndarray], out: np.ndarray
) -> Callable[[], Any]:
    """A call that takes the frames into `out`, and other stored fields into arrays of their own."""
    stored = columns_of(frames)
    fields = [stored[name] for name in ("action", "reward", "terminated", "truncated")]
    shape = learner.windows, learner.rows
    taken = [np.empty((*shape, *field.shape[1:]), field.dtype) for field in fields]

    def take() -> None:
        drawn = next(rows)
        np.take(frames, drawn, axis=0, out=out, mode="clip")
        own = drawn.reshape(learner.windows, -1)[:, -learner.rows :]  # others are of stacks only
        for field, into in zip(fields, taken, strict=True):
            np.take(field, own, axis=0, out=into, mode="clip")

    return take


def ours(
    learner: Learner, frames: np.ndarray, path: Path, compressor: str
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """A batch of its own, the memory of one filled again and again, and one read by two threads."""
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
    out = view.sample(learner.windows)
    names = ["observation", "action", "reward", "terminated", "truncated"]
    names += ["returns_to_go"] if "returns_to_go" in learner.options else []

    def sample(**how: Any) -> list[np.ndarray]:
        batch = view.sample(learner.windows, **how)
        return [batch[name] for name in names]  # an array is made when it is looked at

    return sample, partial(sample, out=out), partial(sample, threads=2)


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
    options = {
        "add_batch_size": 1, "sample_batch_size": learner.windows,
        "sample_sequence_length": learner.rows, "period": learner.options.get("stride", 1),
        "min_length_time_axis": learner.rows, "max_length_time_axis": len(frames),
    }  # fmt: skip
    if learner.options.get("prioritized"):
        buffer = fbx.make_prioritised_trajectory_buffer(**options, device="cpu")
    else:
        buffer = fbx.make_trajectory_buffer(**options)
    state = buffer.init({name: column[0] for name, column in columns.items()})
    add, sample = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
    for start in range(0, len(frames), 1000):
        part = {name: column[None, start : start + 1000] for name, column in columns.items()}
        state = add(state, part)
    keys = itertools.cycle(jax.random.split(jax.random.PRNGKey(0), 1000))
    return lambda: jax.block_until_ready(sample(state, next(keys)))


def tianshou(learner: Learner, frames: np.ndarray) -> Callable[[], Any]:
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    options: dict[str, Any] = {"stack_num": learner.rows, "ignore_obs_next": True}
    if learner.options.get("prioritized"):
        buffer = PrioritizedReplayBuffer(len(frames), alpha=0.9, beta=0.6, **options)
    else:
        buffer = ReplayBuffer(len(frames), **options)
    columns = columns_of(frames)
    for i, frame in enumerate(frames):
        buffer.add(
            Batch(
                obs=frame, act=columns["action"][i], rew=1.0, terminated=False,
                truncated=bool(columns["truncated"][i]),
            )
        )  # fmt: skip

    def sample() -> Any:
        rows = buffer.sample_indices(learner.windows)
        weight = buffer.get_weight(rows) if learner.options.get("prioritized") else None
        return buffer.get(rows, "obs"), buffer.act[rows], buffer.rew[rows], weight

    return sample


def reverb(learner: Learner, frames: np.ndarray) -> Callable[[], Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import reverb as rb

    stride = learner.options.get("stride", 1)
    even = not learner.options.get("prioritized")
    table = rb.Table(
        "windows", rb.selectors.Uniform() if even else rb.selectors.Prioritized(0.9),
        rb.selectors.Fifo(), max_size=len(frames), rate_limiter=rb.rate_limiters.MinSize(1),
    )  # fmt: skip
    server = rb.Server([table])
    client = rb.Client(f"localhost:{server.port}")
    columns = columns_of(frames)
    names = ("observation", "action", "reward", "terminated", "truncated", "step")
    with client.trajectory_writer(num_keep_alive_refs=learner.rows) as writer:
        for i in range(len(frames)):
            writer.append({name: columns[name][i] for name in names})
            first = i % EPISODE - learner.rows + 1  # of the window that ends here, in its episode
            if first >= 0 and first % stride == 0:
                window = {name: each[-learner.rows :] for name, each in writer.history.items()}
                writer.create_item("windows", 1.0, window)
            if i % 1000 == 999:
                writer.flush()

    def sample(_server: Any = server) -> Any:
        windows = client.sample("windows", num_samples=learner.windows, emit_timesteps=False)
        data = [window.data for window in windows]
        return [np.stack(column) for column in zip(*data, strict=True)]

    return sample


if __name__ == "__main__":
    main()
