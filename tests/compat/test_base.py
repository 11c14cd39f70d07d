"""What the older APIs without files of their own share: which columns are in memory, and a ring
that may come later."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.compat import base
from diskreplay.compat.base import Facade, in_memory
from diskreplay.errors import ClosedError, FormatError
from tests.effort import effort

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.costly
@settings(max_examples=effort(40, 100, 400))
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 3 * KIB), max_size=6),
       st.integers(1, 300_000))  # fmt: skip
def test_the_smallest_columns_are_in_memory(sizes, rows):
    found = in_memory(sizes, rows)
    assert all(sizes[name] <= KIB for name in found)
    assert sum(sizes[name] * rows for name in found) <= 128 * MIB
    others = sizes.keys() - found
    if found and others:
        assert max(sizes[name] for name in found) <= min(sizes[name] for name in others)
    if others:  # the next one would be too large, or too much
        more = min(sizes[name] for name in others)
        assert more > KIB or (sum(sizes[n] for n in found) + more) * rows > 128 * MIB


class Recorder(Facade):
    """A facade that notes what it is told."""

    _row_notes = ("begun",)
    _note_bounds = {"figure": (0.0, 1.0)}  # noqa: RUF012

    def __init__(self, path, capacity=10, **options):
        super().__init__(path, capacity, "recorder", **options)
        self.told = []
        self._reopen()

    def put(self, number):
        if self._ring is None:
            self._make_ring(Box(0, 255, (2,), np.uint8), Discrete(9), {})
        row = {
            "observation": np.full(2, number, np.uint8), "action": number % 9,
            "reward": float(number), "terminated": False,
        }  # fmt: skip
        self._commit(row, lambda *told: self.told.append(told), "value")

    def _recall(self, ring):
        self.told.append("recall")

    def _hand_over(self, ring, *, closing):
        self.told.append(f"closing {closing}")

    def shown(self):
        slots = np.arange(min(self._ring.count, self._ring.capacity))
        return self._ring.read("reward", slots).tolist()


def test_the_ring_comes_with_the_first_row(tmp_path):
    with Recorder(tmp_path / "store") as made:
        assert made.path == tmp_path / "store"
        assert not (tmp_path / "store").exists()
        made.flush()
        made.put(0)
        made.put(1)
        made.flush()
        assert made.told == ["recall", (0, "value"), (1, "value"), "closing False"]
    assert made.told[-1] == "closing True"
    made.close()
    assert made.told.count("closing True") == 1
    with Recorder(tmp_path / "store") as again:
        assert again.told == ["recall"]
        assert again.shown() == [0.0, 1.0]
        again.put(2)
        assert again.told[-1] == (2, "value")


def test_one_that_was_closed_before_its_first_row_makes_no_store(tmp_path):
    made = Recorder(tmp_path / "store")
    made.close()
    with pytest.raises(ClosedError, match="closed before its first row"):
        made.put(0)
    assert not (tmp_path / "store").exists()
    temporary = Recorder(None)
    assert temporary.path is None
    temporary.put(0)
    assert temporary.path.exists()
    temporary.close()
    assert not temporary.path.exists()


def test_a_place_with_something_else_is_refused_at_once(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for place in ("full", "file"):
        with pytest.raises(FormatError, match="holds something else and no store"):
            Recorder(tmp_path / place)
    Recorder(tmp_path / "empty").close()


@pytest.mark.parametrize("at", [True, False])
def test_memory_knows_of_a_row_though_ctrl_c_came(at):
    """Amid the row that is committed, or amid what memory is told."""
    with Recorder(None) as made:
        made.put(0)
        ring, real = made._ring, made._ring.put

        def put(row):
            real(row)
            raise KeyboardInterrupt

        told = []

        def took(number):
            told.append(number)
            if not at and len(told) == 1:
                raise KeyboardInterrupt

        if at:
            ring.put = put
        row = {
            "observation": np.zeros(2, np.uint8), "action": 1, "reward": 7.0, "terminated": False
        }  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            made._commit(row, took)
        assert told == ([1] if at else [1, 1])
        assert made.shown() == [0.0, 7.0]


def test_a_ring_that_has_grown_begins_with_its_oldest_row(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_ROWS_AT_ONCE", 3)
    with Recorder(tmp_path / "store", 4) as made:
        for number in range(7):
            made.put(number)
        assert made.shown() == [4.0, 5.0, 6.0, 3.0]
        made._ring.notes = {"begun": 5, "figure": 0.5}
    with Recorder(tmp_path / "store", 10) as again:
        assert again.shown() == [3.0, 4.0, 5.0, 6.0]
        assert again._ring.notes == {"begun": 2, "figure": 0.5}
        again.put(7)
        assert again.shown() == [3.0, 4.0, 5.0, 6.0, 7.0]
