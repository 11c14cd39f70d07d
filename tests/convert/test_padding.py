"""Which rows of a ring of stacked frames are padding, beside the episodes that were put into it."""

import numpy as np
import pytest

from diskreplay.convert.padding import Padding


def stream(rng, stack, episodes):
    """Rows as such a ring has them: a value, whether the episode ends, and the number of the row in
    its episode, -1 of padding. A row itself may hold zeros, but for the first of an episode."""
    values, ended, steps = [], [], []
    for _ in range(episodes):
        length = int(rng.integers(1, 9))
        row = [0] * (stack - 1) + [1] + [int(rng.random() < 0.6) for _ in range(length - 1)]
        values += row
        ended += [False] * (len(row) - 1) + [True]
        steps += [-1] * (stack - 1) + list(range(length))
    return np.array(values), np.array(ended), np.array(steps)


def found(padding, values, ended, cuts):
    """What is found of the rows in chunks that end at `cuts`."""
    is_padding, step = [], []
    for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True):
        columns = {"a": values[low:high, None] * np.ones(3), "b": values[low:high] * 2}
        parts = padding.find(columns, ended[low:high])
        assert (parts[0].dtype, parts[1].dtype) == (np.bool_, np.int32)
        is_padding.append(parts[0])
        step.append(parts[1])
    return np.concatenate(is_padding), np.concatenate(step)


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_from_the_first_row_of_an_episode_on(stack):
    rng = np.random.default_rng(stack)
    for _ in range(60):
        values, ended, steps = stream(rng, stack, int(rng.integers(1, 8)))
        cuts = np.sort(rng.integers(0, len(values) + 1, rng.integers(0, 6))).tolist()
        is_padding, step = found(Padding(stack, known_start=True), values, ended, cuts)
        np.testing.assert_array_equal(is_padding, steps < 0)
        np.testing.assert_array_equal(step[~is_padding], steps[steps >= 0])


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_from_anywhere_in_an_episode_on(stack):
    """What came before is gone: without a whole padding no row before the next episode is said to
    have its stack."""
    rng = np.random.default_rng(10 + stack)
    for _ in range(120):
        values, ended, steps = stream(rng, stack, 6)
        begin = int(rng.integers(0, 12))
        first_end = int(np.flatnonzero(ended[begin:])[0]) + begin
        cuts = np.sort(rng.integers(0, len(values) - begin + 1, rng.integers(0, 6))).tolist()
        is_padding, step = found(
            Padding(stack, known_start=False), values[begin:], ended[begin:], cuts
        )
        after = slice(first_end + 1 - begin, None)  # of which nothing is guessed
        np.testing.assert_array_equal(is_padding[after], steps[first_end + 1 :] < 0)
        real = steps[first_end + 1 :]
        np.testing.assert_array_equal(step[after][real >= 0], real[real >= 0])
        if stack > 1 and (steps[begin : begin + stack - 1] < 0).all():  # so the start is there
            np.testing.assert_array_equal(is_padding, steps[begin:] < 0)
            np.testing.assert_array_equal(step[~is_padding], steps[begin:][steps[begin:] >= 0])
        else:
            rows = first_end + 1 - begin
            zeros = int((np.cumsum(values[begin : begin + stack - 1]) == 0).sum())
            if zeros == stack - 1 > 0:  # rows that hold zeros, as many as a padding has
                continue
            np.testing.assert_array_equal(is_padding[:rows], np.arange(rows) < zeros)
            counted = stack + np.arange(rows - zeros)
            np.testing.assert_array_equal(step[zeros:rows], counted)


def test_padding_that_ends_with_the_ring():
    """Zeros in its last slots, which go on in its first ones: whole, or the rest of one."""
    for last_slots, steps in ((2, [0, 0, 1]), (1, [0, 4, 5])):
        padding = Padding(4, known_start=False)
        no = np.zeros(1, np.bool_)
        for _ in range(last_slots):
            is_padding, _step = padding.find({"a": np.zeros((1, 2))}, no)
            assert is_padding.tolist() == [True]
        frames = np.array([[0, 0], [5, 5], [0, 0]])
        is_padding, step = padding.find({"a": frames}, np.zeros(3, bool))
        assert is_padding.tolist() == [True, False, False]
        assert step.tolist() == steps


def test_no_rows():
    padding = Padding(3, known_start=False)
    for _ in range(2):
        is_padding, step = padding.find({"a": np.zeros((0, 2))}, np.zeros(0, np.bool_))
        assert len(is_padding) == len(step) == 0
    is_padding, step = padding.find({"a": np.ones((2, 2))}, np.zeros(2, np.bool_))
    assert not is_padding.any()
    assert step.tolist() == [3, 4]


def test_any_column_that_holds_something_makes_it_a_row():
    padding = Padding(3, known_start=True)
    columns = {"a": np.zeros((4, 2)), "b": np.array([0, 0, 0, 1])}
    is_padding, step = padding.find(columns, np.zeros(4, np.bool_))
    assert is_padding.tolist() == [True, True, False, False]
    assert step.tolist() == [0, 0, 0, 1]
    padding = Padding(3, known_start=True)
    is_padding, step = padding.find(columns | {"c": np.array([0, 2, 0, 0])}, np.zeros(4, np.bool_))
    assert is_padding.tolist() == [True, False, False, False]
    assert step.tolist() == [0, 0, 1, 2]
