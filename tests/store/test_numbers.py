"""Numbers from files: what is taken, and what is refused by its name."""

import datetime

import numpy as np
import pytest

from diskreplay.store import numbers

BAD = [True, False, None, "3", 3.0, [3], {}, np.int64(3), float("nan")]


@pytest.mark.parametrize("value", [-2, 0, 5])
def test_an_integer_within_its_bounds_which_count(value):
    assert numbers.integer("x", value, -2, 5) == value


@pytest.mark.parametrize("value", [-3, 6, 10**40, *BAD])
def test_what_is_no_integer_within_its_bounds(value):
    with pytest.raises(ValueError, match=r"^part x: an integer from -2 to 5 expected, found "):
        numbers.integer("part x", value, -2, 5)


def test_a_flag_is_a_bool_and_no_number():
    assert numbers.flag("x", True) is True
    assert numbers.flag("x", False) is False
    for value in (0, 1, None, "true", np.True_, []):
        with pytest.raises(ValueError, match=r"^x: true or false expected, found "):
            numbers.flag("x", value)


@pytest.mark.parametrize("value", [-0.5, 0, 1, 1.5])
def test_a_real_within_its_bounds_is_a_float(value):
    found = numbers.real("x", value, -0.5, 1.5)
    assert found == value
    assert type(found) is float


@pytest.mark.parametrize("value", [-0.6, 1.6, float("nan"), float("inf"), True, "1", None, [1]])
def test_what_is_no_real_within_its_bounds(value):
    with pytest.raises(ValueError, match=r"^x: a number from -0.5 to 1.5 expected, found "):
        numbers.real("x", value, -0.5, 1.5)


def test_a_list_of_integers():
    found = numbers.integers("x", [0, 7, 3], 3, 0, 7)
    assert found.tolist() == [0, 7, 3]
    assert found.dtype == np.int64
    assert numbers.integers("x", [], 0, 0, 7).tolist() == []
    largest = numbers.integers("x", [numbers.MOST_ROWS], 1, 0, numbers.MOST_ROWS)
    assert largest.tolist() == [2**62]


@pytest.mark.parametrize("value", [[1, 2], [1, 2, 3, 4], (1, 2, 3), "123", {0: 1}, None, 3])
def test_a_list_of_another_length_or_none(value):
    with pytest.raises(ValueError, match=r"^x: a list of 3 integers expected, found "):
        numbers.integers("x", value, 3, 0, 7)


@pytest.mark.parametrize("wrong", [-1, 8, 1.0, True, None])
def test_the_number_of_a_list_that_is_wrong_is_named(wrong):
    with pytest.raises(ValueError, match=r"^x\[1\]: an integer from 0 to 7 expected"):
        numbers.integers("x", [1, wrong, 2], 3, 0, 7)


def test_a_long_value_is_cut():
    with pytest.raises(ValueError) as caught:
        numbers.integer("x", "9" * 100_000, 0, 1)
    assert len(str(caught.value)) < 150


def test_a_time_has_a_zone():
    zone = datetime.timezone(datetime.timedelta(hours=14))
    for year in (2, 1969, 9998):
        when = datetime.datetime(year, 2, 3, 4, 5, 6, 7, zone)
        assert numbers.time("x", when.isoformat()) == when


@pytest.mark.parametrize(
    "value",
    [
        "0001-12-31T00:00:00+14:00", "9999-01-01T00:00:00-12:00", "2024-02-29T00:00:00",
        "2024-02-30T00:00:00+00:00", "yesterday", "", None, 3, [], True,
    ],
)  # fmt: skip
def test_what_is_no_time(value):
    with pytest.raises(ValueError, match=r"^x is damaged: a time with a time zone expected"):
        numbers.time("x", value)
