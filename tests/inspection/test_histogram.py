"""Histograms of values of all sizes."""

import numpy as np
import pytest

from diskreplay.inspection.histogram import histogram, scale_of

LARGEST = np.finfo(float).max


@pytest.mark.parametrize(
    "values",
    [
        [1e20] * 7, np.float32([1e20] * 7), [2**60 + 12345] * 5, [-(2**63)] * 3,
        [1.0, 1.0 + 2**-52],
        [1.0 - 2**-53, 1.0, 1.0], [LARGEST, -LARGEST, 0.0], [LARGEST] * 2, [-LARGEST, 1.0],
        [5e-324, 0.0],
    ],
)  # fmt: skip
def test_each_value_is_counted_between_finite_edges(values):
    values = np.array(values)
    counts, edges = histogram(values, 40)
    assert counts.sum() == len(values)
    assert len(edges) == len(counts) + 1
    assert np.isfinite(edges).all()
    assert edges[0] <= values.min() <= values.max() <= edges[-1]


def test_it_is_numpys_where_that_has_one():
    values = np.random.default_rng(0).normal(size=200)
    for found, wanted in zip(histogram(values, 30), np.histogram(values, 30), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(histogram(np.array([1.0, 2.0, 2.0]), 30)[0]) == 2


@pytest.mark.parametrize(
    ("low", "high", "is_one"),
    [(0.0, 1e150, True), (-1e150, 0.0, True), (0.0, 2e150, False), (-LARGEST, 1.0, False)],
)
def test_a_scale_at_which_squares_can_be_added(low, high, is_one):
    scale = scale_of(low, high)
    assert (scale == 1.0) == is_one
    assert np.log2(scale) % 1 == 0  # so nothing is rounded
    values = np.repeat([low, high], 500_000) * scale
    assert np.isfinite([values.sum(), np.square(values).sum()]).all()
