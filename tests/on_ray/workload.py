"""Rows that say who they are, and what has to be true of those that come back."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import ray
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.ray import ShardedReplayBuffer, sharded_checkpoints
from tests.processes import ROOT

STACK, LENGTH = 2, 9


def make(path, **options):
    options = {
        "num_shards": 3, "num_envs": 6, "capacity": 6 * 400, "stack_size": STACK, "batch_size": 32,
        "alpha": 1.0, "seed": 0, "extras": {"number": ((), "int64")}, "segment_rows": 64,
        "shard_timeout": 30.0,  # beside busy processes
    } | options  # fmt: skip
    return ShardedReplayBuffer(
        path, observation_space=Box(0, 255, (8,), "uint8"), action_space=Discrete(5), **options
    )


def frame(number):
    """Eight bytes that follow from the number of a row, which is of one env only."""
    return np.frombuffer(hashlib.sha256(str(number).encode()).digest()[:8], np.uint8)


def numbers_of(name, count):
    """The numbers of the rows of one env of a writer."""
    base = int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:4]) << 24
    return base + np.arange(count)


def add(writer, names, at):
    """One step of each env; episodes of `LENGTH`, ended by turns in both ways."""
    numbers = np.array([numbers_of(name, at + 1)[-1] for name in names])
    end = at % LENGTH == LENGTH - 1
    even = (at // LENGTH) % 2 == 0
    envs = len(names)
    writer.add(
        np.stack([frame(n) for n in numbers]), numbers % 5, numbers % 7,
        np.full(envs, end and even), np.full(envs, end and not even),
        np.stack([frame(-n) for n in numbers]), number=numbers,
    )  # fmt: skip


def killing_amid_save(monkeypatch, pid):
    """Kill a shard, which is stopped, when it has been asked to save and its answer is awaited."""
    answer = sharded_checkpoints.answer

    def killed(*call):
        os.kill(pid, signal.SIGKILL)
        monkeypatch.setattr(sharded_checkpoints, "answer", answer)
        return answer(*call)

    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(sharded_checkpoints, "answer", killed)


def check(batch):
    """Every transition is the one that its number says, with its own frames beside it."""
    for i, number in enumerate(batch.number.tolist()):
        at = (number & 0xFFFFFF) % LENGTH
        np.testing.assert_array_equal(batch.observation[i, -1], frame(number))
        assert batch.action[i] == number % 5
        assert batch.reward[i] == number % 7
        before = batch.observation[i, -2]
        if at == 0:
            assert not before.any()
        elif before.any():  # else a shard was restarted amid this episode
            np.testing.assert_array_equal(before, frame(number - 1))
        end, even = at == LENGTH - 1, ((number & 0xFFFFFF) // LENGTH) % 2 == 0
        assert batch.terminated[i] == (end and even)
        assert batch.truncated[i] == (end and not even)
        following = frame(-number) if end else frame(number + 1)
        np.testing.assert_array_equal(batch.next_observation[i, -1], following)
        np.testing.assert_array_equal(batch.next_observation[i, 0], batch.observation[i, -1])
    assert np.isfinite(batch.weight).all()
    assert (batch.weight > 0).all()


def stored(path):
    """The numbers of the rows of each env of each shard, from the stores themselves."""
    found = []
    for directory in sorted(path.glob("shard-*/store")):
        with diskreplay.open(directory) as buffer:
            for env, (first, stop) in enumerate(buffer.bounds.tolist()):
                ids = np.arange(first, stop) * buffer.num_envs + env
                final = buffer.take("is_final", ids)
                numbers = buffer.take("number", ids)[~final]
                frames = buffer.take("observation", ids)[~final]
                for number, shown in zip(numbers.tolist(), frames, strict=True):
                    np.testing.assert_array_equal(shown, frame(number))
                found.append(numbers)
    return found


def start_client(code, *arguments):
    """A client in a process of its own, which is given the address of the cluster first. It is
    there when it has said that it halts; `end` ends it."""
    address = ray.get_runtime_context().gcs_address
    process = subprocess.Popen(
        [sys.executable, "-c", code, address, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout.readline() == "halts\n"
    return process


def end(process):
    process.kill()
    process.communicate()


def halt(pid):
    """Stop all threads of a process: they run on until each has taken the signal."""
    os.kill(pid, signal.SIGSTOP)
    while any(state_of(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.01)


def state_of(task):
    """What a thread does, as its directory below ``/proc`` says; T where it was stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
