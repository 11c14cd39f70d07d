"""Rows as ranges and in sentences, beside sets of numbers."""

import itertools
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diskreplay.check.report import Finding, Loss, Report, Span, ranges, shown, spans


def test_rows_of_envs_in_a_sentence():
    assert shown([Span(3, 24, 32)]) == "env 3, rows 24 to 31"
    assert shown([Span(0, 5, 6), Span(0, 8, 10), Span(1, 5, 6), Span(1, 8, 10)]) == (
        "envs 0 to 1, rows 5, 8 to 9"
    )
    some = [Span(env, env, env + 1) for env in range(9)]
    assert shown(some) == (
        "env 0, rows 0; env 1, rows 1; env 2, rows 2; env 3, rows 3; env 4, rows 4; and rows of 4 "
        "more envs"
    )
    assert shown(some[:6]).endswith("env 4, rows 4; and rows of 1 more env")


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_as_long_as_they_can_be(numbers):
    found = ranges(np.array(sorted(numbers), np.int64))
    assert {n for start, stop in found for n in range(start, stop)} == numbers
    assert all(start < stop for start, stop in found)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=12), st.integers(0, 9))
def test_spans_are_the_rows_that_are_lost(lost, start):
    found = spans(np.array(lost, bool).reshape(-1, 3), start, 10)
    assert {(env, row) for env, low, high in found for row in range(low, high)} == {
        (10 + env, start + at) for at, row in enumerate(lost) for env in range(3) if row[env]
    }
    assert list(found) == sorted(found)


def test_ranges_of_one_env_are_listed_up_to_five():
    rows = [Span(0, 10 * n, 10 * n + 1 + n % 2) for n in range(7)]
    assert shown(rows) == "env 0, rows 0, 10 to 11, 20, 30 to 31, 40 and 2 more ranges"
    assert shown(rows[:5]) == "env 0, rows 0, 10 to 11, 20, 30 to 31, 40"
    assert shown([Span(env, 3, 4) for env in (0, 1, 4)]) == "envs 0 to 1, 4, rows 3"


def test_a_finding_and_a_loss_say_where_they_are():
    rows = (Span(0, 5, 8), Span(2, 1, 2))
    finding = Finding("block", Path("/a/c.0"), "it is rotten", "restore it", rows=rows)
    assert finding.count == 4
    assert str(finding) == "/a/c.0 (env 0, rows 5 to 7; env 2, rows 1): it is rotten; restore it"
    assert str(Finding("missing", Path("/a"), "gone", "look")) == "/a: gone; look"
    assert str(Loss(rows[:1], "reward", "rotten")) == "env 0, rows 5 to 7: reward: rotten"
    assert str(Loss(rows[:1], None, "rotten")) == "env 0, rows 5 to 7: rotten"
    empty = Report(Path("/a"), "store", (), 0, 0, 0, 0, 0.0)
    assert empty.clean
    assert not Report(Path("/a"), "store", (finding,), 0, 0, 0, 0, 0.0).clean
