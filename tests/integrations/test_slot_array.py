"""An array that reads what is asked for, beside the NumPy array of the same values."""

import itertools

import numpy as np
import pytest

from diskreplay.errors import InvalidInputError
from diskreplay.integrations.slot_array import SlotArray

SHAPE = (7, 3, 2, 4)
WHOLE = np.arange(np.prod(SHAPE)).reshape(SHAPE)
I = np.array  # noqa: E741 - as in the keys below


@pytest.fixture
def reads():
    """An array, and how many rows were read of it."""
    found = []

    def read(slots, envs):
        assert slots.ndim == envs.ndim == 1
        found.append(len(slots))
        return WHOLE[slots, envs]

    return SlotArray(7, 3, (2, 4), WHOLE.dtype, read), found


FIRST = [0, -1, slice(None), slice(2, 5), slice(None, None, -2), slice(5, 2), [0, 3, 3], I([-1, 0]),
         I([[0, 1], [2, 6]]), I([], int), np.arange(7) % 2 == 0, np.int32(4), I(2)]  # fmt: skip
SECOND = [
    1,
    -3,
    slice(None),
    slice(1, None),
    [0, 2],
    I([-1, 1]),
    I([[1], [0]]),
    I([True, False, True]),
]
REST = [(), (0,), (slice(None), 1), (..., -1), (slice(0, 1), slice(None, None, 2)), ([0, 1],),
        (slice(None), [3, 0]), (None,), ([1, 0], [2, 3])]  # fmt: skip


def test_every_key_is_as_numpy_has_it(reads):
    array, _found = reads
    keys = [(first,) for first in FIRST] + [(), ..., (..., 0), (None, 1), (2, None), (2, ..., 1)]
    keys += [
        key for parts in itertools.product([None, ..., 1, slice(2, 0, -1), [0, 2]], repeat=4)
        if (key := tuple(part for part in parts if part != 1 or parts[0] != 1))
    ]  # fmt: skip
    keys += [(..., 0, 1, 0, 2), (0, ..., 1, 0, 2), (0, 0, 0, 0, 0), (None, 7), (..., 0, 0, 0, 0, 0)]
    keys += [(..., I([True, False])[:, None] | I([False] * 4)), (None, np.arange(7) % 2 == 0, 1)]
    keys += [
        (first, second, *rest) for first, second, rest in itertools.product(FIRST, SECOND, REST)
    ]
    refused = 0
    for key in keys:
        try:
            expected = WHOLE[key]
        except IndexError:
            with pytest.raises((IndexError, ValueError)):
                array[key]
            refused += 1
            continue
        found = array[key]
        assert found.dtype == WHOLE.dtype
        assert found.shape == expected.shape, key
        np.testing.assert_array_equal(found, expected)
    assert refused < len(keys) / 2


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        ((I([1, 2, 5]), I([0, 1, 2]), slice(None)), 3), (4, 3), ((4, 1), 1), (slice(2, 4), 6),
        ((slice(2, 4), 0), 2), ((I([1, 2]), 0, slice(None), 1), 2), (slice(None), 21),
        ((None, 1), 3), ((2, None), 3), ((2, ..., 1), 3), ((2, 1, ...), 1), ((2, None, 1), 1),
        ((..., 2, 1, slice(None), 3), 1), ((None, slice(2, 4), None, 1), 2), ((None, [1, 2], 0), 2),
        (([3], ..., 1), 3), ((..., 1, 2), 21), ((2, ..., 1, 2), 3), (..., 21),
    ],
)  # fmt: skip
def test_no_more_is_read_than_is_asked_for(reads, key, rows):
    array, found = reads
    assert array[key].size
    assert sum(found) == rows


@pytest.mark.parametrize("key", [7, -8, [0, 7], (0, 3), (0, -4), (I([0, 7]), I([0, 0])), (0, 0, 2)])
def test_what_is_outside(reads, key):
    with pytest.raises(IndexError):
        reads[0][key]


def test_it_looks_like_an_array(reads):
    array, _found = reads
    assert (array.shape, array.ndim, array.size, array.nbytes) == (
        SHAPE,
        4,
        WHOLE.size,
        WHOLE.nbytes,
    )
    assert len(array) == 7
    np.testing.assert_array_equal(np.asarray(array), WHOLE)
    np.testing.assert_array_equal(np.stack(list(array)), WHOLE)
    assert np.asarray(array, np.float32).dtype == np.float32
    assert np.array(array, copy=True).shape == SHAPE
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(copy=False)
    with pytest.raises(InvalidInputError, match="use `add`"):
        array[0] = 1
    assert "shape=(7, 3, 2, 4)" in repr(array)


def test_it_is_read_in_parts(monkeypatch, reads):
    from diskreplay import slot_view

    array, found = reads
    monkeypatch.setattr(slot_view, "_AT_ONCE", 2 * WHOLE[0].nbytes)
    np.testing.assert_array_equal(np.asarray(array), WHOLE)
    assert found == [6, 6, 6, 3]
