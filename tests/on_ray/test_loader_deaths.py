"""A client and shards that are killed amid a `load`: what is there then is the old state or the new
one, of all shards."""

import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest

from diskreplay.ray import ShardedReplayBuffer
from tests.on_ray.workload import add, check, end, make, numbers_of, start_client

pytestmark = pytest.mark.usefixtures("cluster")
ENVS, PATIENCE = 8, 240.0

LOADER = """
import sys
import ray
from diskreplay.ray import ShardedReplayBuffer, sharded_checkpoints
from diskreplay.ray.actors import Actor

address, directory, when = sys.argv[1:]

def halt():
    print("halts", flush=True)
    sys.stdin.readline()

ray.init(address=address, log_to_driver=False, logging_level="ERROR")
replay = ShardedReplayBuffer.connect("loader", seed=1)
go_back, call = sharded_checkpoints.go_back, Actor.call

def decided(*arguments):
    halt()
    go_back(*arguments)

loads = []

def first_only(actor, method, *arguments, **options):
    if method == "load":
        loads.append(actor)
        if len(loads) > 1:
            halt()
    return call(actor, method, *arguments, **options)

def prepared(actor, method, *arguments, **options):
    if method == "begin_load":
        halt()
    return call(actor, method, *arguments, **options)

if when == "decided":
    sharded_checkpoints.go_back = decided
elif when == "one has loaded":
    Actor.call = first_only
elif when == "prepared":
    Actor.call = prepared
else:
    print("halts", flush=True)
while True:
    for number in (1, 2):
        replay.load(directory, number)
"""


def fill(replay, names, steps):
    writers = [replay.writer(2, 8) for _ in range(0, ENVS, 2)]  # all envs
    for number, writer in enumerate(writers):
        for at in range(steps):
            add(writer, [f"{names}{2 * number}", f"{names}{2 * number + 1}"], at)
        writer.close()


def options(shards):
    return {"num_shards": shards, "num_envs": ENVS, "env_group": 2, "name": "loader"}


@pytest.fixture(scope="module")
def checkpoints(cluster, tmp_path_factory):
    """Two of two shards, to be loaded by four; what the rows of each are called."""
    path = tmp_path_factory.mktemp("saved")
    for number, name in ((1, "one"), (2, "two")):
        with make(path / name, **options(2)) as replay:
            fill(replay, name, 12 + 4 * number)
            replay.save(path / "ck", number)
    return path / "ck"


@pytest.fixture(scope="module")
def four(checkpoints, tmp_path_factory):
    with make(tmp_path_factory.mktemp("four"), timeout=PATIENCE, **options(4)) as made:
        yield made


@pytest.fixture
def replay(four, checkpoints):
    four.load(checkpoints, 2)
    return four


def loader(checkpoints, when):
    """A client that loads by turns, in a process of its own."""
    return start_client(LOADER, checkpoints, when)


def state():
    """Which of the two checkpoints the shards have, as a client that comes now sees it."""
    follower = ShardedReplayBuffer.connect("loader", seed=3)
    until, found = time.monotonic() + PATIENCE, set()
    while any(handle.is_lost for handle in follower._client.handles):
        assert time.monotonic() < until
        time.sleep(0.1)
        follower._client.refresh()
    for _ in range(4):
        batch = follower.sample(256)
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1, 2, 3}
        found |= set(batch.number.tolist())
    counts = [shard["transitions"] for shard in follower.shards()]
    follower.disconnect()
    for number, name in ((1, "one"), (2, "two")):
        steps = 12 + 4 * number
        rows = {n for env in range(ENVS) for n in numbers_of(f"{name}{env}", steps).tolist()}
        if found <= rows:
            assert counts == [2 * steps] * 4
            return number
    raise AssertionError("rows of both checkpoints")


@pytest.mark.parametrize("shard_too", [False, True], ids=["client", "client and shard"])
@pytest.mark.parametrize(
    ("when", "expected"), [("prepared", 2), ("decided", 1), ("one has loaded", 1)]
)
def test_a_killed_load_is_made_or_not(replay, checkpoints, when, expected, shard_too):
    process = loader(checkpoints, when)
    if shard_too:
        os.kill(replay.shards()[1]["pid"], signal.SIGKILL)
    end(process)
    assert state() == expected
    generations = [shard["generation"] for shard in replay.shards()]
    with replay.writer(2, 8) as writer:
        add(writer, ["x", "y"], 0)
    ShardedReplayBuffer.connect("loader").disconnect()  # which does not load again
    assert [shard["generation"] for shard in replay.shards()] == generations
    assert replay.load(checkpoints, 2) == "2"
    assert state() == 2


def test_clients_and_shards_are_killed_at_any_moment_of_loads(replay, checkpoints):
    rng, seen = random.Random(11), set()
    for number in range(6):
        process = loader(checkpoints, "any")
        time.sleep(rng.uniform(0.0, 0.6))
        if number % 3:
            os.kill(rng.choice(replay.shards())["pid"], signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.3) * (number % 3 - 1))
        end(process)
        until = time.monotonic() + PATIENCE
        while not all(shard["alive"] for shard in replay.shards()):
            assert time.monotonic() < until
            time.sleep(0.1)
        seen.add(state())
    assert seen <= {1, 2}


def test_a_shard_that_is_killed_amid_a_load_loads_again(replay, checkpoints):
    rng = np.random.default_rng(5)
    for number in (1, 2, 1):
        pid = replay.shards()[2]["pid"]
        timer = subprocess.Popen(["sh", "-c", f"sleep {rng.uniform(0.0, 0.2)}; kill -9 {pid}"])
        assert replay.load(checkpoints, number) == str(number)
        timer.wait()
        assert state() == number
