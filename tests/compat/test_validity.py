"""Which slots can be sampled, beside the rule read off a list of all rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from diskreplay.compat.reagent.validity import Validity
from tests.effort import effort


class Rows:
    """All rows ever added: (whether an episode ends there, whether it is padding)."""

    def __init__(self, capacity, stack, horizon):
        self.capacity, self.stack, self.horizon = capacity, stack, horizon
        self.rows = []

    def add(self, terminal):
        """A row, and the padding before the first one of an episode; how many rows these are."""
        before = len(self.rows)
        if not self.rows or self.rows[-1][0]:
            self.rows += [(False, True)] * (self.stack - 1)
        self.rows.append((terminal, False))
        return len(self.rows) - before - 1

    def valid(self):
        count, found = len(self.rows), set()
        first = max(count - self.capacity, 0)
        for row in range(first, count):
            window = self.rows[row : row + self.horizon]
            ends = any(terminal for terminal, _ in window)
            if self.rows[row][1] or row - (self.stack - 1) < first:
                continue
            if ends or row + self.horizon < count:
                found.add(row % self.capacity)
        return sorted(found)

    def made(self, rows=None):
        """As it is made for a ring with these rows."""
        rows = self.rows if rows is None else rows
        stored = rows[-self.capacity :]
        return Validity(
            self.capacity, self.stack, self.horizon, len(rows),
            np.array([terminal for terminal, _ in stored], np.uint8),
            np.array([padding for _, padding in stored], np.bool_),
        )  # fmt: skip


def check(found, rows):
    valid = rows.valid()
    assert np.flatnonzero(found.valid).tolist() == valid
    assert found.size == len(valid)
    first = max(len(rows.rows) - rows.capacity, 0)
    for row in range(first, len(rows.rows)):
        assert found.terminal[row % rows.capacity] == rows.rows[row][0]
    ended = not rows.rows or rows.rows[-1][0]
    assert found.padding_due == (rows.stack - 1 if ended else 0)


@settings(max_examples=effort(40, 120, 800))
@given(
    stack=st.integers(1, 4), horizon=st.integers(1, 4), more=st.integers(0, 9),
    ends=st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=50),
    again=st.integers(0, 50),
)  # fmt: skip
def test_rows_one_by_one(stack, horizon, more, ends, again):
    """And made anew of what is stored, after some of them."""
    rows = Rows(stack + horizon + more, stack, horizon)
    found = rows.made()
    for number, terminal in enumerate(ends):
        slot = len(rows.rows)
        for _ in range(rows.add(terminal)):
            found.pad(slot % rows.capacity)
            slot += 1
        found.add(slot % rows.capacity, int(terminal))
        check(found, rows)
        check(rows.made(), rows)
        if number == again:
            found = rows.made()
        ranks = np.arange(found.size)[:: 1 + number % 3]
        assert found.at(ranks).tolist() == np.array(rows.valid(), int)[ranks].tolist()


@pytest.mark.parametrize("padded", range(4))
def test_padding_that_was_cut_goes_on(padded):
    """A process that was killed amid the padding of an episode."""
    rows = Rows(20, 4, 1)
    rows.add(True)
    found = rows.made([*rows.rows, *[(False, True)] * padded])
    assert found.padding_due == 3 - padded


def test_slots_are_made_valid_by_hand_and_found_in_order():
    rows = Rows(64, 1, 1)
    found = rows.made()
    for slot in (40, 3, 17, 60):
        found.set(slot, True)
        found.set(slot, True)
    assert found.size == 4
    assert found.at(np.arange(4)).tolist() == [3, 17, 40, 60]
    found.set(17, False)
    assert found.at(np.array([2, 0])).tolist() == [60, 3]
    for slot in range(64):  # more than are worth to be set one by one
        found.set(slot, slot % 2 == 0)
    assert found.at(np.arange(32)).tolist() == list(range(0, 64, 2))
