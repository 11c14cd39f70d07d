"""One draw over several shards beside a list of all leaves; without a cluster."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.errors import CorruptSegmentError, EmptyBufferError, ShardsLostError
from diskreplay.ray import draw_request
from diskreplay.ray.client import Client, no_totals
from diskreplay.ray.draw_request import begin
from diskreplay.ray.rate_limiter import MinSize
from diskreplay.sampling.rng import ReplayableRng
from tests.on_ray.without_ray import LocalActor, frames, local_shard, use_local_actors

SHARDS, ROWS, ALPHA, BETA = 3, 20, 0.5, 0.7


def options(normalization):
    return {
        "timeout": 0.2, "shard_timeout": 1.0,
        "buffer": {"beta": BETA, "alpha": ALPHA, "weight_normalization": normalization},
    }  # fmt: skip


@pytest.fixture(params=["batch", "buffer"])
def client(request, tmp_path, monkeypatch):
    use_local_actors(monkeypatch)
    actors = [
        local_shard(tmp_path, number, SHARDS, 1, alpha=ALPHA, weight_normalization=request.param)
        for number in range(SHARDS)
    ]
    rng = np.random.default_rng(0)
    for number, actor in enumerate(actors):
        buffer = actor.made._checked()
        for row in range(ROWS):
            value = 100 * number + row
            buffer.add(frames(value), value % 5, row, False, False, number=value)
        buffer.update_priorities(np.arange(ROWS - 1), rng.random(ROWS - 1) * (number + 1) + 0.01)
    made = Client(LocalActor(None), options(request.param), None, actors, ReplayableRng(rng))
    made.refresh()
    yield made
    for actor in actors:
        actor.made.close()


def test_an_error_amid_the_batches_keeps_nothing_that_shards_sent(client, monkeypatch):
    """It is memory of Ray's, which a graph waits for, and which is gone with Ray. And the rate
    limiter had counted samples that nobody gets."""
    request, sent, given_back = begin(client, 2, 8), [], []
    client.limiter = MinSize(1)
    client.coordinator = LocalActor(SimpleNamespace(give_back=lambda *how: given_back.append(how)))

    def fail(parts, order, names, windows):
        sent.extend(weakref.ref(part.arrays["reward"]) for part in parts)
        raise CorruptSegmentError("damaged")

    monkeypatch.setattr(client.frames, "read", fail)
    with pytest.raises(CorruptSegmentError) as caught:
        request.finish()
    assert sent
    assert not any(each() is not None for each in sent)
    assert caught.value.__traceback__ is not None
    assert given_back == [(16, request.epoch)]


def leaves(client):
    """The priority to the power of alpha of each row of each shard."""
    found = []
    for handle in client.handles:
        buffer = handle.actor.made._checked()
        found.append(buffer.tree.get(np.arange(ROWS)))
    return np.array(found)


def expected(uniform, leaves, old):
    """Shard and row of each draw, and what it was drawn with: by the sums as they were (`old`)."""
    shares = (np.arange(len(uniform)) + uniform) / len(uniform)
    found = []
    for mass in shares * old.sum():
        shard = 0
        while mass >= old[shard]:
            mass -= old[shard]
            shard += 1
        mass *= leaves[shard].sum() / old[shard]
        row = 0
        while mass >= leaves[shard][row]:
            mass -= leaves[shard][row]
            row += 1
        share = leaves[shard][row] / leaves[shard].sum() * old[shard] / old.sum()
        found.append((shard, row, share))
    return found


def check(client, request, batches, leaves, old):
    for uniform, batch in zip(request.uniform, batches, strict=True):
        wanted = expected(uniform, leaves, old)
        assert (batch.id >> 48).tolist() == [shard for shard, _, _ in wanted]
        assert (batch.id & (1 << 48) - 1).tolist() == [row for _, row, _ in wanted]
        assert batch.number.tolist() == [100 * shard + row for shard, row, _ in wanted]
        share = np.array([each for _, _, each in wanted])
        np.testing.assert_allclose(batch.probability, share, rtol=1e-9)
        least = share.min()
        if client.options["buffer"]["weight_normalization"] == "buffer":
            all_ = leaves / leaves.sum(axis=1)[:, None] * (old / old.sum())[:, None]
            least = min(least, all_[leaves > 0].min())
        np.testing.assert_allclose(batch.weight, (share / least) ** -BETA, rtol=1e-5)
        np.testing.assert_array_equal(batch.observation, frames(batch.number))


def test_batches_are_one_draw_over_all_leaves(client):
    there = leaves(client)
    request = begin(client, 3, 16)
    batches = request.finish()
    assert len(batches) == 3
    check(client, request, batches, there, there.sum(axis=1))
    assert request._parts == []
    generations = {h.actor.made._checked().generation for h in client.handles}
    assert {int(each) for each in batches[0].generation} <= generations


def test_weights_are_by_the_sums_that_the_draw_was_made_with(client):
    old = leaves(client).sum(axis=1)
    buffer = client.handles[1].actor.made._checked()
    buffer.update_priorities(np.arange(10), np.full(10, 9.0))  # nobody has told the client
    there = leaves(client)
    request = begin(client, 2, 32)
    check(client, request, request.finish(), there, old)


def test_priorities_go_with_the_draw_and_are_forgotten_when_they_have_come(client):
    handle = client.handles[2]
    generation = handle.actor.made._checked().generation
    handle.add_update(np.full(1, generation), np.array([4]), np.array([400.0]))
    request = begin(client, 1, 64)
    assert handle.waiting == 1
    request.finish()
    assert handle.waiting == 0
    assert leaves(client)[2, 4] == pytest.approx(20.0)
    assert client.largest == 400.0
    assert handle.state.mass.total == pytest.approx(leaves(client)[2].sum())


def test_what_falls_to_a_shard_that_is_lost_is_drawn_from_the_others(client):
    there = leaves(client)
    client.handles[0].actor.faults = ["before"]
    request = begin(client, 2, 16)
    batches = request.finish()
    assert client.handles[0].is_lost
    others = there[1:].sum(axis=1)
    for batch in batches:
        assert len(batch) == 16
        shards, rows = batch.id >> 48, batch.id & (1 << 48) - 1
        assert set(shards.tolist()) <= {1, 2}
        share = there[shards, rows] / others.sum()
        np.testing.assert_allclose(batch.probability, share, rtol=1e-9)
        np.testing.assert_array_equal(batch.number, 100 * shards + rows)


class SlowGraph:
    """Has shard 0, whose answer takes so many seconds of a clock that only it moves."""

    numbers = (0,)

    def __init__(self, shard, seconds):
        self.shard, self.seconds, self.now = shard, seconds, 0.0

    def execute(self, asked):
        self.asked = asked[0]
        return self

    def answers(self, timeout):
        self.now += min(self.seconds, timeout)
        if self.seconds > timeout:
            return None  # it is broken
        return {0: self.shard.draw_in_graph(self.asked)}


@pytest.mark.parametrize(("took", "left"), [(0.0, 5.0), (3.0, 2.0), (4.0, 1.0), (9.0, 1.0)])
def test_who_is_called_beside_a_graph_has_what_the_graph_left_of_the_time(
    client, monkeypatch, took, left
):
    waited = []
    graph = SlowGraph(client.handles[0].actor.made, took)
    monkeypatch.setattr(draw_request.time, "monotonic", lambda: graph.now)
    monkeypatch.setattr(draw_request, "wait", lambda calls, timeout: waited.append(timeout))
    client.graph, client.shard_timeout = graph, 5.0
    there = leaves(client)
    request = begin(client, 2, 16)
    check(client, request, request.finish(), there, there.sum(axis=1))
    assert waited == [left]


def test_a_shard_that_has_nothing_any_more_is_drawn_around(client):
    request = begin(client, 1, 16)
    buffer = client.handles[1].actor.made._checked()
    buffer.clear()
    request = begin(client, 2, 16)
    for batch in request.finish():
        assert set((batch.id >> 48).tolist()) == {0, 2}
    assert not client.handles[1].is_lost


def test_nobody_answers(client):
    for handle in client.handles:
        handle.actor.is_away = True
    with pytest.raises(ShardsLostError, match="3 of 3 shards do not answer"):
        begin(client, 1, 4).finish()
    assert isinstance(no_totals(0, 3, 1.0), EmptyBufferError)
    assert "2 of 3 shards" in str(no_totals(2, 3, 1.0))
