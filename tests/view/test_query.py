"""Numbers and texts behind the question mark of an address, whoever sends them."""

import math
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")

from starlette.requests import Request

from diskreplay.errors import InvalidInputError
from diskreplay.view import query


def asked(**given):
    return Request({"type": "http", "query_string": urlencode(given).encode(), "headers": []})


def test_what_is_not_given_is_the_default():
    for request in (asked(), asked(x=""), asked(y="5")):
        assert query.number(request, "x", 1.5) == 1.5
        assert query.whole(request, "x", 7, most=9) == 7
    assert query.text(asked(), "x") == ""
    assert query.text(asked(), "x", "none") == "none"
    assert query.text(asked(x="a b&c=d\u00fc"), "x") == "a b&c=d\u00fc"


@pytest.mark.parametrize(
    ("given", "number"), [("0", 0), ("-2.5", -2.5), ("1e3", 1000), ("inf", math.inf), (" 4 ", 4)]
)
def test_numbers(given, number):
    assert query.number(asked(x=given), "x", 1.0) == number


@pytest.mark.parametrize("given", ["nan", "-NaN", "x", "1,5", "1 2", "0x10", "()", "\0"])
def test_what_is_no_number(given):
    with pytest.raises(InvalidInputError, match=r"^x: a number expected, found "):
        query.number(asked(x=given), "x", 1.0)


@pytest.mark.parametrize(("given", "number"), [("0", 0), ("9", 9), ("007", 7)])
def test_whole_numbers(given, number):
    assert query.whole(asked(x=given), "x", 1, most=9) == number


@pytest.mark.parametrize(
    "given", ["10", "-1", "+1", "1.0", "1e0", " 1", "x", "\u0663", "\u00b2", "9" * 5000, "0" * 19]
)
def test_what_is_no_whole_number_from_0_to_the_largest(given):
    with pytest.raises(InvalidInputError, match=r"^x: a whole number from 0 to 9 expected"):
        query.whole(asked(x=given), "x", 1, most=9)


def test_a_long_text_is_cut_in_the_message():
    with pytest.raises(InvalidInputError) as caught:
        query.number(asked(x="y" * 100_000), "x", 1.0)
    assert len(str(caught.value)) < 200
