"""Rows that leave while they are read."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.profile import values_of
from diskreplay.inspection.retained import read_rows
from diskreplay.store.open_store import OpenStore

CAPACITY = 4000


class Hurried:
    """A reader of a store whose writer adds `hurry` rows before each look."""

    def __init__(self, writer, reader):
        self._writer, self.reader = writer, reader
        self.num_envs = 1
        self.fields = reader.fields
        self.row = 0
        self.write(CAPACITY + 100)
        self.hurry = 0

    def write(self, rows):
        number = self.row + np.arange(rows)
        self._writer.extend({
            "observation": number, "action": number % 2, "reward": np.ones(rows, np.float32),
            "terminated": number % 10 == 9, "truncated": np.zeros(rows, bool),
            "step": (number % 10).astype(np.int32), "is_final": np.zeros(rows, bool),
        })  # fmt: skip
        self.row += rows

    @property
    def bounds(self):
        self.write(self.hurry)
        return self.reader.bounds

    def take(self, field, ids):
        self.write(self.hurry)
        return self.reader.take(field, ids)


@pytest.fixture
def hurried(tmp_path):
    writer = diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=Discrete(1 << 40), action_space=Discrete(2),
        capacity=CAPACITY,
    )  # fmt: skip
    with writer, diskreplay.open(tmp_path / "replay") as reader:
        yield Hurried(writer, reader)


@pytest.mark.parametrize("hurry", [1, 50, 700, 3 * CAPACITY])
def test_episodes_are_of_one_moment(hurried, hurry, monkeypatch):
    spans, seen = OpenStore.spans, []

    def hurry_and_read(store, name, start, stop):
        if store.mode == "r" and len(seen) < 20:  # then the writer rests
            seen.append((start, stop))
            hurried.write(hurry)
        return spans(store, name, start, stop)

    monkeypatch.setattr(OpenStore, "spans", hurry_and_read)
    episodes = episodes_of(hurried.reader)
    assert len(seen) >= 5
    assert len(episodes) == CAPACITY // 10
    assert (episodes.rows == 10).all()
    assert (episodes.returns == episodes.rows).all()
    assert (np.diff(episodes.start_id) == 10).all()


@pytest.mark.parametrize("hurry", [1, 50])
def test_values_of_what_is_left(hurried, hurry):
    hurried.hurry = hurry
    values = np.concatenate([*values_of(hurried, "observation")])
    assert len(values) > 1000
    np.testing.assert_array_equal(values, values[0] + np.arange(len(values)))


def test_nothing_may_be_left(hurried):
    hurried.hurry = CAPACITY
    first, (values, steps) = read_rows(hurried, 0, 100, 4000, ("observation", "step"))
    assert (first, len(values), len(steps)) == (4000, 0, 0)


def test_all_is_left_without_a_writer(hurried):
    first, (values,) = read_rows(hurried, 0, 100, 4100, ("observation",))
    assert first == 100
    np.testing.assert_array_equal(values, np.arange(100, 4100))
