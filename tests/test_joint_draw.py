"""Arrays of several members become one: not copied where they are rows of one array."""

import numpy as np
import pytest

from diskreplay.joint_draw import joined

ROOM = np.arange(120.0).reshape(20, 3, 2)

PARTS = {
    "rows that follow": ([ROOM[:5], ROOM[5:7], ROOM[7:20]], True),
    "every other column": ([ROOM[:5, ::2], ROOM[5:9, ::2]], True),
    "columns of a stack": ([ROOM[:5, 1:], ROOM[5:9, 1:]], True),
    "a gap": ([ROOM[:5], ROOM[6:9]], False),
    "the other way round": ([ROOM[5:9], ROOM[:5]], False),
    "the same twice": ([ROOM[:5], ROOM[:5]], False),
    "a gap later on": ([ROOM[:5], ROOM[5:9], ROOM[10:12]], False),
    "other strides": ([ROOM[:4], ROOM[4:12:2]], False),
    "another array": ([ROOM[:5], ROOM.copy()[5:9]], False),
    "owners": ([ROOM[:5].copy(), ROOM[5:9].copy()], False),
    "one": ([ROOM[3:5]], True),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_joined_is_what_concatenate_gives(name):
    parts, in_place = PARTS[name]
    found = joined(parts)
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert np.shares_memory(found, parts[0]) == in_place


def test_nested_arrays_are_joined_each():
    parts = [{"a": (ROOM[:5, at], ROOM[:2]), "b": ROOM[at : at + 1]} for at in (0, 1)]
    found = joined(parts)
    assert isinstance(found["a"], tuple)
    for at in (0, 1):
        expected = np.concatenate([part["a"][at] for part in parts])
        np.testing.assert_array_equal(found["a"][at], expected)
    np.testing.assert_array_equal(found["b"], ROOM[:2])
