"""One ring in a file, as the actor and the taker see it, beside a list of the rows put in."""

import os

import numpy as np
import pytest

from diskreplay.errors import CorruptSegmentError, SchemaError
from diskreplay.store import actor_ring
from diskreplay.store.actor_ring import (
    BEHIND,
    FIRST,
    TAKEN,
    UNTIL,
    WRITTEN,
    ActorRing,
    lost_by_a_power_cut,
    waiting_in,
)
from diskreplay.store.field import Field

FINAL_AT = 5  # of the fields
FIELDS = [
    Field("a", (3,), np.dtype("i2")), Field("b", (), np.dtype("f8")), Field("c", (), np.dtype("?")),
    Field("d", (), np.dtype("f2")), Field("e", (2, 2), np.dtype("u1")),
    Field("is_final", (), np.dtype("?")),
]  # fmt: skip
PLACES = 7


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ring.0"


@pytest.fixture
def ring(path):
    return ActorRing.create(path, FIELDS, PLACES)


def row(number):
    return [
        np.full(3, -number), number / 4, number % 2 == 1, number % 100, np.full((2, 2), number),
        False,
    ]  # fmt: skip


def put(ring, number):
    ring.put(number, row(number), number + 0.5)
    ring.publish(number + 1)


def check(columns, priorities, numbers):
    """That what was taken are the rows of these numbers."""
    assert priorities.tolist() == [number + 0.5 for number in numbers]
    for field, column, at in zip(FIELDS, columns, range(len(FIELDS)), strict=True):
        assert column.dtype == field.dtype
        assert column.shape == (len(numbers), *field.shape)
        for found, number in zip(column, numbers, strict=True):
            assert (found == np.asarray(row(number)[at]).astype(field.dtype)).all()


def test_a_new_one_is_empty(path, ring):
    assert ring.rows == PLACES
    assert ring.waiting == 0
    assert ring.words[BEHIND] == -1
    assert ring.of_this_boot
    assert [len(column) for column in ring.run(99, FINAL_AT)[0]] == [0] * len(FIELDS)
    assert ring.id != ActorRing.create(path.with_name("other"), FIELDS, PLACES).id


def test_rows_are_taken_in_their_order_and_places_used_again(path, ring):
    """By another process: one that has the same file mapped."""
    taker, rng = ActorRing(path, FIELDS), np.random.default_rng(0)
    written = taken = 0
    while taken < 200:
        for _ in range(int(rng.integers(0, PLACES - (written - taken) + 1))):
            put(ring, written)
            written += 1
        assert taker.waiting == written - taken
        most = int(rng.integers(1, PLACES + 1))
        columns, priorities = taker.run(most, FINAL_AT)
        count = len(priorities)
        # As many as lie side by side.
        assert count == min(most, written - taken, PLACES - taken % PLACES)
        check(columns, priorities, range(taken, taken + count))
        taker.begin(1000 + taken, count)
        assert taker.words[TAKEN] == taken  # nobody may write over them yet
        assert taker.note_committed(1000 + taken + count) == count
        taken += count
        assert taker.words[TAKEN] == taker.words[UNTIL] == taken
        assert taker.words[BEHIND] == 1000 + taken


@pytest.mark.parametrize("most", [2, 3, 99])
def test_a_step_is_not_taken_without_its_final_row(path, ring, most):
    """They were two runs, where the first one ended between them: at the end of the ring, say."""
    taker, put_in, taken = ActorRing(path, FIELDS), 0, 0
    for step in range(60):
        if step % 3 == 2:  # of three steps the last one has a final row
            ring.put(put_in, row(put_in), put_in + 0.5)
            ring.put(put_in + 1, [*row(put_in + 1)[:-1], True], put_in + 1.5)
            put_in += 2
        else:
            ring.put(put_in, row(put_in), put_in + 0.5)
            put_in += 1
        ring.publish(put_in)
        while taker.waiting > (0 if step == 59 else 3):
            columns, priorities = taker.run(most, FINAL_AT)
            count = len(priorities)
            assert 0 < count <= most
            numbers = range(taken, taken + count)
            assert priorities.tolist() == [number + 0.5 for number in numbers]
            assert columns[1].tolist() == [number / 4 for number in numbers]
            assert columns[FINAL_AT].tolist() == [number % 4 == 3 for number in numbers]
            assert numbers[-1] % 4 != 2
            taker.begin(taken, count)
            taken += count
            assert taker.note_committed(taken) == count
    assert taken == put_in == 80


def test_what_is_left_out_is_zeros(ring):
    ring.put(0, row(5), 1.0)
    ring.put(0, [None] * len(FIELDS), np.nan)
    ring.publish(1)
    columns, priorities = ring.run(1, FINAL_AT)
    assert not any(column.any() for column in columns)
    assert np.isnan(priorities).all()


@pytest.mark.parametrize("committed", [0, 1, 3, 4])
def test_a_taker_that_died_amid_its_work(path, ring, committed):
    """How much of it is in the store, the store's count says; none is taken twice or left out."""
    for number in range(6):
        put(ring, number)
    ring.begin(50, 4)
    again = ActorRing(path, FIELDS)
    assert again.words[FIRST] == 50
    assert again.note_committed(50 + committed) == committed
    check(*again.run(99, FINAL_AT), range(committed, 6))
    assert again.waiting == 6 - committed
    assert again.words[BEHIND] == 50 + committed
    assert again.note_committed(50 + committed) == 0  # nothing is under way


@pytest.mark.parametrize(("count", "done"), [(49, 0), (0, 0), (55, 4), (10**9, 4)])
def test_a_store_that_went_back_or_had_other_rows_since(ring, count, done):
    for number in range(6):
        put(ring, number)
    ring.begin(49, 1)
    ring.note_committed(50)
    ring.begin(50, 4)
    assert ring.note_committed(count) == done
    assert ring.words[TAKEN] == 1 + done


def test_rows_that_wait_are_dropped(path, ring):
    for number in range(5):
        put(ring, number)
    ring.begin(0, 2)
    ring.note_committed(2)
    assert ring.drop() == 3
    assert ring.waiting == 0
    assert ring.words[BEHIND] == -1
    assert ring.note_committed(99) == 0
    for number in range(5, 5 + PLACES):  # all places are free
        put(ring, number)
    assert ring.waiting == PLACES
    check(*ActorRing(path, FIELDS).run(2, FINAL_AT), range(5, 7))
    assert ring.drop() == PLACES
    assert ring.drop() == 0


def test_one_that_is_dropped_while_rows_are_on_their_way(ring):
    for number in range(5):
        put(ring, number)
    ring.begin(0, 4)
    ring.drop()
    assert ring.note_committed(4) == 0
    assert ring.words[UNTIL] == ring.words[TAKEN] == 5


# -- files that are no rings


def test_rows_of_no_two_fields_share_a_line(path, ring):
    places = [column.ctypes.data for column in ring.columns]
    assert all(place % 64 == 0 for place in places)
    ends = [place + column.nbytes for place, column in zip(places, ring.columns, strict=True)]
    assert all(end <= start for end, start in zip(ends, places[1:], strict=False))
    assert os.stat(path).st_size % 4096 == 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096])
def test_a_file_that_is_cut(path, ring, size):
    os.truncate(path, size)
    with pytest.raises(CorruptSegmentError):
        ActorRing(path, FIELDS)


def test_a_file_that_was_not_made_to_its_end(path, ring):
    with open(path, "r+b") as file:
        file.write(bytes(8))
    with pytest.raises(CorruptSegmentError, match="not made to its end"):
        ActorRing(path, FIELDS)


@pytest.mark.parametrize("rows", [-1, 0, PLACES + 600, 2**24 + 1, 2**62])
def test_a_ring_of_so_many_rows_has_another_length(path, ring, rows):
    with open(path, "r+b") as file:
        file.seek(actor_ring._HEADER.fields["rows"][1])
        file.write(rows.to_bytes(8, "little", signed=True))
    with pytest.raises(CorruptSegmentError, match=f"a ring of {rows} rows does not have"):
        ActorRing(path, FIELDS)


@pytest.mark.parametrize(
    ("written", "taken", "until", "sound"),
    [
        (7, 0, 0, True), (7, 0, 7, True), (9, 3, 5, True), (3, 3, 3, True), (3, 3, 0, True),
        (8, 0, 0, False), (2, 3, 0, False), (5, 3, 6, False), (-1, -1, -2, False),
        (-2, -3, -3, False), (2**62, 0, 0, False),
    ],
)  # fmt: skip
def test_numbers_that_no_two_processes_can_have_left(path, ring, written, taken, until, sound):
    for at, number in ((WRITTEN, written), (TAKEN, taken), (UNTIL, until)):
        ring.words[at] = number
    if sound:
        assert ActorRing(path, FIELDS).waiting == written - taken
    else:
        with pytest.raises(CorruptSegmentError, match="damaged: "):
            ActorRing(path, FIELDS)


def test_one_of_another_boot(path, ring):
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\xff another".ljust(56, b"\0"))  # no UTF-8 either
    assert not ActorRing(path, FIELDS).of_this_boot


@pytest.mark.parametrize(
    ("written", "taken", "places", "lost"),
    [
        (5, 5, 7, None), (5, 3, 7, "2"), (12, 5, 7, "7"), (13, 5, 7, "an unknown number of rows"),
        (3, 5, 7, "an unknown number of rows"), (-1, -3, 7, "an unknown number of rows"),
        (0, 0, 0, "an unknown number of rows"), (9, 9, -1, "an unknown number of rows"),
        (2**62, 0, 7, "an unknown number of rows"), (5, 3, 1 << 60, "an unknown number of rows"),
    ],
)  # fmt: skip
def test_what_a_power_cut_took_is_said(path, ring, monkeypatch, written, taken, places, lost):
    """Counts that cannot be do not say that there was nothing."""
    ring.words[WRITTEN], ring.words[TAKEN] = written, taken
    ring.words[(8 + 56 + 64 + 32) // 8] = places
    assert lost_by_a_power_cut(path) is None
    monkeypatch.setattr(actor_ring, "boot_id", lambda: "another")
    said = lost_by_a_power_cut(path)
    assert (f"are lost ({lost}): " in said) if lost else said == ""
    assert waiting_in(path) == (int(lost) if lost and lost.isdecimal() else 0)


def test_of_a_ring_that_is_cut_in_its_header_nobody_knows(path, ring, monkeypatch):
    monkeypatch.setattr(actor_ring, "boot_id", lambda: "another")
    path.write_bytes(path.read_bytes()[:600])
    assert "are lost (an unknown number of rows): " in lost_by_a_power_cut(path)
    assert waiting_in(path) == 0


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS[:-1], FIELDS[::-1], [*FIELDS, FIELDS[0]],
        [Field("x", (3,), np.dtype("i2")), *FIELDS[1:]],
        [Field("a", (1, 3), np.dtype("i2")), *FIELDS[1:]],
        [Field("a", (3,), np.dtype("u2")), *FIELDS[1:]],
    ],
)  # fmt: skip
def test_fields_of_another_form(path, ring, fields):
    with pytest.raises(SchemaError, match="another form"):
        ActorRing(path, fields)


def test_how_they_are_compressed_does_not_matter(path, ring):
    packed = [Field(field.name, field.shape, field.dtype, "zstd", 64) for field in FIELDS]
    put(ring, 0)
    check(*ActorRing(path, packed).run(1, FINAL_AT), [0])
