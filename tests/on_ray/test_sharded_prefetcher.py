"""Batches that are asked for ahead of a client that is none; without a cluster."""

import gc
import threading
import weakref

import numpy as np
import pytest

from diskreplay.batch import MOST_KEPT
from diskreplay.errors import ClosedError, EmptyBufferError, ReentryError
from diskreplay.ray import sharded_prefetcher
from diskreplay.ray.block_frames import BlockFrames
from diskreplay.ray.sharded_prefetcher import ShardedPrefetcher

SIZE, BATCHES = 4, 2


@pytest.fixture(autouse=True)
def _asked_of_the_client(monkeypatch):
    monkeypatch.setattr(sharded_prefetcher, "begin", lambda client, *what: client.begin(*what))


class Client:
    """Numbers its batches; their random numbers are their numbers, too."""

    def __init__(self, room=None, frames=None):
        self.lock, self.frames = threading.RLock(), frames or BlockFrames({})
        self.rng = self
        self.made, self.back, self.given_back, self.errors = 0, [], 0, []
        self.room = threading.Semaphore(room) if room is not None else None

    epoch = "now"

    def begin(self, batches, size, ticket):
        assert (batches, size) == (BATCHES, SIZE)
        if self.room is not None:
            assert self.room.acquire(timeout=60)
        if self.errors:
            raise self.errors.pop(0)
        return self

    def finish(self):
        self.uniform = [np.full(SIZE, self.made + at) for at in range(BATCHES)]
        self.made += BATCHES
        return [f"batch {int(numbers[0])}" for numbers in self.uniform]

    def put_back(self, numbers):
        self.back += [int(each[0]) for each in numbers]

    def give_back(self, samples, epoch):
        assert epoch == "now"
        self.given_back += samples

    def cancel(self, ticket):
        """What waits here is not cancelled."""


def settled(prefetcher, requests):
    """Wait until so many requests are ready and none is under way."""
    with prefetcher._lock:
        while len(prefetcher._ready) < requests * BATCHES or prefetcher._working:
            assert prefetcher._changed.wait(60)


def test_a_call_amid_one_of_the_client():
    """It waited for the thread, which waited for the client's lock, for ever."""
    with ShardedPrefetcher(Client(), 1, BATCHES, SIZE) as batches:
        for call in (lambda: next(batches), batches.pause, batches.close):
            with batches._client.lock, pytest.raises(ReentryError):
                call()
        assert not batches.closed
        assert [next(batches), next(batches)] == ["batch 0", "batch 1"]


def test_batches_come_in_order_and_no_more_are_asked_for_than_may_wait():
    client = Client()
    with ShardedPrefetcher(client, 3, BATCHES, SIZE) as batches:
        settled(batches, 3)
        assert client.made == 3 * BATCHES
        memory = client.frames.memory
        assert memory._most == MOST_KEPT + 3 * BATCHES  # else all are read into fresh memory
        with ShardedPrefetcher(Client(frames=client.frames), 2, BATCHES, SIZE) as other:
            assert memory._most == MOST_KEPT + 5 * BATCHES
            other.close()  # and once more below
        assert memory._most == MOST_KEPT + 3 * BATCHES
        assert iter(batches) is batches
        assert next(batches) == "batch 0"
        assert client.made == 3 * BATCHES  # half of a request is taken
        assert [next(batches) for _ in range(5)] == [f"batch {n}" for n in range(1, 6)]
        settled(batches, 3)
        assert not batches.closed
    assert batches.closed
    assert not batches._thread.is_alive()
    assert client.frames.memory._most == MOST_KEPT


def test_what_was_not_taken_is_drawn_again():
    client = Client()
    batches = ShardedPrefetcher(client, 2, BATCHES, SIZE)
    settled(batches, 2)
    assert [next(batches), next(batches), next(batches)] == ["batch 0", "batch 1", "batch 2"]
    settled(batches, 1)
    numbers = batches.pause()
    there = [int(each[0]) for each in numbers]
    assert there == list(range(3, client.made))
    assert client.given_back == SIZE * len(there)
    assert batches.pause() == []
    made = client.made
    batches.resume()
    assert next(batches) == f"batch {made}"
    settled(batches, 1)
    batches.close()
    assert client.back == list(range(made + 1, client.made))
    with pytest.raises(ClosedError):
        next(batches)
    batches.close()


def test_an_error_is_raised_where_a_batch_is_taken_and_then_it_goes_on():
    client = Client(room=0)
    client.errors = [EmptyBufferError("nothing to sample")]
    batches = ShardedPrefetcher(client, 1, BATCHES, SIZE)
    client.room.release(2)
    with pytest.raises(EmptyBufferError):
        next(batches)
    assert next(batches) == "batch 0"
    assert next(batches) == "batch 1"
    client.room.release(9)
    batches.close()


def test_what_is_ready_is_taken_before_an_error_is_raised():
    client = Client(room=1)
    batches = ShardedPrefetcher(client, 2, BATCHES, SIZE)
    settled_one = threading.Event()
    with batches._lock:
        while len(batches._ready) < BATCHES:
            assert batches._changed.wait(60)
        client.errors = [EmptyBufferError("nothing to sample")]
    client.room.release()
    with batches._lock:
        while batches._error is None:
            assert batches._changed.wait(60)
    settled_one.set()
    assert [next(batches), next(batches)] == ["batch 0", "batch 1"]
    with pytest.raises(EmptyBufferError):
        next(batches)
    client.room.release(9)
    batches.close()


class Limited(Client):
    """Whose rate limiter lets no request pass, but ends one that is cancelled."""

    def __init__(self):
        super().__init__()
        self.waiting, self.cancelled = threading.Semaphore(0), threading.Event()
        self.tickets = []

    def begin(self, batches, size, ticket):
        self.tickets.append(ticket)
        self.waiting.release()
        assert self.cancelled.wait(60)
        self.cancelled.clear()

    def cancel(self, ticket):
        assert ticket == self.tickets[-1]
        self.cancelled.set()


def test_a_pause_does_not_wait_for_the_limiter():
    client = Limited()
    with ShardedPrefetcher(client, 2, BATCHES, SIZE) as batches:
        for number in range(3):
            assert client.waiting.acquire(timeout=60)
            assert batches.pause() == []
            batches.resume()
            assert len(client.tickets) == number + 1 or client.waiting.acquire(timeout=60)
    assert len(set(client.tickets)) == len(client.tickets)
    assert client.given_back == 0


@pytest.mark.parametrize("amid", ["a request", "no request", "an error"])
def test_one_that_nobody_closed_ends_its_thread(amid):
    """It kept itself, and the client, as long as the process was there."""
    client = Client(room=0)
    if amid == "an error":
        client.errors = [EmptyBufferError("nothing to sample")]
    batches = ShardedPrefetcher(client, 2, BATCHES, SIZE)
    client.room.release()
    if amid != "an error":
        assert next(batches) == "batch 0"
        with batches._lock:
            while not batches._working:
                assert batches._changed.wait(60)
    if amid == "no request":
        client.room.release()
        settled_with = 2 * BATCHES - 1
        with batches._lock:
            while len(batches._ready) < settled_with or batches._working:
                assert batches._changed.wait(60)
    thread, gone = batches._thread, weakref.ref(batches)
    del batches
    gc.collect()
    assert gone() is None, "a thread that waits keeps it"
    if amid == "a request":
        client.room.release()
    thread.join(60)
    assert not thread.is_alive()
    taken = 0 if amid == "an error" else 1
    assert client.given_back == SIZE * (client.made - taken)
    client = weakref.ref(client)
    del thread
    gc.collect()
    assert client() is None
