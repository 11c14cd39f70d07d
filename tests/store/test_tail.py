"""The rows that are in no shard yet: which blocks are full, and where they are."""

import numpy as np
import pytest

from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import NoShard
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment_table import LIVE, PACKED, TAIL, TAIL_ROWS, SegmentTable
from diskreplay.store.tail import Tail

BLOCK, SEGMENT = 8, 32


def made(num_envs, group, row_bytes=6):
    field = Field("f", (row_bytes,), np.dtype("u1"), "lz4", SEGMENT, group, BLOCK)
    table = SegmentTable(field, num_envs, None, RWLock())
    return field, table, Tail(field, num_envs, table)


def full_blocks(packed, count):
    """Env and first row of every full block that is in no shard."""
    for env, (start, stop) in enumerate(zip(packed.tolist(), count.tolist(), strict=True)):
        yield from ((env, row) for row in range(start, stop - BLOCK + 1, BLOCK))


@pytest.mark.parametrize(("num_envs", "group"), [(1, 1), (3, 3), (5, 2)])
def test_the_oldest_blocks_are_full_of_one_segment_and_none_is_left_out(num_envs, group):
    rng = np.random.default_rng(0)
    _field, _table, tail = made(num_envs, group)
    for _ in range(300):
        packed = rng.integers(0, 12, num_envs) * BLOCK
        count = packed + rng.integers(0, tail.rows + 1, num_envs)
        tail.bind(None, packed, None)
        there = set(full_blocks(packed, count))
        while True:
            envs, starts = tail.oldest(np.arange(num_envs), count)
            found = list(zip(envs.tolist(), starts.tolist(), strict=True))
            if not found:
                break
            assert len({(row // SEGMENT, env // group) for env, row in found}) == 1
            for env, row in found:  # those of each env in their order, from its first one on
                assert row == packed[env]
                packed[env] += BLOCK
            assert there.issuperset(found)
            there.difference_update(found)
        assert not there


def test_some_megabytes_at_once_at_most():
    field, _table, tail = made(40, 40, row_bytes=100_000)
    tail.bind(None, np.zeros(40, np.int64), None)
    envs, _starts = tail.oldest(np.arange(40), np.full(40, tail.rows))
    assert 0 < len(envs) * field.block_bytes <= 4 << 20


@pytest.mark.parametrize(("num_envs", "group"), [(1, 1), (3, 3), (5, 2)])
def test_the_blocks_of_a_segment_with_rows_here(num_envs, group):
    rng = np.random.default_rng(1)
    field, _table, tail = made(num_envs, group)
    for trial in range(300):
        packed = rng.integers(0, 12, num_envs) * BLOCK
        count = packed + rng.integers(0, tail.rows + 1, num_envs)
        tail.bind(None, packed, None)
        segment = NoShard(field, trial % 4, int(rng.integers(-(-num_envs // group))))
        expected = []
        for env in range(num_envs)[segment.envs]:
            rows = range(max(int(packed[env]), segment.start), min(int(count[env]), segment.stop))
            expected += [
                (env, row, min(BLOCK, len(rows) - at))
                for at, row in enumerate(rows) if at % BLOCK == 0
            ]  # fmt: skip
        found = [values.tolist() for values in tail.blocks_of(segment, count)]
        assert list(zip(*found, strict=True)) == expected


def test_places_are_used_in_turn(tmp_path):
    field, table, tail = made(3, 3)
    mapping = Mapping.create(tmp_path / "tail", field.tail_bytes(3))
    packed = np.zeros(3, np.int64)
    tail.bind(mapping, packed, None)
    assert table.array[[TAIL, TAIL_ROWS]].tolist() == [mapping.address, tail.rows]
    assert table.array[[PACKED, LIVE]].tolist() == [packed.ctypes.data] * 2
    rows = np.array([0, tail.rows - 1, tail.rows, 3 * tail.rows + 2])
    for env in range(3):
        for row, address in zip(rows, tail.addresses(np.full(4, env), rows), strict=True):
            place = tail.places[env, row % tail.rows]
            assert place.ctypes.data == address
    tail.bind(None, packed, None)
    assert table.array[[TAIL, TAIL_ROWS]].tolist() == [0, 0]


def test_a_reader_looks_again_when_rows_that_it_looks_for_are_in_a_shard_by_now():
    _field, table, tail = made(2, 2)
    live = np.array([8, 16])
    tail.bind(None, np.zeros(2, np.int64), live)
    tail.follow(np.array([8, 16]), np.array([12, 20]))
    assert table.array[LIVE] == live.ctypes.data
    assert table.array[PACKED] == tail.packed.ctypes.data
    assert not tail.is_passed
    live[1] = 24  # of which it has read 20
    assert tail.is_passed
    tail.follow(np.array([8, 20]), np.array([12, 20]))
    assert not tail.is_passed  # what is behind its rows is nothing to it
    tail.bind(None, np.zeros(2, np.int64), None)
    assert not tail.is_passed
