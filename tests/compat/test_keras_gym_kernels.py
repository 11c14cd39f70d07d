"""Which rows keras-gym's buffer can use, and their returns, beside a list of rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat.keras_gym_kernels import judge
from tests.effort import effort

GAMMA = 0.5


@settings(max_examples=effort(60, 150, 800))
@given(
    size=st.integers(2, 12), n=st.integers(1, 4), before=st.integers(0, 3),
    ends=st.lists(st.sampled_from([False, False, False, True]), max_size=30),
    had=st.integers(0, 3), apart=st.sets(st.integers(0, 11), max_size=3),
)  # fmt: skip
def test_rows_are_judged_as_a_list_of_all_of_them_says(size, n, before, ends, had, apart):
    count = len(ends)
    starts, dones, rewards = np.full(size, -1), np.zeros(size, np.bool_), np.zeros(size)
    begins, begin = [], 0
    for row, end in enumerate(ends):
        begins.append(begin)
        starts[row % size], dones[row % size], rewards[row % size] = begin, end, row + 1.0
        if end:
            begin = row + 1
    slots = np.arange(min(count, size))
    aside = np.isin(np.arange(size), list(apart))
    rows = np.full((2, had + size), -7)
    returns, factors = np.full(had + size, -7.0), np.full(had + size, -7.0)
    powers = GAMMA ** np.arange(n + 1)
    found = judge(
        slots, count, before, starts, dones, aside, rewards, powers, rows, returns, factors, had
    )  # fmt: skip
    expected = []
    for slot in slots.tolist():
        row = max(r for r in range(count) if r % size == slot)
        if slot in apart or row - before < count - size:
            continue
        window = [r for r in range(row, row + n) if r < count and begins[r] == begins[row]]
        over = ends[window[-1]]
        follows = row + n < count and begins[row + n] == begins[row]
        if over or follows:
            total = sum(GAMMA ** (r - row) * (r + 1.0) for r in window)
            expected.append((row, row + n, total, 0.0 if over else GAMMA**n))
    assert found == had + len(expected)
    made = zip(rows[0, had:], rows[1, had:], returns[had:], factors[had:], strict=True)
    assert [tuple(map(float, each)) for each in made][: len(expected)] == [
        tuple(map(float, each)) for each in expected
    ]
    assert (rows[:, :had] == -7).all()
