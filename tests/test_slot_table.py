"""Which row is in which slot: the log that comes round, and rows that are added once more."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskreplay import Slots, errors
from diskreplay import slot_table as module
from diskreplay.check.verify import verify
from tests.effort import effort
from tests.test_interrupt import interrupted
from tests.test_slots import Twin, make, rows_of


def test_slots_are_in_the_order_in_which_they_were_put():
    with make() as slots:
        for at in (3, 1, 2, 1):
            slots.put([at, at + 12], rows_of(np.random.default_rng(at), 2))
        assert slots.order(0).tolist() == [3, 2, 1]
        assert slots.order(1).tolist() == [15, 14, 13]


@pytest.mark.parametrize("reopened", [False, True])
def test_slots_that_were_emptied_are_zeros_again(tmp_path, reopened):
    """Also in memory, and under the fields that the next row does not give."""
    rows = rows_of(np.random.default_rng(0), 24)
    with make(tmp_path / "slots") as slots:
        slots.put(np.arange(24), rows)
    with make(tmp_path / "slots") if reopened else make() as slots:
        slots.put(np.arange(24), rows)
        slots.empty(0)
        for name, column in slots.columns.items():
            assert not column[:12].any()
            np.testing.assert_array_equal(column[12:], rows[name][12:])
        slots.put([3], {"act": rows["act"][:1]})
        assert slots.read("rew", [3]) == 0
        assert not slots.read("done", np.arange(12)).any()


def test_a_reader_far_behind_knows_of_slots_that_were_emptied(tmp_path):
    """The row that says so has left when it looks again."""
    rng = np.random.default_rng(0)
    twin = Twin(24)
    with make(tmp_path / "slots") as slots, Slots.reader(tmp_path / "slots") as reader:
        values = rows_of(rng, 24)
        slots.put(np.arange(24), values)
        twin.put(np.arange(24), values)
        twin.check(reader)
        slots.empty(0)
        twin.empty(np.arange(12))
        for _ in range(40):
            values = rows_of(rng, 100)
            slots.put(np.full(100, 3), values)
            twin.put([3], {name: value[-1:] for name, value in values.items()})
        twin.check(reader)
        for name, column in reader.columns.items():
            np.testing.assert_array_equal(column, twin.columns[name])


@pytest.mark.costly
def test_rows_that_are_written_in_turn_are_written_once():
    with make(slots=2000) as slots:
        values = rows_of(np.random.default_rng(0), 2)
        for at in range(3000):
            slots.put([at % 1000, 1000 + at % 1000], values)
        assert slots.bounds[:, 1].tolist() == [3000, 3000]


def test_a_reward_of_the_store_is_finite():
    with Slots(None, {"reward": ((), np.float32)}, 5) as slots:
        with pytest.raises(errors.NotFiniteError, match="slot 3"):
            slots.put([1, 3], {"reward": [0.0, np.nan]})
        assert not slots.used.any()


@pytest.mark.parametrize("options", [{}, {"next_of": {"led": "seen"}}])
@pytest.mark.parametrize("slots", [[0, 10], [0, 1, 10], [*range(9)] * 20 + [9]])
def test_nothing_is_put_beside_a_reward_that_is_not_finite(options, slots):
    fields = dict.fromkeys(("seen", "led"), ((3,), np.uint8)) | {"reward": ((), np.float32)}
    with Slots(None, fields, 20, lanes=2, **options) as made:
        rewards = np.zeros(len(slots), np.float32)
        rewards[-1] = np.nan
        with pytest.raises(errors.NotFiniteError, match=f"slot {slots[-1]}"):
            made.put(slots, {"reward": rewards})
        assert not made.used.any()
        made.memory["reward"][slots[-1]] = np.inf
        with pytest.raises(errors.NotFiniteError, match=f"slot {slots[-1]}"):
            made.put(slots, {"seen": np.ones((len(slots), 3), np.uint8)})
        assert not made.used.any()


def test_a_number_of_a_slot_that_cannot_be_is_found(tmp_path):
    with make(tmp_path / "slots") as slots:
        slots.put([1], rows_of(np.random.default_rng(0), 1))
    (segment,) = (tmp_path / "slots" / "slot").rglob("*[0-9]*.*")
    damaged = bytearray(segment.read_bytes())
    damaged[0] = 99
    segment.write_bytes(damaged)
    with pytest.raises(errors.CorruptSegmentError):
        make(tmp_path / "slots")


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 5))
def test_steps_count_on_and_begin_anew_behind_an_end(ended, step):
    expected, at = [], step
    for end in ended:
        expected.append(at)
        at = 0 if end else at + 1
    assert module._steps(np.array(ended), step).tolist() == expected


@pytest.mark.parametrize("sizes", [[40], [30, 30], [50, 8, 20]])
def test_the_row_of_each_slot_is_the_newest_one_that_was_put_there(sizes):
    """And the log never has more rows of a lane than it may, wherever slots are put."""
    rng, total = np.random.default_rng(0), sum(sizes)
    twin = Twin(total)
    with make(slots=sizes, lanes=len(sizes)) as slots:
        table = slots._table
        for _ in range(300):
            at = rng.integers(0, total, rng.integers(1, 4))
            values = rows_of(rng, len(at))
            before = table.row_of.copy()
            slots.put(at, values)
            twin.put(at, values)
            lanes = slots._table.fields.lanes(np.arange(total))
            first, count = slots.bounds.T
            shown = table.row_of >= 0
            assert (shown == twin.used).all()
            assert (table.row_of[shown] >= first[lanes[shown]]).all()
            assert (table.row_of[shown] < count[lanes[shown]]).all()
            kept = np.array(sizes) + table.fields.slack
            assert (count - first <= kept).all()
            untouched = np.setdiff1d(np.arange(total), at)
            assert (table.row_of[untouched] >= before[untouched]).all()
            ids = table.ids(np.flatnonzero(shown))
            expected = table.row_of[shown] * len(sizes) + lanes[shown]
            assert ids.tolist() == expected.tolist()
        for lane, size in enumerate(sizes):
            begin = sum(sizes[:lane])
            order = table.order(lane)
            assert (
                sorted(order.tolist())
                == (begin + np.flatnonzero(twin.used[begin : begin + size])).tolist()
            )
            assert (np.diff(table.row_of[order]) > 0).all()
        twin.check(slots)


def test_rows_that_slots_still_show_are_added_once_more():
    """One slot is written again and again: the others outlive their first rows."""
    rng, twin = np.random.default_rng(1), Twin(20)
    with make(slots=20, lanes=1) as slots:
        values = rows_of(rng, 20)
        slots.put(np.arange(20), values)
        twin.put(np.arange(20), values)
        for _ in range(600):
            values = rows_of(rng, 1)
            slots.put([7], values)
            twin.put([7], values)
        ((first, count),) = slots.bounds.tolist()
        assert first > 20
        again = count - 620  # 19 rows for each time that the log comes round
        assert again % 19 == 0
        # A quarter of the 64 rows that may show nothing is looked through at a time.
        assert 19 * (count // (20 + 64) - 1) <= again <= 19 * (count // (20 + 64 - 16) + 1)
        twin.check(slots)


def test_many_rows_for_lanes_in_any_order_are_put_one_behind_the_other():
    rng, twin = np.random.default_rng(2), Twin(24)
    with make() as slots:
        for _ in range(5):
            at = rng.integers(0, 24, 300)  # more than a lane has room for at once
            values = rows_of(rng, 300)
            slots.put(at, values)
            twin.put(at, values)
            twin.check(slots)


def test_rows_are_taken_in_piece_by_piece(tmp_path, monkeypatch):
    rng, twin = np.random.default_rng(3), Twin(24)
    with make(tmp_path / "slots") as slots:
        for number in range(60):
            at = rng.integers(0, 24, 2)
            values = rows_of(rng, 2)
            slots.put(at, values)
            twin.put(at, values)
            if number == 40:
                slots.empty(1)
                twin.empty(np.arange(12, 24))
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    with make(tmp_path / "slots") as slots:
        twin.check(slots)
    with Slots.reader(tmp_path / "slots") as reader:
        twin.check(reader)


@pytest.mark.parametrize("number", [-2, 12, 23])
def test_a_number_of_another_lane_is_refused(tmp_path, number):
    with make(tmp_path / "slots") as slots:
        slots.put([1], rows_of(np.random.default_rng(0), 1))
        column = slots._table.store.columns["slot"]
        (segment,) = (each for key, each in column.segments.mapped.items() if key[0] == 0)
        segment.values[0, 0] = number
        slots._table._taken_in[0] = 0
        with pytest.raises(errors.CorruptSegmentError):
            slots._table.catch_up()
        segment.values[0, 0] = 11  # the last one of its lane
        slots._table.catch_up()
        assert slots._table.row_of[11] == 0


KINDS = {
    "plain": {},
    "two lanes": {"lanes": 2},
    "next_of": {"next_of": {"led": "seen"}},
    "stacks in two lanes": {"next_of": {"led": "seen"}, "stack": {"seen": 3}, "lanes": 2},
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # amid a generator
@pytest.mark.parametrize("call", ["one", "many", "empty"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.costly(1)
def test_ctrl_c_at_any_place(tmp_path, kind, call):
    """Memory shows what a reader finds in the store, and what comes next goes on from there."""
    fields = {"seen": ((3, 4), "uint8"), "led": ((3, 4), "uint8"), "small": ((), "int64")}
    options, rng = {"min_bytes": 9, **KINDS[kind]}, np.random.default_rng(0)
    number = len(call) % 2  # the places that calls have in common are tried in turn
    everywhere, stamps = np.arange(24), itertools.count()

    def rows(slots):
        now = np.array([next(stamps) % 40 for _ in slots], np.uint8)
        frames = (now[:, None] + np.arange(3, dtype=np.uint8))[:, :, None].repeat(4, 2)
        return slots, {"seen": frames, "led": frames + np.uint8(1), "small": now.astype(int)}

    def one():
        slots.put(*rows(rng.integers(0, size, len(slots.sizes)) + slots.offsets))

    calls = {
        "one": one,
        "many": lambda: slots.put(*rows(rng.integers(0, 24, 9))),
        "empty": lambda: slots.empty(0),
    }
    with (
        Slots(tmp_path / "slots", fields, 24, **options) as slots,
        Slots.reader(tmp_path / "slots") as reader,
    ):
        size = int(slots.sizes[0])
        slots.put(*rows(everywhere))
        while interrupted(calls[call], number):
            assert not slots._table.store.rwlock._inside, number
            for _ in range(number % 3):
                one()
            for name in fields:
                np.testing.assert_array_equal(
                    slots.read(name, everywhere), reader.read(name, everywhere)
                )
            np.testing.assert_array_equal(slots.used, reader.used)
            mine, its = slots._table.frames, reader._table.frames
            assert mine is None or mine.leads.tolist() == its.leads.tolist()
            number += effort(3, 2, 1)
        assert number > 40
    assert verify(tmp_path / "slots").clean
