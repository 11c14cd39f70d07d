"""One shard as clients call it, without an actor around it and without a cluster."""

import json

import numpy as np
import pytest

from diskreplay.errors import (
    ClosedError,
    DiskReplayError,
    RowsMissingError,
    SchemaError,
    ShardsLostError,
    UsageError,
)
from diskreplay.ray import shard as module
from diskreplay.ray.messages import Chunk, KnownLargest, Updates
from diskreplay.ray.resharding import PartPiece
from diskreplay.ray.shard import GraphName, Shard
from tests.on_ray.without_ray import BUFFER, frames

ENVS = 2
IDENTITY = {"shard": 0, "num_shards": 1, "num_envs": ENVS}

LARGEST = KnownLargest(1.0, 1)


def made(path, **options):
    options = BUFFER | {"num_envs": ENVS, "name": "r-0", "capacity": None, "alpha": 1.0} | options
    return Shard(0, path, IDENTITY, options)


@pytest.fixture
def shard(tmp_path):
    found = made(tmp_path / "shard")
    yield found
    found.close()


def chunk(first, lengths, envs=(0, 1)):
    """Rows whose numbers go on where the rows before ended."""
    numbers = np.concatenate([
        1000 * env + start + np.arange(length)
        for env, start, length in zip(envs, first, lengths, strict=True)
    ])  # fmt: skip
    no = np.zeros(len(numbers), bool)
    columns = {
        "observation": frames(numbers), "action": numbers % 5,
        "reward": (numbers % 7).astype(np.float32), "terminated": no, "truncated": no,
        "step": (numbers % 1000).astype(np.int32), "is_final": no, "number": numbers,
    }  # fmt: skip
    return Chunk(columns, np.array(envs), np.array(first), np.array(lengths),
                 np.full(len(numbers), np.nan))  # fmt: skip


def fill(shard, rows=10):
    lease = shard.lease(ENVS, 600.0)
    shard.append(lease.token, lease.generation, chunk([0, 0], [rows, rows]), 600.0)
    return lease


def test_rows_that_are_there_are_left_out(shard):
    lease = fill(shard)
    assert (lease.envs, lease.counts) == ([0, 1], [0, 0])
    counts, state = shard.append(
        lease.token, lease.generation, chunk([7, 10], [5, 1]), 600.0
    )  # fmt: skip
    assert counts == [12, 11]
    assert state.add_count == 23
    for env, count in enumerate(counts):
        ids = np.arange(count) * ENVS + env
        found = shard._buffer.take("number", ids)
        np.testing.assert_array_equal(found, 1000 * env + np.arange(count))
    assert shard.counts([1]) == [11]
    assert shard.renew(lease.token, lease.envs).counts == [12, 11]


def test_rows_behind_a_gap_or_of_another_time_or_writer_are_refused(shard):
    lease = fill(shard)
    rows = chunk([10, 11], [1, 1])
    with pytest.raises(RowsMissingError, match=r"which have \[10, 10\] rows"):
        shard.append(lease.token, lease.generation, rows, 600.0)
    rows = chunk([10, 10], [1, 1])
    with pytest.raises(RowsMissingError):
        shard.append(lease.token, lease.generation + 1, rows, 600.0)
    with pytest.raises(UsageError):
        shard.append("another", lease.generation, rows, 600.0)
    assert shard.counts([0, 1]) == [10, 10]
    assert shard.lease(1, 600.0) is None
    shard.release(lease.token)
    assert shard.lease(2, 600.0).counts == [10, 10]


def updates(client, first, ids, priorities, generation):
    return Updates(client, first, np.full(len(ids), generation), np.array(ids),
                   np.array(priorities, float))  # fmt: skip


def leaf(shard, id_):
    return float(shard._buffer.tree.get(np.array([id_]))[0])


def test_each_update_is_made_once(shard):
    fill(shard)
    generation = shard._buffer.generation
    one = updates("a", 0, [0, 1], [2.0, 3.0], generation)
    shard.update(one, LARGEST)
    shard.update(updates("b", 0, [0], [5.0], generation), LARGEST)
    shard.update(one, LARGEST)  # sent again
    assert (leaf(shard, 0), leaf(shard, 1)) == (5.0, 3.0)
    more = updates("a", 0, [0, 1, 2], [2.0, 3.0, 4.0], generation)  # with one that is new
    shard.update(more, KnownLargest(9.0, generation))
    assert (leaf(shard, 0), leaf(shard, 1), leaf(shard, 2)) == (5.0, 3.0, 4.0)
    assert shard.state().mass.largest == 9.0
    shard.update(updates("a", 3, [0], [7.0], generation + 1), LARGEST)  # of rows that are void
    assert leaf(shard, 0) == 5.0
    assert shard._dropped == 1
    assert Updates.none("c").stop == 0
    assert more.stop == 3


def test_the_largest_priority_of_rows_that_are_gone_is_not_for_those_that_come(shard):
    fill(shard)
    generation = shard._buffer.generation
    state = shard.update(Updates.none("a"), KnownLargest(1000.0, generation - 1))
    assert state.mass.largest == 1.0
    state = shard.update(Updates.none("a"), KnownLargest(1000.0, generation))
    assert state.mass.largest == 1000.0


def test_updates_of_ids_that_were_never_given_out_leave_the_others(shard):
    fill(shard)
    generation = shard._buffer.generation
    shard.update(updates("a", 0, [0, 20, 3, 1 << 40], [2.0, 3.0, 4.0, 5.0], generation), LARGEST)
    assert (leaf(shard, 0), leaf(shard, 3)) == (2.0, 4.0)
    assert shard._dropped == 2


def test_priorities_that_are_refused_are_so_once(shard):
    fill(shard)
    generation = shard._buffer.generation
    wrong = updates("a", 0, [0], [-1.0], generation)
    with pytest.raises(DiskReplayError):
        shard.update(wrong, LARGEST)
    shard.update(wrong, LARGEST)


def test_a_draw_sets_priorities_before(shard):
    fill(shard)
    generation = shard._buffer.generation
    ids = np.arange(18)
    given = updates("a", 0, ids, np.where(ids == 5, 1.0, 0.0), generation)
    packed, state = shard.draw(np.array([0.1, 0.9]), given, LARGEST)
    assert packed.arrays["id"].tolist() == [5, 5]
    assert state.mass.total == 1.0
    assert shard.gather(np.array([3])).arrays["number"].tolist() == [1001]


def test_an_empty_shard_draws_nothing(shard):
    packed, state = shard.draw(np.array([0.5]), Updates.none("a"), LARGEST)
    assert packed is None
    assert (state.mass.total, state.add_count) == (0.0, 0)


def test_a_graph_gets_answers_with_room_for_larger_ones(shard):
    fill(shard)
    assert shard.draw_in_graph(None) is None
    assert shard.begin_graph(GraphName(3, 1)) is True
    asked = np.linspace(0, 0.99, 8), Updates.none("a"), LARGEST
    (packed, _state), error, padding = shard.draw_in_graph(asked)
    assert (error, padding) == (None, None)
    shard._graph_room = 0
    _drawn, _error, padding = shard.draw_in_graph(asked)
    needed = packed.nbytes + (1 << 16)
    assert shard._graph_room == needed + needed // 4
    assert padding.nbytes == needed // 4
    assert shard.draw_in_graph(asked)[2] is None
    wrong = updates("b", 0, [0], [-1.0], shard._buffer.generation)
    drawn, error, _padding = shard.draw_in_graph((asked[0], wrong, LARGEST))
    assert drawn is None
    assert isinstance(error, DiskReplayError)


def test_the_latest_learner_has_the_graph(shard):
    assert shard.begin_graph(GraphName(3, 1))
    assert shard.begin_graph(GraphName(3, 2))
    shard.end_graph(GraphName(3, 1))
    assert shard._graph == GraphName(3, 2)
    with pytest.raises(UsageError, match="a learner that connected later"):
        shard.begin_graph(GraphName(2, 9))
    assert shard.begin_graph(GraphName(4, 1)) is False  # its loop is still here
    shard.end_graph(GraphName(3, 2))
    assert shard.begin_graph(GraphName(4, 1)) is True


def test_a_shard_is_opened_again_by_its_identity_alone(tmp_path):
    shard = made(tmp_path / "shard")
    fill(shard)
    shard.open()
    shard.close()
    with pytest.raises(ClosedError):
        shard.state()
    again = made(tmp_path / "shard")
    assert again.counts([0, 1]) == [10, 10]
    again.close()
    path = tmp_path / "shard" / "shard.json"
    path.write_text(json.dumps(IDENTITY | {"num_shards": 2}))
    with pytest.raises(SchemaError, match="num_shards is 2 there, and 1 was asked for"):
        made(tmp_path / "shard").open()
    path.unlink()
    with pytest.raises(SchemaError, match="it is no shard"):
        made(tmp_path / "shard").open()
    with pytest.raises(ShardsLostError, match=r"shard 0 .* cannot open its store"):
        made(tmp_path / "shard").state()


def test_a_shard_without_its_disk_is_lost_until_it_is_restored(tmp_path, monkeypatch):
    shard = made(tmp_path / "shard")
    fill(shard)
    part, state = shard.save(str(tmp_path / "ck"), "1", Updates.none("a"), LARGEST, None)
    assert state.add_count == 20
    shard.close()
    monkeypatch.setattr(module, "was_restarted", lambda: True)
    other = made(tmp_path / "elsewhere")
    with pytest.raises(ShardsLostError, match=r"the rows of shard 0 are not on .* restore_shard"):
        other.open()
    other.restore([PartPiece(part, 0, ENVS)], None, "load")
    assert other.counts([0, 1]) == [10, 10]
    other.close()


def test_a_load_goes_back_and_what_was_asked_of_ids_before_is_void(shard, tmp_path):
    lease = fill(shard)
    part, _state = shard.save(str(tmp_path / "ck"), "1", Updates.none("a"), LARGEST, None)
    shard.append(lease.token, lease.generation, chunk([10, 10], [5, 5]), 600.0)
    shard.prepare([PartPiece(part, 0, ENVS)], None, "load")
    state = shard.load("load")
    assert state.add_count == 20
    assert state.generation != lease.generation
    shard.update(updates("a", 0, [0], [7.0], lease.generation), LARGEST)
    assert leaf(shard, 0) == 1.0
    shard.remove([part["path"]])
    assert not list((tmp_path / "ck").iterdir())
