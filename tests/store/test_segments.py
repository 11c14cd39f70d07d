"""Which segments of a field are mapped, open, full, sealed and left."""

import numpy as np
import pytest

from diskreplay.store.field import Field
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import UNKNOWN, Seal, Segment
from diskreplay.store.segment_table import SegmentTable
from diskreplay.store.segments import Segments

ROWS, LAG = 4, 4


class Summed(Segment):
    """A segment without a file."""

    sums = closed = 0

    def addresses(self, places):
        return 1 + places, self.number + 1

    def sum(self):
        self.sums += 1
        return Seal(self.number, self.sums)

    def close(self):
        self.closed += 1


class Case:
    def __init__(self, num_envs=4, group=2, **options):
        self.field = Field("f", (3,), np.dtype("u1"), "raw", ROWS, group, **options)
        rwlock = RWLock()
        self.table = SegmentTable(self.field, num_envs, None, rwlock)
        self.segments = Segments(self.field, num_envs, self.table, rwlock)
        self.told = 0
        self.segments.tell_readers = self.tell

    def tell(self):
        self.told += 1

    def add(self, number, group=0, seal=None, envs=None):
        segment = Summed(self.field, number, group, None, seal)
        every = np.arange(segment.envs.start, segment.envs.stop)
        self.segments.adopt(segment, every if envs is None else np.array(envs))
        return segment


def test_one_without_a_seal_is_open():
    case = Case()
    sealed, open_ = case.add(0, seal=UNKNOWN), case.add(1)
    assert case.segments.mapped == {(0, 0): sealed, (1, 0): open_}
    assert case.segments.open == {(1, 0): open_}
    seal = Seal(7, 8)
    case.segments.seal(open_, seal)
    assert case.segments.open == {}
    assert open_.seal is seal is case.segments.seals[1, 0]


def test_full_is_what_every_env_of_the_group_has_passed():
    case = Case()
    one, other = case.add(0), case.add(0, group=1)
    later = case.add(1)
    for progress, expected in (
        ([3, 9, 9, 9], [other]), ([4, 3, 3, 4], []), ([4, 4, 0, 0], [one]),
        ([8, 8, 4, 4], [one, other, later]),
    ):  # fmt: skip
        assert case.segments.full(np.array(progress)) == expected


def test_one_is_outrun_when_the_fastest_is_so_many_segments_ahead():
    case = Case()
    segment = case.add(2)
    stop = 3 * ROWS
    for fastest in (stop + LAG * ROWS - 1, stop + LAG * ROWS):
        progress = np.array([0, fastest, 10**6, 10**6])  # of the other group
        assert case.segments.outrun(segment, progress) == (fastest == stop + LAG * ROWS)


def test_one_that_was_opened_again_is_given_as_long_again():
    case = Case()
    old = case.add(0, seal=UNKNOWN)
    case.add(6)
    case.add(40, group=1)  # of the other group
    case.segments.seals[0, 0] = Seal(1, 1)
    new = Summed(case.field, 0, 0, None)
    case.segments.reopen(old, new)
    assert case.segments.mapped[0, 0] is new is case.segments.open[0, 0]
    assert (0, 0) not in case.segments.seals
    assert case.told == 1
    assert case.table.pointed(new).tolist() == [0, 1]
    newest = 7 * ROWS
    assert not case.segments.outrun(new, np.array([0, newest + LAG * ROWS - 1, 0, 0]))
    assert case.segments.outrun(new, np.array([0, newest + LAG * ROWS, 0, 0]))


def test_a_seal_is_found_out_once():
    case = Case()
    known, unknown = case.add(0, seal=UNKNOWN), case.add(1, seal=UNKNOWN)
    case.segments.seals[0, 0] = Seal(3, 4)
    assert case.segments.seal_of(known) == Seal(3, 4)
    assert case.segments.seal_of(unknown) == case.segments.seal_of(unknown) == Seal(1, 1)
    assert (known.sums, unknown.sums) == (0, 1)
    assert case.segments.seals[1, 0] == Seal(1, 1)


def test_a_segment_leaves_when_no_env_has_a_row_in_it():
    case = Case()
    case.add(0)
    kept, other = case.add(1), case.add(0, group=1)
    count = np.array([9, 9, 9, 9])
    assert case.segments.forget(np.array([4, 3, 0, 4]), count) == []
    (gone,) = case.segments.forget(np.array([4, 4, 3, 8]), count)
    assert (gone.key, gone.closed) == ((0, 0), 1)
    assert case.segments.mapped == case.segments.open == {(1, 0): kept, (0, 1): other}


@pytest.mark.parametrize("writes", [False, True])
def test_rows_of_a_slow_env_in_the_tail_keep_a_segment_for_the_writer(writes):
    """A flush has written them to its file. A reader may find that env in another one."""
    case = Case()
    segment = case.add(0, envs=[1])  # env 0 is not pointed to it
    first, count = np.array([0, 4, 0, 0]), np.array([3, 9, 0, 0])
    assert case.segments.forget(first, count if writes else None) == [segment] * (not writes)
    first[0] = 4
    assert case.segments.forget(first, count if writes else None) == [segment] * writes


@pytest.mark.parametrize("mutable", [False, True])
def test_a_reader_drops_what_may_become_another_file(mutable):
    case = Case(mutable=mutable)
    passed, begun = case.add(0, seal=UNKNOWN), case.add(1, seal=UNKNOWN)
    case.segments.drop_unfinished(np.array([4, 9, 9, 9]))
    assert case.segments.mapped == ({} if mutable else {(0, 0): passed})
    assert begun.closed == 1
    case.segments.close()
    assert case.segments.mapped == {}
    assert passed.closed == 1
    assert not case.table.pointed(passed).size
