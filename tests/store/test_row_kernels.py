"""Rows that kernels write to segments and tails, beside arrays that are written one by one."""

import numpy as np
import pytest

from diskreplay.store import row_kernels
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import RawSegment
from diskreplay.store.segment_table import SegmentTable
from diskreplay.store.tail import Tail

ROWS, NUMBERS = 8, 4  # of a segment; segments


def raw(tmp_path, num_envs, group, shape=(3,)):
    """A raw field with mapped segments, and views of their rows by number and group."""
    field = Field("f", shape, np.dtype("i2"), "raw", ROWS, group)
    table = SegmentTable(field, num_envs, None, RWLock())
    values = {}
    for number in range(NUMBERS):
        for part in range(field.groups(num_envs)):
            mapping = Mapping.create(tmp_path / f"{number}.{part}", field.segment_bytes)
            segment = RawSegment(field, number, part, mapping)
            table.point(segment, np.arange(num_envs)[segment.envs])
            values[number, part] = segment.values
    return field, table, values


def rows_of(field, values, num_envs):
    """All rows, of shape (rows, num_envs, ...)."""
    return np.concatenate([
        np.concatenate([values[number, part] for part in range(field.groups(num_envs))], axis=1)
        for number in range(NUMBERS)
    ])[:, :num_envs]  # fmt: skip


@pytest.mark.parametrize(
    ("num_envs", "group", "shape"),
    [(1, 1, (3,)), (3, 3, ()), (5, 2, (3,)), (4, 4, (600,))],  # the last has env after env
)
def test_rows_of_any_envs_get_to_their_segments(tmp_path, num_envs, group, shape):
    field, table, values = raw(tmp_path, num_envs, group, shape)
    rng = np.random.default_rng(0)
    expected = np.zeros((ROWS * NUMBERS, num_envs, *shape), np.int16)
    for _ in range(60):
        envs = np.sort(rng.choice(num_envs, rng.integers(1, num_envs + 1), replace=False))
        rows = rng.integers(0, ROWS * NUMBERS, len(envs))
        if rng.random() < 0.5:
            rows[:] = rows[0]
        given = rng.integers(-999, 999, (num_envs, *shape)).astype(np.int16)
        row_kernels.scatter(table.array, envs, rows, given.reshape(-1).view(np.uint8))
        expected[rows, envs] = given[envs]
    np.testing.assert_array_equal(rows_of(field, values, num_envs), expected)


@pytest.mark.parametrize(("num_envs", "group"), [(1, 1), (3, 3), (5, 2)])
def test_values_are_put_over_rows_by_their_ids(tmp_path, num_envs, group):
    field, table, values = raw(tmp_path, num_envs, group)
    rng = np.random.default_rng(1)
    expected = np.zeros((ROWS * NUMBERS * num_envs, 3), np.int16)
    for _ in range(40):
        ids = rng.choice(len(expected), rng.integers(0, 9), replace=False)
        given = rng.integers(-999, 999, (len(ids), 3)).astype(np.int16)
        row_kernels.put(table.array, ids, given.reshape(-1).view(np.uint8))
        expected[ids] = given
    found = rows_of(field, values, num_envs).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_of_a_packed_field_go_to_its_tail_whose_places_are_used_in_turn(tmp_path, num_envs):
    field = Field("f", (3,), np.dtype("i2"), "lz4", 32, num_envs, 8)
    table = SegmentTable(field, num_envs, None, RWLock())
    tail = Tail(field, num_envs, table)
    mapping = Mapping.create(tmp_path / "tail", field.tail_bytes(num_envs))
    tail.bind(mapping, np.zeros(num_envs, np.int64), None)
    rng = np.random.default_rng(2)
    expected = np.zeros((num_envs, tail.rows, 3), np.int16)
    for row in rng.integers(0, 5 * tail.rows, 200):
        envs = np.sort(rng.choice(num_envs, rng.integers(1, num_envs + 1), replace=False))
        rows = row + np.arange(len(envs)) * int(rng.integers(2))
        given = rng.integers(-999, 999, (num_envs, 3)).astype(np.int16)
        row_kernels.scatter(table.array, envs, rows, given.reshape(-1).view(np.uint8))
        expected[envs, rows % tail.rows] = given[envs]
    found = mapping.array[: expected.nbytes].view(np.int16).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)
