"""What a union is asked for, checked."""

from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import as_reals


def checked_mixture(mixture: Any, members: int) -> np.ndarray | None:
    """The share of each member, 1 in sum; or an `InvalidInputError`."""
    if mixture is None:
        return None
    shares = as_reals("mixture", mixture, InvalidInputError)
    if shares.shape != (members,):
        raise InvalidInputError(
            f"mixture: one share for each of {members} members expected, found {brief(mixture)}"
        )
    with np.errstate(over="ignore"):
        total = shares.sum()  # finite, and so are all of them
    if not ((shares >= 0).all() and 0 < total < np.inf):
        raise InvalidInputError(f"mixture: shares from 0 on expected, found {brief(mixture)}")
    return shares / total
