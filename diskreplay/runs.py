"""Rows that are added to one env, one behind the other, as they are to be stored."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np


class Run(NamedTuple):
    """Some rows of one env.

    Attributes
    ----------
    env : int
    columns : list of ndarray, each of shape (rows, *field.shape)
        An array for each field, in the order and of the dtypes of the store.
    """

    env: int
    columns: Sequence[np.ndarray]

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    def part(self, start: int, stop: int) -> Self:
        """Some of these rows; views."""
        return self._replace(columns=[column[start:stop] for column in self.columns])


def joined(runs: Sequence[Run], column: int) -> np.ndarray:
    """What some runs have in one column, run after run; C-contiguous."""
    if len(runs) == 1:
        return np.ascontiguousarray(runs[0].columns[column])
    return np.concatenate([run.columns[column] for run in runs])
