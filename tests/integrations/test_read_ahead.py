"""Prefetchers of a ring that end with it."""

import threading

import pytest

from diskreplay.errors import ReentryError
from diskreplay.integrations.read_ahead import ReadAhead


class Prefetcher:
    def __init__(self):
        self.closed, self.errors = threading.Event(), []

    def close(self):
        if self.errors:
            raise self.errors.pop()
        self.closed.set()


class Buffer:
    def __init__(self):
        self.asked, self.made = [], []

    def prefetch(self, depth, size):
        self.asked.append((depth, size))
        self.made.append(Prefetcher())
        return self.made[-1]


@pytest.fixture
def pair():
    buffer, ahead = Buffer(), ReadAhead()
    for size in (8, 16, 8):
        ahead.of(buffer, 2, size)
    return buffer, ahead


def test_each_size_has_one(pair):
    buffer, ahead = pair
    assert buffer.asked == [(2, 8), (2, 16)]
    assert ahead.of(buffer, 2, 16) is buffer.made[1]
    ahead.stop()
    assert all(each.closed.is_set() for each in buffer.made)
    assert ahead.of(buffer, 2, 16) is buffer.made[2]


def test_what_is_dropped_amid_a_call_ends_when_it_can(pair):
    buffer, ahead = pair
    buffer.made[0].errors.append(ReentryError("amid a call"))
    ahead.drop()
    assert all(each.closed.wait(60) for each in buffer.made)
    buffer, ahead = Buffer(), ReadAhead()
    ahead.of(buffer, 2, 8)
    ahead.drop()
    assert buffer.made[0].closed.is_set()
