"""The Rainbow notebooks' buffers beside a model of them: lists and loops."""

import math
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import diskreplay
from diskreplay.compat.rainbow import (
    MinSegmentTree,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SumSegmentTree,
)
from diskreplay.errors import ClosedError, InvalidInputError, SchemaError, ShapeError
from tests.effort import effort

DIM = 3


class Model:
    """What the buffers should do, slowly."""

    def __init__(self, size, batch_size, alpha=0.6):
        self.capacity, self.batch_size, self.alpha = size, batch_size, alpha
        self.slots = []
        self.cursor, self.max_priority = 0, 1.0

    def store(self, obs, act, rew, next_obs, done):
        row = {
            "obs": obs, "next_obs": next_obs, "acts": act, "rews": rew, "done": float(done),
            "leaf": self.max_priority**self.alpha,
        }  # fmt: skip
        if len(self.slots) < self.capacity:
            self.slots.append(row)
        else:
            self.slots[self.cursor] = row
        self.cursor = (self.cursor + 1) % self.capacity

    def batch(self, indices):
        return {
            key: np.array([self.slots[i][key] for i in indices], np.float32)
            for key in ("obs", "next_obs", "acts", "rews", "done")
        }

    def sample_batch(self):
        return self.batch(np.random.choice(len(self.slots), self.batch_size, replace=False))  # noqa: NPY002

    def sample_prioritized(self, beta):
        leaves = [row["leaf"] for row in self.slots]
        total, indices = math.fsum(leaves), []
        for i in range(self.batch_size):
            mass = random.uniform(total / self.batch_size * i, total / self.batch_size * (i + 1))
            at = 0
            while at < len(leaves) - 1 and math.fsum(leaves[: at + 1]) <= mass:
                at += 1
            indices.append(at)
        weights = [(len(leaves) * leaf / total) ** -beta for leaf in leaves]
        return {
            **self.batch(indices),
            "weights": np.array([weights[i] / max(weights) for i in indices]),
            "indices": indices,
        }

    def update_priorities(self, indices, priorities):
        for i, priority in zip(indices, priorities, strict=True):
            self.slots[i]["leaf"] = priority**self.alpha
            self.max_priority = max(self.max_priority, priority)


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, value in expected.items():
        if key == "indices":
            assert found[key] == value
            assert all(type(i) is int for i in found[key])
        else:
            assert found[key].dtype == value.dtype
            compare = assert_allclose if key == "weights" else assert_array_equal
            compare(found[key], value, err_msg=key)


def assert_same_slots(buffer, model):
    assert len(buffer) == buffer.size == len(model.slots)
    assert buffer.ptr == model.cursor
    for key in ("obs", "next_obs", "acts", "rews", "done"):
        column = getattr(buffer, f"{key}_buf")
        assert column.dtype == np.float32
        assert column.shape == (model.capacity, DIM)[: 2 if key.endswith("obs") else 1]
        for slot, row in enumerate(column):
            assert_array_equal(row, model.slots[slot][key] if slot < len(model.slots) else 0 * row)


def row(i, follows):
    obs = np.arange(DIM, dtype=np.float32) + (i if follows else -i)
    return obs, i % 4, i / 8, obs + 1 if i % 3 else obs.astype(np.float64) + 0.25


events = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 2, 3]), st.integers(0, 10**6)
    ),
    max_size=40,
)


@settings(max_examples=effort(15, 30), deadline=None)
@given(
    events=events,
    size=st.integers(1, 9),
    batch_size=st.integers(1, 5),
    alpha=st.sampled_from([None, 0.0, 0.6, 1.0]),
)
def test_every_batch_is_the_models(events, size, batch_size, alpha):
    """Without `alpha`: the uniform buffer."""
    with tempfile.TemporaryDirectory() as directory:

        def make():
            if alpha is None:
                return ReplayBuffer(DIM, size, batch_size, path=Path(directory) / "store")
            return PrioritizedReplayBuffer(
                DIM, size, batch_size, alpha, path=Path(directory) / "store"
            )

        buffer, model = make(), Model(size, batch_size, alpha or 0.0)
        for i, (done, event, seed) in enumerate(events):
            obs, act, rew, next_obs = row(i, follows=seed % 2)
            assert buffer.store(obs, act, rew, next_obs, done) is None
            model.store(obs, act, rew, next_obs, done)
            if event == 1:
                buffer.close()
                buffer = make()
            elif event == 2 and alpha is not None:
                rng = np.random.default_rng(seed)
                indices = rng.integers(len(model.slots), size=4).tolist()
                priorities = rng.random(4) * 3 + 1e-3
                buffer.update_priorities(indices, priorities[:, None] if seed % 3 else priorities)
                model.update_priorities(indices, priorities.tolist())
            if not event and i < len(events) - 3:
                continue
            assert_same_slots(buffer, model)
            if alpha is not None:
                assert (buffer.max_priority, buffer.tree_ptr) == (model.max_priority, buffer.ptr)
                for slot, stored in enumerate(model.slots):
                    assert buffer.sum_tree[slot] == pytest.approx(stored["leaf"], rel=1e-14)
                    assert buffer.min_tree[slot] == buffer.sum_tree[slot]
            if len(model.slots) < batch_size:
                with pytest.raises(AssertionError if alpha is not None else ValueError):
                    buffer.sample_batch()
            elif alpha is None:
                np.random.seed(seed)  # noqa: NPY002
                batch = buffer.sample_batch()
                np.random.seed(seed)  # noqa: NPY002
                assert_same(batch, model.sample_batch())
            else:
                beta = 0.1 + seed % 10 / 10
                random.seed(seed)
                batch = buffer.sample_batch(beta)
                random.seed(seed)
                assert_same(batch, model.sample_prioritized(beta))
        buffer.close()


def filled(kind=ReplayBuffer, rows=30, size=20, batch_size=5, **options):
    buffer = kind(DIM, size, batch_size, **options)
    for i in range(rows):
        obs = np.full(DIM, i, np.float32)
        buffer.store(obs, i, i / 2, obs + 1, i % 10 == 9)
    return buffer


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_batch_is_a_copy(kind):
    buffer = filled(kind)
    batch = buffer.sample_batch()
    before = {key: np.copy(value) for key, value in batch.items()}
    for i in range(25):
        buffer.store(np.full(DIM, -i), 0, 0.0, np.zeros(DIM), False)
    buffer.sample_batch()
    for key, value in before.items():
        assert_array_equal(batch[key], value)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_refused_store_changes_nothing(kind):
    buffer = filled(kind)
    before = [getattr(buffer, f"{key}_buf") for key in ("obs", "next_obs", "acts", "rews", "done")]
    good = np.zeros(DIM)
    for bad in (
        (np.zeros(DIM + 1), 0, 0.0, good, False), (good, 0, 0.0, np.zeros((2, DIM)), False),
        (good, [1, 2], 0.0, good, False), (good, 0, np.inf, good, False),
        (good, 0, 0.0, good, 0.5),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            buffer.store(*bad)
    assert (buffer.size, buffer.ptr) == (20, 10)
    for key, value in zip(("obs", "next_obs", "acts", "rews", "done"), before, strict=True):
        assert_array_equal(getattr(buffer, f"{key}_buf"), value)


def test_a_refused_store_does_not_cut_the_episode(tmp_path):
    with ReplayBuffer(1, 10, path=tmp_path / "s") as buffer:
        for i in range(3):
            buffer.store([i], i, 1.0, [i + 1], False)
        for bad in ([9], 0, np.nan, [9], False), ([9], 0, 1e300, [9], False), ([9], 0, 0, [9], 2):
            with pytest.raises(InvalidInputError):
                buffer.store(*bad)
        buffer.store([3], 3, 1.0, [4], False)
        with diskreplay.open(tmp_path / "s") as reader:
            assert_array_equal(reader.take("step", np.arange(4)), np.arange(4))


def test_a_done_is_zero_or_one():
    buffer = filled(rows=3)
    with pytest.raises(InvalidInputError, match=r"0 or 1 expected, found 0\.5"):
        buffer.store(np.zeros(DIM), 0, 0.0, np.zeros(DIM), 0.5)


def test_every_row_is_drawn_the_newest_too():
    buffer = filled(PrioritizedReplayBuffer, rows=50, size=16)
    random.seed(1)
    assert {i for _ in range(200) for i in buffer.sample_batch()["indices"]} == set(range(16))


def test_equal_priorities_have_weights_of_one():
    assert_array_equal(filled(PrioritizedReplayBuffer).sample_batch()["weights"], np.ones(5))


def test_the_largest_weight_is_that_of_all_rows():
    buffer = filled(PrioritizedReplayBuffer, alpha=1.0)
    buffer.update_priorities([3], [1e-9])
    random.seed(2)
    batch = buffer.sample_batch(beta=1.0)
    assert 3 not in batch["indices"]
    assert_allclose(batch["weights"], 1e-9)


def test_priorities_are_checked_before_any_is_set():
    buffer = filled(PrioritizedReplayBuffer, rows=7)
    for indices, priorities in (
        ([1, 2], [3.0]), ([1, 2], [3.0, 0.0]), ([1, 2], [3.0, -1.0]), ([1, 2], [3.0, np.nan]),
        ([1, 2], [3.0, np.inf]), ([1, 7], [3.0, 3.0]), ([1, -1], [3.0, 3.0]),
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            buffer.update_priorities(indices, priorities)
    assert [buffer.sum_tree[i] for i in range(20)] == [1.0] * 7 + [0.0] * 13
    assert buffer.max_priority == 1.0
    buffer.update_priorities([], [])
    buffer.update_priorities([4, 4], np.array([9.0, 2.0], np.float32))
    assert buffer.sum_tree[4] == pytest.approx(2.0**0.6)
    assert buffer.max_priority == 9.0


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_largest_priority_can_be_kept(tmp_path, alpha):
    """Beyond it rows were taken that no flush could write."""
    most = 1e297 ** (1 / alpha) * 0.999
    with filled(PrioritizedReplayBuffer, alpha=alpha, path=tmp_path / "replay") as buffer:
        with pytest.raises(AssertionError, match="1e\\+297 to the power of alpha"):
            buffer.update_priorities([1], [most * 1.01])
        buffer.update_priorities([1], [most])
        buffer.flush()
        leaf = buffer.sum_tree[1]
    with PrioritizedReplayBuffer(DIM, 20, alpha=alpha, path=tmp_path / "replay") as again:
        assert again.sum_tree[1] == leaf


def test_arguments_are_checked():
    with pytest.raises(AssertionError):
        PrioritizedReplayBuffer(DIM, 10, alpha=-0.1)
    buffer = filled(PrioritizedReplayBuffer)
    for beta in (0, -1, np.nan, np.inf):
        with pytest.raises(AssertionError):
            buffer.sample_batch(beta)


def test_defaults():
    buffer = PrioritizedReplayBuffer(2, 1000)
    assert (buffer.batch_size, buffer.alpha, buffer.max_priority) == (32, 0.6, 1.0)
    assert (buffer.max_size, buffer.size, buffer.ptr, buffer.tree_ptr) == (1000, 0, 0, 0)
    assert buffer.sum_tree.capacity == buffer.min_tree.capacity == 1024
    assert isinstance(buffer, ReplayBuffer)


def test_episodes_are_seen_by_the_rest(tmp_path):
    with ReplayBuffer(1, 10, path=tmp_path / "s") as buffer:
        for obs, following, done in ((0, 1, 0), (1, 2, 0), (7, 8, 0), (8, 9, 1), (9, 10, 0)):
            buffer.store([obs], obs, 1.0, [following], done)
        with diskreplay.open(tmp_path / "s") as reader:
            assert_array_equal(reader.take("step", np.arange(5)), [0, 1, 0, 1, 0])
            assert_array_equal(reader.take("terminated", np.arange(5)), [0, 0, 0, 1, 0])
            assert_array_equal(reader.take("next_obs", np.arange(5))[:, 0], [1, 2, 8, 9, 10])


def test_the_two_kinds_do_not_mix(tmp_path):
    filled(path=tmp_path / "s").close()
    with pytest.raises(SchemaError):
        PrioritizedReplayBuffer(DIM, 20, path=tmp_path / "s")


def test_priorities_after_a_flush_are_there_and_later_rows_have_the_largest(tmp_path):
    buffer = filled(PrioritizedReplayBuffer, rows=12, path=tmp_path / "s")
    buffer.update_priorities([1, 2], [0.5, 4.0])
    buffer.flush()
    buffer.update_priorities([3], [9.0])
    filled_later = np.full(DIM, 1.0)
    buffer.store(filled_later, 0, 0.0, filled_later, False)
    del buffer  # lets go of the store as a killed process would
    again = PrioritizedReplayBuffer(DIM, 20, 5, path=tmp_path / "s")
    assert again.max_priority == 4.0
    expected = np.array([1, 0.5, 4, *[1] * 9, 4]) ** 0.6
    assert_allclose(again.sum_tree[np.arange(13)], expected)
    again.close()


@pytest.mark.parametrize("size", [16, 40])
def test_reopening_with_another_size_keeps_the_newest(tmp_path, size):
    with filled(PrioritizedReplayBuffer, rows=50, path=tmp_path / "s") as buffer:
        buffer.update_priorities(range(20), buffer.acts_buf + 1)
    with PrioritizedReplayBuffer(DIM, size, 5, path=tmp_path / "s") as again:
        kept = min(20, size)
        assert len(again) == kept
        assert sorted(again.acts_buf[:kept]) == list(range(50 - kept, 50))
        assert_allclose(
            again.sum_tree[np.arange(kept)], (again.acts_buf[:kept].astype(float) + 1) ** 0.6
        )
        assert again.max_priority == 50
        again.store(np.zeros(DIM), 99, 0.0, np.zeros(DIM), True)
        assert again.acts_buf[kept % size if size > 20 else again.ptr - 1] == 99


# -- the trees


@settings(max_examples=effort(25, 60), deadline=None)
@given(
    levels=st.integers(0, 5),
    sets=st.lists(st.tuples(st.integers(0, 31), st.floats(0, 1e6)), max_size=40),
    ranges=st.lists(st.tuples(st.integers(0, 32), st.integers(-32, 32)), max_size=10),
)
def test_trees_are_lists(levels, sets, ranges):
    capacity = 2**levels
    sums, minima = SumSegmentTree(capacity), MinSegmentTree(capacity)
    leaves, least = [0.0] * capacity, [math.inf] * capacity
    for i, value in sets:
        i %= capacity
        sums[i] = minima[i] = value
        leaves[i] = least[i] = value
    assert [sums[i] for i in range(capacity)] == leaves
    assert [minima[i] for i in range(capacity)] == least
    together = SumSegmentTree(capacity)
    together[[i % capacity for i, _ in sets]] = [value for _, value in sets]
    assert_array_equal(together.tree, sums.tree)
    for start, end in [(0, 0), *ranges]:
        start, stop = start % (capacity + 1), end % (capacity + 1)
        end = stop if end > 0 else stop - capacity
        stop = end if end > 0 else end + capacity
        assert sums.sum(start, end) == pytest.approx(math.fsum(leaves[start:stop]))
        assert minima.min(start, end) == min(least[start:stop], default=math.inf)


@settings(max_examples=effort(25, 60), deadline=None)
@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=16), data=st.data())
def test_retrieve(weights, data):
    tree = SumSegmentTree(16)
    tree[np.arange(len(weights))] = weights
    total = sum(weights)
    if not total:
        with pytest.raises(AssertionError):
            tree.retrieve(0.0)
        return
    owners = [i for i, weight in enumerate(weights) for _ in range(weight)]
    mass = data.draw(st.floats(0, total, exclude_max=True))
    assert tree.retrieve(mass) == owners[int(mass)]
    assert tree.retrieve(total) == tree.retrieve(total + 1e-6) == owners[-1]
    assert_array_equal(tree.retrieve(np.arange(total)), owners)
    for outside in (-1e-9, total + 1e-4, math.nan):
        with pytest.raises(AssertionError):
            tree.retrieve(outside)


def test_a_range_of_nothing():
    assert SumSegmentTree(4).sum(2, 2) == 0.0
    assert MinSegmentTree(4).min(3, 1) == math.inf
    assert SumSegmentTree(4).operate(1) == 0.0


@pytest.mark.parametrize("kind", [SumSegmentTree, MinSegmentTree])
def test_trees_check_what_they_are_given(kind):
    for capacity in (0, -2, 3, 12):
        with pytest.raises(AssertionError):
            kind(capacity)
    tree = kind(4)
    assert tree.capacity == 4
    for i in (-1, 4, [0, 4]):
        with pytest.raises(AssertionError):
            tree[i]
        with pytest.raises(AssertionError):
            tree[i] = 1.0
    assert_array_equal(tree.tree, kind(4).tree)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2), (2, 9)])
def test_indices_of_two_axes_change_neither_tree(shape):
    buffer = filled(PrioritizedReplayBuffer, rows=7)
    with pytest.raises(AssertionError, match="one axis expected"):
        buffer.update_priorities(np.ones(shape, int), [9.0, 0.5])
    assert [buffer.sum_tree[i] for i in range(7)] == [1.0] * 7
    assert [buffer.min_tree[i] for i in range(7)] == [1.0] * 7


NO_INDICES = [1.7], 1.0, [np.nan], [True], True, np.array([1.0]), [1, 2.5], [[1], [1, 2]], ["1"]


@pytest.mark.parametrize("wrong", NO_INDICES)
def test_indices_that_are_no_integers_change_neither_tree(wrong):
    buffer = filled(PrioritizedReplayBuffer, rows=7)
    with pytest.raises(AssertionError, match="indices: integers expected, found"):
        buffer.update_priorities(wrong, np.full(np.size(np.array(wrong, object)), 9.0))
    assert [buffer.sum_tree[i] for i in range(7)] == [1.0] * 7
    assert [buffer.min_tree[i] for i in range(7)] == [1.0] * 7
    assert buffer.max_priority == 1.0


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("shape", [(), (1,), (DIM + 1,), (1, DIM), (DIM, 1), (0,)])
def test_an_observation_of_another_shape_is_refused(kind, shape):
    buffer, right = filled(kind, rows=7), np.zeros(DIM)
    before = buffer.obs_buf, buffer.next_obs_buf, len(buffer), buffer.ptr
    for obs, following, name in (
        (np.zeros(shape), right, "obs"), (right, np.zeros(shape), "next_obs"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=rf"^{name}: shape \({DIM},\) expected, found"):
            buffer.store(obs, 0, 0.0, following, False)
    for found, expected in zip(
        (buffer.obs_buf, buffer.next_obs_buf, len(buffer), buffer.ptr), before, strict=True
    ):
        assert_array_equal(found, expected)


def test_priorities_of_a_closed_buffer_are_refused(tmp_path):
    buffer = filled(PrioritizedReplayBuffer, rows=7, path=tmp_path / "s")
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.update_priorities([1], [9.0])
    assert buffer.max_priority == 1.0
