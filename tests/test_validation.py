"""What comes in is checked and cast, value by value."""

import itertools

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import (
    DtypeError,
    InvalidInputError,
    NotFiniteError,
    ShapeError,
    UnknownIdError,
)
from diskreplay.store.field import DTYPES, Field
from diskreplay.validation import (
    checked_ids,
    field_names,
    fit,
    fit_flag,
    fit_flags,
    fit_reward,
    fit_rows,
    generator,
    one_of,
    row_ids,
)

RAGGED = [[1], [1, 2]]
HUGE = 10**400
INTEGERS = [name for name in sorted(DTYPES) if "int" in name]


def test_helpers():
    rng = np.random.default_rng(0)
    assert generator(rng) is rng
    one_of("x", np.str_("a"), ("a", "b"))
    with pytest.raises(InvalidInputError, match="'a' or 'b' expected"):
        one_of("x", np.array(["a", "b"]), ("a", "b"))


# -- values of a field


def fits(value, dtype):
    """Whether a number is the same one in a dtype, by Python's own numbers."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return abs(value) <= 2**53 and float(np.array(value, np.float64).astype(dtype)) == value
    return int(np.iinfo(dtype).min) <= value <= int(np.iinfo(dtype).max)


@pytest.mark.parametrize("target", [*INTEGERS, "float16", "float32", "float64"])
def test_integers_go_where_they_fit(target):
    """All edges of all dtypes, into each other one, alone and among zeros."""
    field, dtype = Field("x", (2,), np.dtype(target)), np.dtype(target)
    edges = {0, 1, -1, 2**11 + 1, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 65504, 65505, 10**5}
    for name in INTEGERS:
        info = np.iinfo(name)
        edges |= {info.min, info.min - 1, info.max, info.max + 1}
    for source, value in itertools.product(INTEGERS, sorted(edges)):
        if not fits(value, np.dtype(source)):
            continue
        given = np.array([0, value], source)
        if fits(value, dtype):
            found = fit(field, given)
            assert found.dtype == dtype
            assert [int(number) for number in found] == [0, value]
        else:
            with pytest.raises(DtypeError, match=r"^x: a value of dtype"):
                fit(field, given)


@pytest.mark.parametrize(
    ("source", "target", "taken"),
    [
        ("float64", "float32", True), ("float64", "float16", True), ("float32", "int32", False),
        ("float64", "bool", False), ("int8", "bool", False), ("bool", "uint8", True),
        ("bool", "float32", True), ("complex64", "float32", False), ("U1", "float32", False),
        ("object", "int64", False), ("M8[s]", "int64", False),
    ],
)  # fmt: skip
def test_other_kinds_as_numpy_casts_the_same_kind(source, target, taken):
    field, given = Field("x", (3,), np.dtype(target)), np.zeros(3, source)
    if taken:
        assert fit(field, given).dtype == target
    else:
        with pytest.raises(DtypeError, match=rf"^x: dtype .* cannot be cast to {target}"):
            fit(field, given)


def test_what_fits_as_it_is_is_not_copied():
    field = Field("x", (2, 3), np.dtype("f4"))
    given = np.zeros((2, 3), np.float32)
    assert fit(field, given) is given
    assert fit(field, given[None], (1,)).base is given
    assert fit(Field("x", (), np.dtype("i8")), 2**63 - 1) == 2**63 - 1  # a number stays one
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(DtypeError):
            fit(Field("x", (), np.dtype("i8")), number)
    with pytest.raises(DtypeError):
        fit(Field("x", (), np.dtype("i4")), 2**31)
    assert fit(Field("x", (), np.dtype("i4")), -(2**31)) == -(2**31)


def test_the_shape_of_a_value():
    field = Field("observation", (2, 3), np.dtype("f4"))
    for shape in ((), (3,), (3, 2), (2, 3, 1), (0, 2, 3)):
        with pytest.raises(ShapeError, match=r"^observation: shape \(2, 3\) expected, found"):
            fit(field, np.zeros(shape))
    with pytest.raises(ShapeError, match="give one frame: stacks are made when sampling"):
        fit(field, np.zeros((4, 2, 3)))
    with pytest.raises(ShapeError, match=r"shape \(5, 2, 3\) expected"):
        fit(field, np.zeros((2, 3)), (5,))


def test_rewards():
    largest = float(np.finfo(np.float32).max)
    for value in (1, 1.5, -largest, largest, True, np.float16(2), np.int64(-3), np.array(4)):
        found = fit_reward(value)
        assert found == value
        assert type(found) is float
    for value in (np.nan, np.inf, -np.inf, 3.5e38, -3.5e38, np.float64("nan"), np.array(np.inf)):
        with pytest.raises(NotFiniteError, match="a finite float32 expected"):
            fit_reward(value)
    for value in ("1", None, 1j, HUGE, np.array("1"), object()):
        with pytest.raises(DtypeError, match=r"^reward: a number expected"):
            fit_reward(value)
    with pytest.raises(ShapeError, match=r"found shape \(3,\); for 3 envs give num_envs=3"):
        fit_reward([1, 2, 3])
    for value in ([1.0], [[1.0, 2.0]], []):
        with pytest.raises(ShapeError, match=r"found shape \(\d(, \d)?,?\)$"):
            fit_reward(value)


def test_flags():
    for value, expected in [(True, True), (np.False_, False), (1, True), (np.int8(0), False),
                            (np.array(True), True)]:  # fmt: skip
        assert fit_flag("x", value) is expected
    for value in (2, -1, 0.0, 1.0, "True", None, np.array(2)):
        with pytest.raises(DtypeError, match=r"^x: a bool expected"):
            fit_flag("x", value)
    with pytest.raises(ShapeError):
        fit_flag("x", [True])
    assert fit_flags("x", [0, 1, 1], 3).tolist() == [False, True, True]
    given = np.array([True, False])
    assert fit_flags("x", given, 2) is given
    for value in ([0, 2], [0, -1], [0.0, 1.0], ["", "x"]):
        with pytest.raises(DtypeError, match=r"^x: bools expected"):
            fit_flags("x", value, 2)
    for value in ([True], [[True, False]], True):
        with pytest.raises(ShapeError, match=r"^x: shape \(2,\) expected"):
            fit_flags("x", value, 2)


def test_rows_of_envs_that_do_not_record_are_not_looked_at():
    field, envs = Field("action", (), np.dtype("u1")), np.array([0, 2])
    assert fit_rows(field, [1, 999, 3], 3, envs).tolist() == [1, 0, 3]
    with pytest.raises(DtypeError):
        fit_rows(field, [1, 999, 3], 3, np.arange(3))
    turned = np.zeros((4, 3), np.uint8).T  # of columns
    found = fit_rows(Field("x", (4,), np.dtype("u1")), turned, 3, np.arange(3))
    assert found.flags.c_contiguous
    with pytest.raises(ShapeError, match="the one of 3 envs together"):
        fit_rows(Field("action", (3,), np.dtype("u1")), [1, 2, 3], 3, np.arange(3))
    with pytest.raises(ShapeError, match=r"found \(3,\)$"):
        fit_rows(Field("h", (3,), np.dtype("u1")), [1, 2, 3], 3, np.arange(3))


# -- what is asked for


def test_ids():
    for value in ([], np.empty((2, 0)), np.empty(0, "M8[s]")):
        assert row_ids(value).dtype == np.int64
        assert checked_ids(value).shape == (0,)
    assert row_ids([[1, 2]]).tolist() == [[1, 2]]
    assert row_ids(np.uint64(2**63 - 1)) == 2**63 - 1
    given = np.arange(3)
    assert row_ids(given) is given
    with pytest.raises(UnknownIdError, match="no row has one so large"):
        row_ids(np.array([2**63], np.uint64))
    for value in ([1.0], [True], ["1"], [None], [2**64], 1.0):
        with pytest.raises(DtypeError, match=r"^ids: integers expected"):
            row_ids(value)
    for value in (5, [[1, 2]]):
        with pytest.raises(ShapeError, match=r"^ids: one axis expected"):
            checked_ids(value)


def test_names():
    assert field_names("abc") == ["abc"]
    assert field_names(("a", "b")) == ["a", "b"]
    assert field_names(name for name in "ab") == ["a", "b"]
    for value in (5, None, [5], ["a", None], b"abc"):
        with pytest.raises(InvalidInputError, match=r"^x: a name or several expected"):
            field_names(value, "x")


@pytest.mark.parametrize("wrong", [{5: [1]}, {None: [1], "step": [0]}, {("a",): 1, 2: 1}, {}])
def test_columns_of_other_names_are_refused_whatever_the_names_are(wrong):
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(-1, 1, (2,)), action_space=Discrete(2), capacity=10
    ) as buffer:
        with pytest.raises(InvalidInputError, match=r"an array for each of .* is missing or unkn"):
            buffer.extend(wrong)
        for none in (None, [1], "step"):
            with pytest.raises(InvalidInputError, match="arrays by the names of the fields"):
                buffer.extend(none)
