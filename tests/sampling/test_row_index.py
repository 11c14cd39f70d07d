"""Which rows can be sampled, and what each one needs, beside lists of the same rows."""

import re

import numpy as np
import pytest

from diskreplay.errors import CapacityError, NotSampleableError, UnknownIdError
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.row_index_kernels import EPISODE, FINAL, SAMPLEABLE, TERMINATED
from tests.sampling.streams import GAMMA, Told

WALKS = [(1, 20, 1, 1), (1, None, 4, 3), (3, 12, 3, 2), (2, 30, 1, 5), (4, None, 2, 1)]


@pytest.mark.parametrize(("num_envs", "kept", "stack", "horizon"), WALKS)
def test_any_walk(num_envs, kept, stack, horizon):
    """What can be sampled, what changed, what came when and what a transition is."""
    rng = np.random.default_rng(num_envs + horizon)
    told = Told(rng, num_envs, kept, stack, horizon)
    index, there = told.index, set()
    for turn in range(120):
        left, entered = told.add(int(rng.integers(0, 9)))
        if turn % 10 == 9:
            env = int(rng.integers(num_envs))
            first, count = int(index.first[env]), int(index.count[env])
            gone = told.evict(env, int(rng.integers(first, count + 1)))
            assert index.first[env] == told.stream.first[env]
        else:
            gone = np.empty(0, np.int64)
        # Places: a new row may sit in an old one's.
        there = ((there - set(left.tolist())) | set(entered.tolist())) - set(gone.tolist())
        ids = index.sampleable_ids()
        assert ids.tolist() == told.sampleable()
        assert index.sampleable == len(ids)
        assert there == set((ids % index.size).tolist())
        assert index.count.tolist() == [len(rows) for rows in told.stream.rows]
        assert index.first.tolist() == told.stream.first
        assert index.episodes() == len({
            row["episode"]
            for rows, first in zip(told.stream.rows, told.stream.first, strict=True)
            for row in rows[first:]
        })  # fmt: skip
    check_plan(told)


def check_plan(told):
    index, naive, ids = (
        told.index,
        told.naive(n_step=told.index.horizon),
        told.index.sampleable_ids(),
    )
    plan = index.plan(ids)
    for i, (row, env) in enumerate(zip(*np.divmod(ids, told.num_envs), strict=True)):
        rows = told.stream.rows[env]
        ahead, terminated = naive.target(env, row)
        assert plan.rows[i].tolist()[:4] == [
            env, row, min(rows[row]["step"], told.options["stack_size"] - 1), ahead
        ]  # fmt: skip
        rewards = [GAMMA**k * rows[row + k]["reward"] for k in range(ahead)]
        assert plan.reward[i] == np.float32(sum(rewards))
        assert plan.discount[i] == np.float32(0.0 if terminated else GAMMA**ahead)
        assert plan.steps[i] == ahead
        assert plan.terminated[i] == rows[row + ahead - 1]["terminated"]
        assert plan.truncated[i] == rows[row + ahead - 1]["truncated"]


@pytest.mark.parametrize(("num_envs", "kept", "stack", "horizon"), WALKS)
def test_what_is_loaded_is_as_what_was_added(num_envs, kept, stack, horizon):
    """Column by column, in pieces, of which some have rows that are not wanted."""
    rng = np.random.default_rng(0)
    told = Told(rng, num_envs, kept, stack, horizon)
    for _ in range(30):
        told.add(7)
    index = told.index
    loaded = RowIndex(kept, num_envs, stack, horizon, GAMMA)
    loaded.grow(index.size // num_envs) if kept is None else None
    loaded.bounds[:] = index.bounds
    low, high = int(index.first.min()), int(index.count.max())
    for column in range(EPISODE):  # which `validate` numbers
        for start in range(low, high, 5):
            rows = np.arange(start, min(start + 5, high))
            for envs in (slice(0, 1), slice(1, num_envs)):
                numbers = np.arange(num_envs)[envs]
                wanted = (rows[:, None] >= index.first[numbers]) & (
                    rows[:, None] < index.count[numbers]
                )
                ring = index.ring.reshape(-1, num_envs, index.ring.shape[1])
                values = ring[rows % len(ring), envs, column]
                if column == 1:
                    values = values & ~(SAMPLEABLE | 16 | 32)
                values = np.where(wanted, values, -1)  # of others, anything
                loaded.load(column, start, envs, values, wanted)
    loaded.validate()
    assert loaded.sampleable_ids().tolist() == told.sampleable()
    assert loaded.sampleable == index.sampleable
    for mine, other in zip(loaded.plan(index.sampleable_ids()), index.plan(index.sampleable_ids()),
                           strict=True):  # fmt: skip
        np.testing.assert_array_equal(mine, other)


def test_an_empty_one():
    index = RowIndex(8, 2, 3, 4, GAMMA)
    index.validate()
    assert index.sampleable == index.episodes() == 0
    assert index.sampleable_ids().tolist() == []
    assert index.sampleable_rows(0, 5).tolist() == [[False, False]] * 5
    assert index.holds_transitions(np.empty(0, np.int64)).tolist() == []
    assert index.size == 16
    assert index.horizon == 4
    for id_ in (0, 1, -1):
        with pytest.raises(UnknownIdError):
            index.plan(np.array([id_]))


def transitions(index, env, steps, flags=None):
    rows = len(steps)
    index.append(
        np.full(rows, env), np.array(steps, np.int32),
        np.array(flags or [0] * rows, np.uint8), np.ones(rows, np.float32),
    )  # fmt: skip


def test_why_an_id_is_refused():
    index = RowIndex(6, 2, 2, 1, GAMMA)
    transitions(index, 0, range(8))  # the first two have left
    transitions(index, 1, [0, 1, 0, 1, 2], [0, FINAL, 0, TERMINATED, FINAL])
    assert index.holds_transitions(np.array([2, 4, 14, 1, 3, 7, 9])).tolist() == [
        False, True, True, True, False, True, False,
    ]  # fmt: skip
    for ids, error, said in [
        ([6, -2], UnknownIdError, "id -2 at position 1 was never handed out"),
        ([16], UnknownIdError, "id 16 at position 0 was never handed out: env 0 has 8 rows"),
        ([6, 7, 11], UnknownIdError, "id 11 at position 2 was never handed out: env 1 has 5 rows"),
        ([2], NotSampleableError, "id 2 at position 0 cannot be sampled: evicted: env 0 keeps"),
        ([6, 9], NotSampleableError, "id 9 at position 1 cannot be sampled: a final row"),
        ([4], NotSampleableError, "id 4 at position 0 cannot be sampled: pending, cut or its"),
        ([14], NotSampleableError, "id 14 at position 0 cannot be sampled: pending"),
    ]:
        with pytest.raises(error, match=re.escape(said)):
            index.plan(np.array(ids))
        if error is UnknownIdError:
            with pytest.raises(error, match=re.escape(said)):
                index.check_known(np.array(ids))
            with pytest.raises(error):
                index.holds_transitions(np.array(ids))
        else:
            index.check_known(np.array(ids))


def test_which_row_sits_in_a_place():
    index = RowIndex(4, 2, 1, 1, GAMMA)
    transitions(index, 0, range(6))
    transitions(index, 1, range(3))
    envs, rows = index.newest_at(np.arange(8))
    assert envs.tolist() == [0, 1] * 4
    assert rows[::2].tolist() == [4, 5, 2, 3]
    assert rows[1::2].tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []), (0, 3, [(0, 0, 3)]), (2, 4, [(0, 2, 2)]), (3, 6, [(0, 3, 1), (1, 0, 2)]),
        (5, 13, [(0, 1, 3), (3, 0, 4), (7, 0, 1)]),
    ],
)  # fmt: skip
def test_rows_as_runs_of_places(start, stop, expected):
    assert list(RowIndex(4, 3, 1, 1, GAMMA).runs(start, stop)) == expected


def test_rows_of_envs_that_are_apart():
    index = RowIndex(6, 2, 1, 1, GAMMA)
    transitions(index, 0, range(9))  # 3 to 8, the last of which waits
    transitions(index, 1, range(3))  # 0 to 2
    found = index.sampleable_rows(0, 12)
    assert np.flatnonzero(found[:, 0]).tolist() == [3, 4, 5, 6, 7]
    assert np.flatnonzero(found[:, 1]).tolist() == [0, 1]
    assert index.sampleable_rows(4, 6).tolist() == [[True, False]] * 2
    transitions(index, 0, range(9, 12))
    transitions(index, 1, range(3, 9))  # 3 to 8
    # In the places of the next rows of the second one are older rows.
    assert index.sampleable_rows(9, 12).tolist() == [[True, False]] * 2 + [[False, False]]


def test_one_that_grows_keeps_what_it_has():
    index = RowIndex(None, 2, 1, 1, GAMMA)
    before = index.size // 2
    transitions(index, 0, range(before))
    transitions(index, 1, range(5))
    ids, ring = index.sampleable_ids(), index.ring.copy()
    index.grow(before)
    assert index.size == 2 * before
    index.grow(before + 1)
    assert index.size == 4 * before  # at least twice as many: so that rows are seldom copied
    assert index.sampleable_ids().tolist() == ids.tolist()
    np.testing.assert_array_equal(index.ring[: len(ring)], ring)
    index.grow(9 * before)
    assert index.size == 18 * before
    transitions(index, 0, range(before, 9 * before))
    assert index.sampleable == 9 * before - 1 + 4
    assert index.first.tolist() == [0, 0]


def test_only_the_newest_transitions_are_kept_where_a_number_of_them_was_given():
    index = RowIndex(100, 1, 1, 1, GAMMA, transitions=2)
    transitions(index, 0, [0, 1, 2, 3], [0, 0, TERMINATED, FINAL])
    assert index.first.tolist() == [1]  # the final row counts for none
    assert index.sampleable_ids().tolist() == [1, 2]
    transitions(index, 0, [0, 1, 2])
    assert index.first.tolist() == [5]
    assert index.sampleable_ids().tolist() == [5]


def test_more_rows_than_there_is_memory_for(monkeypatch):
    def refuse(*_arguments):
        raise MemoryError

    monkeypatch.setattr(np, "zeros", lambda shape, kind: refuse() if shape == (20, 4) else
                        np.empty(shape, kind))  # fmt: skip
    with pytest.raises(CapacityError, match="20 rows need 320 bytes of memory"):
        RowIndex(10, 2, 1, 1, GAMMA)


def test_one_for_which_there_is_no_more_memory_stays_as_it_is(monkeypatch):
    index = RowIndex(None, 1, 1, 1, GAMMA)
    rows = index.size
    transitions(index, 0, range(rows))
    ids = index.sampleable_ids().tolist()

    def refuse(*_arguments):
        raise MemoryError

    monkeypatch.setattr(np, "zeros", refuse)
    with pytest.raises(CapacityError, match=f"{2 * rows} rows need"):
        index.grow(rows + 1)
    monkeypatch.undo()
    assert index.size == rows == len(index.ring)  # kernels write to as many places
    assert index.sampleable_ids().tolist() == ids
    index.grow(rows + 1)
    assert index.size == 2 * rows == len(index.ring)
