"""The charts as one picture."""

from xml.etree import ElementTree

import numpy as np
import pytest

from diskreplay.errors import InvalidInputError
from diskreplay.pictures.figures import Bars, Sizes, Trend
from diskreplay.pictures.plots import save_plot

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

X = np.arange(5.0)
CHARTS = [
    Trend("Returns $x$", "a note", "rows", "return", X, X, X, X, "mean"),
    Trend("Band", "n", "rows", "return", X[:0], X[:0], X, X, "median", np.stack([X - 1, X + 1])),
    Bars("Named", "n", "action", "times", np.array([1, 900]), ["0", "1"], X[:0], log_counts=True),
    Bars("Histogram", "n", "p", "times", np.array([3, 4]), [], np.array([0.1, 1, 10]),
         log_edges=True),
    Sizes("Sizes", "n", ["observation", "re$ward"], np.array([1 << 21, 0]), np.array([900, 0])),
]  # fmt: skip


@pytest.mark.costly(1)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_png_has_room_for_all(tmp_path, count):
    path = save_plot(CHARTS[-count:], tmp_path / "p.png", "store", "a $subtitle")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert np.asarray(image.convert("L")).std() > 5


@pytest.mark.costly
def test_every_word_is_there(tmp_path):
    text = save_plot(CHARTS, tmp_path / "p.svg", "store", "subtitle").read_text()
    for word in (
        "store", "subtitle", "Returns $x$", "a note", "median", "times, logarithmic", "re$ward",
        "2.0 MiB → 900 B", "on disk", "MiB",
    ):  # fmt: skip
        assert word in text, word


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_names_are_no_formulas_and_no_markup(tmp_path, ending):
    name = "$\\frac{ \\$ <b>\x1b\x07\0\uffff\udcff$"
    charts = [
        Bars(name, name, "action", "times", np.array([1, 9]), [name, "1"], X[:0]),
        Sizes(name, name, [name, "reward"], np.array([1 << 21, 0]), np.array([900, 0])),
    ]
    path = save_plot(charts, tmp_path / f"p.{ending}", name, name)
    if ending == "svg":
        texts = [text.text for text in ElementTree.parse(path).iterfind(".//{*}text")]
        shown = "$\\frac{ \\$ <b>" + 5 * "\N{REPLACEMENT CHARACTER}" + "$"
        assert texts.count(shown) == 8


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"\.png"):
        save_plot(CHARTS, tmp_path / "p.html", "", "")
    assert not list(tmp_path.iterdir())
