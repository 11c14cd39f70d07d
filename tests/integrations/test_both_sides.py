"""Frames of a batch that are read once for both of its sides, in each thread by itself."""

import threading

import numpy as np
import pytest

from diskreplay.integrations.both_sides import BothSides

SLOTS, ENVS = np.arange(5), np.zeros(5, np.int64)


@pytest.fixture
def both():
    return BothSides()


def test_within_a_block_the_same_slots_are_read_once(both):
    reads = []

    def read():
        reads.append(len(reads))
        return np.zeros(1), len(reads)

    assert not both.is_reading
    with both:
        assert both.is_reading
        first = both.windows(0, SLOTS, ENVS, read)
        assert both.windows(0, SLOTS.copy(), ENVS.copy(), read) is first
        assert both.windows(1, SLOTS, ENVS, read) is not first  # another leaf
        assert both.windows(0, SLOTS + 1, ENVS, read) is not first
        assert both.windows(0, SLOTS + 1, ENVS + 1, read) is not first
        assert len(reads) == 4
    assert not both.is_reading
    with both:
        both.windows(0, SLOTS + 1, ENVS + 1, read)
    assert len(reads) == 5


def test_outside_of_a_block_everybody_has_memory_of_their_own(both):
    one, other = both.room((2, 3), np.dtype("u1")), both.room((2, 3), np.dtype("u1"))
    assert (one.shape, one.dtype) == ((2, 3), np.uint8)
    assert not np.shares_memory(one, other)


def test_memory_is_used_again_when_nobody_looks_at_it(both):
    shape = (1000, 1000)
    with both:
        room = both.room(shape, np.dtype("u1"))
        address, view = room.ctypes.data, room[3:]
        del room
        assert both.room(shape, np.dtype("u1")).ctypes.data != address
        del view


def test_each_thread_has_its_own(both):
    seen = []
    with both:
        thread = threading.Thread(target=lambda: seen.append(both.is_reading))
        thread.start()
        thread.join()
        assert both.is_reading
    assert seen == [False]


def test_an_error_ends_the_block(both):
    with pytest.raises(ZeroDivisionError), both:
        raise ZeroDivisionError
    assert not both.is_reading
