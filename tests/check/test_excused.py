"""Rows that parts of episodes excuse: as many as were given, and where there are more, none."""

import itertools

import numpy as np
import pytest

from diskreplay.check.excused import Excused, excused_rows
from diskreplay.check.row_check import SmallColumns
from diskreplay.episode_parts import Parts


def columns(step, final=()):
    size = len(step)
    flags = np.zeros(size, np.uint8)
    flags[list(final)] = 1
    return SmallColumns(
        np.array(step, np.int32), np.zeros(size, np.float32), np.zeros(size, np.uint8),
        np.zeros(size, np.uint8), flags,
    )  # fmt: skip


def excused(ranges, step, first=0, known=None, final=()):
    parts = Parts.parse({"parts": ranges}, 1)
    known = np.ones(len(step), np.bool_) if known is None else np.array(known, np.bool_)
    found = excused_rows(parts, 0, columns(step, final), known, first)
    return np.flatnonzero(found).tolist()


# Rows 3 and 6 begin parts of episodes.
STEP = [0, 1, 2, 7, 8, 9, 5, 6, 0, 1]


@pytest.mark.parametrize(
    ("ranges", "rows"),
    [
        ([], []), ([[0, 0, 10, 2]], range(10)), ([[0, 0, 10, 9]], range(10)),
        ([[0, 3, 7, 2]], range(3, 7)), ([[0, 3, 4, 1], [0, 6, 7, 1]], [3, 6]),
        ([[0, 0, 10, 1]], []),  # two are there: one of them is rotten, and nobody knows which
        ([[0, 0, 10, 0]], []), ([[0, 0, 5, 0], [0, 5, 10, 1]], range(5, 10)),
        ([[0, 0, 10]], range(10)),  # one that does not say how many
        ([[0, 20, 30, 0]], []),
    ],
)  # fmt: skip
def test_a_range_excuses_as_many_rows_as_it_says(ranges, rows):
    assert excused(ranges, STEP) == list(rows)


def test_rows_that_interrupt_an_episode_are_no_parts():
    """The episode goes on behind row 4: its step is rotten."""
    step = [0, 1, 2, 7, 99, 9, 5, 6, 0, 1]
    assert excused([[0, 0, 10, 9]], step) == list(range(10))
    found = excused([[0, 0, 10, 2]], step)
    assert 4 not in found
    assert {3, 6} <= set(found)
    assert excused([[0, 0, 10, 0]], step) == []


@pytest.mark.parametrize("begin", [0, 100])
def test_rows_are_counted_over_several_windows(begin):
    """As `verify` reads them: each with the two rows before it."""
    parts = Parts.parse({"parts": [[0, begin, begin + 10, 2]]}, 1)
    for cuts in ([0, 4, 10], [0, 3, 6, 7, 10], [0, 10]):
        many, few = (
            Excused(parts, [0]),
            Excused(Parts.parse({"parts": [[0, begin, begin + 10, 1]]}, 1), [0]),
        )
        for low, high in itertools.pairwise(cuts):
            start = max(low - 2, 0)
            rows = SmallColumns(*(c[start:high, None] for c in columns(STEP)))
            for each in (many, few):
                each.count(rows, np.ones((high - start, 1), bool), begin + start, begin + low)
        whole = SmallColumns(*(c[:, None] for c in columns(STEP)))
        known = np.ones((10, 1), np.bool_)
        assert many.mask(whole, known, begin).all()
        assert not few.mask(whole, known, begin).any()


def test_each_env_has_ranges_of_its_own():
    parts = Parts.parse({"parts": [[4, 0, 10, 2], [5, 0, 10, 0]]}, 9)
    excused = Excused(parts, [3, 4, 5])
    rows = SmallColumns(*(np.repeat(c[:, None], 3, 1) for c in columns(STEP)))
    known = np.ones((10, 3), np.bool_)
    excused.count(rows, known, 0, 0)
    assert excused.mask(rows, known, 0).all(axis=0).tolist() == [False, True, False]
    assert excused.mask(rows, known, 0).any(axis=0).tolist() == [False, True, False]
