"""Where kernels find the rows of a field, beside a plain dictionary."""

import numpy as np
import pytest

from diskreplay.store.field import Field
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import Segment
from diskreplay.store.segment_table import FIGURES, SLOTS, SegmentTable

ROWS, KEPT = 4, 24


class Found(Segment):
    """A segment whose rows are at addresses that tell it, and the env, from all others."""

    def addresses(self, places):
        return 1000 * (self.number + 1) + self.envs.start + places, self.number + 7


def made(num_envs, group, kept):
    field = Field("f", (3,), np.dtype("u1"), "raw", ROWS, group)
    return field, SegmentTable(field, num_envs, kept, RWLock())


def known(table, env, number):
    slots = int(table.array[SLOTS])
    entries = table.array[FIGURES:].reshape(-1, slots, 2)
    return tuple(entries[env, number % slots].tolist())


@pytest.mark.costly(2)
@pytest.mark.parametrize("kept", [KEPT, None])
@pytest.mark.parametrize(("num_envs", "group"), [(1, 1), (3, 3), (5, 2)])
def test_any_walk_is_found_as_a_dictionary_has_it(num_envs, group, kept):
    field, table = made(num_envs, group, kept)
    rng, expected, count = np.random.default_rng(0), {}, np.zeros(num_envs, int)
    first = np.zeros(num_envs, int)
    for _ in range(400):
        env = int(rng.integers(num_envs))
        segment = Found(field, count[env] // ROWS, env // group, None)
        envs = np.arange(num_envs)[segment.envs]
        envs = envs[count[envs] // ROWS == segment.number]
        table.point_new(segment, envs)
        expected |= {(int(e), segment.number): segment for e in envs}
        count[env] += rng.integers(1, ROWS + 1)
        if kept is not None:
            first = np.maximum(first, count - kept)
            left = {(e, n) for e, n in expected if n < first[e] // ROWS}
            assert set(zip(*table.left(first), strict=True)) == {
                (e, n % int(table.array[SLOTS])) for e, n in left
            }
            most = max((sum(e == env for e, _ in left) for env in range(num_envs)), default=0)
            assert table.is_crowded(first) == (most >= 4)
            if rng.random() < 0.5:
                table.forget(first)
                expected = {key: found for key, found in expected.items() if key not in left}
        for (e, number), found in expected.items():
            places = e - found.envs.start
            assert known(table, e, number) == found.addresses(places)
        for found in set(expected.values()):
            there = [e for e, number in expected if number == found.number]
            there = [e for e in there if e // group == found.group]
            assert sorted(table.pointed(found).tolist()) == sorted(there)


def test_one_that_grows_leaves_the_old_one_as_it_was():
    """A reader without the lock goes on with what it was handed."""
    field, table = made(2, 2, None)
    before = table.array
    slots = int(before[SLOTS])
    for number in range(slots):
        table.point(Found(field, number, 0, None), np.arange(2))
    assert table.array is before
    kept = before.copy()
    table.point(Found(field, slots, 0, None), np.arange(2))
    assert table.array is not before
    assert int(table.array[SLOTS]) > slots
    np.testing.assert_array_equal(before, kept)
    for number in range(slots + 1):
        assert known(table, 1, number) == (1000 * (number + 1) + 1, number + 7)


def test_dropped_and_taken_places_are_empty_or_anothers():
    field, table = made(2, 2, KEPT)
    slots = int(table.array[SLOTS])
    old, new = Found(field, 1, 0, None), Found(field, 1 + slots, 0, None)
    table.point(old, np.arange(2))
    table.point(new, np.array([0]))
    assert table.pointed(old).tolist() == [1]
    assert table.pointed(new).tolist() == [0]
    table.drop(old)
    assert known(table, 1, 1) == (0, 0)
    assert known(table, 0, 1 + slots) == new.addresses(0)


def test_there_is_room_for_all_that_is_kept_and_for_some_that_have_left():
    """Segments that have left stay until a record says so: an `add` does not wait for that."""
    field, table = made(1, 1, KEPT)
    for number in range(KEPT // ROWS + 1 + 8):
        table.point(Found(field, number, 0, None), np.arange(1))
    first = np.array([8 * ROWS])
    assert table.is_crowded(first)
    assert not table.is_crowded(first - 5 * ROWS)
    for number in range(KEPT // ROWS + 1 + 8):
        assert known(table, 0, number)[1] == number + 7
