"""Slots, weights and notes of a `SlotBuffer` beside a plain dict of rows."""

import contextlib
import tempfile

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import diskreplay
from diskreplay.compat.slot_buffer import SlotBuffer
from diskreplay.errors import (
    ClosedError,
    CorruptCheckpointError,
    DiskReplayError,
    FormatError,
    NotFiniteError,
    ReadOnlyError,
    SchemaError,
)
from tests.effort import effort


def make(path, **options):
    options = {
        "facade": "test", "observation_space": Box(0, 255, (30, 40), "uint8"),
        "action_space": Discrete(9), "capacity": 20, "segment_rows": 8, "weighted": True,
    } | options  # fmt: skip
    return SlotBuffer(path, **options)


def add(ring, frame, action, reward, terminated, **extras):
    """One row by `extend`, which checks all values."""
    row = {
        "observation": frame, "action": action, "reward": reward, "terminated": terminated,
        "truncated": False, "step": ring.next_step, "is_final": False, **extras,
    }  # fmt: skip
    ring.extend({name: np.array([value]) for name, value in row.items()})


class RingBesideADict(RuleBasedStateMachine):
    """The twin keeps every row by its number, and knows which slot a number has."""

    @initialize(base=st.integers(0, 50), capacity=st.integers(2, 30))
    def begin(self, base, capacity):
        self.directory = tempfile.TemporaryDirectory()
        self.base, self.capacity = base, capacity
        self.rows, self.weights, self.saved = {}, {}, None
        self.count = base
        self.notes = {"begun": base}
        self.ring = self.open()

    def open(self):
        return make(
            f"{self.directory.name}/ring", base=self.base, capacity=self.capacity, notes=self.notes
        )

    def retained(self):
        return [n for n in range(self.count - self.capacity, self.count) if n in self.rows]

    @rule(value=st.integers(1, 255), times=st.integers(1, 13))
    def add(self, value, times):
        for _ in range(times):
            frame = np.full((30, 40), value, np.uint8)
            add(self.ring, frame, value % 9, value / 2, False)
            self.rows[self.count] = value
            self.ring.weights.set([self.count % self.capacity], [float(value)])
            self.weights[self.count % self.capacity] = float(value)
            self.count += 1

    @rule()
    def reopen(self):
        self.ring.notes["count"] = self.notes["count"] = self.count
        self.ring.close()
        self.ring = self.open()

    @rule()
    def save(self):
        self.ring.save(self.directory.name, 1)
        self.saved = self.base, self.count, dict(self.rows), dict(self.weights), dict(self.notes)

    @rule()
    def load(self):
        if self.saved is not None:
            self.ring.load(self.directory.name, 1)
            self.base, self.count, rows, weights, notes = self.saved
            self.rows, self.weights, self.notes = dict(rows), dict(weights), dict(notes)

    @rule(base=st.integers(0, 40), rows=st.lists(st.integers(1, 255), max_size=40))
    def rebuild(self, base, rows):
        with self.ring.rebuilding(base) as fresh:
            for value in rows:
                add(fresh, np.full((30, 40), value, np.uint8), 0, value / 2, False)
                fresh.weights.set([(fresh.count - 1) % self.capacity], [0.5])
            fresh.notes["rebuilt"] = base
        self.base, self.count = base, base + len(rows)
        self.rows = {base + i: value for i, value in enumerate(rows)}
        self.weights = {n % self.capacity: 0.5 for n in self.retained()}
        self.notes = {"rebuilt": base}

    @rule()
    def rebuild_in_vain(self):
        with contextlib.suppress(ZeroDivisionError), self.ring.rebuilding() as fresh:
            add(fresh, np.zeros((30, 40), np.uint8), 0, 0.0, False)
            raise ZeroDivisionError

    @invariant()
    def same(self):
        ring, retained = self.ring, self.retained()
        assert (ring.count, ring.stored) == (self.count, len(retained))
        assert ring.cursor == self.count % self.capacity
        assert ring.notes == self.notes
        by_slot = {n % self.capacity: self.rows[n] for n in retained}
        slots = np.arange(-1, self.capacity)
        expected = np.array([by_slot.get(int(slot), 0) for slot in slots])
        np.testing.assert_array_equal(ring.read("observation", slots)[:, 3, 4], expected)
        np.testing.assert_array_equal(ring.read("reward", slots[::-1]), expected[::-1] / 2)
        assert (ring.column("reward") * 2).tolist() == [self.rows[n] for n in retained]
        weights = [self.weights.get(int(slot), 0.0) for slot in slots[1:]]
        assert ring.weights.get(slots[1:]).tolist() == weights

    def teardown(self):
        if hasattr(self, "ring"):
            self.ring.close()
            self.directory.cleanup()


RingBesideADict.TestCase.settings = settings(
    max_examples=effort(8, 15), stateful_step_count=15, deadline=None
)
test_ring_beside_a_dict = RingBesideADict.TestCase


def test_others_keep_their_hands_off(tmp_path):
    with make(tmp_path / "ring") as ring:
        add(ring, np.ones((30, 40), np.uint8), 1, 1.0, True)
        with diskreplay.open(tmp_path / "ring") as reader:
            assert reader.gather([0]).reward == [1.0]
            with pytest.raises(ReadOnlyError):
                reader.flush()
    with pytest.raises(SchemaError, match=r"diskreplay\.compat\.test"):
        diskreplay.open(tmp_path / "ring", mode="a")
    with pytest.raises(SchemaError, match="made by test, not by other"):
        make(tmp_path / "ring", facade="other")
    with diskreplay.ReplayBuffer(
        tmp_path / "plain", observation_space=Box(0, 255, (30, 40), "uint8"),
        action_space=Discrete(9), capacity=20,
    ) as plain:  # fmt: skip
        plain.save(tmp_path, 3)
    with pytest.raises(SchemaError, match="made by diskreplay itself"):
        make(tmp_path / "plain")
    with make(tmp_path / "ring") as ring, pytest.raises(SchemaError):
        ring.load(tmp_path, 3)


def test_int32_numbers_come_back_or_are_refused():
    with make(None, extras={"number": ((), np.int32)}) as ring:
        frame = np.ones((30, 40), np.uint8)
        numbers = [-(2**31), -1, 0, 2**31 - 1]
        for number in numbers:
            add(ring, frame, 1, 1.0, False, number=number)
        for number in (-(2**31) - 1, 2**31, 2**63, 0.5):
            with pytest.raises(DiskReplayError):
                add(ring, frame, 1, 1.0, False, number=number)
        assert ring.column("number").tolist() == numbers
        assert ring.column("number").dtype == np.int32


@pytest.mark.parametrize("killed", [False, True])
def test_an_episode_goes_on_if_asked(killed, tmp_path):
    def step(ring, terminated=False):
        add(ring, np.ones((30, 40), np.uint8), 1, 1.0, terminated)

    for resumes in (True, True, False):
        ring = make(tmp_path / "ring", resume_episodes=resumes)
        for _ in range(3):
            step(ring)
        if not killed:
            ring.close()
        del ring
    with make(tmp_path / "ring", resume_episodes=True) as ring:
        step(ring, terminated=True)
        ring.flush()
    with make(tmp_path / "ring", resume_episodes=True) as ring:
        step(ring)
        assert ring.column("step").tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0]


def test_rows_after_the_last_flush_get_the_weight_of_new_ones(tmp_path):
    ring = make(tmp_path / "ring", notes={"newest_weight": 7.0})
    for i in range(30):
        add(ring, np.ones((30, 40), np.uint8), 1, 1.0, False)
        ring.weights.set([i % 20], [2.0])
        if i == 26:
            ring.flush()
    del ring  # as a killed process would
    with make(tmp_path / "ring") as ring:
        assert sorted(ring.weights.leaves.tolist()) == [2.0] * 17 + [7.0] * 3
        ring.weights.check()


def test_damaged_weights_let_go_of_the_store_and_of_the_rows(tmp_path):
    with make(tmp_path / "ring", weighted=True) as ring:
        for _ in range(5):
            add(ring, np.zeros((30, 40), np.uint8), 0, 0.0, False)
        ring.weights.set([0, 1], [2.0, 3.0])
        ring.save(tmp_path / "ckpt", 1)
        saved = (tmp_path / "ckpt").glob("*/priority/**/*")
        chunk = next(path for path in saved if path.is_file() and path.name != "zarr.json")
        chunk.chmod(0o644)
        chunk.write_bytes(np.full(len(chunk.read_bytes()) // 8, -1.0).tobytes())
        with pytest.raises((FormatError, CorruptCheckpointError)):
            ring.load(tmp_path / "ckpt", 1)
        assert ring.weights.leaves[:3].tolist() == [2.0, 3.0, 0.0]
        add(ring, np.zeros((30, 40), np.uint8), 0, 0.0, False)
    document = tmp_path / "ring" / "priority" / "zarr.json"
    good = document.read_bytes()
    document.write_bytes(b"{}")
    with pytest.raises(FormatError):
        make(tmp_path / "ring", weighted=True)
    document.write_bytes(good)
    make(tmp_path / "ring", weighted=True).close()


def test_put_is_add_of_values_that_fit(tmp_path):
    rng = np.random.default_rng(0)
    options = {
        "observation_space": Box(0, 255, (30, 40), "uint8"), "action_space": Discrete(9),
        "extras": {"note": ((3,), "float32")}, "capacity": 12,
    }  # fmt: skip
    with (
        make(tmp_path / "put", **options) as one,
        diskreplay.ReplayBuffer(tmp_path / "add", **options) as other,
    ):
        for number in range(40):
            frame, note = rng.integers(0, 256, (30, 40), np.uint8), rng.random(3, np.float32)
            action, reward, ended = int(rng.integers(9)), float(rng.normal()), number % 7 == 6
            row = {"observation": frame, "action": action, "reward": reward, "note": note}
            assert one.put(row | {"terminated": ended}) == number
            other.add(frame, action, reward, ended, False, note=note)
            if number % 10 == 9:
                one.end_episode()
                other.end_episode()
        assert (one.count, one.stored, one.add_count) == (40, 12, 40)
        for field in one.fields:
            expected = other.take(field, np.arange(28, 40))
            np.testing.assert_array_equal(one.column(field), expected)
        with diskreplay.open(one.path) as reader:
            assert reader.sampleable_ids().tolist() == other.sampleable_ids().tolist()


def test_put_leaves_out_what_is_not_given_and_refuses_what_add_refuses(tmp_path):
    with make(tmp_path / "ring", extras={"note": ((3,), "float32")}) as ring:
        frame = np.ones((30, 40), np.uint8)
        assert ring.put({"observation": frame}) == 0
        with pytest.raises(NotFiniteError):
            ring.put({"observation": frame, "reward": np.nan})
        assert ring.count == 1
        for field in set(ring.fields) - {"observation"}:
            assert not ring.column(field).any()
    with pytest.raises(ClosedError):
        ring.put({})
