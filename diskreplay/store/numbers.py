"""Numbers that come from files: each has to be of its type and within its bounds before it is used.

A number beyond them may lead a kernel, which checks nothing, to memory that is not ours. JSON knows
no types: a rotten byte makes a number a text, a list or another number.
"""

import datetime
from typing import Any

import numpy as np

MOST_ROWS = 1 << 62  # ids, which count the rows of all envs, are int64
LAST_STEP = (1 << 31) - 1  # `step` is int32
_YEARS = (2, 9998)  # elsewhere than at the ends each time can be told in each time zone


def integer(name: str, value: Any, low: int, high: int) -> int:
    """`value` if it is an integer from `low` to `high`, or a ``ValueError`` that names it."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}: an integer from {low} to {high} expected, found {value!r:.60}")
    return value


def flag(name: str, value: Any) -> bool:
    """`value` if it is a bool, or a ``ValueError`` that names it."""
    if type(value) is not bool:
        raise ValueError(f"{name}: true or false expected, found {value!r:.60}")
    return value


def real(name: str, value: Any, low: float, high: float) -> float:
    """`value` as a float if it is a number from `low` to `high`, or a ``ValueError``."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name}: a number from {low:g} to {high:g} expected, found {value!r:.60}")
    return float(value)


def time(name: str, value: Any) -> datetime.datetime:
    """`value` as a time, if it is the text of one with a time zone, or a ``ValueError`` that names
    it."""
    try:
        found = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        found = datetime.datetime.min
    if found.tzinfo is None or not _YEARS[0] <= found.year <= _YEARS[1]:
        raise ValueError(
            f"{name} is damaged: a time with a time zone expected, of the years {_YEARS[0]} to "
            f"{_YEARS[1]}, found {value!r:.60}"
        )
    return found


def integers(name: str, value: Any, size: int, low: int, high: int) -> np.ndarray:
    """`value` as an array of int64 if it is a list of so many integers from `low` to `high`, or a
    ``ValueError``."""
    if type(value) is not list or len(value) != size:
        raise ValueError(f"{name}: a list of {size} integers expected, found {value!r:.60}")
    return np.array([integer(f"{name}[{i}]", n, low, high) for i, n in enumerate(value)], np.int64)
