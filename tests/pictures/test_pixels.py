"""Observations of any layout and dtype become uint8 pictures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import ShapeError
from diskreplay.pictures.pixels import in_colour, one_picture, pictures, shrunk, tones

GREY = np.arange(5 * 6 * 7, dtype=np.uint8).reshape(5, 6, 7)


def test_bytes_are_taken_as_they_are_and_not_copied():
    assert np.shares_memory(pictures(GREY), GREY)
    np.testing.assert_array_equal(pictures(GREY), GREY)


def test_one_channel_is_grey_wherever_it_stands():
    np.testing.assert_array_equal(pictures(GREY[..., None]), GREY)
    np.testing.assert_array_equal(pictures(GREY[:, None]), GREY)


@pytest.mark.parametrize("channels", [3, 4])
def test_channels_come_last(channels):
    colour = np.random.default_rng(0).integers(0, 256, (5, 6, 7, channels), np.uint8)
    np.testing.assert_array_equal(pictures(colour), colour)
    np.testing.assert_array_equal(pictures(colour.transpose(0, 3, 1, 2)), colour)


def test_where_both_may_be_channels_the_last_axis_is():
    frames = np.zeros((2, 3, 9, 3), np.uint8)
    assert pictures(frames).shape == (2, 3, 9, 3)


def test_shares_of_white_and_any_range():
    unit = np.array([[[0.0, 0.5, 1.0]]])
    np.testing.assert_array_equal(pictures(unit), [[[0, 128, 255]]])
    np.testing.assert_array_equal(pictures(np.array([[[0.0, 100.4, 255.0]]])), [[[0, 100, 255]]])
    np.testing.assert_array_equal(pictures(np.array([[[-3.0, 0.0, 3.0]]])), [[[0, 128, 255]]])
    np.testing.assert_array_equal(pictures(np.array([[[-7, 1000]]])), [[[0, 255]]])
    np.testing.assert_array_equal(pictures(np.array([[[0, 200]]], np.int64)), [[[0, 200]]])
    np.testing.assert_array_equal(pictures(np.array([[[False, True]]])), [[[0, 255]]])


def test_a_range_that_is_given_holds_for_all():
    frames = np.array([[[0.0, 1.0, 2.0, 9.0]]])
    np.testing.assert_array_equal(pictures(frames, low=0, high=2), [[[0, 128, 255, 255]]])


def test_what_is_not_finite_spoils_nothing():
    frames = np.array([[[np.nan, -np.inf, np.inf, -2.0, 2.0]]])
    np.testing.assert_array_equal(pictures(frames), [[[0, 0, 255, 0, 255]]])
    assert pictures(np.full((1, 2, 2), np.nan)).max() == 0
    assert pictures(np.full((1, 2, 2), -5.0)).shape == (1, 2, 2)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 5, 6, 7), (2, 0, 4), (1, 2, 3, 4, 3)])
def test_no_pictures(shape):
    with pytest.raises(ShapeError, match="expected"):
        pictures(np.zeros(shape, np.uint8))


def test_text_is_no_picture():
    with pytest.raises(ShapeError, match="numbers expected"):
        pictures(np.full((1, 2, 2), "a"))


def test_one_picture_has_no_frame_axis():
    assert one_picture(GREY[0]).shape == (6, 7)


def test_transparent_pixels_show_the_paper():
    picture = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 51]]], np.uint8)
    np.testing.assert_array_equal(in_colour(picture, 255), [[[255] * 3, [10, 20, 30], [204] * 3]])
    np.testing.assert_array_equal(in_colour(GREY[0])[..., 1], GREY[0])


def test_tones():
    assert tones(GREY) == (0, 255)
    assert tones(np.array([0.2, 0.9])) == (0, 1)
    assert tones(np.array([-2.0, np.nan, 9.0])) == (-2, 9)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 30),
    st.sampled_from([(), (3,)]),
)  # fmt: skip
def test_shrunk_is_the_mean_of_boxes(height, width, most_high, most_wide, channels):
    rng = np.random.default_rng(height * 31 + width)
    picture = rng.integers(0, 256, (height, width, *channels), np.uint8)
    small = shrunk(picture, most_high, most_wide)
    assert small.shape[:2] == (min(height, most_high), min(width, most_wide))
    rows = np.arange(small.shape[0] + 1) * height // small.shape[0]
    columns = np.arange(small.shape[1] + 1) * width // small.shape[1]
    for i in range(small.shape[0]):
        for j in range(small.shape[1]):
            box = picture[rows[i] : rows[i + 1], columns[j] : columns[j + 1]]
            # Rounded once along each axis.
            assert np.abs(small[i, j] - box.mean(axis=(0, 1))).max() <= 1.01
