"""`SlotView` beside the array that it looks like."""

import numpy as np
import pytest

from diskreplay import SlotView, errors

KEYS = [
    0, -1, np.int64(3), [1, 4, 4], np.array([[0, 1], [2, 9]]), np.arange(10) % 3 == 0, slice(2, 7),
    slice(None), slice(8, 2, -2), ..., (slice(1, 4), 0), (3, 1), (..., 2), (3, ..., 1),
    (slice(None), slice(0, 2)), ([2, 5], slice(None), 1), (slice(2, 4), ...), np.array([], int), (),
]  # fmt: skip


def made():
    array = np.arange(10 * 4 * 3, dtype=np.float32).reshape(10, 4, 3)
    reads = []

    def read(slots):
        reads.append(slots.copy())
        return array[slots].copy()

    def write(slots, values):
        for slot, value in zip(slots, values, strict=True):
            array[slot] = value

    return SlotView(range(10), (4, 3), array.dtype, read, write), array, reads


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_it_is_indexed_as_an_array(key):
    view, array, _ = made()
    np.testing.assert_array_equal(np.asarray(view[key]), array[key])


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_it_is_set_as_an_array(key):
    (view, found, _), wanted = made(), made()[1]
    value = np.float64(7.5)
    view[key] = value
    wanted[key] = value
    np.testing.assert_array_equal(found, wanted)
    view[key] = None
    wanted[key] = 0
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("rest", [(), (slice(None), 1), (2, 0)], ids=str)
@pytest.mark.parametrize("value_order", "CF")
@pytest.mark.parametrize("order", ["C", "F", "picked"])
def test_of_a_slots_values_the_one_stays_that_an_array_keeps(order, value_order, rest):
    """Which one depends on how the index and the values lie in memory."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        index = rng.integers(0, 10, (5, 7))
        index = index[:, [0, 3, 3, 6]] if order == "picked" else np.asarray(index, order=order)
        (view, found, _), wanted = made(), made()[1]
        read, expected = view[(index, *rest)], wanted[(index, *rest)]
        np.testing.assert_array_equal(read, expected)
        value = np.asarray(rng.normal(size=expected.shape), np.float32, order=value_order)
        view[(index, *rest)] = value
        wanted[(index, *rest)] = value
        np.testing.assert_array_equal(found, wanted)
        if not rest:
            assert read.strides == expected.strides


def test_slices_are_views_that_read_nothing():
    view, array, reads = made()
    part = view[2:9][1::2]
    assert (part.shape, len(part), part.ndim, part.size) == ((3, 4, 3), 3, 3, 36)
    assert (part.dtype, part.nbytes, reads) == (np.float32, 144, [])
    np.testing.assert_array_equal(part[-1], array[7])
    part[0] = 5
    assert (array[3] == 5).all()
    np.testing.assert_array_equal(list(part), array[3:8:2])
    assert "(3, 4, 3)" in repr(part)


@pytest.mark.parametrize(
    "key", [10, -11, [0, 10], np.ones(9, bool), 0.5, "name", (None, 1), (0, None)], ids=str
)
def test_what_is_no_index_is_refused(key):
    view, _, reads = made()
    with pytest.raises(IndexError):
        view[key]
    assert not reads


def test_one_that_cannot_be_written_says_so():
    view, _, _ = made()
    reading = SlotView(range(10), (4, 3), view.dtype, view._read)
    with pytest.raises(errors.ReadOnlyError):
        reading[0] = 1


def test_there_is_no_array_of_it_without_a_copy():
    view, array, _ = made()
    with pytest.raises(ValueError, match="copy"):
        view.__array__(copy=False)
    assert np.asarray(view, np.int32).dtype == np.int32
    np.testing.assert_array_equal(np.asarray(view), array)


def test_arithmetic_and_comparisons_read_it():
    view, array, _ = made()
    np.testing.assert_array_equal(view + 1, array + 1)
    np.testing.assert_array_equal(2 - view[2:4], 2 - array[2:4])
    assert ((view == array) & (array == view) & ~(view < view)).all()
    np.testing.assert_array_equal(view.reshape(-1, 12), array.reshape(-1, 12))
    np.testing.assert_array_equal(view[::2].copy(), array[::2])
    assert view.astype("int16").dtype == np.int16


def test_one_element_is_a_number():
    array = np.arange(5.0)
    view = SlotView(range(5), (), array.dtype, lambda slots: array[slots].copy())
    assert isinstance(view[2], np.float64)
    assert view[2] == 2.0
