"""What goes on in other shards, and afterwards, where one refuses something or does not answer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.on_ray.workload import add, check, make

pytestmark = pytest.mark.usefixtures("cluster")


def fill(writer, steps=20):
    for at in range(steps):
        add(writer, ["a", "b"], at)
    writer.close()


def test_ids_that_a_shard_never_gave_are_dropped_and_counted(tmp_path):
    with make(tmp_path / "replay", name="dropped", num_shards=1, num_envs=2) as replay:
        fill(replay.writer(2, 8))
        batch = replay.sample()
        replay.update_priorities(batch.id + (1 << 40), np.ones(32), batch.generation)
        replay.sample()
        assert [shard["dropped_updates"] for shard in replay.shards()] == [32]
        replay.update_priorities(batch.id, np.full(32, 7.0), batch.generation)
        replay.flush()
        assert not replay._client.handles[0].waiting
        found = replay.sample()
        check(found)
        drawn = found.probability[np.isin(found.id, batch.id)]
        known, updated = len(replay), len(np.unique(batch.id))
        np.testing.assert_allclose(drawn, 7.0 / (7 * updated + known - updated))


def test_rows_that_come_while_another_shard_is_lost_are_drawn(tmp_path, monkeypatch):
    with (
        make(tmp_path / "replay", name="beside-a-lost-one", num_shards=2, num_envs=4) as replay,
        ThreadPoolExecutor(1) as pool,
    ):
        writer, client, waits = replay.writer(2, 8), replay._client, threading.Event()
        lost, wait_for_totals = client.handles[1 - writer.shard], client.wait_for_totals
        with monkeypatch.context() as patched:
            patched.setattr(lost, "look", lambda seconds=0.0: time.sleep(seconds))
            lost.lose()

            def waiting(until):
                waits.set()
                return wait_for_totals(until)

            patched.setattr(client, "wait_for_totals", waiting)
            drawn = pool.submit(replay.sample)
            assert waits.wait(60)
            fill(writer)
            check(drawn.result())
