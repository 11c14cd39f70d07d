"""Whole nodes that die: the head of a Ray cluster, one with its disk, and all that have shards."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import ShardsLostError
from diskreplay.ray import SampleToInsertRatio, ShardedReplayBuffer
from tests.on_ray.workload import add, check, make, numbers_of, stored

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "torture"))

import loopback_cluster  # noqa: E402 - of the tools

PATIENCE = 300  # seconds
DISKS = [{"disk0": 1}, {"disk1": 1}]

FIRST_LIFE = """
import sys
import loopback_cluster
from tests.on_ray.workload import add, make
from diskreplay.ray import ShardedReplayBuffer
ray = loopback_cluster.connect(sys.argv[1])
loopback_cluster.wait_for_disks(ray, 2)
replay = make(
    sys.argv[2], name="head", num_shards=2, num_envs=4, timeout=300.0,
    resources=[{"disk0": 1}, {"disk1": 1}],
)
writers = [replay.writer(2, 8) for _ in range(2)]
for at in range(30):
    for number, writer in enumerate(writers):
        add(writer, [f"{number}a", f"{number}b"], at)
for writer in writers:
    writer.flush()
replay.save(sys.argv[3], 1)
print("added", flush=True)
sys.stdin.read()
"""


def two_shards(path, **options):
    return make(
        path, num_shards=2, num_envs=4, resources=DISKS, **{"timeout": PATIENCE} | options
    )  # fmt: skip


def fill(replay, steps):
    """Both shards have rows of two envs."""
    for number in range(2):
        with replay.writer(2, 8) as writer:
            for at in range(steps):
                add(writer, [f"{number}a", f"{number}b"], at)


def test_after_the_death_of_the_head_a_new_cluster_opens_the_stores(tmp_path):
    names = ["0a", "0b", "1a", "1b"]
    script = tmp_path / "first_life.py"
    script.write_text(FIRST_LIFE)
    with loopback_cluster.LoopbackCluster(2) as cluster:
        first = subprocess.Popen(
            [sys.executable, script, cluster.address, tmp_path / "replay", tmp_path / "ck"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=loopback_cluster.environment() | {"PYTHONPATH": f"{ROOT}:{ROOT}/tools/torture"},
        )  # fmt: skip
        assert first.stdout.readline() == "added\n"
        cluster.kill("head")
        # The shards do not know yet; a new cluster on these nodes would find their stores locked.
        with pytest.raises(diskreplay.LockedError):
            diskreplay.PrioritizedReplayBuffer(
                tmp_path / "replay/shard-0/store", observation_space=Box(0, 255, (8,), "uint8"),
                action_space=Discrete(5), capacity=1200, num_envs=2, stack_size=2,
                extras={"number": ((), "int64")}, segment_rows=64,
            )  # fmt: skip
    first.kill()
    first.communicate()
    with loopback_cluster.LoopbackCluster(2) as cluster:
        loopback_cluster.connect(cluster.address)
        try:
            loopback_cluster.wait_for_disks(ray, 2)
            with two_shards(tmp_path / "replay", name="head") as replay:
                assert replay.add_count == 4 * 30
                for _ in range(5):
                    check(replay.sample(64))
                rows = sorted(row.tolist() for row in stored(tmp_path / "replay"))
                assert rows == sorted(numbers_of(name, 30).tolist() for name in names)
                assert replay.load(tmp_path / "ck") == "1"
                check(replay.sample(64))
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def nodes():
    """A cluster with two disks, and Ray connected to it."""
    with loopback_cluster.LoopbackCluster(2) as cluster:
        loopback_cluster.connect(cluster.address)
        try:
            loopback_cluster.wait_for_disks(ray, 2)
            yield cluster
        finally:
            ray.shutdown()


def test_a_node_that_comes_back_with_an_empty_disk_gets_the_rows_of_a_checkpoint(tmp_path, nodes):
    with two_shards(tmp_path / "replay", name="disk") as replay:
        fill(replay, 12)
        replay.save(tmp_path / "ck", 1)
        old = replay.sample(128)
        nodes.kill(1)
        shutil.rmtree(tmp_path / "replay" / "shard-1")
        batch = replay.sample(128)  # from the other
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0}
        nodes.start_disk(1)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                replay.restore_shard(1, tmp_path / "ck")
                break
            except ShardsLostError:
                assert time.monotonic() < until
        replay.update_priorities(old.id, np.full(128, 50.0), old.generation)
        batch = replay.sample(256)
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1}
        with replay.writer(2, 8) as writer:
            add(writer, ["x", "y"], 0)
    assert sorted(len(row) for row in stored(tmp_path / "replay")) == [12, 12, 13, 13]


def test_all_nodes_with_shards_are_gone_and_come_back(tmp_path, nodes):
    with two_shards(tmp_path / "replay", name="all", timeout=8.0, shard_timeout=2.0) as replay:
        fill(replay, 12)
        check(replay.sample())
        for number in range(2):
            nodes.kill(number)
        with pytest.raises(ShardsLostError, match="2 of 2 shards do not answer"):
            replay.sample()
        second = ShardedReplayBuffer.connect("all", seed=1)
        with pytest.raises(ShardsLostError):
            second.sample()
        for number in range(2):
            nodes.start_disk(number)
        until = time.monotonic() + PATIENCE
        for client in (replay, second):
            seen = set()
            while seen != {0, 1}:
                assert time.monotonic() < until
                try:
                    batch = client.sample(64)
                except ShardsLostError:
                    continue
                check(batch)
                seen |= set((batch.id >> 48).tolist())
        second.disconnect()
    assert sorted(len(row) for row in stored(tmp_path / "replay")) == [12, 12, 12, 12]


def test_each_actor_runs_where_it_was_placed_also_when_it_is_started_again(tmp_path, nodes):
    def where():
        coordinator = replay._client.coordinator.handle._actor_id.hex()
        return (
            ray._private.state.actors(coordinator)["Address"]["NodeID"],
            {shard["node"] for shard in replay.shards()},
        )

    here = ray.get_runtime_context().get_node_id()
    all_nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    limiter = SampleToInsertRatio(4, 10, 1e6)
    for number in range(2):
        with make(tmp_path / str(number), name=f"placed{number}", rate_limiter=limiter) as replay:
            assert where() == (here, all_nodes)
            with replay.writer(2, 8) as writer:
                for at in range(12):
                    add(writer, ["a", "b"], at)
            ray.kill(replay._client.coordinator.handle, no_restart=False)
            check(replay.sample(64))
            assert where() == (here, all_nodes)


def test_the_actor_that_knows_what_a_buffer_is_made_of_dies(tmp_path, nodes):
    limiter = SampleToInsertRatio(4, 10, 1e6)
    with two_shards(tmp_path / "replay", name="counts", rate_limiter=limiter) as replay:
        fill(replay, 12)
        check(replay.sample(64))
        before = replay.limiter_counts()
        assert before == (48, 64)
        for _ in range(2):
            ray.kill(replay._client.coordinator.handle, no_restart=False)
            check(replay.sample(64))
        following = ShardedReplayBuffer.connect("counts", seed=1)
        check(following.sample(64))
        assert len(following.shards()) == 2
        inserts, samples = following.limiter_counts()
        assert inserts == 48
        assert samples >= 64 + 3 * 64
        following.disconnect()
