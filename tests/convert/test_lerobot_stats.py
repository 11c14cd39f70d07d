"""Figures of features beside NumPy over all values at once."""

import numpy as np
import pytest

from diskreplay.convert.lerobot_stats import PictureSample, Totals, as_lists, figures_of

NAMES = {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_figures_are_those_of_each_element(shape):
    values = np.random.default_rng(0).normal(size=(50, *shape)).astype(np.float32)
    found = figures_of(values)
    assert set(found) == NAMES
    for name, function in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
        expected = function(values.astype(np.float64), axis=0)
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)
        assert np.shape(found[name]) == shape
    assert found["count"].tolist() == [50]
    ranked = np.sort(values.astype(np.float64), axis=0)
    np.testing.assert_allclose(found["q50"], (ranked[24] + ranked[25]) / 2)
    assert (found["q01"] <= found["q10"]).all()
    assert (found["q90"] <= found["q99"]).all()
    with np.errstate(all="raise"):
        assert np.isnan(figures_of(np.array([1.0, np.nan]))["mean"])


def test_totals_are_of_all_values_whatever_episodes_they_came_in():
    rng = np.random.default_rng(1)
    parts = [rng.normal(at, 1 + at, size=(size, 3)) for at, size in enumerate((7, 1, 40))]
    totals = Totals()
    for part in parts:
        totals.add(figures_of(part))
    found, every = totals.figures(), np.concatenate(parts)
    assert set(found) == NAMES
    for name, expected in (
        ("min", every.min(0)), ("max", every.max(0)), ("mean", every.mean(0)), ("std", every.std(0))
    ):  # fmt: skip
        np.testing.assert_allclose(found[name], expected)
    assert found["count"].tolist() == [48]
    mixed = sum(len(part) * np.quantile(part, 0.9, axis=0) for part in parts) / 48
    np.testing.assert_allclose(found["q90"], mixed)


@pytest.mark.parametrize(("length", "pieces"), [(1, [1]), (7, [3, 4]), (250, [1, 100, 149])])
def test_a_hundred_pictures_of_an_episode_are_looked_at(length, pieces):
    rng = np.random.default_rng(2)
    pictures = rng.integers(0, 256, (length, 4, 6, 3), np.uint8)
    sample, at = PictureSample(length), 0
    for size in pieces:
        given = pictures[at : at + size].copy()
        sample.see(given)
        given[:] = 0  # it has a copy
        at += size
    chosen = sorted({int(n) for n in np.linspace(0, length - 1, min(length, 100))})
    found = sample.figures()
    assert found["count"].tolist() == [len(chosen)]
    expected = pictures[chosen].reshape(-1, 3) / 255
    np.testing.assert_allclose(found["mean"], expected.mean(axis=0).reshape(3, 1, 1))
    np.testing.assert_allclose(found["max"], expected.max(axis=0).reshape(3, 1, 1))
    totals = Totals()
    totals.add(found)
    totals.add(found)
    assert totals.figures()["mean"].shape == (3, 1, 1)
    assert totals.figures()["count"].tolist() == [2 * len(chosen)]


def test_large_pictures_are_thinned_out():
    pictures = np.zeros((2, 301, 150, 3), np.uint8)
    pictures[:, ::2, ::2] = 255
    sample = PictureSample(2)
    sample.see(pictures)
    assert sample.figures()["min"].ravel().tolist() == [1.0] * 3


def test_as_json():
    found = as_lists({"a": figures_of(np.arange(4.0))})
    assert found["a"]["mean"] == 1.5
    assert found["a"]["count"] == [4]
