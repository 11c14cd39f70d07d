"""Values as JSON has them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from diskreplay.inspection.plain import plain


@dataclasses.dataclass
class Point:
    at: Path
    values: np.ndarray


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None), (True, True), (3, 3), (1.5, 1.5), ("x", "x"), (float("nan"), None),
        (float("-inf"), None), (np.float32(0.5), 0.5), (np.int64(7), 7), (np.bool_(False), False),
        (np.float64("inf"), None), (np.array([1.0, np.nan]), [1.0, None]),
        (np.array([[1, 2]]), [[1, 2]]), (np.array(5), 5), (np.empty(0), []), (Path("a/b"), "a/b"),
        (np.dtype("f4"), "float32"), ((1, (2, np.int8(3))), [1, [2, 3]]), ([], []),
        ({1: {"x": np.array([True])}, None: Path("y")}, {"1": {"x": [True]}, "None": "y"}),
        (Point(Path("a"), np.arange(2)), {"at": "a", "values": [0, 1]}),
        ({"x": [Point(Path("a"), np.array([np.inf]))]}, {"x": [{"at": "a", "values": [None]}]}),
        (np.array(["a", "b"]), ["a", "b"]),
    ],
)  # fmt: skip
def test_values(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_each_text_is_made_harmless():
    value = {
        "k\x1b": ["v\x1b", {"x": Path("p\x1b")}, 1, None],
        "n": Point(Path("\x1b"), np.ones(1)),
    }
    assert plain(value, lambda text: text.replace("\x1b", "?")) == {
        "k?": ["v?", {"x": "p?"}, 1, None], "n": {"at": "?", "values": [1.0]},
    }  # fmt: skip


def test_what_is_not_finite_is_spelled():
    value = {"x": np.array([np.nan, np.inf, 1.5]), "y": [Point(Path("a"), np.array(-np.inf))]}
    found = plain(value, spelled=True)
    assert found == {"x": ["NaN", "Infinity", 1.5], "y": [{"at": "a", "values": "-Infinity"}]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [float(text) for text in found["x"][1:]] == [np.inf, 1.5]  # Python reads them back
