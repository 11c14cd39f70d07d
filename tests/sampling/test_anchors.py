"""The windows that there are, beside those that lists say, and how often each is drawn."""

import numpy as np
import pytest

from diskreplay.errors import EmptyBufferError, NotSampleableError, PriorityError, UnknownIdError
from diskreplay.sampling.anchors import Anchors
from diskreplay.sampling.priority_tree import PriorityTree
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.window import Window, WindowPlan
from tests.sampling.streams import GAMMA, Told


def followed(told, length=2, *, stride=1, ends="inside", prioritized=False, finished=False,
             normalization="batch", online=0, alpha=1.0):  # fmt: skip
    window = Window(length, 0, 1, stride, ends, 1, False, finished)
    anchors = Anchors(
        window, "zero", prioritized=prioritized, alpha=alpha, normalization=normalization,
        online=online,
    )  # fmt: skip
    anchors.follow(told.index)
    return anchors


def drawn(anchors, size=64, beta=0.5, seed=0):
    plan = WindowPlan(anchors._window, size, 1, has_to_go=False)
    rng = ReplayableRng(np.random.default_rng(seed))
    anchors.draw(plan, rng, beta, GAMMA ** np.arange(2.0), np.empty(0, np.float32))
    return plan


@pytest.mark.parametrize("ends", ["inside", "shift", "pad", "cross"])
@pytest.mark.parametrize(
    ("num_envs", "kept", "stack", "length", "stride", "finished"),
    [(1, None, 1, 3, 1, False), (2, 40, 3, 2, 3, False), (3, 25, 1, 5, 2, True)],
)
def test_any_walk(ends, num_envs, kept, stack, length, stride, finished):
    rng = np.random.default_rng(length)
    told = Told(rng, num_envs, kept, stack)
    naive = told.naive(length, stride=stride, ends=ends, finished=finished)
    anchors = followed(told, length, stride=stride, ends=ends, finished=finished, prioritized=True)
    for turn in range(60):
        told.add(int(rng.integers(0, 12)))
        if turn % 9 == 8:
            env = int(rng.integers(num_envs))
            first, count = int(told.index.first[env]), int(told.index.count[env])
            told.evict(env, int(rng.integers(first, count + 1)))
        anchors.catch_up(told.index)
        assert anchors.ids().tolist() == naive.anchors()
        assert anchors.count == len(naive.anchors())
        # A leaf of 1 for each window, and none elsewhere.
        places = np.flatnonzero(anchors.tree.leaves[: told.index.size])
        assert sorted(places) == sorted(anchors.ids() % told.index.size)
        assert anchors.tree.total == anchors.count
    late = followed(told, length, stride=stride, ends=ends, finished=finished)
    assert late.ids().tolist() == naive.anchors()


def test_what_names_no_window_is_refused():
    told = Told(np.random.default_rng(1), 2, 20)
    told.add(200)
    anchors = followed(told, 3)
    ids = anchors.ids()
    anchors.check(ids)
    anchors.check(np.empty(0, np.int64))
    others = sorted(set(range(2 * int(told.index.count.min()))) - set(ids.tolist()))
    for other in others:
        with pytest.raises(NotSampleableError, match=f"anchor {other} at position 1 names no"):
            anchors.check(np.array([ids[0], other]))
    for unknown in (-1, 2 * int(told.index.count.max())):
        with pytest.raises(UnknownIdError):
            anchors.check(np.array([unknown]))


def test_where_there_is_no_window_nothing_is_drawn():
    told = Told(np.random.default_rng(2), 1, 20)
    for prioritized in (False, True):
        anchors = followed(told, 2, prioritized=prioritized)
        with pytest.raises(EmptyBufferError, match="no window of 2 rows with ends='inside'"):
            drawn(anchors)
    told.add(30)
    anchors.catch_up(told.index)
    anchors.update(anchors.ids(), np.zeros(anchors.count))
    with pytest.raises(EmptyBufferError, match="all priorities are 0"):
        drawn(anchors)


@pytest.mark.parametrize("num_envs", [1, 6])
def test_windows_are_drawn_evenly_over_envs_that_differ(num_envs):
    told = Told(np.random.default_rng(3), num_envs, None)
    told.add(120)
    anchors = followed(told)
    ids = anchors.ids()
    plan = drawn(anchors, 40_000)
    assert set(plan.anchor.tolist()) == set(ids.tolist())
    counts = np.array([np.count_nonzero(plan.anchor == id_) for id_ in ids])
    expected = 40_000 / len(ids)
    assert ((counts - expected) ** 2 / expected).sum() < 2 * len(ids)  # chi-square
    assert (plan.probability == 1 / len(ids)).all()
    assert (plan.weight == 1).all()


def test_where_nearly_no_row_is_an_anchor_they_are_listed():
    told = Told(np.random.default_rng(4), 3, 4000)
    told.add(9000)
    anchors = followed(told, 30)
    ids = anchors.ids()
    assert 0 < len(ids) < 9000 / 100
    plan = drawn(anchors, 2000)
    assert set(plan.anchor.tolist()) == set(ids.tolist())
    assert (plan.probability == 1 / len(ids)).all()
    assert (plan.weight == 1).all()
    np.testing.assert_array_equal(anchors.probability(ids), 1 / len(ids))


@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_windows_by_their_priorities(normalization):
    told = Told(np.random.default_rng(5), 2, 40)
    told.add(60)
    anchors = followed(told, prioritized=True, alpha=0.5, normalization=normalization)
    ids = anchors.ids()
    priorities = np.arange(len(ids)) ** 2.0
    assert anchors.update(ids, priorities) == 0
    assert anchors.largest == priorities.max()
    leaves = np.arange(len(ids)) / np.arange(len(ids)).sum()
    np.testing.assert_allclose(anchors.probability(ids), leaves)
    plan = drawn(anchors, 4096)
    which = np.searchsorted(np.sort(ids), plan.anchor)
    by_id = leaves[np.argsort(ids)]
    assert np.abs(np.bincount(which, minlength=len(ids)) - 4096 * by_id).max() <= 2
    np.testing.assert_allclose(plan.weight, (by_id[by_id > 0].min() / by_id[which]) ** 0.5, 1e-5)


def test_updates_that_are_refused_change_nothing():
    told = Told(np.random.default_rng(6), 1, 30)
    told.add(80)
    anchors = followed(told, prioritized=True)
    before, ids = anchors.leaves(), anchors.ids()
    for wrong in (np.nan, -1.0, np.inf):
        with pytest.raises(PriorityError, match="position 1"):
            anchors.update(ids[:2], np.array([5.0, wrong]))
    with pytest.raises(UnknownIdError, match="id 9999 at position 1"):
        anchors.update(np.array([ids[0], 9999]), np.array([5.0, 5.0]))
    np.testing.assert_array_equal(anchors.leaves(), before)
    assert anchors.largest == 1.0
    # Of windows that are gone it is told how many.
    gone = np.arange(3)
    assert anchors.update(np.concatenate([gone, ids[:1]]), np.array([9.0, 9.0, 9.0, 2.0])) == 3
    assert anchors.tree.total == anchors.count + 1


@pytest.mark.parametrize("num_envs", [1, 3])
def test_leaves_are_saved_by_row_and_come_back(num_envs):
    told = Told(np.random.default_rng(7), num_envs, 30)
    told.add(110)
    anchors = followed(told, prioritized=True)
    ids = anchors.ids()
    anchors.update(ids, 2.0 + ids)
    start, saved = int(told.index.first.min()), anchors.leaves()
    assert saved.shape == (int(told.index.count.max()) - start, num_envs)
    rows, envs = np.divmod(ids, num_envs)
    expected = np.full(saved.shape, np.nan)
    expected[rows - start, envs] = 2.0 + ids
    np.testing.assert_array_equal(saved, expected)
    # Rows have come and gone since.
    told.add(20 * num_envs)
    other = followed(told, prioritized=True)
    other.restore(start, saved)
    known = dict(zip(ids.tolist(), (2.0 + ids).tolist(), strict=True))
    for id_ in other.ids().tolist():
        assert other.tree.leaves[id_ % told.index.size] == known.get(id_, 1.0)
    other.tree.check()
    told.add(60 * num_envs)
    late = followed(told, prioritized=True)
    late.restore(start, saved)  # none of them is there any more
    assert late.tree.total == late.count
    assert followed(told).leaves() is None


def test_one_that_grows_keeps_its_windows_and_priorities():
    told = Told(np.random.default_rng(8), 1, None)
    told.add(600)
    anchors = followed(told, prioritized=True)
    ids = anchors.ids()
    anchors.update(ids, 3.0 + ids)
    size = told.index.size
    told.add(900)
    assert told.index.size > size
    anchors.catch_up(told.index)
    assert anchors.ids().tolist() == told.naive(2).anchors()
    np.testing.assert_array_equal(anchors.tree.leaves[ids], 3.0 + ids)
    assert len(drawn(anchors).anchor) == 64


@pytest.mark.parametrize("before", [0, 90])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_new_windows_are_handed_out_once_before_all_draws(prioritized, num_envs, before):
    told = Told(np.random.default_rng(9), num_envs, None)
    told.add(before)
    anchors = followed(told, 2, online=3, prioritized=prioritized)
    old = set(anchors.ids().tolist())
    told.add(60 * num_envs)
    anchors.catch_up(told.index)
    expected = set()
    for env in range(num_envs):  # three rows apart, and none that was there before
        at = -1
        for row in sorted(id_ // num_envs for id_ in anchors.ids() if id_ % num_envs == env):
            if row >= at and row * num_envs + env not in old:
                expected.add(row * num_envs + env)
                at = row + 3
    settled = {id_ for id_ in expected if id_ // num_envs < told.index.count[id_ % num_envs] - 5}
    plan = drawn(anchors, len(settled))
    found = plan.anchor.tolist()
    assert len(set(found)) == len(found)
    assert set(found) <= expected
    np.testing.assert_allclose(plan.probability, 1 / anchors.count)
    np.testing.assert_allclose(plan.weight, 1)
    rest = drawn(anchors, 9).anchor.tolist()
    assert settled <= set(found + rest)
    again = drawn(anchors, 4000).anchor  # nothing is new now: all are drawn
    assert len(np.unique(again)) == anchors.count


def test_what_cannot_grow_for_want_of_memory_grows_the_next_time(monkeypatch):
    told = Told(np.random.default_rng(8), 1, None)
    told.add(600)
    anchors = followed(told, prioritized=True)
    told.add(900)

    def refuse(*_arguments):
        raise MemoryError

    monkeypatch.setattr(PriorityTree, "grown", refuse)
    with pytest.raises(MemoryError):
        anchors.catch_up(told.index)
    monkeypatch.undo()
    anchors.catch_up(told.index)
    assert anchors.tree.capacity == told.index.size  # kernels write to as many leaves
    assert anchors.ids().tolist() == told.naive(2).anchors()
