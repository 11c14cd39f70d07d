"""Draws by a compiled graph: the batches are those of calls, and deaths are survived."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from diskreplay import EmptyBufferError, InvalidInputError
from diskreplay.ray import ShardedReplayBuffer
from diskreplay.ray.calls import answer
from diskreplay.ray.draw_request import begin
from diskreplay.ray.messages import Updates
from tests.on_ray.workload import add, check, halt, make, numbers_of, stored

pytestmark = pytest.mark.usefixtures("cluster")
ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 240  # seconds


def fill(replay, steps=30):
    for number in range(3):
        with replay.writer(2, 16) as writer:
            for at in range(steps):
                add(writer, [f"{number}a", f"{number}b"], at)


def wait_for_graph(replay, numbers=(0, 1, 2)):
    """Until draws go by a graph of these shards; what is drawn meanwhile is right."""
    until = time.monotonic() + PATIENCE
    while replay._client.graph.numbers != numbers:
        assert time.monotonic() < until, replay._client.graph.numbers
        check(replay.sample())
        time.sleep(0.05)


def pid_of(replay, number):
    (shard,) = (shard for shard in replay.shards() if shard["shard"] == number and shard["alive"])
    return shard["pid"]


def counted(replay):
    """How many executions of the graph there will have been."""
    graph, counts = replay._client.graph, []
    before = graph.execute

    def execute(asked):
        made = before(asked)
        counts.append(made is not None)
        return made

    graph.execute = execute
    return counts


@pytest.fixture(scope="module")
def shared(cluster, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph")
    with make(path / "replay", name="graph", transport="graph", timeout=PATIENCE) as made:
        with pytest.raises(EmptyBufferError):
            made.sample()
        fill(made)
        made.save(path / "ck", 1)
        yield made, path


def drawn(replay, checkpoints, ahead):
    """Some batches after a load, with priorities set between them."""
    replay.load(checkpoints, 1)
    found = []
    if not ahead:
        for size in (32, 256, 1, 64, 512):
            batch = replay.sample(size)
            check(batch)
            found.append(batch)
            replay.update_priorities(batch.id, batch.reward + 0.5, batch.generation)
        return found
    with replay.prefetch(2, batches_per_request=2) as batches:
        found = [next(batches) for _ in range(6)]
    return found


def spent(pid):
    """Seconds of the processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_graph_by_which_nobody_draws_keeps_no_core_busy(shared):
    """Ray's own loop of an actor takes all that it can get."""
    replay, _ = shared
    wait_for_graph(replay)
    pids = [pid_of(replay, number) for number in range(3)]
    time.sleep(0.5)  # what the draws before have left
    before, began = sum(map(spent, pids)), time.monotonic()
    time.sleep(2.0)
    assert sum(map(spent, pids)) - before < 0.4 * (time.monotonic() - began)


@pytest.mark.parametrize("ahead", [False, True], ids=["sampled", "ahead"])
def test_both_transports_give_the_same_batches(shared, ahead):
    replay, path = shared
    wait_for_graph(replay)
    counts = counted(replay)
    other = ShardedReplayBuffer.connect("graph", seed=9)
    by_graph, by_calls = (drawn(each, path / "ck", ahead) for each in (replay, other))
    other.disconnect()
    assert counts
    assert all(counts)
    for one, two in zip(by_graph, by_calls, strict=True):
        for name in set(one) - {"generation"}:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_a_draw_beside_another_one_goes_by_calls(shared):
    replay, path = shared
    replay.load(path / "ck", 1)
    wait_for_graph(replay)
    counts = counted(replay)
    first = begin(replay._client, 1, 64)
    second = begin(replay._client, 1, 64)
    for request in (second, first):
        (batch,) = request.finish()
        check(batch)
    assert counts == [True, False]
    given_up = begin(replay._client, 1, 64)
    del given_up  # by a signal, say
    check(replay.sample())
    assert counts == [True, False, True, False]
    wait_for_graph(replay)


def test_calls_are_answered_beside_the_graph(shared):
    replay, path = shared
    replay.load(path / "ck", 1)
    wait_for_graph(replay)
    with replay.prefetch(2) as batches:
        ended = threading.Event()

        def take():
            for batch in batches:
                check(batch)
                replay.update_priorities(batch.id, batch.reward + 0.5, batch.generation)
                if ended.is_set():
                    return

        thread = threading.Thread(target=take)
        thread.start()
        try:
            for at in range(5):
                with replay.writer(2, 8) as writer:
                    for step in range(20):
                        add(writer, [f"{at}x", f"{at}y"], step)
                replay.save(path / "beside", at)
                check(replay.gather(replay.sample(16).id))
        finally:
            ended.set()
            thread.join(PATIENCE)
    assert replay._client.graph.numbers == (0, 1, 2)


def test_updates_that_were_overtaken_are_not_made_again(shared):
    replay, path = shared
    replay.load(path / "ck", 1)
    handle = replay._client.handles[0]
    batch = replay.sample(64)
    mine = batch.id >> 48 == 0
    ids, generation = (batch.id & ((1 << 48) - 1))[mine][:1], int(batch.generation[mine][0])
    old, new = 2.0, 5.0

    def total(client, first, *priorities):
        count = len(priorities)
        updates = Updates(
            client, first, np.full(count, generation), np.repeat(ids, count), np.array(priorities)
        )
        return answer(handle.actor.call("update", updates, handle.known(1.0))).mass.total

    both = total("someone", 0, old, new)
    assert total("someone", 0, old) == both
    assert total("someone", 1, new) == both
    assert total("someone else", 0, old) == pytest.approx(both - 3.0)
    assert total("someone", 1, new, old) == pytest.approx(both - 3.0)


def test_a_shard_that_is_killed_or_hangs_is_drawn_around(tmp_path):
    names = ["0a", "0b", "1a", "1b", "2a", "2b"]
    with make(tmp_path, name="deaths", transport="graph", shard_timeout=8.0) as replay:
        writers = [replay.writer(2, 8) for _ in range(3)]
        steps = 0

        def step(count):
            nonlocal steps
            for at in range(steps, steps + count):
                for number, writer in enumerate(writers):
                    add(writer, names[2 * number : 2 * number + 2], at)
            steps += count

        step(30)
        for killed in (1, 0):
            wait_for_graph(replay)
            pid = pid_of(replay, killed)
            with replay.prefetch(2) as batches:
                for _ in range(3):
                    check(next(batches))
                os.kill(pid, signal.SIGKILL)
                for _ in range(20):
                    batch = next(batches)
                    check(batch)
                    replay.update_priorities(batch.id, batch.reward + 0.1, batch.generation)
            step(5)
            wait_for_graph(replay)
        pid = pid_of(replay, 2)
        halt(pid)
        batch = replay.sample(128)
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1}
        wait_for_graph(replay, (0, 1))
        os.kill(pid, signal.SIGCONT)
        wait_for_graph(replay)
        batch = replay.sample(256)
        check(batch)
        assert set((batch.id >> 48).tolist()) == {0, 1, 2}
        step(5)
        for writer in writers:
            writer.close()
    rows = sorted(row.tolist() for row in stored(tmp_path))
    assert rows == sorted(numbers_of(name, steps).tolist() for name in names)


LEARNER = """
import sys, time
import ray
from diskreplay.ray import ShardedReplayBuffer
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
replay = ShardedReplayBuffer.connect("left", seed=1, transport="graph")
print(replay._client.graph.numbers, flush=True)
with replay.prefetch(2) as batches:
    next(batches)
    print("took", flush=True)
    if sys.argv[2] == "killed":
        time.sleep(1000)
    if sys.argv[2] == "shutdown":
        ray.shutdown()
if sys.argv[2] == "raises":
    raise SystemExit(3)
"""


def test_shards_outlive_learners_that_have_a_graph(tmp_path, cluster):
    with make(tmp_path, name="left", timeout=PATIENCE) as replay:
        fill(replay)
        address = cluster.get_runtime_context().gcs_address
        pids = {pid_of(replay, number) for number in range(3)}
        for way in ("raises", "shutdown", "killed"):
            learner = subprocess.Popen(
                [sys.executable, "-c", LEARNER, address, way], stdout=subprocess.PIPE,
                text=True, cwd=ROOT,
            )  # fmt: skip
            assert learner.stdout.readline() == "(0, 1, 2)\n", way
            assert learner.stdout.readline() == "took\n", way
            if way == "killed":
                learner.kill()
            learner.communicate(timeout=PATIENCE)
            assert {pid_of(replay, number) for number in range(3)} == pids, way
            check(replay.sample(64))
        following = ShardedReplayBuffer.connect("left", seed=2, transport="graph")
        wait_for_graph(following)
        check(following.sample(64))
        later = ShardedReplayBuffer.connect("left", seed=3, transport="graph")
        wait_for_graph(later)

        def give_way():
            until = time.monotonic() + PATIENCE
            while not following._client.graph._ended:
                assert time.monotonic() < until
                check(following.sample(64))

        with pytest.warns(RuntimeWarning, match="a learner that connected later"):
            give_way()
        assert later._client.graph.numbers == (0, 1, 2)
        check(later.sample(64))
        following.disconnect()
        later.disconnect()


def test_what_is_no_transport_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match="transport: 'call' or 'graph' expected"):
        make(tmp_path, name="no", transport="pigeon")
    monkeypatch.setattr("ray.__version__", "2.9.3")
    with pytest.raises(InvalidInputError, match=r"needs Ray 2\.50 or later, and 2\.9\.3 is"):
        make(tmp_path, name="no", transport="graph")
    assert not list(tmp_path.iterdir())
