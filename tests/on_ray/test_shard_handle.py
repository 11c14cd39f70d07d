"""What a client knows of a shard, and what it has to tell it; without a cluster."""

import numpy as np
import pytest

from diskreplay.ray import shard_handle
from diskreplay.ray.messages import ShardState
from diskreplay.ray.shard_handle import NOTHING, ShardHandle
from diskreplay.sampling.prioritized import PriorityMass
from tests.on_ray.without_ray import LocalActor, answer

STATE = ShardState(PriorityMass(3.0, 1.0, 3, 1.0), 1, 3)


def test_what_was_sent_twice_is_forgotten_once():
    handle = ShardHandle(0, None, "client")
    sets = [(np.zeros(1, int), np.array([number]), np.ones(1)) for number in range(5)]
    for each in sets[:2]:
        handle.add_update(*each)
    first = handle.updates()
    handle.add_update(*sets[2])
    second = handle.updates()
    handle.sent(second)
    for each in sets[3:]:
        handle.add_update(*each)
    handle.sent(first)
    left = handle.updates()
    assert (left.first, left.stop) == (3, 5)
    assert left.ids.tolist() == [3, 4]


def test_priorities_wait_until_they_have_arrived():
    handle = ShardHandle(0, None, "client")
    assert handle.waiting == 0
    assert len(handle.updates().ids) == 0
    handle.add_update(np.array([7, 7]), np.array([1, 2]), np.array([0.5, 0.6]))
    handle.add_update(np.array([8]), np.array([3]), np.array([0.7]))
    assert handle.waiting == 3
    sent = handle.updates()
    assert (sent.client, sent.first, sent.stop) == ("client", 0, 3)
    assert sent.generations.tolist() == [7, 7, 8]
    assert sent.ids.tolist() == [1, 2, 3]
    assert sent.priorities.tolist() == [0.5, 0.6, 0.7]
    assert handle.updates() is sent
    assert handle.waiting == 3
    handle.sent(sent)
    assert handle.waiting == 0
    handle.add_update(np.array([9]), np.array([4]), np.array([0.8]))
    later = handle.updates()
    assert (later.first, later.ids.tolist()) == (3, [4])
    handle.sent(sent)  # said once more
    assert handle.updates().ids.tolist() == [4]


class Shard:
    def state(self):
        return STATE


@pytest.fixture
def handle(monkeypatch):
    monkeypatch.setattr(shard_handle, "answer", answer)
    monkeypatch.setattr(shard_handle, "wait", lambda calls, seconds: seconds > 0)
    return ShardHandle(2, LocalActor(Shard()), "client")


def test_a_shard_that_is_lost_has_nothing_until_it_answers(handle):
    handle.learn(STATE)
    handle.look()  # it is not lost
    assert handle.actor.asked == []
    handle.lose()
    assert handle.is_lost
    assert handle.state.mass == NOTHING.mass
    assert (handle.state.generation, handle.state.add_count) == (1, 3)
    handle.lose()
    assert handle.actor.asked == ["state"]  # one question waits for the answer
    handle.look()
    assert handle.is_lost
    handle.look(1.0)
    assert not handle.is_lost
    assert handle.state is STATE


def test_a_shard_whose_answer_is_lost_is_asked_again(handle):
    handle.actor.faults = ["before"]
    handle.lose()
    handle.look(1.0)
    assert handle.is_lost
    assert handle.actor.asked == ["state", "state"]
    handle.look(1.0)
    assert not handle.is_lost
