"""A number is a number: no option takes a flag, a text or a complex one for it."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay
from diskreplay.brief import brief
from diskreplay.convert import pandas as frames
from diskreplay.errors import (
    DiskReplayError,
    DtypeError,
    InvalidInputError,
    PriorityError,
    ShapeError,
)
from diskreplay.given_numbers import as_array, as_reals, exponent, positive, real, seconds, whole
from diskreplay.pictures.animation import save_gif
from tests.test_brief import WithoutText

HUGE = 10**400
RAGGED = [[1], [1, 2]]
# None of these is a real number, though Python or NumPy would reckon with each.
NONE = {
    "True": True, "np.True_": np.True_, "'1'": "1", "b'1'": b"1", "1j": 1j,
    "complex64": np.complex64(1), "10**400": HUGE, "datetime": np.datetime64(1, "s"),
    "span of time": np.timedelta64(1, "s"), "number of spans": np.int64(1).view("m8"),
    "10**5000": 10**5000, "without text": WithoutText(),
}  # fmt: skip


@pytest.mark.parametrize("value", [*NONE.values(), None, [1], np.array(1), np.nan], ids=brief)
def test_what_is_no_number(value):
    for check in (whole, real, positive, seconds, lambda _name, beta: exponent(beta)):
        with pytest.raises(InvalidInputError, match=r"^(x|beta): "):
            check("x", value)


def test_whole_numbers():
    for value in (1, 1.0, 1e6, np.int8(5), np.uint64(7), np.float16(3)):
        found = whole("x", value)
        assert found == value
        assert type(found) is int
    assert whole("x", None, optional=True) is None
    assert whole("x", 9, most=9) == 9
    assert whole("x", 0, least=0) == whole("x", 0.0, least=0) == whole("x", -0.0, least=0) == 0
    for value in (0, -1, 1.5, np.inf, -np.inf):
        with pytest.raises(InvalidInputError, match=r"^x: a positive integer expected"):
            whole("x", value)
    with pytest.raises(InvalidInputError, match=r"^x: a whole number from 0 on expected, found -1"):
        whole("x", -1, least=0)
    with pytest.raises(InvalidInputError, match=r"^x: at most 9 expected, found 10$"):
        whole("x", 10, most=9)


def test_real_numbers():
    for value in (0, 0.0, 1, 2.5, np.float32(0.5), np.float16(0.5), np.int8(3), np.uint64(7)):
        for found in (real("x", value), exponent(value), seconds("x", value)):
            assert found == value
            assert type(found) is float
    assert real("x", 1, most=1.0) == 1
    assert real("x", 0.02, 0.02, 50.0) == 0.02
    assert seconds("x", np.inf) == np.inf
    for value in (-1e-9, np.inf):
        with pytest.raises(InvalidInputError, match=r"^beta: a finite number from 0 on expected"):
            exponent(value)
    for value in (-1e-9, 1.0000001):
        with pytest.raises(InvalidInputError, match=r"^x: a number from 0 to 1 expected"):
            real("x", value, most=1.0)
    assert positive("x", 1e-300) == 1e-300
    for value in (0, -1, np.inf):
        with pytest.raises(InvalidInputError, match=r"^x: a finite number above 0 expected"):
            positive("x", value)


def test_arrays_of_real_numbers():
    for value in ([1, 2], (1.0, 2.0), np.array([1, 2], np.uint8), np.array([1, 2], ">f4")):
        found = as_reals("x", value)
        assert found.tolist() == [1.0, 2.0]
        assert found.dtype == np.float64
    crossed = np.ones((4, 4))[::2, ::2]
    assert as_reals("x", crossed).flags.c_contiguous
    assert as_reals("x", 2).shape == ()
    as_it_is = np.ones(3)
    assert as_reals("x", as_it_is) is as_it_is
    assert as_reals("x", [True, False], flags=True).tolist() == [1.0, 0.0]
    for value in (*NONE.values(), [True], ["1"], [1j], [None], [HUGE], np.array([1], "M8[s]")):
        with pytest.raises(DtypeError, match=r"^x: numbers expected, found dtype "):
            as_reals("x", value)
        with pytest.raises(PriorityError, match=r"^x: numbers expected, found dtype "):
            as_reals("x", value, PriorityError)
    with pytest.raises(DtypeError):
        as_reals("x", ["1"], flags=True)


def test_arrays():
    assert as_array("x", (1, 2)).tolist() == [1, 2]
    with pytest.raises(ShapeError, match=r"^x: not an array"):
        as_array("x", RAGGED)
    with pytest.raises(PriorityError, match=r"^x: not an array"):
        as_array("x", RAGGED, PriorityError)


# -- wherever a number is asked for

SEEN = np.zeros(2, np.float32)
GOALS = {"observation": SEEN, "achieved_goal": SEEN, "desired_goal": SEEN}


def options(num_envs=1, **more):
    return {
        "observation_space": Dict({name: Box(-1, 1, (2,), "float32") for name in GOALS}),
        "action_space": Discrete(2), "capacity": 60, "num_envs": num_envs, "seed": 0, **more,
    }  # fmt: skip


def prioritized(num_envs=1, **more):
    return diskreplay.PrioritizedReplayBuffer(None, **options(num_envs, **more))


class Buffers:
    def __init__(self, path):
        self.one, self.two = prioritized(), prioritized(2)
        for i in range(20):
            self.one.add(GOALS, 1, 1.0, i % 7 == 6, False)
            seen = {name: np.zeros((2, 2), np.float32) for name in GOALS}
            self.two.add(seen, [1, 1], [1.0, 1.0], [i % 7 == 6] * 2, [False] * 2)
        self.windows = self.one.sequences(3, name="windows", prioritized=True)
        self.union = diskreplay.ReplayUnion([self.one, self.two])
        self.tree = diskreplay.SumTree(8)
        self.tree.set([0], [1.0])
        self.path = path

    def columns(self):
        return {name: np.zeros((2, *s), d) for name, (s, d) in self.one.fields.items()}

    def add(self, **how):
        return self.one.add(GOALS, 1, 1.0, False, False, **how)

    def add_two(self, **how):
        seen = {name: np.zeros((2, 2), np.float32) for name in GOALS}
        return self.two.add(seen, [1, 1], [1.0, 1.0], [False] * 2, [False] * 2, **how)


REAL = {
    "gamma": lambda b, x: prioritized(gamma=x),
    "alpha": lambda b, x: prioritized(alpha=x),
    "beta": lambda b, x: prioritized(beta=x),
    "beta that is set": lambda b, x: setattr(b.one, "beta", x),
    "beta of a sample": lambda b, x: b.one.sample(2, beta=x),
    "beta of a schedule": lambda b, x: b.one.sample(2, beta=lambda _count: x),
    "beta of a prefetcher": lambda b, x: b.one.prefetch(beta=x),
    "beta of an even buffer": lambda b, x: diskreplay.ReplayBuffer(None, **options()).prefetch(
        beta=x
    ),
    "alpha of windows": lambda b, x: b.one.sequences(3, name="x", prioritized=True, alpha=x),
    "beta of windows": lambda b, x: b.one.sequences(3, name="x", prioritized=True, beta=x),
    "beta of a sample of windows": lambda b, x: b.windows.sample(2, beta=x),
    "eta": lambda b, x: b.one.sequences(3, name="x", prioritized=True, eta=x),
    "returns_to_go": lambda b, x: b.one.sequences(3, name="x", returns_to_go=x),
    "gamma of a table": lambda b, x: frames.to_pandas(b.one, gamma=x),
    "timeout of actors": lambda b, x: b.one.env_writers(timeout=x),
    "timeout of drain": lambda b, x: b.one.drain(x),
    "beta of a union": lambda b, x: diskreplay.ReplayUnion([b.one, b.two], beta=x),
    "beta of its sample": lambda b, x: b.union.sample(2, beta=x),
    "fps": lambda b, x: save_gif(np.zeros((2, 4, 4), np.uint8), b.path / "x.gif", x),
}
REALS = {
    "mixture": lambda b, x: diskreplay.ReplayUnion([b.one, b.two], mixture=[x, x]),
    "priority": lambda b, x: b.add(priority=x),
    "priorities of envs": lambda b, x: b.add_two(priority=[x, x]),
    "priorities of rows": lambda b, x: b.one.extend(b.columns(), priority=[x, x]),
    "priorities": lambda b, x: b.one.update_priorities([0, 1], [x, x]),
    "priorities of windows": lambda b, x: b.windows.update_priorities([0], [x]),
    "priorities of a union": lambda b, x: b.union.update_priorities([0], [x]),
    "largest priority": lambda b, x: b.one.raise_largest_priority(x),
    "priority of an actor": lambda b, x: b.one.env_writers()[0].add(
        GOALS, 1, 1.0, False, False, priority=x
    ),
    "positions": lambda b, x: b.one.sample_at([x]),
    "errors of windows": lambda b, x: b.windows.priority([[x] * 3], [[True] * 3]),
    "values of a tree": lambda b, x: b.tree.set([0], [x]),
    "masses of a tree": lambda b, x: b.tree.find([x]),
}
WHOLE = {
    "capacity": lambda b, x: prioritized(capacity=x),
    "num_envs": lambda b, x: prioritized(num_envs=x),
    "stack_size": lambda b, x: prioritized(stack_size=x),
    "update_horizon": lambda b, x: prioritized(update_horizon=x),
    "batch_size": lambda b, x: prioritized(batch_size=x),
    "max_transitions": lambda b, x: prioritized(max_transitions=x),
    "segment_rows": lambda b, x: prioritized(segment_rows=x),
    "env_group": lambda b, x: prioritized(env_group=x),
    "size of a batch": lambda b, x: b.one.sample(x),
    "size of a batch of windows": lambda b, x: b.windows.sample(x),
    "threads": lambda b, x: b.one.sample(2, threads=x),
    "length": lambda b, x: b.one.sequences(x),
    "burn_in": lambda b, x: b.one.sequences(3, burn_in=x),
    "ahead": lambda b, x: b.one.sequences(3, ahead=x),
    "stride": lambda b, x: b.one.sequences(3, stride=x),
    "n_goals": lambda b, x: b.one.hindsight(lambda *_: 0.0, n_goals=x),
    "rows of an actor": lambda b, x: b.one.env_writers(rows=x),
    "env of an actor": lambda b, x: b.one.env_writers(envs=[x]),
    "slots": lambda b, x: diskreplay.Slots(None, {"x": ((), "int8")}, x),
    "lanes": lambda b, x: diskreplay.Slots(None, {"x": ((), "int8")}, 8, lanes=x),
    "slots of a lane": lambda b, x: diskreplay.Slots(None, {"x": ((), "int8")}, [4, x]),
    "capacity of a tree": lambda b, x: diskreplay.SumTree(x),
    "rows of a table": lambda b, x: frames.iter_frames(b.one, chunk_rows=x),
}


@pytest.fixture(scope="module")
def buffers(tmp_path_factory):
    return Buffers(tmp_path_factory.mktemp("numbers"))


@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # of NumPy 2.5
@pytest.mark.parametrize("value", [*NONE, "nan"])
@pytest.mark.parametrize("name", [*REAL, *WHOLE])
def test_no_option_takes_what_is_no_number(buffers, name, value):
    given = NONE.get(value, np.nan)
    with pytest.raises(DiskReplayError) as raised:
        (REAL | WHOLE)[name](buffers, given)
    assert isinstance(raised.value, InvalidInputError)


@pytest.mark.parametrize("value", NONE)
@pytest.mark.parametrize("name", REALS)
def test_no_array_of_numbers_takes_them(buffers, name, value):
    before = len(buffers.one), len(buffers.two), buffers.one.tree.leaves.tolist()
    with pytest.raises(InvalidInputError):
        REALS[name](buffers, NONE[value])
    assert before == (len(buffers.one), len(buffers.two), buffers.one.tree.leaves.tolist())


@pytest.mark.parametrize("name", [*REAL, *REALS])
def test_they_take_numbers_of_numpy(buffers, name):
    made = (REAL | REALS)[name](buffers, np.float32(1))
    if callable(close := getattr(made, "close", None)):
        close()  # a name of a view is free again


@pytest.mark.parametrize("name", WHOLE)
def test_they_take_whole_numbers_of_numpy(buffers, name):
    sizes = {"capacity": 9, "slots": 8, "rows of an actor": 4, "env of an actor": 0}
    made = WHOLE[name](buffers, np.float32(sizes.get(name, 1)))
    if callable(close := getattr(made, "close", None)):
        close()


def test_exact_numbers_are_numbers():
    values = [Fraction(1, 4), Decimal("0.5"), 1, 2**70, np.float32(2)]
    found = as_reals("x", values)
    assert found.dtype == np.float64
    assert found.tolist() == [0.25, 0.5, 1.0, 2.0**70, 2.0]
    assert as_reals("x", Fraction(1, 2)).tolist() == 0.5
    for value in [[Fraction(1), True], [Decimal(1), "1"], [Decimal(1), None], [2**70, 1j], [HUGE],
                  [Fraction(1), np.True_], [Decimal("sNaN")]]:  # fmt: skip
        with pytest.raises(DtypeError, match=r"^x: numbers expected, found dtype object"):
            as_reals("x", value)
    for value in (HUGE, [1, -HUGE], [10**5000]):
        with pytest.raises(PriorityError, match=r"that no float64 is .int too large"):
            as_reals("x", value, PriorityError)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_numbers_of_jax_are_numbers(buffers, name):
    """NumPy knows them as plain bytes that it can make floats of."""
    ones = np.ones(2, getattr(pytest.importorskip("ml_dtypes"), name))
    found = as_reals("x", ones)
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 1.0]
    assert buffers.one.update_priorities([0, 1], ones) == 0


@pytest.mark.parametrize("dtype", ["V4", "V8", [("x", "f4")], "S8", "m8[s]"])
def test_bytes_are_no_numbers(dtype):
    with pytest.raises(DtypeError, match=r"^x: numbers expected, found dtype "):
        as_reals("x", np.zeros(2, dtype))


def test_masked_values_among_those_that_are_looked_at():
    value = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])
    for among in ([0, 2], [0], []):
        assert as_array("x", value, among=np.array(among, int)).tolist() == [1.0, 2.0, 3.0]
        assert as_reals("x", value, among=np.array(among, int)).tolist() == [1.0, 2.0, 3.0]
    for among in ([1], [0, 1, 2], [5]):  # the last: of another length, so all is looked at
        with pytest.raises(DtypeError, match="found 1 masked ones"):
            as_array("x", value, among=np.array(among, int))
    with pytest.raises(DtypeError, match="found 1 masked ones"):
        as_array("x", np.ma.masked, among=np.array([], int))
