"""Shards and learners that are killed: no acknowledged row is lost, none is there twice."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from diskreplay import CheckpointNotFoundError, ShardsLostError
from diskreplay.ray import ShardedReplayBuffer
from tests.on_ray.workload import (
    add,
    check,
    halt,
    killing_amid_save,
    make,
    numbers_of,
    stored,
)

pytestmark = pytest.mark.usefixtures("cluster")
ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 240  # seconds


def kill(replay, number):
    """SIGKILL the process of a shard."""
    (shard,) = (shard for shard in replay.shards() if shard["shard"] == number and shard["alive"])
    os.kill(shard["pid"], signal.SIGKILL)
    return shard["pid"]


def wait_for(replay, number, not_pid):
    """Until the shard is back with another process."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        shard = replay.shards()[number]
        if shard["alive"] and shard["pid"] != not_pid:
            break
        time.sleep(0.1)
    while time.monotonic() < until:  # the learner takes it back once its own question is answered
        replay._client.refresh()
        if not replay._client.handles[number].is_lost:
            return
        time.sleep(0.1)
    raise AssertionError(f"shard {number} did not come back")


def check_rows(path, names, count):
    """Every env has the rows of one name, from the first on, each once, in their order."""
    rows = sorted(row.tolist() for row in stored(path))
    expected = sorted(numbers_of(name, count).tolist() for name in names)
    assert rows == expected


def test_shards_are_killed_while_rows_come_and_batches_go(tmp_path):
    rng, names = random.Random(7), [f"{writer}{env}" for writer in range(3) for env in "ab"]
    with make(tmp_path, name="deaths", timeout=PATIENCE) as replay:
        writers = [replay.writer(2, 8) for _ in range(3)]

        def step(at):
            for number, writer in enumerate(writers):
                add(writer, names[2 * number : 2 * number + 2], at)

        for at in range(30):
            step(at)
        count = 30
        for kills in range(6):
            number = kills % 3
            pid = kill(replay, number)
            for _ in range(rng.randrange(1, 30)):
                step(count)
                count += 1
                batch = replay.sample()
                check(batch)
                replay.update_priorities(batch.id, batch.reward + 0.1, batch.generation)
            wait_for(replay, number, pid)
        for writer in writers:
            writer.close()
            rows = count + count // 9  # with the final ones
            assert (writer.acknowledged == rows).all()
        assert replay.add_count == 6 * count
        shards = set()
        for _ in range(5):
            batch = replay.sample(256)
            check(batch)
            shards |= set((batch.id >> 48).tolist())
        assert shards == {0, 1, 2}
    check_rows(tmp_path, names, count)


def test_a_shard_that_dies_while_it_saves_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    with make(tmp_path / "replay", name="saves", timeout=PATIENCE) as replay:
        for number in range(3):
            with replay.writer(2, 8) as writer:
                for at in range(12):
                    add(writer, [f"{number}a", f"{number}b"], at)
        replay.save(tmp_path / "ck", 1)
        expected = [replay.sample().id.tolist() for _ in range(3)]
        pid = replay.shards()[1]["pid"]
        killing_amid_save(monkeypatch, pid)
        with pytest.raises(ShardsLostError, match="shard 1 died while it saved"):
            replay.save(tmp_path / "ck", 2)
        with pytest.raises(CheckpointNotFoundError, match=r"there are \['1'\]"):
            replay.load(tmp_path / "ck", 2)
        wait_for(replay, 1, pid)
        assert replay.load(tmp_path / "ck") == "1"
        assert [replay.sample().id.tolist() for _ in range(3)] == expected
        assert len(list((tmp_path / "ck" / "parts").iterdir())) == 3
        assert replay.save(tmp_path / "ck", 2).exists()


def test_without_any_shard_a_draw_waits_and_then_says_so(tmp_path):
    with make(
        tmp_path, name="none", num_shards=1, num_envs=2, timeout=8.0, shard_timeout=1.0
    ) as replay:
        with replay.writer(2, 4) as writer:
            for at in range(12):
                add(writer, ["a", "b"], at)
        check(replay.sample())
        pid = replay.shards()[0]["pid"]
        os.kill(pid, signal.SIGSTOP)  # it is there, and does not answer
        with pytest.raises(ShardsLostError, match="1 of 1 shards do not answer"):
            replay.sample()
        os.kill(pid, signal.SIGCONT)
        until = time.monotonic() + PATIENCE
        while replay._client.handles[0].is_lost and time.monotonic() < until:
            replay._client.handles[0].look(1.0)
        check(replay.sample())


def test_a_shard_whose_disk_is_gone_gets_the_rows_of_a_checkpoint(tmp_path):
    with make(tmp_path / "replay", name="disk", timeout=PATIENCE) as replay:
        for number in range(3):
            with replay.writer(2, 8) as writer:
                for at in range(12):
                    add(writer, [f"{number}a", f"{number}b"], at)
        replay.save(tmp_path / "ck", 1)
        old = replay.sample(128)
        pid = replay.shards()[2]["pid"]
        halt(pid)
        shutil.rmtree(tmp_path / "replay" / "shard-2")
        os.kill(pid, signal.SIGKILL)
        batch = replay.sample(128)  # from the others
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1}
        until = time.monotonic() + PATIENCE
        while True:
            try:
                replay.restore_shard(2, tmp_path / "ck", 1)
                break
            except ShardsLostError:
                assert time.monotonic() < until
        replay.update_priorities(old.id, np.full(128, 50.0), old.generation)
        batch = replay.sample(256)
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1, 2}
        dropped = [shard["dropped_updates"] for shard in replay.shards()]
        assert dropped == [0, 0, int(((old.id >> 48) == 2).sum())]
        with replay.writer(2, 8) as writer:
            add(writer, ["x", "y"], 0)
    rows = sorted(len(row) for row in stored(tmp_path / "replay"))
    assert rows == [12, 12, 12, 12, 13, 13]


LEARNER = """
import sys
import numpy as np
import ray
from diskreplay.ray import ShardedReplayBuffer
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
replay = ShardedReplayBuffer.connect("learner", seed=1)
with replay.prefetch(2) as batches:
    for batch in batches:
        replay.update_priorities(batch.id, batch.reward + 1, batch.generation)
        print("took", flush=True)
"""


def test_a_learner_that_is_killed_is_followed_by_another(tmp_path, cluster):
    names = ["0a", "0b", "1a", "1b", "2a", "2b"]
    with make(tmp_path, name="learner", timeout=PATIENCE) as replay:
        writers = [replay.writer(2, 8) for _ in range(3)]
        for at in range(20):
            for number, writer in enumerate(writers):
                add(writer, names[2 * number : 2 * number + 2], at)
        for writer in writers:
            writer.flush()
        address = cluster.get_runtime_context().gcs_address
        learner = subprocess.Popen(
            [sys.executable, "-c", LEARNER, address], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(3):
            assert learner.stdout.readline() == "took\n"
        learner.kill()
        learner.wait()
        learner.stdout.close()
        for at in range(20, 25):
            for number, writer in enumerate(writers):
                add(writer, names[2 * number : 2 * number + 2], at)
        for writer in writers:
            writer.close()
        following = ShardedReplayBuffer.connect("learner", seed=2)
        for _ in range(3):
            check(following.sample(64))
        following.disconnect()
    check_rows(tmp_path, names, 25)
