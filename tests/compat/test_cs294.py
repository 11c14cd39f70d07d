"""The CS294 frame buffer beside a model of it: lists, and one frame after the other."""

import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import diskreplay
from diskreplay.compat.cs294 import ReplayBuffer, sample_n_unique
from diskreplay.compat.keras_gym import ExperienceReplayBuffer
from diskreplay.errors import (
    ClosedError,
    FormatError,
    InvalidInputError,
    SchemaError,
    ShapeError,
    UsageError,
)
from tests import processes
from tests.effort import effort


class Model:
    """What the buffer should do, slowly."""

    def __init__(self, size, history):
        self.size, self.history = size, history
        self.rows = []  # all frames ever stored

    def store_frame(self, frame, *, after_a_break=False):
        self.rows.append(
            {"frame": frame, "action": 0, "reward": 0.0, "done": False, "effect": False,
             "break": after_a_break}
        )  # fmt: skip
        return (len(self.rows) - 1) % self.size

    def store_effect(self, g, action, reward, done):
        self.rows[g].update(action=action, reward=reward, done=done, effect=True)

    @property
    def oldest(self):
        return max(0, len(self.rows) - self.size)

    def begins(self, g):
        """Whether no frame before row g belongs to its history."""
        return g == self.oldest or self.rows[g]["break"] or self.rows[g - 1]["done"]

    def observation(self, g):
        if g >= len(self.rows):
            return np.zeros_like(self.observation(self.oldest))
        frames = [self.rows[g]["frame"]]
        if frames[0].ndim == 1:
            return frames[0]
        while len(frames) < self.history and not self.begins(g):
            g -= 1
            frames.insert(0, self.rows[g]["frame"])
        while len(frames) < self.history:
            frames.insert(0, np.zeros_like(frames[0]))
        return np.concatenate(frames, axis=2)

    def candidates(self):
        """Rows with an effect that are followed by the frame that came of it."""
        return [
            g
            for g in range(self.oldest, len(self.rows) - 1)
            if self.rows[g]["effect"]
            and not (self.rows[g + 1]["break"] and not self.rows[g]["done"])
        ]

    def looks_lost(self, g):
        """Whether the episode up to row g has no effect: as rows that a repair has set aside."""
        while not self.rows[g]["effect"] and not self.begins(g):
            g -= 1
        return not self.rows[g]["effect"]

    def in_slot(self, slot):
        return next(g for g in range(self.oldest, len(self.rows)) if g % self.size == slot)

    def transitions(self, slots):
        rows = [self.in_slot(slot) for slot in slots]
        get = [self.rows[g] for g in rows]
        return (
            np.array([self.observation(g) for g in rows]),
            np.array([row["action"] for row in get], np.int32),
            np.array([row["reward"] for row in get], np.float32),
            np.array([self.observation(g + 1) for g in rows]),
            np.array([float(row["done"]) for row in get], np.float32),
        )

    def columns(self):
        slots = [None] * self.size
        for g in range(self.oldest, len(self.rows)):
            slots[g % self.size] = self.rows[g]
        return slots


def assert_same(found, expected):
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == theirs.dtype
        assert_array_equal(ours, theirs, err_msg=f"column {i}")


class Recording(ReplayBuffer):
    """Remembers which slots were drawn."""

    def _encode_sample(self, indexes):
        self.drawn = np.array(indexes)
        return super()._encode_sample(indexes)


events = st.lists(
    st.tuples(
        st.booleans(),  # done, in one of two
        st.sampled_from(["now"] * 6 + ["late", "never"]),  # when the effect comes
        st.sampled_from([0] * 8 + [1, 1, 2]),  # 1: compare a batch, 2: reopen
    ),
    max_size=60,
)


@settings(max_examples=effort(25, 60), deadline=None)
@example(
    events=[(False, "never", 0), (False, "now", 0), (False, "late", 0)],
    size=2, history=1, shape=(2, 3, 1), often=False,
)  # fmt: skip
@given(
    events=events,
    size=st.integers(2, 9),
    history=st.integers(1, 4),
    shape=st.sampled_from([(2, 3, 1), (2, 1, 2), (3,)]),
    often=st.booleans(),
)
def test_everything_is_the_models(events, size, history, shape, often):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        buffer, model = Recording(size, history, path=path), Model(size, history)
        pending, broken = None, False
        for i, (done, when, event) in enumerate(events):
            frame = np.full(shape, i + 1)
            idx = buffer.store_frame(frame)
            assert idx == model.store_frame(frame.astype(np.uint8), after_a_break=broken)
            g, broken = len(model.rows) - 1, False
            if pending is not None:
                buffer.store_effect(pending % size, *model_effect(pending))
                model.store_effect(pending, *model_effect(pending))
                pending = None
            assert_array_equal(buffer.encode_recent_observation(), model.observation(g))
            if when == "now":
                effect = i, i / 3, done and often
                buffer.store_effect(idx, *effect)
                model.store_effect(g, *effect)
            elif when == "late":
                pending = g
            if event == 2 and not model.looks_lost(g):
                buffer.close()
                buffer, pending = Recording(size, history, path=path), None
                broken = when != "now"
            assert buffer.num_in_buffer == len(model.rows) - model.oldest
            assert buffer.next_idx == len(model.rows) % size
            if event or i > len(events) - 4:
                compare(buffer, model)
        if events:
            slots = model.columns()
            for name, key in (
                ("obs", "frame"), ("action", "action"), ("reward", "reward"), ("done", "done"),
            ):  # fmt: skip
                column = getattr(buffer, name)
                assert len(column) == size
                for found, row in zip(column, slots, strict=True):
                    assert (found == np.float32(row[key] if row else 0)).all()
        buffer.close()


def model_effect(g):
    return -g, g / 5, g % 2 == 0


def compare(buffer, model):
    candidates = model.candidates()
    count = len(candidates)
    assert buffer.can_sample(count)
    assert not buffer.can_sample(count + 1)
    for batch_size in {min(1, count), count // 2, count} - {0}:
        batch = buffer.sample(batch_size)
        drawn = buffer.drawn.tolist()
        assert len(set(drawn)) == batch_size
        assert {model.in_slot(slot) for slot in drawn} <= set(candidates)
        assert_same(batch, model.transitions(drawn))
    slots = [g % model.size for g in range(model.oldest, len(model.rows))]
    assert_same(ReplayBuffer._encode_sample(buffer, slots), model.transitions(slots))
    for slot in slots:
        g = model.in_slot(slot)
        assert_array_equal(buffer._encode_observation(slot), model.observation(g))


def filled(count, size=10, history=3, **options):
    buffer = Recording(size, history, **options)
    for i in range(count):
        idx = buffer.store_frame(np.full((2, 2, 1), i, np.uint8))
        buffer.store_effect(idx, i, float(i), i % 5 == 4)
    return buffer


@pytest.mark.parametrize("count", [2, 7, 10, 11, 34])
def test_all_rows_but_the_newest_are_drawn(count):
    buffer = filled(count)
    available = min(count, 10) - 1
    assert buffer.can_sample(available)
    assert not buffer.can_sample(available + 1)
    seen = {int(action) for _ in range(200) for action in buffer.sample(1)[1]}
    assert seen == set(range(count - available - 1, count - 1))
    assert sorted(buffer.sample(available)[1]) == sorted(seen)
    with pytest.raises(AssertionError, match=f"{available} can be sampled"):
        buffer.sample(available + 1)


@pytest.mark.parametrize("size", [0, -1, -100, 2.5, None, True, np.int64(0)])
def test_a_batch_of_no_transitions_is_refused(size):
    with pytest.raises(InvalidInputError, match="batch_size: a positive integer expected, found"):
        filled(7).sample(size)


def test_draws_are_even_whatever_part_is_drawn():
    buffer = filled(100, size=41)
    for batch_size in (4, 30):
        drawn = np.concatenate([buffer.sample(batch_size)[1] for _ in range(4000 // batch_size)])
        counts = np.unique(drawn, return_counts=True)[1]
        assert len(counts) == 40
        assert counts.min() > 50
        assert counts.max() < 160  # 100 expected, ten standard deviations are another 99


def test_a_seed_repeats_a_sample():
    buffer = filled(30)
    batches = []
    for _ in range(2):
        np.random.seed(5)  # noqa: NPY002
        batches.append([buffer.sample(size) for size in (2, 9, 4)])
    for one, other in zip(*batches, strict=True):
        assert_same(one, other)


def test_a_batch_is_a_copy():
    buffer = filled(30)
    batch = buffer.sample(5)
    before = [column.copy() for column in batch]
    for i in range(12):
        buffer.store_effect(buffer.store_frame(np.full((2, 2, 1), 90 + i)), 0, 0.0, False)
    buffer.sample(5)
    assert_same(batch, before)


def test_before_the_first_frame():
    buffer = ReplayBuffer(5, 2)
    assert (buffer.obs, buffer.action, buffer.reward, buffer.done) == (None, None, None, None)
    assert not buffer.can_sample(0)
    assert not buffer.can_sample(1)
    with pytest.raises(AssertionError):
        buffer.encode_recent_observation()
    with pytest.raises(AssertionError):
        buffer.sample(1)


def test_floats_are_truncated_and_frames_copied():
    buffer = ReplayBuffer(5, 1)
    frame = np.full((1, 2, 1), 7.9)
    buffer.store_frame(frame)
    frame[:] = 3
    assert_array_equal(buffer.obs[0], np.full((1, 2, 1), 7, np.uint8))
    assert buffer.obs.dtype == np.uint8


def test_two_axes_are_a_frame_of_one_channel():
    buffer = ReplayBuffer(5, 3)
    for i in range(3):
        buffer.store_effect(buffer.store_frame(np.full((4, 5), i)), 0, 0.0, False)
    assert buffer.encode_recent_observation().shape == (4, 5, 3)
    assert buffer.sample(2)[0].shape == (2, 4, 5, 3)


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 1), (4,), (), (1, 2, 2, 1)])
def test_another_shape_is_refused(shape):
    buffer = filled(4)
    with pytest.raises(ShapeError):
        buffer.store_frame(np.zeros(shape))
    assert buffer.next_idx == buffer.num_in_buffer == 4


def test_an_effect_that_cannot_be_stored_says_why():
    buffer = filled(4)
    for idx in (3, 0, 7, -1, 10):
        with pytest.raises(UsageError, match=r"waits for no effect; those that do: \[\]"):
            buffer.store_effect(idx, 0, 0.0, False)
    idx = buffer.store_frame(np.zeros((2, 2, 1)))
    with pytest.raises(UsageError, match=r"those that do: \[4\]"):
        buffer.store_effect(3, 0, 0.0, False)
    for action, reward in ((2**31, 0.0), (0, np.inf), (0, np.nan)):
        with pytest.raises(InvalidInputError):
            buffer.store_effect(idx, action, reward, False)
    buffer.store_effect(idx, 5, 1.0, True)
    assert (buffer.action[4], buffer.reward[4], buffer.done[4]) == (5, 1.0, True)


def test_a_frame_without_an_effect_at_the_end_is_lost_by_a_crash_only(tmp_path):
    buffer = filled(13, path=tmp_path / "a")
    buffer.store_frame(np.full((2, 2, 1), 13))
    with diskreplay.open(tmp_path / "a") as reader:
        assert reader.bounds[0, 1] == 13
        assert_array_equal(reader.take("action", [11, 12]), [11, 12])
    buffer.close()
    with Recording(10, 3, path=tmp_path / "a") as again:
        assert again.num_in_buffer == 10
        assert again.next_idx == 4
        assert again.can_sample(9)
        assert_array_equal(again.obs[:, 0, 0, 0], [10, 11, 12, 13, 4, 5, 6, 7, 8, 9])


def test_what_came_before_a_break_is_not_followed_by_what_came_after(tmp_path):
    killed = filled(13, path=tmp_path / "a")
    with killed._ring._rows.store.maintenance.lock:  # it renames and removes files
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as a kill leaves it
    killed.close()
    with Recording(10, 3, path=tmp_path / "b") as again:
        for i in (50, 51):
            again.store_effect(again.store_frame(np.full((2, 2, 1), i)), i, 0.0, False)
        assert again.encode_recent_observation()[0, 0].tolist() == [0, 50, 51]
        assert not again.can_sample(9)
        assert sorted(again.sample(8)[1]) == [5, 6, 7, 8, 9, 10, 11, 50]


def test_a_closed_episode_goes_on(tmp_path):
    filled(13, path=tmp_path / "a").close()
    with Recording(10, 3, path=tmp_path / "a") as again:
        again.store_effect(again.store_frame(np.full((2, 2, 1), 50)), 50, 0.0, False)
        assert again.encode_recent_observation()[0, 0].tolist() == [11, 12, 50]
        obs, actions, _, following, _ = again.sample(9)
        assert sorted(actions) == list(range(4, 13))
        assert_array_equal(following[actions == 12][0, 0, 0], [11, 12, 50])
        assert_array_equal(obs[actions == 12][0, 0, 0], [10, 11, 12])
        assert again.can_sample(9)
        again.flush()
        with diskreplay.open(tmp_path / "a") as reader:
            assert_array_equal(reader.take("step", np.arange(10, 14)), np.arange(4))


def left_by_a_kill(buffer, path):
    with buffer._ring._rows.store.maintenance.lock:  # it renames and removes files
        shutil.copytree(buffer.path, path)
    buffer.close()


def is_followed(buffer, row):
    """Whether a row can be drawn once two more frames came, and what it is said to lead to."""
    for i in (50, 51):
        buffer.store_effect(buffer.store_frame(np.full((2, 2, 1), i)), i, 0.0, False)
    actions = buffer.sample(buffer._available())[1]
    _, _, _, following, _ = buffer._encode_sample([row % 10])
    return row in actions, following[0, 0, 0].tolist()


def test_after_a_kill_opening_and_closing_joins_nothing(tmp_path):
    left_by_a_kill(filled(13, path=tmp_path / "a"), tmp_path / "b")
    for _ in range(2):
        Recording(10, 3, path=tmp_path / "b").close()
    with Recording(10, 3, path=tmp_path / "b") as again:
        assert is_followed(again, 12) == (False, [0, 0, 50])


@pytest.mark.parametrize("then", ["kill", "flush", "another frame"])
def test_a_frame_that_a_kill_takes_after_a_close_is_no_bridge(tmp_path, then):
    filled(13, path=tmp_path / "a").close()
    buffer = Recording(10, 3, path=tmp_path / "a")
    buffer.store_frame(np.full((2, 2, 1), 66))
    if then == "flush":
        buffer.flush()
    if then == "another frame":
        buffer.store_frame(np.full((2, 2, 1), 67))
    left_by_a_kill(buffer, tmp_path / "b")
    with Recording(10, 3, path=tmp_path / "b") as again:
        assert is_followed(again, 12) == (False, [0, 0, 50])


def test_a_flush_that_fails_takes_no_frame(tmp_path, monkeypatch):
    filled(13, path=tmp_path / "a").close()
    with Recording(10, 3, path=tmp_path / "a") as again:
        with monkeypatch.context() as patched:
            patched.setattr(type(again._ring), "flush", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                again.store_frame(np.zeros((2, 2, 1)))
        assert again._count == 13
        assert is_followed(again, 12) == (True, [11, 12, 50])


def test_a_row_that_was_flushed_outlives_a_kill_whatever_came_before_it(tmp_path):
    code = """
import os, signal, sys
import numpy as np
from diskreplay.compat.cs294 import ReplayBuffer
buffer = ReplayBuffer(10, 3, path=sys.argv[1])
for i in range(3):
    buffer.store_effect(buffer.store_frame(np.full((2, 2, 1), i)), i, i, False)
buffer.store_frame(np.full((2, 2, 1), 3))  # without an effect
buffer.store_effect(buffer.store_frame(np.full((2, 2, 1), 4)), 4, 4.0, False)
buffer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = processes.run(code, tmp_path / "a")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Recording(10, 3, path=tmp_path / "a") as again:
        assert again.num_in_buffer == 5
        assert again.action[:5].tolist() == [0, 1, 2, 0, 4]
        assert again.reward[4] == 4.0
        assert_array_equal(again.obs[:6, 0, 0, 0], [0, 1, 2, 3, 4, 0])


def test_a_flush_takes_a_frame_without_an_effect_only_before_a_row_that_has_its(tmp_path):
    buffer = filled(3, path=tmp_path / "a")
    first = buffer.store_frame(np.full((2, 2, 1), 3))
    buffer.flush()
    second = buffer.store_frame(np.full((2, 2, 1), 4))
    buffer.flush()
    buffer.store_effect(second, 4, 4.0, False)
    buffer.store_effect(first, 3, 3.0, False)  # late, and as good
    third = buffer.store_frame(np.full((2, 2, 1), 5))
    fourth = buffer.store_frame(np.full((2, 2, 1), 6))
    buffer.store_effect(fourth, 6, 6.0, False)
    buffer.flush()
    with pytest.raises(UsageError, match=f"slot {third} waits for no effect.*or a flush"):
        buffer.store_effect(third, 5, 5.0, False)
    assert buffer.action[:7].tolist() == [0, 1, 2, 3, 4, 0, 6]
    buffer.store_effect(buffer.store_frame(np.full((2, 2, 1), 7)), 7, 7.0, False)
    obs, actions, *_ = buffer.sample(buffer._available())
    assert sorted(actions) == [0, 1, 2, 3, 4, 6]  # the one without is seen in histories only
    assert_array_equal(obs[actions == 6][0, 0, 0], [4, 5, 6])
    buffer.close()


@pytest.mark.parametrize("wrong", [np.float64(1), 1.0, "1", None, True])
def test_a_slot_that_is_no_integer_is_refused(wrong):
    buffer = filled(1)
    buffer.store_frame(np.full((2, 2, 1), 1))
    with pytest.raises(InvalidInputError, match="idx"):
        buffer.store_effect(wrong, 7, 7.0, True)
    buffer.store_frame(np.full((2, 2, 1), 2))
    assert (buffer.action[1], buffer.done[1]) == (0, False)
    assert not buffer.can_sample(2)


@pytest.mark.parametrize("count", [13, 24])
def test_a_larger_size_loses_no_row_of_a_ring_that_went_round(count, tmp_path):
    filled(count, path=tmp_path / "a").close()
    with Recording(20, 3, path=tmp_path / "a") as again:
        assert (again.num_in_buffer, again.next_idx) == (10, 10)
        assert sorted(again.sample(9)[1]) == list(range(count - 10, count - 1))
        assert not again.can_sample(10)
        again.store_effect(again.store_frame(np.full((2, 2, 1), 50)), 50, 0.0, False)
        _, actions, _, following, _ = again.sample(10)
        assert sorted(actions) == list(range(count - 10, count))
        assert_array_equal(following[actions == count - 1][0, 0, 0], [count - 2, count - 1, 50])
    with Recording(20, 3, path=tmp_path / "a") as again:
        assert again.can_sample(10)


def test_a_size_of_one_keeps_the_newest_frame(tmp_path):
    for last in (1, 7):
        with ReplayBuffer(1, 2, path=tmp_path / "a") as buffer:
            for i in range(last):
                assert buffer.store_frame(np.full((2, 2, 1), i)) == 0
                assert buffer.encode_recent_observation()[0, 0].tolist() == [0, i]
                buffer.store_effect(0, i, 1.0, False)
            assert (buffer.num_in_buffer, buffer.next_idx) == (1, 0)
            assert not buffer.can_sample(1)
            assert buffer.obs[0, 0, 0].tolist() == [last - 1]
            assert buffer.action.tolist() == [last - 1]
    with diskreplay.open(tmp_path / "a") as reader:
        assert reader.bounds.tolist() == [[7, 8]]
        assert len(reader) == 0
    for size in (0, -1):
        with pytest.raises(ValueError, match=r"negative|capacity"):
            ReplayBuffer(size, 1).store_frame(np.zeros((2, 2, 1)))


def test_a_directory_of_something_else_is_refused_at_once(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for make in (
        lambda path: ReplayBuffer(10, 3, path=path),
        lambda path: ExperienceReplayBuffer(None, 10, path=path),
    ):
        for path in (tmp_path, tmp_path / "notes.txt"):
            with pytest.raises(FormatError, match="no store"):
                make(path)
    (tmp_path / "empty").mkdir()
    ReplayBuffer(10, 3, path=tmp_path / "empty").close()


def test_closed_before_the_first_frame(tmp_path):
    buffer = ReplayBuffer(10, 3, path=tmp_path / "a")
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.store_frame(np.zeros((2, 2, 1)))
    assert not (tmp_path / "a").exists()


def test_a_store_of_another_api_is_refused(tmp_path):
    filled(3, path=tmp_path / "a").close()
    with pytest.raises(SchemaError, match="made by cs294"):
        ExperienceReplayBuffer(None, 10, path=tmp_path / "a")


def test_sample_n_unique():
    results = iter([3, 1, 3, 3, 2, 1, 5])
    assert sample_n_unique(lambda: next(results), 4) == [3, 1, 2, 5]
    results = iter([[1], [1], [2]])  # without a hash
    assert sample_n_unique(lambda: next(results), 2) == [[1], [2]]
    assert sample_n_unique(lambda: None, 0) == []
