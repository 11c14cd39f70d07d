"""The shares of a mixture: what is refused, and that they are 1 together."""

import numpy as np
import pytest

from diskreplay.errors import InvalidInputError
from diskreplay.union_options import checked_mixture


def test_shares_are_one_together():
    assert checked_mixture(None, 3) is None
    assert checked_mixture([1, 3], 2).tolist() == [0.25, 0.75]
    assert checked_mixture([0.125, 0.125], 2).tolist() == [0.5, 0.5]
    assert checked_mixture((0.0, 5.0, 0.0), 3).tolist() == [0.0, 1.0, 0.0]
    assert checked_mixture(np.array([2], np.int8), 1).tolist() == [1.0]


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("half", "numbers expected"), ([object()], "numbers expected"), ([1], "one share for each"),
        ([1, 1, 1], "one share for each"), (0.5, "one share for each"), ([[1, 1]], "one share"),
        ([1, -1e-9], "from 0 on"), ([0, 0], "from 0 on"), ([1, float("nan")], "from 0 on"),
        ([1, float("inf")], "from 0 on"), ([1e308, 1e308], "from 0 on"),
    ],
)  # fmt: skip
def test_what_is_no_mixture_of_two_is_refused(mixture, message):
    with pytest.raises(InvalidInputError, match=f"mixture: .*{message}"):
        checked_mixture(mixture, 2)
