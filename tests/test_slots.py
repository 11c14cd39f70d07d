"""`Slots` beside plain arrays: rows put in any order, killed, reopened, saved, read along."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import diskreplay
from diskreplay import Slots, errors
from diskreplay.check.verify import verify

FIELDS = {
    "obs/camera": ((20, 60), np.uint8), "act": ((2,), np.float32), "rew": ((), np.float64),
    "done": ((), np.bool_),
}  # fmt: skip


def rows_of(rng, count):
    return {
        "obs/camera": rng.integers(0, 256, (count, 20, 60), np.uint8),
        "act": rng.normal(size=(count, 2)).astype(np.float32),
        "rew": np.where(rng.random(count) < 0.1, np.nan, rng.normal(size=count)),
        "done": rng.random(count) < 0.2,
    }


class Twin:
    """An array for each field."""

    def __init__(self, total, fields=FIELDS):
        self.columns = {n: np.zeros((total, *shape), dtype) for n, (shape, dtype) in fields.items()}
        self.used = np.zeros(total, np.bool_)

    def put(self, slots, values):
        for at, slot in enumerate(slots):  # one by one: the last row for a slot stays
            for name, value in values.items():
                self.columns[name][slot] = value[at]
            self.used[slot] = True

    def empty(self, slots):
        for column in self.columns.values():
            column[slots] = 0
        self.used[slots] = False

    def check(self, slots):
        assert (slots.used == self.used).all()
        at = np.arange(len(self.used))
        for name, column in self.columns.items():  # zeros where there is no row
            np.testing.assert_array_equal(slots.read(name, at), column)


class SlotsBesideArrays(RuleBasedStateMachine):
    """Any slots in any order, so that the log comes round and rows are added once more."""

    @initialize(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3), even=st.booleans(),
        seed=st.integers(0, 99), min_bytes=st.sampled_from([0, 1024]),
    )  # fmt: skip
    def begin(self, sizes, even, seed, min_bytes):
        self.sizes = sizes[:1] * len(sizes) if even else sizes
        self.directory, self.rng = tempfile.TemporaryDirectory(), np.random.default_rng(seed)
        self.options = {"slots": self.sizes, "min_bytes": min_bytes, "weighted": True}
        self.twin, self.saved = Twin(sum(self.sizes)), None
        self.weights = np.full(sum(self.sizes), np.nan)
        self.slots = self.open()

    def open(self):
        return Slots(f"{self.directory.name}/slots", FIELDS, **self.options)

    def put(self, slots):
        values = rows_of(self.rng, len(slots))
        self.slots.put(slots, values)
        self.twin.put(slots, values)

    @rule(times=st.integers(1, 60))
    def put_in_turn(self, times):
        """As vector environments do: the next slot of each lane."""
        begins = np.cumsum(self.sizes) - self.sizes
        for at in range(times):
            self.put(begins + at % np.array(self.sizes))

    @rule(count=st.integers(0, 200))
    def put_anywhere(self, count):
        self.put(self.rng.integers(0, sum(self.sizes), count))

    @rule(count=st.integers(1, 5))
    def put_some_fields(self, count):
        slots = self.rng.choice(sum(self.sizes), min(count, sum(self.sizes)), replace=False)
        values = rows_of(self.rng, len(slots))
        del values["obs/camera"], values["rew"]
        self.slots.put(slots, values)
        self.twin.put(slots, values)

    @rule(data=st.data())
    def empty(self, data):
        lane = data.draw(st.integers(0, len(self.sizes) - 1))
        begin = sum(self.sizes[:lane])
        self.slots.empty(lane)
        self.twin.empty(np.arange(begin, begin + self.sizes[lane]))

    @rule()
    def weigh(self):
        self.weights = self.rng.random(len(self.weights))
        self.slots.weights[:] = self.weights

    @rule()
    def reopen(self):
        self.slots.notes = {"opened": self.slots.notes.get("opened", 0) + 1}
        wanted = dict(self.slots.notes)
        self.slots.close()
        self.slots = self.open()
        assert self.slots.notes == wanted
        for column in self.slots.columns.values():
            assert not column[~self.twin.used].any()
        self.weights[~self.twin.used] = np.nan  # of no row: not kept
        np.testing.assert_array_equal(self.slots.weights, self.weights)

    @rule()
    def save(self):
        self.slots.save(f"{self.directory.name}/saved", 1)
        columns = {name: column.copy() for name, column in self.twin.columns.items()}
        self.saved = columns, self.twin.used.copy(), self.weights.copy()

    @rule()
    def load(self):
        if self.saved is not None:
            self.slots.load(f"{self.directory.name}/saved", 1)
            columns, used, weights = self.saved
            self.twin.columns = {name: column.copy() for name, column in columns.items()}
            self.twin.used, self.weights = used.copy(), np.where(used, weights, np.nan)
            np.testing.assert_array_equal(self.slots.weights, self.weights)

    @invariant()
    def they_agree(self):
        self.twin.check(self.slots)
        for lane in range(len(self.sizes)):
            begin = sum(self.sizes[:lane])
            used = np.flatnonzero(self.twin.used[begin : begin + self.sizes[lane]]) + begin
            assert sorted(self.slots.order(lane)) == used.tolist()

    def teardown(self):
        if hasattr(self, "slots"):
            self.slots.close()
            assert verify(Path(self.slots.path)).findings == ()
            with Slots.reader(self.slots.path) as reader:
                self.twin.check(reader)
            self.directory.cleanup()


SlotsBesideArrays.TestCase.settings = settings(
    max_examples=6, stateful_step_count=12, deadline=None, phases=(Phase.generate,)
)
TestSlotsBesideArrays = SlotsBesideArrays.TestCase


def make(path=None, slots=24, **options):
    return Slots(path, FIELDS, slots, **{"lanes": 2, **options})


def test_one_slot_takes_values_without_a_first_axis():
    values = rows_of(np.random.default_rng(0), 1)
    with make() as slots:
        slots.put(5, {name: value[0] for name, value in values.items()})
        assert slots.used.nonzero()[0].tolist() == [5]
        np.testing.assert_array_equal(slots.read("obs/camera", 5), values["obs/camera"][0])


def test_small_fields_are_arrays_and_large_ones_are_views():
    values = rows_of(np.random.default_rng(0), 24)
    with make() as slots:
        slots.put(np.arange(24), values)
        assert set(slots.columns) == {"act", "rew", "done"}
        assert np.shares_memory(slots.view("act"), slots.columns["act"])
        with pytest.raises(ValueError, match="read-only"):
            slots.view("act")[0] = 1
        np.testing.assert_array_equal(slots.view("act"), values["act"])
        camera = slots.view("obs/camera")
        np.testing.assert_array_equal(camera, values["obs/camera"])
        camera[7] = 9
        np.testing.assert_array_equal(slots.read("obs/camera", [6, 7])[1], np.full((20, 60), 9))
        np.testing.assert_array_equal(slots.read("act", [7]), values["act"][[7]])


def test_a_reader_sees_what_is_put(tmp_path):
    rng = np.random.default_rng(0)
    twin = Twin(24)
    with make(tmp_path / "slots") as slots, Slots.reader(tmp_path / "slots") as reader:
        for _ in range(200):
            at = rng.integers(0, 24, 3)
            values = rows_of(rng, 3)
            slots.put(at, values)
            twin.put(at, values)
            twin.check(reader)
        slots.empty(1)
        twin.empty(np.arange(12, 24))
        twin.check(reader)
        with pytest.raises(errors.ReadOnlyError):
            reader.put(0, {"act": np.zeros(2)})


def test_fields_with_the_names_of_a_replay_buffer_are_its_fields(tmp_path):
    fields = {
        "observation/camera": ((8, 8), np.uint8), "observation/arm": ((3,), np.float32),
        "action": ((), np.int64), "reward": ((), np.float32), "terminated": ((), np.bool_),
        "truncated": ((), np.bool_), "priority": ((), np.float32), "policy/logits": ((4,), "f4"),
    }  # fmt: skip
    with Slots(tmp_path / "slots", fields, 10) as slots:
        for at in range(10):
            slots.put(at, {"action": at, "reward": at / 2, "terminated": at == 4})
    with diskreplay.open(tmp_path / "slots") as buffer:
        assert set(buffer.observation_space.spaces) == {"camera", "arm"}
        episodes = buffer.episodes()
        assert episodes.rows.tolist() == [5, 5]
        assert episodes.returns.tolist() == [5.0, 17.5]
        batch = buffer.sample(32)
        assert (batch.reward == batch.action / 2).all()


KILLED = """
import sys
import numpy as np
from diskreplay import Slots

slots = Slots(sys.argv[1], {"frame": ((40, 40), np.uint8), "number": ((), np.int64)}, 60, lanes=3)
rng, number = np.random.default_rng(int(sys.argv[2])), 0
while True:
    for at in rng.permutation(20):
        number += 1
        three = np.arange(3) * 20 + at
        values = np.full(3, number)
        frames = np.broadcast_to(values.astype(np.uint8)[:, None, None], (3, 40, 40))
        slots.put(three, {"frame": frames, "number": values})
        print(at, number, flush=True)
    if rng.random() < 0.2:
        slots.empty(1)
        print("emptied", number, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.costly(1)
def test_what_was_put_outlives_a_kill(tmp_path, seed):
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "slots", str(seed)], stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    wanted, emptied = {}, False
    for line in writer.stdout:
        at, number = line.split()
        emptied = at == "emptied"
        if emptied:
            wanted.update({(1, slot): None for slot in range(20)})
        else:
            wanted.update({(lane, int(at)): int(number) for lane in range(3)})
        if int(number) > 700 + 41 * seed:
            break
    writer.send_signal(signal.SIGKILL)
    with writer.stdout:
        rest = writer.stdout.read().split()
    assert writer.wait() == -signal.SIGKILL
    with Slots(tmp_path / "slots", {"frame": ((40, 40), np.uint8), "number": ((), np.int64)}, 60,
               lanes=3) as slots:  # fmt: skip
        found, used = slots.columns["number"], slots.used
        newest = max(number for number in wanted.values() if number is not None)
        for (lane, at), number in wanted.items():
            slot = lane * 20 + at
            if found[slot] > newest or (
                rest and lane == 1
            ):  # put after the last line that was read
                continue
            assert (found[slot], used[slot]) == (number or 0, number is not None)
        np.testing.assert_array_equal(
            slots.read("frame", np.arange(60)),
            np.broadcast_to(found.astype(np.uint8)[:, None, None], (60, 40, 40)),
        )
    assert verify(tmp_path / "slots").findings == ()
    assert os.path.isdir(tmp_path / "slots")


@pytest.mark.parametrize(
    ("slots", "values", "error", "message"),
    [
        ([0, 24], {}, errors.InvalidInputError, "0 to 23 expected, found 0 to 24"),
        ([-1], {}, errors.InvalidInputError, "0 to 23 expected"),
        ([[1]], {}, errors.ShapeError, "one axis"),
        ([0.5], {}, errors.ShapeError, "integers"),
        ([2**63], {}, errors.InvalidInputError, "0 to 23 expected, found 9223372036854775808"),
        ([0], None, errors.InvalidInputError, "values: a dict"),
        ([0], [("act", 1)], errors.InvalidInputError, "values: a dict"),
        ([0], {1: [1]}, errors.InvalidInputError, "no field 1"),
        ([0], {"nothing": [1]}, errors.InvalidInputError, "no field 'nothing'"),
        ([0], {"act": np.zeros((1, 3))}, errors.ShapeError, "act"),
        ([0, 1], {"act": np.zeros((1, 2))}, errors.ShapeError, "act"),
        ([0], {"done": [2.5]}, errors.DtypeError, "done"),
    ],
)
def test_what_cannot_be_put_changes_nothing(slots, values, error, message):
    twin, rng = Twin(24), np.random.default_rng(0)
    with make() as made:
        first = rows_of(rng, 5)
        made.put(np.arange(5), first)
        twin.put(np.arange(5), first)
        with pytest.raises(error, match=message):
            made.put(slots, values)
        twin.check(made)


@pytest.mark.parametrize("min_bytes", [0, 1024])
def test_values_of_the_other_byte_order_are_the_same_numbers(min_bytes):
    other = np.dtype(np.float32).newbyteorder()
    value = np.arange(3).astype(other)
    with Slots(None, {"seen": ((3,), other)}, 5, min_bytes=min_bytes) as slots:
        slots.put(2, {"seen": value})
        assert slots.read("seen", 2).tolist() == value.tolist()
        assert slots.specs == {"seen": ((3,), np.dtype(np.float32))}


def test_fields_are_stored_by_the_names_that_stores_have():
    """A store is opened by these, so they stay as they are."""
    with Slots(None, {"back": ((), np.uint8), "slot": ((), np.uint8)}, 5) as slots:
        assert slots.extras.keys() == {"slot", "back", "slot_2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 25}, "multiple of 2 lanes"),
        ({"slots": 0, "lanes": 1}, "slots"),
        ({"slots": [3, -1], "lanes": 1}, "slots"),
        ({"slots": [0, 0]}, "slots"),
        ({"slots": [3, 4], "lanes": 3}, "2 of them"),
        ({"min_bytes": -1}, "min_bytes"),
        ({"slots": [[1], [2, 3]]}, "slots"),
        ({"compressor": {"nothing": "lz4"}}, "nothing"),
        ({"compressor": None}, "compressor"),
        ({"compressor": ["lz4"]}, "compressor"),
        ({"compressor": {1: "lz4", "act": "raw"}}, "compressor"),
        ({"next_of": {1: "act"}}, "next_of"),
        ({"stack": ["act"]}, "stack"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(errors.InvalidInputError, match=message):
        make(**options)


@pytest.mark.parametrize(
    "fields", [None, {}, ["act"], "act", {1: ((2,), "uint8")}, {"a": ((2,), "uint8"), 1: 2}]
)
def test_fields_are_named(fields):
    with pytest.raises(errors.InvalidInputError, match="fields"):
        Slots(None, fields, 5)


@pytest.mark.parametrize("lane", [-1, 2, 0.5, "0", None, True, [0]])
def test_a_lane_is_one_of_those_there_are(lane):
    with make() as slots:
        slots.put([0, 12], rows_of(np.random.default_rng(0), 2))
        for call in (slots.order, slots.empty):
            with pytest.raises(errors.InvalidInputError, match="lane"):
                call(lane)
        assert slots.used.sum() == 2
        assert slots.order(np.int64(1)).tolist() == slots.order(1.0).tolist() == [12]


@pytest.mark.parametrize("field", [["act"], None, 3, "nothing"])
def test_a_view_is_of_one_field(field):
    with make() as slots, pytest.raises(errors.InvalidInputError, match="no field"):
        slots.view(field)


@pytest.mark.parametrize(
    "spec", [((2,), object), ((2,), "complex64"), "float", ((-1,), "int8"), ((2.5,), "int8"), "12"]
)
def test_fields_that_have_no_bytes_to_store(spec):
    with pytest.raises(errors.InvalidInputError, match="thing"):
        Slots(None, {"thing": spec}, 5)


def test_a_store_of_something_else_is_refused(tmp_path):
    make(tmp_path / "slots").close()
    for other in ({"slots": 26}, {"slots": 24, "lanes": 3}):
        with pytest.raises(errors.SchemaError, match="slots"):
            make(tmp_path / "slots", **other)
    with pytest.raises(errors.SchemaError):
        Slots(tmp_path / "slots", FIELDS | {"more": ((), "int8")}, 24, lanes=2)
    with pytest.raises(errors.SchemaError, match=r"diskreplay\.Slots"):
        diskreplay.open(tmp_path / "slots", mode="a")
    with make(tmp_path / "slots") as slots, pytest.raises(errors.SchemaError, match="no weights"):
        slots.weights  # noqa: B018


def test_a_closed_one_answers_no_more():
    slots = make()
    slots.close()
    with pytest.raises(errors.ClosedError):
        slots.put([0], {})
    with pytest.raises(errors.ClosedError):
        slots.read("act", [0])
    with pytest.raises(errors.ClosedError):
        slots.order(0)
    with pytest.raises(errors.ClosedError):
        slots.used  # noqa: B018


def test_an_owner_may_set_values_in_memory_and_put_them(tmp_path):
    values = rows_of(np.random.default_rng(0), 24)
    with make(tmp_path / "slots") as slots:
        slots.put(np.arange(24), values)
        act, before = slots.memory["act"], values["act"][7].copy()
        assert set(slots.memory) == set(slots.columns)
        act[7] = act[8] = 1 - before
        for shown in (slots.columns["act"], slots.read("act", np.arange(24)), slots.view("act")):
            np.testing.assert_array_equal(shown[7], 1 - before)
        slots.put([8], {"act": act[[8]]})
    with make(tmp_path / "slots") as slots:
        np.testing.assert_array_equal(slots.columns["act"][7], before)  # it was not put
        np.testing.assert_array_equal(slots.columns["act"][8], 1 - before)


def test_an_owner_may_take_back_what_it_has_set_in_memory():
    rows = rows_of(np.random.default_rng(0), 2)
    with make() as slots:
        slots.put([3, 13], rows)
        for column in slots.memory.values():
            column[:] = 1
        slots.recall(np.array([3, 4, 13]))
        for name, column in slots.columns.items():
            np.testing.assert_array_equal(column[[3, 13]], rows[name])
            assert not column[4].any()
            assert (column[5] == 1).all()
        with pytest.raises(errors.InvalidInputError, match="0 to 23"):
            slots.recall(np.array([24]))


@pytest.mark.parametrize("wrong", [7, "x", [1], {1: 2}, {"a": {1, 2}}, {"a": float("nan")}])
def test_notes_that_are_no_json(tmp_path, wrong):
    with pytest.raises(errors.InvalidInputError, match=r"^notes"):
        Slots(tmp_path / "slots", {"act": ((), np.int64)}, 4, notes=wrong)
    with Slots(tmp_path / "slots", {"act": ((), np.int64)}, 4, notes={"a": (1,)}) as slots:
        with pytest.raises(errors.InvalidInputError, match=r"^notes"):
            slots.notes = wrong
        assert slots.notes == {"a": [1]}
        slots.put(0, {"act": 3})
    with Slots(tmp_path / "slots", {"act": ((), np.int64)}, 4) as slots:
        assert slots.notes == {"a": [1]}


def test_weights_that_no_store_takes_come_back_as_none(tmp_path):
    given = [0.0, 2.5, np.inf, -np.inf, -1.0, 1.1e297, np.nan, 1e297]
    fields = {"act": ((), np.int64)}
    with Slots(tmp_path / "slots", fields, 8, weighted=True) as slots:
        slots.put(np.arange(8), {"act": np.arange(8)})
        slots.weights[:] = given
    with Slots(tmp_path / "slots", fields, 8, weighted=True) as slots:
        none = np.nan
        wanted = [0.0, 2.5, none, none, none, none, none, 1e297]
        np.testing.assert_array_equal(slots.weights, wanted)
    assert verify(tmp_path / "slots").findings == ()
