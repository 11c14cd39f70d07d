"""Records of stacked frames in rows, and back: what was placed is what is found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.frame_chains import Chain, FrameChains
from tests.effort import effort


def frames_of(numbers):
    """A frame of two bytes for each number."""
    return np.stack([np.asarray(numbers), 2 * np.asarray(numbers)], axis=-1).astype(np.uint8)


def column_of(stacks):
    """Numbers of frames as the column of a field: the frames of a stack along the first axis."""
    stacks = frames_of(stacks)
    return stacks.reshape(len(stacks), -1)


class Game:
    """Records as lists of frame numbers: (the stack that was seen, the stack that it led to)."""

    def __init__(self, draw, stack):
        self.draw, self.stack, self.number = draw, stack, 0
        self.seen = self.fresh()

    def fresh(self):
        self.number += self.stack
        return list(range(self.number - self.stack + 1, self.number + 1))

    def record(self):
        how = self.draw(st.sampled_from(["on", "on", "on", "begins", "apart", "again"]))
        if how in ("begins", "apart"):
            self.seen = self.fresh()
        self.number += 1
        led = [*self.seen[1:], self.number]
        if how == "apart":  # what it led to has nothing in common with what was seen
            led = self.fresh()
        found = self.seen, led
        if how != "again":
            self.seen = led
        return found


LAYOUTS = {  # stack; whether what a record led to is a column
    "next": (1, True), "stack": (3, False), "both": (3, True), "pair": (2, True),
}  # fmt: skip


def chains_of(stack, has_next):
    following = "led" if has_next else None
    return FrameChains([Chain("seen", following, stack, (2,))])


def columns_of(records, has_next):
    columns = {"seen": column_of([seen for seen, _ in records])}
    if has_next:
        columns["led"] = column_of([led for _, led in records])
    return columns


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=effort(25, 60, 400))
@given(st.data())
def test_what_was_placed_piece_by_piece_is_found(layout, data):
    stack, has_next = LAYOUTS[layout]
    chains, game = chains_of(stack, has_next), Game(data.draw, stack)
    rows, at, back, records, tip = np.zeros((0, 2), np.uint8), [], [], [], None
    for size in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
        some = [game.record() for _ in range(size)]
        columns = columns_of(some, has_next)
        if data.draw(st.integers(0, 5)) == 0:
            tip = None  # a lane was emptied: nothing is gone on from
        placed = chains.place(columns, tip)
        assert len(placed.frames["seen"]) == placed.rows == placed.at[-1] + 1
        leads = np.diff(placed.at, prepend=-1) - 1
        assert (leads <= chains.reach).all()
        at += (len(rows) + placed.at).tolist()
        back += placed.back.tolist()
        rows = np.concatenate([rows, placed.frames["seen"]])
        records += some
        tip = {name: column[-1:] for name, column in chains.tip(columns).items()}
    at, back = np.array(at), np.array(back)
    if not chains.has_back:
        assert set(back.tolist()) <= {chains.least_back}
        back = None
    for name, side in (("seen", 0), ("led", 1))[: 1 + has_next]:
        field, where = chains.window(name, at, back)
        assert field == "seen"
        where = where.reshape(len(at), stack)
        assert (where >= 0).all()
        assert (where >= at[:, None] - chains.reach).all()
        np.testing.assert_array_equal(rows[where], frames_of([each[side] for each in records]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_that_go_on_cost_one_row_each(layout):
    stack, has_next = LAYOUTS[layout]
    chains = chains_of(stack, has_next)
    records = [(list(range(n, n + stack)), list(range(n + 1, n + 1 + stack))) for n in range(1, 9)]
    columns = columns_of(records, has_next)
    placed = chains.place(columns, None)
    first = stack - 1 + has_next  # the frames before the newest of the first one
    assert placed.at.tolist() == list(range(first, first + 8))
    np.testing.assert_array_equal(
        placed.frames["seen"][:, 0], np.arange(1, first + 9).astype(np.uint8)
    )
    tip = {name: column[-1:] for name, column in chains.tip(columns).items()}
    later = columns_of([(list(range(9, 9 + stack)), list(range(10, 10 + stack)))], has_next)
    assert chains.place(later, tip).rows == 1
    assert chains.place(later, None).rows == 1 + first
    newest = frames_of([(led if has_next else seen)[-1] for seen, led in records])
    np.testing.assert_array_equal(chains.newest(columns)["seen"], newest)


def test_each_pair_is_compared_with_its_own():
    chain = Chain("seen", None, 3, (2,))
    older = column_of([[1, 2, 3], [1, 2, 3], [4, 5, 6]])
    newer = column_of([[2, 3, 9], [2, 4, 9], [5, 6, 0]])
    assert chain.moves_on(older, newer).tolist() == [True, False, True]
    both = FrameChains([Chain("seen", "led", 3, (2,))])
    columns = {"seen": older, "led": newer}
    assert both.sliding(columns).tolist() == [True, False, True]
    tips = {"led": column_of([[1, 2, 3], [1, 2, 3], [4, 5, 7]])}
    assert both.continuing(columns, tips).tolist() == [True, True, False]


def test_nan_goes_on_from_nan_bit_by_bit():
    chains = FrameChains([Chain("seen", "led", 1, (1,))])
    nan = np.full((2, 1), np.nan, np.float32)
    assert chains.continuing({"seen": nan}, {"led": nan}).all()
    zeros = np.zeros((2, 1), np.float32)
    assert not chains.continuing({"seen": zeros}, {"led": -zeros}).any()


def test_several_columns_have_their_rows_in_common():
    """A record goes on only if each of its columns does."""
    chains = FrameChains([Chain("a", "b", 1, (2,)), Chain("c", None, 2, (2,))])
    assert bool(chains)
    assert not FrameChains([])
    assert (chains.reach, chains.has_back, chains.least_back) == (3, True, 1)
    records = {
        "a": column_of([[1], [2], [3]]), "b": column_of([[2], [3], [4]]),
        "c": column_of([[10, 11], [11, 12], [12, 14]]),
    }  # fmt: skip
    assert chains.place(records, None).at.tolist() == [2, 3, 4]
    records["c"][2] = column_of([[13, 14]])
    placed = chains.place(records, None)
    assert placed.at.tolist() == [2, 3, 6]
    for name, back in (("a", placed.back), ("b", None), ("c", placed.back)):
        field, where = chains.window(name, placed.at, back)
        found = placed.frames[field][where].reshape(3, -1)
        np.testing.assert_array_equal(found, records[name])


def test_nothing_is_nowhere_and_other_columns_are_in_no_chain():
    chains = FrameChains([Chain("seen", "led", 2, (2,))])
    rows = np.array([[5, -1], [9, 12]])
    _, where = chains.window("led", rows, None)
    assert where.tolist() == [[[4, 5], [-1, -1]], [[8, 9], [11, 12]]]
    _, where = chains.window("seen", rows, np.array([[1, 1], [2, 1]]))
    assert where.tolist() == [[[3, 4], [-1, -1]], [[6, 7], [10, 11]]]
    assert chains.window("reward", rows, None) is None
