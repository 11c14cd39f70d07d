"""Ids of rows that are there, found out without the row index."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from diskreplay.drawable_rows import DrawableRows
from diskreplay.errors import NotSampleableError, UnknownIdError


def retained(first, count, ids):
    store = SimpleNamespace(
        first=np.array(first), count=np.array(count), num_envs=len(first)
    )  # fmt: skip
    return DrawableRows.retained(SimpleNamespace(store=store), np.array(ids, np.int64))


@pytest.mark.parametrize(
    ("first", "count", "there"),
    [([0], [5], range(5)), ([2], [5], range(2, 5)), ([1, 0, 3], [4, 2, 3], [1, 3, 4, 6, 9])],
)
def test_exactly_the_rows_that_are_there(first, count, there):
    """Each id alone, and beside one that is there; negative ones stand for none."""
    known = max(count) * len(first)
    for id_ in range(-3, known + 3):
        for ids in ([id_], [there[0], id_], [id_, there[-1], -1]):
            row, env = divmod(id_, len(first))
            if id_ < 0 or id_ in there:
                assert retained(first, count, ids).tolist() == ids
            elif row >= count[env]:
                said = f"id {id_} was never handed out: env {env} has {count[env]} rows"
                with pytest.raises(UnknownIdError, match=re.escape(said)):
                    retained(first, count, ids)
            else:
                said = f"id {id_} is evicted: env {env} keeps rows from {first[env]} on"
                with pytest.raises(NotSampleableError, match=re.escape(said)):
                    retained(first, count, ids)


def test_no_ids():
    assert retained([0], [0], []).tolist() == []
    assert retained([3, 3], [5, 5], []).tolist() == []
    assert retained([0], [0], [-1, -7]).tolist() == [-1, -7]
