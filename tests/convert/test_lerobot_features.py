"""Which fields are pictures, and rows as pictures and back, beside loops over the pixels."""

import itertools

import numpy as np
import pytest

from diskreplay.convert.lerobot_features import Feature, picture_shape
from diskreplay.errors import InvalidInputError

SHAPES = [(9, 12), (9, 12, 1), (9, 12, 3), (1, 9, 12), (3, 9, 12)]


def pixel(values, shape, row, y, x, colour):
    if len(shape) == 2:
        return values[row, y, x]
    if shape[-1] in (1, 3):
        return values[row, y, x, colour % shape[-1]]
    return values[row, colour % shape[0], y, x]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pictures_and_back(shape, dtype):
    feature = Feature.of("observation", "observation.image", shape, np.dtype(dtype))
    assert feature.is_picture
    assert feature.feature_shape == (9, 12, 3)
    values = np.random.default_rng(0).integers(0, 256, (4, *shape)).astype(dtype)
    whole, scale = values, 1
    if values.dtype.kind == "f":
        values, scale = values / values.dtype.type(255), 255
    found = feature.as_pictures(values)
    assert (found.shape, found.dtype) == ((4, 9, 12, 3), np.uint8)
    for row, y, x, colour in itertools.product(range(4), (0, 5, 8), (0, 7, 11), range(3)):
        assert found[row, y, x, colour] == round(pixel(values, shape, row, y, x, colour) * scale)
    again = feature.of_pictures(found)
    assert (again.dtype, again.shape) == (values.dtype, whole.shape)
    np.testing.assert_array_equal(again, values)


def test_floats_that_are_no_shades_are_refused():
    feature = Feature.of("observation", "observation.image", (8, 8), np.dtype("float32"))
    for value in (-0.01, 1.01, np.nan):
        with pytest.raises(InvalidInputError, match="floats from 0 to 1"):
            feature.as_pictures(np.full((1, 8, 8), value, np.float32))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((8, 8), (8, 8)), ((7, 8), None), ((8, 9, 3), (8, 9)), ((3, 8, 9), (8, 9)), ((4, 8, 9), None),
     ((3, 40, 3), None), ((8,), None), ((), None), ((1, 3, 8, 8), None)],
)  # fmt: skip
def test_what_is_a_picture(shape, expected):
    assert picture_shape(shape) == expected


def test_floats_between_two_shades_become_the_nearer_one():
    feature = Feature.of("observation", "observation.image", (8, 8), np.dtype("float64"))
    shades = np.linspace(0, 1, 64).reshape(1, 8, 8)
    expected = [round(value * 255) for value in shades.ravel().tolist()]
    assert feature.as_pictures(shades)[..., 0].ravel().tolist() == expected
