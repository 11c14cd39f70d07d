"""Rows that are set aside."""

import numpy as np

from diskreplay.check import row_check
from diskreplay.check.row_check import set_aside


def test_rows_set_aside_are_cut_off():
    def rows(step, final=()):
        n = len(step)
        flags = np.zeros(n, np.uint8)
        flags[list(final)] = 1
        return row_check.SmallColumns(
            np.array(step, np.int32), np.ones(n, np.float32) * (flags == 0), np.zeros(n, np.uint8),
            np.zeros(n, np.uint8), flags,
        )  # fmt: skip

    one = rows([0, 1, 2, 3, 4, 5, 6, 0, 1])
    set_aside(one, np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], bool), stack_size=3)
    assert one.step.tolist() == [0, 1, 0, 0, 1, 2, 3, 0, 1]
    assert one.is_final.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert one.reward.tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert not row_check.faults(one, np.ones(9, bool), np.zeros(9, bool))
    two = rows([3, 4, 0, 1, 2])
    set_aside(two, np.array([0, 1, 0, 0, 0], bool), stack_size=4)
    assert two.step.tolist() == [3, 0, 0, 1, 2]
    assert two.is_final.tolist() == [0, 1, 0, 0, 0]
    three = rows([0, 1, 2])
    set_aside(three, np.array([1, 0, 1], bool), stack_size=1)
    assert three.step.tolist() == [0, 0, 0]
    assert three.is_final.tolist() == [1, 0, 1]
