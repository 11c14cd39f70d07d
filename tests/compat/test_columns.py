"""What an `env_dict` says, and values as rows of its columns, beside NumPy's own casts."""

import numpy as np
import pytest

from diskreplay.compat.cpprb.columns import Column, Columns, names
from diskreplay.errors import InvalidInputError, ShapeError

ENV = {"obs": {"shape": (2, 3), "dtype": np.uint8}, "rew": {}, "done": {"dtype": bool}}


def test_what_is_not_said_is_one_float32():
    columns = Columns(ENV, next_of=("obs",))
    assert list(columns.by_name) == ["obs", "rew", "done", "next_obs"]
    rew, following = columns.by_name["rew"], columns.by_name["next_obs"]
    assert (rew.shape, rew.dtype, rew.row_bytes) == ((1,), np.float32, 4)
    assert (following.shape, following.dtype, following.row_bytes) == ((2, 3), np.uint8, 6)
    assert Columns({"a": {}}, default_dtype="float64").by_name["a"].dtype == np.float64
    given = Columns({**ENV, "next_obs": {"shape": 6}}, next_of=("obs",))
    assert given.by_name["next_obs"].shape == (6,)  # as it is said
    assert Column("a", np.int64(3), "int8").shape == (3,)


@pytest.mark.parametrize(
    ("dtype", "is_native"),
    [("uint8", True), ("float64", True), ("bool", True), ("complex64", False), ("<U3", False),
     ("datetime64[s]", False), (">f4", False)],
)  # fmt: skip
def test_which_dtypes_the_store_has(dtype, is_native):
    assert Column("a", 2, dtype).is_native == is_native


@pytest.mark.parametrize(
    ("spec", "message"),
    [({"shape": "x"}, "a number or a sequence"), ({"dtype": "nothing"}, "a NumPy dtype"),
     ({"dtype": object}, "no bytes to store"), ({"dtype": "V0"}, "no bytes"), (3, "a dict")],
)  # fmt: skip
def test_what_says_nothing_is_refused(spec, message):
    with pytest.raises(InvalidInputError, match=message):
        Columns({"a": spec})


def test_rows_are_cast_as_assignment_does():
    column = Column("a", (2,), np.int16)
    assert column.rows([[1.9, -1.9]]).tolist() == [[1, -1]]
    assert column.rows(np.arange(6)).tolist() == [[0, 1], [2, 3], [4, 5]]
    same = np.zeros((3, 2), np.int16)
    assert np.shares_memory(column.rows(same), same)
    with pytest.raises(ShapeError, match="a: rows of shape"):
        column.rows(np.arange(5))
    with pytest.raises(InvalidInputError, match="a: rows of shape"):
        Column("a", (), "datetime64[s]").rows(["no time, which cannot be convert"])


def test_one_row_that_is_easily_seen():
    columns = Columns(ENV)
    good = {"obs": np.ones((2, 3), np.uint8), "rew": 1.5, "done": True, "more": 3}
    row = columns.row(good)
    assert list(row) == ["obs", "rew", "done"]
    assert row["obs"] is good["obs"]
    assert (row["rew"].tolist(), row["rew"].dtype) == ([1.5], np.float32)
    assert (row["done"].tolist(), row["done"].dtype) == ([True], np.bool_)
    for change in (
        {"obs": np.ones((1, 2, 3), np.uint8)}, {"obs": np.ones((2, 3))}, {"obs": [[1] * 3] * 2},
        {"rew": [1.0]}, {"rew": "1"}, {"done": None},
    ):  # fmt: skip
        assert columns.row(good | change) is None
    assert Columns({"n": {"dtype": np.int8}}).row({"n": 10**30}) is None
    assert Columns({"n": {"dtype": np.int8}}).row({"n": float("nan")}) is None
    assert Columns({}).row({}) is None
    assert columns.row({"obs": good["obs"]}) is None


def test_several_rows_are_of_one_length():
    columns = Columns(ENV)
    good = {"obs": np.ones((4, 2, 3)), "rew": np.arange(4), "done": [0, 1, 0, 2], "more": 3}
    rows = columns.rows(good)
    assert [len(each) for each in rows.values()] == [4] * 3
    assert rows["done"].tolist() == [[False], [True], [False], [True]]
    with pytest.raises(ShapeError, match="obs: 4, rew: 3, done: 4"):
        columns.rows(good | {"rew": np.arange(3)})
    with pytest.raises(KeyError, match="'rew' is missing"):
        columns.rows({"obs": good["obs"]})
    with pytest.raises(KeyError, match="nothing to add"):
        Columns(None).rows(good)


def test_names_of_one_several_or_none():
    assert names(None) == ()
    assert names("obs") == ("obs",)
    assert names(["a", "b"]) == ("a", "b")
