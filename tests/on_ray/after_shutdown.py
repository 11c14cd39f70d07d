"""Run by test_after_shutdown in a process of its own: what is called once Ray was shut down."""

import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import ray
from loopback_cluster import HOST, LoopbackCluster

from diskreplay import ClosedError, DisconnectedError, UsageError
from diskreplay.ray import SampleToInsertRatio, ShardedReplayBuffer
from tests.on_ray.workload import add, check, make

HOW = {"logging_level": "ERROR", "log_to_driver": False}


def init(sessions):
    ray.init(
        num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=sessions,
        _node_ip_address="127.0.0.1", **HOW,
    )  # fmt: skip


def start(path, **options):
    return make(path, num_shards=2, num_envs=4, name="late", timeout=60.0, **options)


def refuses(what, says):
    """The call raises our error, at once, and starts no cluster."""
    began = time.monotonic()
    with pytest.raises(DisconnectedError, match=says) as raised:
        what()
    assert "ShardedReplayBuffer.connect" in str(raised.value)
    assert isinstance(raised.value, UsageError)
    assert time.monotonic() - began < 30


class Late:
    """A client with all that calls Ray, and threads amid calls."""

    def __init__(self, path, checkpoints):
        self.checkpoints = checkpoints
        self.replay = start(path, rate_limiter=SampleToInsertRatio(1, 8, 1000))
        self.writer = self.replay.writer(1, 4)
        with self.replay.writer(2, 4) as first:
            for at in range(30):
                add(first, ["a", "b"], at)
        self.batch = self.replay.sample(16)
        check(self.batch)
        self.replay.save(checkpoints, 1)
        self.prefetcher = self.replay.prefetch(1, batch_size=8)
        next(self.prefetcher)
        self.second = ShardedReplayBuffer.connect("late")
        self.third = ShardedReplayBuffer.connect("late")
        self.ended = []
        self.threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._sample, self._add)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, work):
        try:
            work()
        except BaseException as error:
            self.ended.append(error)

    def _sample(self):
        while True:  # waits for the rate limiter before long
            self.second.sample(64)

    def _add(self):
        at = 0
        while True:
            add(self.writer, ["c"], at)
            at += 1

    def join(self):
        """The threads have ended by our error, and none by another."""
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        assert [type(error) for error in self.ended] == [DisconnectedError] * 2, self.ended

    def refuse(self, says):
        """Every call of the client that needs Ray."""
        replay, batch, ids = self.replay, self.batch, self.batch.id
        replay.update_priorities(ids, np.ones(16), batch.generation)  # which waits here
        for what in (
            replay.sample, replay.flush, replay.writer, replay.shards, replay.limiter_counts,
            lambda: len(replay), lambda: replay.add_count, lambda: replay.gather(ids),
            lambda: replay.save(self.checkpoints, 2), lambda: replay.load(self.checkpoints),
            lambda: replay.restore_shard(0, self.checkpoints),
        ):  # fmt: skip
            refuses(what, says)
        if self.rows:  # with none there is nothing to ask Ray for
            refuses(self.writer.flush, says)
        refuses(lambda: next(self.prefetcher), "")  # it may have found out before
        refuses(lambda: next(self.prefetcher), says)
        with replay.prefetch(2) as batches:
            refuses(lambda: next(batches), says)

    @property
    def rows(self):
        """Of the writer, that are not acknowledged."""
        return self.writer._waiting

    def end(self):
        """Nothing is raised where a client ends."""
        rows = self.rows
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.writer.close()
            self.writer.close()
        assert [f"{rows} rows" in str(each.message) for each in said] == [True] * (rows > 0), said
        self.prefetcher.close()
        self.replay.disconnect()
        self.replay.close()
        self.second.close()
        with self.third:
            pass
        with pytest.raises(ClosedError):
            self.replay.sample()


def another_cluster(directory):
    """Ray is shut down with its cluster, and started anew; its first job has the same number."""
    sessions = tempfile.mkdtemp(prefix="dr-", dir="/tmp")  # the paths of its sockets are short
    try:
        init(sessions)
        late = Late(directory / "replay", directory / "ck")
        ray.shutdown()
        late.join()
        late.refuse("not connected")
        refuses(lambda: ShardedReplayBuffer.connect("late"), "not connected")
        assert not ray.is_initialized()
        init(sessions)
        late.refuse("anew")
        late.end()
        ray.shutdown()
    finally:
        shutil.rmtree(sessions, ignore_errors=True)


def same_cluster(directory):
    """The shards go on, and this process is another job of their cluster."""
    with LoopbackCluster(0) as cluster:
        ray.init(cluster.address, **HOW, _node_ip_address=HOST)
        late = Late(directory / "replay", directory / "ck")
        ray.shutdown()
        late.join()
        ray.init(cluster.address, **HOW, _node_ip_address=HOST)
        late.refuse("anew")
        late.end()
        following = ShardedReplayBuffer.connect("late")
        check(following.sample(64))
        assert following.load(directory / "ck") == "1"
        following.prefetch(2)  # nobody closes it: its thread is amid calls at the end
        ray.shutdown()
        time.sleep(1)
        assert not ray.is_initialized()


def main(directory):
    assert "RAY_ENABLE_AUTO_CONNECT" not in os.environ
    for what in (lambda: start(directory), lambda: ShardedReplayBuffer.connect("late")):
        refuses(what, "not connected")
    assert not ray.is_initialized()
    {"another": another_cluster, "same": same_cluster}[sys.argv[2]](directory)
    print("held", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
