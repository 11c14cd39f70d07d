"""What is made of Gymnasium's spaces; tests/test_stored_space.py has what is read from it."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from diskreplay import spaces
from diskreplay.errors import InvalidInputError


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_a_box_of_all_values(dtype):
    made = spaces.box((2, 3), dtype)
    kind = np.dtype(dtype).kind
    least, most = {"f": (-np.inf, np.inf), "b": (False, True)}.get(kind) or (
        np.iinfo(dtype).min, np.iinfo(dtype).max
    )  # fmt: skip
    assert made.dtype == dtype
    assert (made.low == np.full((2, 3), least)).all()
    assert (made.high == np.full((2, 3), most)).all()


def test_bounds_that_are_all_the_same_take_no_more_than_one():
    short = spaces.describe(Box(-1, 1, (84, 84), np.float32), "observation")
    assert short["low"]["count"] == short["high"]["count"] == 1
    other = spaces.describe(Box(np.arange(3.0), np.full(3, 9.0), dtype=np.float64), "observation")
    assert (other["low"]["count"], other["high"]["count"]) == (3, 1)


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (Text(5), "observation"),
        (Dict({"a": Discrete(2), "b": Tuple([Text(5)])}), "observation/b/0"),
    ],
)
def test_what_cannot_be_stored_is_named(space, where):
    with pytest.raises(InvalidInputError, match=rf"^{where}: Text spaces cannot be stored"):
        spaces.describe(space, "observation")
