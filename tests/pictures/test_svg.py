"""Charts as SVG: well formed, described, and to scale."""

from xml.etree import ElementTree

import numpy as np
import pytest

from diskreplay.pictures.figures import Bars, Sizes, Trend
from diskreplay.pictures.svg import drawn, number

EMPTY = np.empty(0)


def parsed(chart):
    root = ElementTree.fromstring(drawn(chart))
    for element in root.iter():
        for name, value in element.attrib.items():
            assert "nan" not in value, (element.tag, name)
            assert "inf" not in value, (element.tag, name)
    assert root.get("role") == "img"
    assert chart.title in root.get("aria-label")
    return root


def places(root, tag, *names, kind):
    return np.array(
        [[float(e.get(n)) for n in names] for e in root.iter(tag) if e.get("class") == kind]
    )


@pytest.mark.parametrize("scale", [1e-9, 1, 1e12])
def test_dots_are_to_scale(scale):
    x, y = np.array([0.0, 10, 40]), np.array([-2.0, 5, 1]) * scale
    root = parsed(Trend("T", "note", "time", "gain", x, y, x, y, "mean"))
    dots = places(root, "circle", "cx", "cy", kind="dot")
    np.testing.assert_allclose(np.diff(dots[:, 0])[1] / np.diff(dots[:, 0])[0], 3, rtol=0.01)
    np.testing.assert_allclose(np.diff(dots[:, 1])[1] / np.diff(dots[:, 1])[0], -4 / 7, rtol=0.01)
    assert [t.text for t in root.iter("text")][-2:] == ["time", "gain"]


@pytest.mark.parametrize("y", [[3.0], [0.0], [5.0, 5.0]])
def test_values_without_a_range(y):
    y = np.array(y)
    parsed(Trend("T", "n", "x", "y", np.zeros(len(y)), y, np.zeros(len(y)), y, "mean"))


def test_a_band():
    x = np.arange(3.0)
    band = np.stack([x - 1, x + 1])
    root = parsed(Trend("T", "n", "x", "y", EMPTY, EMPTY, x, x, "median", band))
    (polygon,) = root.iter("polygon")
    assert len(polygon.get("points").split()) == 6
    assert not list(root.iter("circle"))


def test_bars_are_to_scale_and_named():
    counts = np.array([10, 0, 40])
    root = parsed(Bars("T", "n", "action", "times", counts, ["a<b", "c", "d"], EMPTY))
    heights = places(root, "rect", "height", kind="bar").ravel()
    np.testing.assert_allclose(heights[1] / heights[0], 4, rtol=0.01)
    assert [t.text for t in root.iter("title")] == ["action a<b: 10 times", "action d: 40 times"]


def test_logarithmic_bars():
    counts = np.array([1, 10, 100])
    edges = np.array([0.01, 0.1, 1, 10])
    root = parsed(Bars("T", "n", "p", "times", counts, [], edges, log_counts=True, log_edges=True))
    bars = places(root, "rect", "x", "width", "height", kind="bar")
    np.testing.assert_allclose(np.diff(bars[:, 2]), np.diff(bars[:, 2])[0], rtol=0.01)
    np.testing.assert_allclose(bars[:, 1], bars[0, 1], rtol=0.01)
    assert (bars[:, 2] > 0).all()
    up = [t.text for t in root.iter("text") if t.get("class") == "up"]
    assert up == ["1", "10", "100"]


def test_many_labels_leave_some_out():
    labels = [f"{i}.25" for i in range(24)]
    root = parsed(Bars("T", "n", "x", "y", np.ones(24, int), labels, EMPTY))
    shown = [t.text for t in root.iter("text") if t.get("class") == "across"]
    assert 4 <= len(shown) < 24
    assert len(list(root.iter("rect"))) == 24


def test_sizes_are_to_scale():
    sizes = Sizes("T", "n", ["observation/a&b", "reward"], np.array([4000, 0]), np.array([1000, 0]))
    root = parsed(sizes)
    raw, disk = (places(root, "rect", "width", kind=kind).ravel() for kind in ("raw", "disk"))
    np.testing.assert_allclose(raw[0] / disk[0], 4, rtol=0.01)
    assert "observation/a&b 3.9 KiB as arrays, 1,000 B on disk" in root.get("aria-label")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12, "12"), (-1234.4, "-1,234"), (0.25, "0.25"), (12345678, "1.23e7"),
     (0.00012, "0.00012"), (3.14159, "3.142"), (1e-9, "1e-9")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text
