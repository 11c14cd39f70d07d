"""Runs of rows beside lists of rows."""

import numpy as np

from diskreplay.runs import Run, joined


def run(rng, env, rows):
    return Run(env, [rng.integers(0, 9, (rows, 2)), rng.random(rows)])


def test_a_part_is_a_view_of_these_rows():
    made = run(np.random.default_rng(0), 3, 5)
    part = made.part(1, 4)
    assert (made.rows, part.rows, part.env) == (5, 3, 3)
    for column, whole in zip(part.columns, made.columns, strict=True):
        np.testing.assert_array_equal(column, whole[1:4])
        assert np.shares_memory(column, whole)


def test_runs_are_joined_one_behind_the_other():
    rng = np.random.default_rng(1)
    runs = [run(rng, env, rows) for env, rows in ((0, 3), (2, 1), (1, 4))]
    for column in range(2):
        rows = [row for each in runs for row in each.columns[column].tolist()]
        assert joined(runs, column).tolist() == rows
        one = joined(runs[:1], column)
        assert one.tolist() == runs[0].columns[column].tolist()
    turned = Run(0, [np.arange(6).reshape(2, 3).T])
    assert joined([turned], 0).flags.c_contiguous
    assert joined([turned], 0).tolist() == [[0, 3], [1, 4], [2, 5]]
