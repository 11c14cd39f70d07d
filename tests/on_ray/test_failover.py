"""Writers whose shard does not come back go on in another one."""

import os
import shutil
import signal
import warnings

import numpy as np
import pytest

import diskreplay
from diskreplay import ShardsLostError
from diskreplay.check.verify import verify
from tests.on_ray.workload import LENGTH, add, check, halt, make, numbers_of

pytestmark = pytest.mark.usefixtures("cluster")
PATIENCE = 240


def lose(replay, number, path):
    """Kill a shard whose disk goes with it: Ray starts it again, and it cannot open anything."""
    pid = replay.shards()[number]["pid"]
    halt(pid)
    shutil.rmtree(path / f"shard-{number}")
    os.kill(pid, signal.SIGKILL)


def give_up_after(writer, seconds):
    """Only for the lost shard is a writer in a hurry: a living one may be slow on a busy machine,
    and would be taken for lost."""
    writer._options = {**writer._options, "failover_after": seconds}


def test_a_writer_goes_on_elsewhere_and_its_rows_are_there_once(tmp_path):
    with make(
        tmp_path, name="failover", num_shards=2, num_envs=8, failover_after=PATIENCE,
        timeout=PATIENCE,
    ) as replay:  # fmt: skip
        # An env whose last writer has stopped amid an episode, at any step.
        for number in range(4):
            with replay.writer(2, 4) as before:
                for at in range(4 + number):
                    add(before, [f"old{number}a", f"old{number}b"], at)
        writer = replay.writer(2, 4)
        lost = writer.shard
        for at in range(50):
            add(writer, ["a", "b"], at)
        writer.flush()
        lose(replay, lost, tmp_path)
        give_up_after(writer, 3.0)

        def go_on():
            for at in range(50, 120):
                add(writer, ["a", "b"], at)
                if writer.shard != lost:
                    give_up_after(writer, PATIENCE)
            writer.flush()

        with pytest.warns(RuntimeWarning, match="has not answered for"):
            go_on()
        assert writer.shard == 1 - lost
        assert (writer.acknowledged > 0).all()
        for _ in range(5):
            batch = replay.sample(256)
            check(batch)
            assert set((batch.id >> 48).tolist()) == {1 - lost}
        writer.close()
    store = tmp_path / f"shard-{1 - lost}" / "store"
    report = verify(store)
    assert report.clean, report.findings
    first = {name: stored_from(store, name) for name in "ab"}
    for name, numbers in first.items():
        # From the next episode on, three chunks later at most, all are there, once.
        expected = numbers_of(name, 120)
        start = int(numbers[0] - expected[0])
        assert start % LENGTH == 0
        assert 50 <= start <= 50 + 3 * 4 + LENGTH
        np.testing.assert_array_equal(numbers, expected[start:])


def stored_from(store, name):
    """The numbers of the rows of one env of a writer, in their order."""
    mine = set(numbers_of(name, 1000).tolist())
    with diskreplay.open(store) as buffer:
        found = []
        for env, (first, stop) in enumerate(buffer.bounds.tolist()):
            ids = np.arange(first, stop) * buffer.num_envs + env
            kept = buffer.take("number", ids)[~buffer.take("is_final", ids)]
            found += [number for number in kept.tolist() if number in mine]
    return np.array(found)


def test_without_free_envs_elsewhere_the_rows_wait(tmp_path):
    with make(
        tmp_path, name="full", num_shards=2, num_envs=4, failover_after=PATIENCE,
        timeout=PATIENCE,
    ) as replay:  # fmt: skip
        one, other = replay.writer(2, 4), replay.writer(2, 4)
        for at in range(8):
            add(one, ["a", "b"], at)
            add(other, ["c", "d"], at)
        one.flush()
        other.flush()
        lost = one.shard
        lose(replay, lost, tmp_path)
        give_up_after(one, 1.0)
        add(one, ["a", "b"], 8)
        with pytest.raises(ShardsLostError, match=r"no other one has 2 envs .* rows wait in it"):
            one.flush()
        other.close()  # its envs are free then
        # Where warnings are errors, the writer has gone on all the same, and leases no envs twice.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="this writer goes on in shard"):
                one.flush()
        assert one.shard == 1 - lost
        give_up_after(one, PATIENCE)
        for at in range(9, 20):
            add(one, ["a", "b"], at)
        one.close()
        check(replay.sample(64))
