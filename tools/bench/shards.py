"""`diskreplay.ray` beside Reverb, torchrl's `RayReplayBuffer` and RLlib's prioritized episodes.

    python tools/bench/shards.py [--rows 20000] [--seconds 4] [--warm 0] [--rounds 3]
        [--shards 1 2] [--transport call graph] [--reverb PYTHON] [--only NAME ...] [--json FILE]

Frames of 84x84, moving squares, stacks of 4, prioritized where that is to be had. All have the same
frames, and each has processes of its own; they take turns, and medians of the rounds count.
Processor time is of all processes together: of the learner, the shards and Ray's own. Reverb
needs TensorFlow, which wants an interpreter of its own: without ``--reverb`` it is left out, and so
is whatever cannot be imported, with the reason. Each process of Ray maps the pages of Ray's memory
as it first writes to them, which takes longer than to fill them: ``--warm`` leaves that out, and
the processes that Ray starts ahead.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SIZES = (32, 256, 512)
ENVS, CHUNK, EPISODE, STACK = 8, 128, 500, 4
STEP_S = 0.02
TICK = os.sysconf("SC_CLK_TCK")


def frames(count: int = 256) -> np.ndarray:
    """As of `tools/bench/many_envs.py`, which needs packages that Reverb's interpreter lacks."""
    made = np.zeros((count, 84, 84), np.uint8)
    made[:] = (np.arange(84)[:, None] // 12 * 20).astype(np.uint8)
    for i in range(count):
        x, y = i * 2 % 76, i * 3 % 76
        made[i, y : y + 6, x : x + 6] = 236
    return made


# -- what is measured


def processor_seconds() -> float:
    """Of this process and all that it has started."""
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / TICK
    found = {os.getpid()}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(spent[pid] for pid in found)


def adding(
    add: Callable[[], int], options: argparse.Namespace, most: float = math.inf
) -> dict[str, float]:
    """Rows a second and processor microseconds a row of calls that each add some."""
    began, warmed = time.monotonic(), 0
    while time.monotonic() < began + options.warm and warmed < most:  # Ray starts more processes
        warmed += add()
    began, spent, done = time.monotonic(), processor_seconds(), 0
    while done < min(options.rows, most):
        done += add()
    seconds = time.monotonic() - began
    return {
        "adds/s": done / seconds,
        "us CPU an add": 1e6 * (processor_seconds() - spent) / done,
    }


def sampling(take: Callable[[], None], size: int, options: argparse.Namespace) -> dict[str, float]:
    """The same of batches, which are drawn, looked at and given priorities."""
    began = time.monotonic()
    for number in itertools.count():
        if number >= 5 and time.monotonic() >= began + options.warm:
            break
        take()
    began, spent, done = time.monotonic(), processor_seconds(), 0
    while time.monotonic() < began + options.seconds:
        take()
        done += size
    seconds = time.monotonic() - began
    return {
        f"samples/s at {size}": done / seconds,
        f"us CPU a sample at {size}": 1e6 * (processor_seconds() - spent) / done,
    }


def look_at(array: np.ndarray) -> None:
    """A learner reads all of it: this one a byte of each page."""
    assert array.reshape(len(array), -1)[:, ::4096].sum() >= 0


# -- who is measured


def diskreplay_shards(
    options: argparse.Namespace, shards: str = "1", transport: str = "call"
) -> dict[str, float]:
    return _shards(options, int(shards), transport)


def _shards(options: argparse.Namespace, shards: int, transport: Any) -> dict[str, float]:
    from gymnasium.spaces import Box, Discrete

    from diskreplay.ray import ShardedReplayBuffer

    shown, found = frames(), {}
    with (
        tempfile.TemporaryDirectory(prefix="shards-") as directory,
        ray_of_its_own(),
        ShardedReplayBuffer(
            directory, num_shards=shards, num_envs=ENVS * shards, capacity=None, stack_size=STACK,
            observation_space=Box(0, 255, (84, 84), "uint8"), action_space=Discrete(6),
            update_horizon=3, seed=0, shard_timeout=60.0, timeout=300.0, transport=transport,
        ) as replay,
    ):  # fmt: skip
        writers = [replay.writer(ENVS, CHUNK) for _ in range(shards)]
        # Made ahead, as `engine_alone` has them: to make them takes as long as a part of `add`.
        seen = [shown[(at + np.arange(ENVS)) % len(shown)] for at in range(len(shown))]
        actions, rewards = np.zeros(ENVS, np.int64), np.ones(ENVS)
        yes, no = np.ones(ENVS, bool), np.zeros(ENVS, bool)
        at = 0

        def add() -> int:
            nonlocal at
            at += 1
            ends = no if at % EPISODE else yes
            for writer in writers:
                writer.add(seen[at % len(seen)], actions, rewards, ends, no)
            return ENVS * len(writers)

        for _ in range(2 * CHUNK):
            add()
        found |= adding(add, options)
        for writer in writers:
            writer.close()
        for size in SIZES:
            with replay.prefetch(2, max(1, 1024 * shards // size), size) as batches:

                def take() -> None:
                    batch = next(batches)
                    look_at(batch.observation)
                    look_at(batch.next_observation)
                    replay.update_priorities(batch.id, batch.weight, batch.generation)

                found |= sampling(take, size, options)
        waits = []
        with replay.prefetch(2, 2 * shards, 512) as batches:
            for _ in range(int(options.seconds / STEP_S)):
                began = time.monotonic()
                batch = next(batches)
                waits.append(time.monotonic() - began)
                replay.update_priorities(batch.id, batch.weight, batch.generation)
                time.sleep(STEP_S)
        found["ms wait, median"] = 1e3 * median(waits[5:])
        found["ms wait, most"] = 1e3 * max(waits[5:])
        if transport == "graph":
            assert replay._client.graph is not None
            assert len(replay._client.graph.numbers) == shards, "it did not go by the graph"
    return found


def engine_alone(options: argparse.Namespace) -> dict[str, float]:
    from gymnasium.spaces import Box, Discrete

    import diskreplay

    shown, found = frames(), {}
    columns = {
        "observation": np.concatenate([shown[:CHUNK]] * ENVS),
        "action": np.zeros(ENVS * CHUNK, np.int64), "reward": np.ones(ENVS * CHUNK, np.float32),
        "terminated": np.zeros(ENVS * CHUNK, bool), "truncated": np.zeros(ENVS * CHUNK, bool),
        "step": np.zeros(ENVS * CHUNK, np.int32), "is_final": np.zeros(ENVS * CHUNK, bool),
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="shards-") as directory,
        diskreplay.PrioritizedReplayBuffer(
            Path(directory) / "store", num_envs=ENVS, capacity=None, stack_size=STACK,
            observation_space=Box(0, 255, (84, 84), "uint8"), action_space=Discrete(6),
            update_horizon=3, seed=0,
        ) as buffer,
    ):  # fmt: skip
        envs, lengths = np.arange(ENVS), np.full(ENVS, CHUNK)

        def add() -> int:
            first = buffer.bounds[:, 1]
            columns["step"][:] = (first[:, None] + np.arange(CHUNK)).reshape(-1)
            buffer.extend_many(columns, envs, first, lengths)
            return ENVS * CHUNK

        add()
        found |= adding(add, options)

        def take() -> None:
            batch = buffer.sample(1024)
            look_at(batch.observation)
            look_at(batch.next_observation)
            buffer.update_priorities(batch.id, batch.weight)

        found |= sampling(take, 1024, options)
    return found


def torchrl_actor(options: argparse.Namespace) -> dict[str, float]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    shown, found, rows = torch.from_numpy(frames()), {}, 64
    stacks = torch.stack([shown[k : len(shown) - STACK + k] for k in range(STACK)], 1)
    with ray_of_its_own():
        buffer = RayReplayBuffer(
            storage=lambda: LazyTensorStorage(min(options.rows, 10_000)), batch_size=512,
            ray_init_config={"address": "auto"},
        )  # fmt: skip
        batch = TensorDict(
            {
                "observation": stacks[:rows], "action": torch.zeros(rows, dtype=torch.int64),
                "next": {
                    "observation": stacks[1 : rows + 1], "reward": torch.ones(rows),
                    "terminated": torch.zeros(rows, dtype=torch.bool),
                },
            },
            [rows],
        )  # fmt: skip

        def add() -> int:
            buffer.extend(batch)
            return rows

        add()
        found |= adding(add, options, 4_000)
        for size in SIZES:

            def take() -> None:
                got = buffer.sample(size)  # noqa: B023 - called in this round of the loop only
                look_at(got["observation"].numpy())
                look_at(got["next", "observation"].numpy())

            found |= sampling(take, size, options)
    return found


def rllib_actor(options: argparse.Namespace) -> dict[str, float]:
    import ray
    from gymnasium.spaces import Box, Discrete
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

    shown, found = frames(), {}
    spaces = {"observation_space": Box(0, 255, (84, 84), "uint8"), "action_space": Discrete(6)}
    with ray_of_its_own():
        buffer = ray.remote(num_cpus=0)(PrioritizedEpisodeReplayBuffer).remote(
            capacity=max(20_000, 2 * options.rows), alpha=0.6
        )

        def add() -> int:
            episode = SingleAgentEpisode(
                observations=list(shown[: CHUNK + 1]), actions=[0] * CHUNK, rewards=[1.0] * CHUNK,
                terminated=True, len_lookback_buffer=0, **spaces,
            )  # fmt: skip
            ray.get(buffer.add.remote([episode]))
            return CHUNK

        add()
        found |= adding(add, options)
        for size in SIZES:

            def take() -> None:
                got = ray.get(buffer.sample.remote(batch_size_B=size, n_step=3, beta=0.4))  # noqa: B023
                look_at(np.stack([episode.get_observations(-1) for episode in got]))
                buffer.update_priorities.remote(np.ones(size))  # noqa: B023

            found |= sampling(take, size, options)
    return found


def reverb_server(options: argparse.Namespace) -> dict[str, float]:
    import reverb
    import tensorflow as tf

    shown, found = frames(), {}
    signature = {
        "frames": tf.TensorSpec((STACK + 1, 84, 84), tf.uint8),
        "action": tf.TensorSpec((), tf.int64), "reward": tf.TensorSpec((), tf.float32),
    }  # fmt: skip
    table = reverb.Table(
        "replay", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(),
        max_size=2 * options.rows + 10_000, rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )  # fmt: skip
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    at = 0
    with client.trajectory_writer(num_keep_alive_refs=STACK + 1) as writer:
        writer.configure(("frames",), num_keep_alive_refs=STACK + 1, max_chunk_length=1)

        def add() -> int:
            nonlocal at
            writer.append({
                "frames": shown[at % len(shown)], "action": np.int64(0), "reward": np.float32(1),
            })  # fmt: skip
            at += 1
            if at <= STACK:
                return 0
            history = writer.history
            writer.create_item("replay", 1.0, {
                "frames": history["frames"][-STACK - 1 :], "action": history["action"][-2],
                "reward": history["reward"][-2],
            })  # fmt: skip
            writer.flush(200)  # so many may be under way
            return 1

        for _ in range(500):
            add()
        found |= adding(add, options, 20_000)
        writer.flush()
    for size in SIZES:
        batches = reverb.TrajectoryDataset.from_table_signature(
            f"localhost:{server.port}", "replay", max_in_flight_samples_per_worker=2 * size
        ).batch(size).prefetch(2).as_numpy_iterator()  # fmt: skip

        def take() -> None:
            got = next(batches)  # noqa: B023 - called in this round of the loop only
            look_at(got.data["frames"])
            keys = got.info.key.tolist()
            client.mutate_priorities("replay", dict.fromkeys(keys, 1.0))

        found |= sampling(take, size, options)
    server.stop()
    return found


CONTENDERS: dict[str, tuple[str, Callable[..., dict[str, float]]]] = {
    "engine": ("diskreplay", engine_alone),
    "diskreplay": ("ray", diskreplay_shards),
    "torchrl": ("torchrl", torchrl_actor),
    "rllib": ("tree", rllib_actor),
    "reverb": ("reverb", reverb_server),
}


@contextmanager
def ray_of_its_own() -> Iterator[None]:
    """Ray, for this process only; its processes are started by this one."""
    import ray

    os.environ |= {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="dr-", dir="/tmp", ignore_cleanup_errors=True) as place:
        ray.init(
            num_cpus=4, include_dashboard=False, object_store_memory=1 << 30, _temp_dir=place,
            logging_level="ERROR", log_to_driver=False,
        )  # fmt: skip
        try:
            yield
        finally:
            ray.shutdown()


# -- rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each size of batches")
    parser.add_argument("--warm", type=float, default=0.0, help="seconds of each before those")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--transport", nargs="+", default=["call", "graph"])
    parser.add_argument("--reverb", metavar="PYTHON", help="an interpreter that has Reverb")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one contender")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *arguments = options.one.split(":")
        print("\n" + json.dumps(CONTENDERS[name][1](options, *arguments)))
        return
    labels = [name for name in options.only if name != "diskreplay"]
    if "diskreplay" in options.only:
        labels += [
            f"diskreplay:{count}:{how}" for count in options.shards for how in options.transport
        ]  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {label: [] for label in labels}
    for number in range(options.rounds):
        for label in labels[number % len(labels) :] + labels[: number % len(labels)]:
            found[label].append(measured(label, options))
            print(f"round {number}, {label}: load {os.getloadavg()[0]:.0f}", file=sys.stderr)
    for label, rounds in found.items():
        print(label)
        for what in rounds[0]:
            values = [each[what] for each in rounds if what in each]
            if isinstance(values[0], str):
                print(f"    {what}: {values[0]}")
            else:
                least, most = min(values), max(values)
                print(f"    {what:26} {median(values):10,.1f}  ({least:,.1f} to {most:,.1f})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measured(label: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one contender, in a process of its own; or why there are none."""
    name = label.partition(":")[0]
    python, needed = sys.executable, CONTENDERS[name][0]
    if name == "reverb":
        if not options.reverb:
            return {"left out": "no --reverb PYTHON was given"}
        python = options.reverb
    elif importlib.util.find_spec(needed) is None:
        return {"left out": f"{needed} is not installed"}
    command = [python, __file__, "--one", label, f"--rows={options.rows}"]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    more = {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, f"--seconds={options.seconds}", f"--warm={options.warm}"],
            capture_output=True, text=True, check=False, timeout=options.limit,
            env=os.environ | more,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"left out": f"not done in {options.limit:.0f} s"}
    if done.returncode:
        return {"left out": f"it failed: {done.stderr[-600:]}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
