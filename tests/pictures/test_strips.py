"""Columns of frames as PNGs, read back."""

import io

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")


def opened(data):
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return image


@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 4, 5), (3, 4, 5, 3)])
def test_every_pixel_is_exact(shape):
    from diskreplay.pictures.strips import strip_of

    pictures = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = np.asarray(opened(strip_of(pictures)))
    np.testing.assert_array_equal(found, pictures.reshape(-1, *shape[2:]))
    turned = np.asfortranarray(pictures)
    np.testing.assert_array_equal(np.asarray(opened(strip_of(turned))), found)


def test_small_ones_have_at_most_256_colours_and_grey_ones_stay_exact():
    from diskreplay.pictures.strips import strip_of

    rng = np.random.default_rng(1)
    grey = rng.integers(0, 256, (2, 8, 8), np.uint8)
    np.testing.assert_array_equal(
        np.asarray(opened(strip_of(grey, small=True))), grey.reshape(16, 8)
    )
    coloured = rng.integers(0, 256, (2, 20, 20, 3), np.uint8)
    image = opened(strip_of(coloured, small=True))
    assert image.mode == "P"
    assert image.size == (20, 40)


@pytest.mark.parametrize(
    ("height", "width", "side", "expected"),
    [
        (10, 20, 20, (10, 20)), (10, 20, 30, (10, 20)), (10, 20, 19, (5, 10)),
        (10, 20, 10, (5, 10)), (10, 20, 9, (4, 7)), (21, 5, 10, (7, 2)), (1, 100, 10, (1, 10)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("colours", [(), (3,)])
def test_large_ones_shrink_by_a_whole_number(height, width, side, expected, colours):
    from diskreplay.pictures.strips import fitted

    pictures = np.full((2, height, width, *colours), 77, np.uint8)
    found = fitted(pictures, side)
    assert found.shape == (2, *expected, *colours)
    assert (found == 77).all()
    if expected == (height, width):
        assert found is pictures
