"""Who waits for something to draw from; without a cluster."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import diskreplay
from diskreplay.errors import (
    DtypeError,
    EmptyBufferError,
    InvalidInputError,
    ShapeError,
    ShardsLostError,
)
from diskreplay.ray.client import Client
from diskreplay.ray.draw_request import begin
from diskreplay.ray.messages import ShardState
from diskreplay.ray.rate_limiter import MinSize, SampleToInsertRatio
from diskreplay.ray.sharded_buffer import ShardedReplayBuffer
from diskreplay.sampling.prioritized import PriorityMass
from diskreplay.sampling.rng import ReplayableRng
from tests.on_ray.without_ray import BUFFER, local_shard, use_local_actors

OPTIONS = {"timeout": 60.0, "shard_timeout": 2.0, "buffer": {"beta": 0.4, "alpha": 0.6}}
HAS_ROWS = ShardState(PriorityMass(3.0, 1.0, 3, 1.0), 1, 3)


class ActorThatIsNotThere:
    def call(self, *_arguments, again=False):
        return None


@pytest.fixture
def client(monkeypatch):
    """One of a shard that has nothing, and two that are asked in vain."""
    actors = [ActorThatIsNotThere() for _ in range(3)]
    made = Client(
        ActorThatIsNotThere(), OPTIONS, None, actors, ReplayableRng(np.random.default_rng(0))
    )
    made.looks = threading.Semaphore(0)
    monkeypatch.setattr(made, "refresh", made.looks.release)
    return made


def lose(handle):
    handle.is_lost, handle.look = True, lambda seconds=0.0: None


@pytest.mark.parametrize("of_a_request", [False, True])
def test_priorities_are_set_while_a_draw_waits_for_shards_that_are_lost(client, of_a_request):
    with ThreadPoolExecutor(2) as pool:
        if of_a_request:  # its shards are lost when it asks for what they answer
            client.handles[0].learn(HAS_ROWS)
            request = begin(client, 1, 4)
            request._collect = lambda parts=list(request._parts): [parts.pop()] if parts else []
            client.handles[0].state = client.handles[1].state
            request._batches = lambda: "drawn"
        for handle in client.handles:
            lose(handle)
        drawn = pool.submit(request.finish if of_a_request else lambda: begin(client, 1, 4))
        try:
            for _ in range(3):
                assert client.looks.acquire(timeout=30)
            ones = np.ones(2, np.int64)
            told = pool.submit(client.add_updates, ones, ones, np.ones(2), ones)
            told.result(20)
            assert not drawn.done()
            assert client.handles[1].waiting == 2
        finally:
            client.handles[2].learn(HAS_ROWS)
        asked = drawn.result(20)
        if not of_a_request:
            assert [part.handle.number for part in asked._parts] == [2]


def test_nothing_is_waited_for_where_all_shards_answer_that_they_have_nothing(client):
    began = time.monotonic()
    with pytest.raises(EmptyBufferError):
        begin(client, 1, 4)
    assert time.monotonic() - began < 30
    assert client.looks.acquire(blocking=False)  # they were asked


def test_rows_that_the_limiter_has_counted_are_waited_for(client, monkeypatch):
    client.limiter = MinSize(1)
    monkeypatch.setattr(client, "acquire", lambda count, ticket: "")
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(begin, client, 1, 4)
        for _ in range(3):
            assert client.looks.acquire(timeout=30)
        client.handles[1].learn(HAS_ROWS)
        assert [part.handle.number for part in drawn.result(20)._parts] == [1]


@pytest.mark.parametrize(("lost", "error"), [(1, ShardsLostError), (0, EmptyBufferError)])
def test_the_wait_ends(client, monkeypatch, lost, error):
    client.limiter, client.timeout = MinSize(1), 0.3
    monkeypatch.setattr(client, "acquire", lambda count, ticket: "")
    for handle in client.handles[:lost]:
        lose(handle)
    with pytest.raises(error):
        begin(client, 1, 4)


@pytest.mark.parametrize("stack_size", [1, 3])
def test_no_ids_are_no_transitions_as_of_a_buffer(tmp_path, monkeypatch, stack_size):
    use_local_actors(monkeypatch)
    shards = [local_shard(tmp_path, number, 2, 1, stack_size=stack_size) for number in range(2)]
    rng = ReplayableRng(np.random.default_rng(0))
    sharded = ShardedReplayBuffer.__new__(ShardedReplayBuffer)
    sharded._closed = False
    sharded._client = Client(ActorThatIsNotThere(), OPTIONS, None, shards, rng)
    none = np.empty(0, np.int64)
    with diskreplay.PrioritizedReplayBuffer(
        None, capacity=100, stack_size=stack_size, **BUFFER
    ) as buffer:
        expected = buffer.gather([])
        for ids in ([], none, (), [[]]):
            found = sharded.gather(ids)
            assert len(found) == 0
            assert set(found) == set(expected)
            for name in expected:
                assert found[name].shape == expected[name].shape
                assert found[name].dtype == expected[name].dtype
    sharded.update_priorities([], [], [])
    sharded._closed = True
    for shard in shards:
        shard.made.close()


@pytest.fixture
def sharded(tmp_path, monkeypatch):
    use_local_actors(monkeypatch)
    shards = [local_shard(tmp_path, number, 2, 1) for number in range(2)]
    made = ShardedReplayBuffer.__new__(ShardedReplayBuffer)
    made._closed, made.batch_size, made._most_inserted, made._most_sampled = False, 32, 1, 1
    rng = ReplayableRng(np.random.default_rng(0))
    made._client = Client(ActorThatIsNotThere(), OPTIONS, None, shards, rng)
    yield made
    made._closed = True
    for shard in shards:
        shard.made.close()


@pytest.mark.parametrize(
    ("generation", "error"),
    [
        ([1], ShapeError), ([[1], [1]], ShapeError), (None, DtypeError), (["a", "b"], DtypeError),
        ([1.0, 1.5], DtypeError), ([1.0, np.nan], DtypeError),
    ],
)  # fmt: skip
def test_generations_that_make_no_sense_are_refused(sharded, generation, error):
    with pytest.raises(error, match="generation: "):
        sharded.update_priorities([0, 1], [1.0, 2.0], generation)
    assert not any(handle.waiting for handle in sharded._client.handles)
    sharded.update_priorities([0, 1], [1.0, 2.0], 1)


def test_requests_that_the_limiter_could_never_let_pass_are_refused(sharded):
    sharded._client.limiter = SampleToInsertRatio(1, 50, 100)
    with pytest.raises(InvalidInputError, match="could wait for each other for ever"):
        sharded.prefetch(batches_per_request=8)
    with pytest.raises(InvalidInputError, match="could wait for each other for ever"):
        sharded.sample(200)
    sharded._check_turns(sampled=150)
    with pytest.raises(InvalidInputError, match="64 inserts and 150 samples"):
        sharded.writer(1, 64)


def test_the_largest_priority_is_that_of_rows_that_are_there(client):
    more = HAS_ROWS._replace(mass=HAS_ROWS.mass._replace(largest=5.0))
    client.learn(client.handles[0], more)
    client.learn(client.handles[1], HAS_ROWS)
    assert client.largest == 5.0  # a shard that is known since now has loaded nothing
    ids, ones = np.arange(2), np.ones(2, np.int64)
    client.add_updates(ones, ids, np.full(2, 9.0), ones)
    assert client.largest == 9.0
    client.add_updates(ones, ids, np.full(2, 50.0), ones - 1)  # of before a load: void
    assert client.largest == 9.0
    for handle in client.handles[:2]:  # another client has loaded
        client.learn(handle, HAS_ROWS._replace(generation=2))
    assert client.largest == 1.0
    assert client.handles[0].known(client.largest) == (1.0, 2)
