"""cpprb's uniform buffer: beside plain lists that say what the API promises."""
# ruff: noqa: NPY002 - the original draws from the global generator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.compat.cpprb import PrioritizedReplayBuffer, ReplayBuffer

pytestmark = pytest.mark.usefixtures("small_columns")

ENV = {
    "obs": {"shape": (2, 3), "dtype": np.uint8},
    "act": {"dtype": np.int64},
    "rew": {},
    "next_obs": {"shape": [2, 3], "dtype": np.uint8},
    "done": {"dtype": bool},
    "step": {"dtype": np.float64},
    "9 lives!": {"shape": 2, "dtype": np.complex128},
}


class Rows:
    """What was added, and which of it is in which slot."""

    def __init__(self, size):
        self.size, self.rows, self.length = size, [], 0

    def add(self, rows):
        first = len(self.rows) % self.size
        self.rows += rows
        self.length += len(rows)
        return first

    def slots(self):
        there = {}
        for number, row in enumerate(self.rows):
            there[number % self.size] = row
        return [there[slot] for slot in sorted(there)]

    def check(self, buffer):
        expected = self.slots()
        found = buffer.get_all_transitions()
        for name, values in found.items():
            assert len(values) == len(expected), name
            for value, row in zip(values, expected, strict=True):
                assert value.dtype == row[name].dtype
                np.testing.assert_array_equal(value, row[name], err_msg=name)
        if expected:
            assert list(found) == list(expected[0])
        assert buffer.get_stored_size() == len(expected)
        assert buffer.get_next_index() == len(self.rows) % self.size
        assert buffer.get_current_episode_len() == self.length
        slots = list(range(len(expected)))[::-1] + slots_twice(expected)
        again = buffer._encode_sample(slots)
        for name, values in again.items():
            for slot, value in zip(slots, values, strict=True):
                np.testing.assert_array_equal(value, expected[slot][name])


def slots_twice(expected):
    return [0, 0] if expected else []


def a_row(number, done=False):
    rng = np.random.default_rng(number)
    return {
        "obs": rng.integers(0, 256, (2, 3), np.uint8),
        "act": rng.integers(-(2**62), 2**62, 1),
        "rew": rng.normal(size=1).astype(np.float32),
        "next_obs": rng.integers(0, 256, (2, 3), np.uint8),
        "done": np.array([done]),
        "step": rng.normal(size=1),
        "9 lives!": rng.normal(size=2) + 1j * rng.normal(size=2),
    }


def stacked(rows):
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.costly(1)
@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(1, 7),
    steps=st.lists(
        st.one_of(
            st.integers(1, 3).map(lambda k: ("add", k)),
            st.integers(4, 25).map(lambda k: ("add", k)),
            st.sampled_from([("end", 0), ("one", 0), ("one", 1), ("one", 0)]),
        ),
        max_size=30,
    ),
    data=st.data(),
)
def test_rows_come_back_as_they_were_given(size, steps, data):
    model, number = Rows(size), 0
    with ReplayBuffer(size, ENV) as buffer:
        for what, k in steps:
            if what == "end":
                buffer.on_episode_end()
                model.length = 0
                continue
            rows = [a_row(number + i, done=bool(k == 1)) for i in range(max(k, 1))]
            number += len(rows)
            given_rows = rows[0] if what == "one" else stacked(rows)
            assert buffer.add(**given_rows, unknown=3) == model.add(rows)
            if data.draw(st.booleans()):
                model.check(buffer)
        model.check(buffer)


def test_a_seed_repeats_a_sample_and_takes_the_draws_of_the_original():
    with ReplayBuffer(10, {"a": {}}) as buffer:
        buffer.add(a=np.arange(17))
        slots = np.arange(17)[-10:]
        by_slot = {n % 10: n for n in slots}
        np.random.seed(3)
        drawn = np.random.randint(0, 10, 20)
        shuffled = np.arange(10)
        np.random.shuffle(shuffled)
        np.random.seed(3)
        batch = buffer.sample(20)["a"]
        everything = buffer.get_all_transitions(shuffle=True)["a"]
    assert batch.shape == (20, 1)
    assert batch.ravel().tolist() == [by_slot[s] for s in drawn]
    assert everything.ravel().tolist() == [by_slot[s] for s in shuffled]


def test_a_batch_is_a_copy():
    with ReplayBuffer(2, {"a": {"shape": 2}}) as buffer:
        buffer.add(a=[1, 2])
        batch = buffer.sample(3)["a"]
        everything = buffer.get_all_transitions()["a"]
        buffer.add(a=np.zeros((5, 2)))
        assert (batch == [1, 2]).all()
        assert (everything == [[1, 2]]).all()


def test_sizes_and_shapes_that_are_accepted():
    env = {"a": {"shape": 3}, "b": {"shape": ()}}
    with ReplayBuffer(3.7, env, default_dtype=np.int16, no_such_option=1) as buffer:
        assert buffer.get_buffer_size() == 3
        assert buffer.add(a=range(6), b=[1, 2]) == 0
        assert buffer.add(a=np.zeros((0, 3)), b=[]) == 2
        found = buffer.get_all_transitions()
        assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert found["b"].tolist() == [1, 2]
        assert found["b"].dtype == np.int16
        assert buffer._encode_sample([[0, 1], [1, 2]])["a"].shape == (2, 2, 3)
        assert buffer._encode_sample(np.array(1))["a"].tolist() == [[3, 4, 5]]
        assert buffer._encode_sample([])["a"].shape == (0, 3)
        assert not buffer._encode_sample(2)["a"].any()
        assert not buffer.is_Nstep()
    assert env == {"a": {"shape": 3}, "b": {"shape": ()}}


def test_what_is_cast():
    with ReplayBuffer(4, {"a": {"dtype": np.uint8}, "b": {"dtype": bool}, "c": {}}) as buffer:
        buffer.add(a=258, b=2, c=True)
        buffer.add(a=3.9, b=0.0, c=np.float64(1.5))
        found = buffer.get_all_transitions()
    assert found["a"].ravel().tolist() == [2, 3]
    assert found["b"].ravel().tolist() == [True, False]
    assert found["c"].ravel().tolist() == [1, 1.5]


@pytest.mark.parametrize(
    "dtype",
    [bool, np.int8, np.uint16, np.uint64, np.float16, np.longdouble, np.complex64, ">f4", "<U3"],
)
def test_dtypes(dtype):
    values = np.array([[[1, 0]], [[2, 3]]]).astype(dtype)
    for name in ("obs", "done"):
        with ReplayBuffer(3, {name: {"shape": (1, 2), "dtype": dtype}}) as buffer:
            buffer.add(**{name: values})
            buffer.add(**{name: values[1]})
            found = buffer.get_all_transitions()[name]
        assert found.dtype == np.dtype(dtype)
        assert (found == values[[0, 1, 1]]).all()


def test_an_empty_buffer():
    with ReplayBuffer(4, {"a": {}}) as buffer:
        assert buffer.sample(0)["a"].shape == (0, 1)
        assert buffer.get_all_transitions()["a"].shape == (0, 1)
        with pytest.raises(ValueError, match="no rows"):
            buffer.sample(1)
    with ReplayBuffer(4) as buffer:
        assert buffer._encode_sample(0) == {}
        with pytest.raises(KeyError):
            buffer.add(a=1)


REFUSED = [
    (KeyError, {"a": 1}),
    (KeyError, {"b": [1, 2]}),
    (ValueError, {"a": 1, "b": [1, 2, 3]}),
    (ValueError, {"a": [1, 2], "b": [1, 2]}),  # one row of b, two of a
    (ValueError, {"a": [1, 2, 3], "b": np.zeros((2, 2))}),
    (ValueError, {"a": "x", "b": [1, 2]}),
    (ValueError, {"a": [[1], [2, 3]], "b": [1, 2]}),
]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("nstep", [None, {"size": 2}])
def test_a_refused_add_changes_nothing(kind, nstep):
    env = {"a": {}, "b": {"shape": 2}, "done": {}}
    with kind(3, env, Nstep=nstep) as buffer:
        buffer.add(a=[5, 6], b=[[1, 2], [3, 4]], done=[0, 0])
        before = buffer.get_all_transitions(), buffer.get_next_index()
        for error, columns in REFUSED:
            with pytest.raises(error):
                buffer.add(**columns, done=0)
        with pytest.raises(TypeError):
            buffer.add(1)
        with pytest.raises(IndexError):
            buffer._encode_sample(3)
        with pytest.raises(IndexError):
            buffer._encode_sample([0.5])
        assert buffer.get_next_index() == before[1]
        for name, values in buffer.get_all_transitions().items():
            np.testing.assert_array_equal(values, before[0][name])


def test_a_reward_that_is_not_finite_is_refused():
    with ReplayBuffer(3, {"rew": {}}) as buffer:
        for reward in (np.nan, [1, np.inf]):
            with pytest.raises(ValueError, match="finite"):
                buffer.add(rew=reward)
        assert buffer.get_stored_size() == 0
        assert buffer.add(rew=1) == 0
    with ReplayBuffer(3, {"rew": {"dtype": np.float64}}) as buffer:
        buffer.add(rew=np.inf)
        assert buffer.get_all_transitions()["rew"] == np.inf


def test_arguments_that_make_no_sense():
    for size in (0, -1, "3", np.nan):
        with pytest.raises(ValueError):
            ReplayBuffer(size, {"a": {}})
    for spec in ({"shape": "x"}, {"dtype": "no such"}, {"dtype": object}, 3, {"shape": (2, 0)}):
        with pytest.raises(ValueError):
            ReplayBuffer(3, {"a": spec})
    with pytest.raises(KeyError):
        ReplayBuffer(3, {"a": {}}, next_of="b")


def test_clear(tmp_path):
    with ReplayBuffer(3, ENV, path=tmp_path / "store") as buffer:
        buffer.add(**stacked([a_row(i) for i in range(5)]))
        buffer.clear()
        assert buffer.get_stored_size() == buffer.get_next_index() == 0
        assert buffer.get_current_episode_len() == 0
        assert buffer.add(**a_row(7)) == 0
    with ReplayBuffer(3, ENV, path=tmp_path / "store") as buffer:
        assert buffer.get_all_transitions()["act"] == a_row(7)["act"]


def test_names_that_are_no_field_names():
    env = {name: {} for name in ("id", "_x", "ä", "a b", "a-b", "A", "a", "observation", "tail")}
    with ReplayBuffer(2, env) as buffer:
        buffer.add(**{name: i for i, name in enumerate(env)})
        found = buffer.get_all_transitions()
    assert {name: value.item() for name, value in found.items()} == {
        name: i for i, name in enumerate(env)
    }


def test_reopening_continues(tmp_path):
    model = Rows(5)
    for start in (0, 3, 7, 8):
        with ReplayBuffer(5, ENV, path=tmp_path / "store") as buffer:
            assert buffer.path == tmp_path / "store"
            model.length = 0
            model.check(buffer)
            rows = [a_row(start + i) for i in range(4)]
            assert buffer.add(**stacked(rows)) == model.add(rows)
            model.check(buffer)
    with pytest.raises(ValueError, match="field"):
        ReplayBuffer(5, {"obs": {}}, path=tmp_path / "store")


@pytest.mark.costly(30)
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize(
    "value", [300, -1, 2**40, 1.9, True, np.float64(2.5), np.int8(-3), np.True_, 0]
)
def test_one_number_is_cast_as_an_array_is(dtype, value):
    expected = np.asarray(value).astype(dtype)
    with ReplayBuffer(4, {"a": {"dtype": dtype}}) as buffer:
        for form in (value, [value], np.array([value]), np.array(value)):
            buffer.add(a=form)
        found = buffer.get_all_transitions()["a"]
    np.testing.assert_array_equal(found, np.full((4, 1), expected))


def test_small_columns_are_those_of_the_store(tmp_path):
    """They are kept in memory too: through wraps, reopening, another size, clearing."""
    env = {f"c{i}": {"dtype": np.int32} for i in range(5)} | {"d": {"shape": 2, "dtype": np.int16}}
    size, number, oldest = 5, 0, 0
    buffer = ReplayBuffer(size, env, path=tmp_path / "store")
    for count in (1, 1, 3, 7, 0, 12, 2, 0, 1, 4, 1, -1, 2, 9):
        numbers = np.arange(number, number + max(count, 0))
        number += len(numbers)
        if count > 0:
            rows = {name: 10 * numbers + i for i, name in enumerate(env) if name != "d"}
            buffer.add(**rows, d=np.stack([numbers, -numbers], axis=1))
        elif count < 0:
            buffer.clear()
            oldest = number
        else:
            buffer.close()
            oldest, size = max(oldest, number - size), size + 2
            buffer = ReplayBuffer(size, env, path=tmp_path / "store")
        there = np.arange(max(oldest, number - size), number)
        found = buffer.get_all_transitions()
        assert sorted(found["d"][:, 0]) == there.tolist()
        np.testing.assert_array_equal(found["d"][:, 1], -found["d"][:, 0])
        for i in range(5):
            np.testing.assert_array_equal(found[f"c{i}"][:, 0], 10 * found["d"][:, 0] + i)
        with diskreplay.open(tmp_path / "store") as reader:
            rows = np.arange(*reader.bounds[0])[-len(there) or None :]
            if len(there):
                for i in range(5):
                    stored = reader.take(f"c{i}", rows)
                    assert sorted(stored[:, 0]) == (10 * there + i).tolist()
    buffer.close()
