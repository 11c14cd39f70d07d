"""Frames in a terminal."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from diskreplay.errors import ShapeError
from diskreplay.pictures.terminal import HalfBlocks


def printed(renderable, **options):
    out = io.StringIO()
    Console(file=out, **({"width": 80, "height": 60} | options)).print(renderable)
    return out.getvalue()


def pixels(text):
    """The pixels that a terminal with true colours would show, (h, w, 3)."""
    lines = []
    for line in text.splitlines():
        cells = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m(▀+)", line)
        upper = [[int(v) for v in cell[:3]] for cell in cells for _ in cell[6]]
        lower = [[int(v) for v in cell[3:6]] for cell in cells for _ in cell[6]]
        lines += [upper, lower]
    return np.array(lines)


@pytest.mark.parametrize("shape", [(8, 10), (8, 10, 3), (8, 10, 1)])
def test_small_frames_are_exact(shape):
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    shown = pixels(printed(HalfBlocks(frame), force_terminal=True, color_system="truecolor"))
    expected = np.broadcast_to(frame.reshape(8, 10, -1), (8, 10, 3))
    np.testing.assert_array_equal(shown, expected)


def test_large_frames_fit_the_console():
    frame = np.zeros((210, 160, 3), np.uint8)
    frame[:, 80:] = 255
    shown = pixels(
        printed(HalfBlocks(frame), force_terminal=True, color_system="truecolor", width=20)
    )
    assert shown.shape == (26, 20, 3)
    assert shown[:, :10].max() == 0
    assert shown[:, 10:].min() == 255
    low = printed(HalfBlocks(frame), force_terminal=True, color_system="truecolor", height=20)
    assert len(low.splitlines()) <= 17


def test_width_is_a_limit():
    text = printed(HalfBlocks(np.zeros((20, 40), np.uint8), width=12), color_system=None)
    assert {len(line) for line in text.splitlines()} == {12}


def test_without_colours_it_is_shaded_without_escapes():
    frame = np.repeat(np.array([[0, 130, 255]], np.uint8), 2, axis=0)
    assert printed(HalfBlocks(frame)) == " ▒█\n"
    assert printed(HalfBlocks(frame), no_color=True) == " ▒█\n"


def test_a_single_line_of_pixels_and_a_wrong_shape():
    assert printed(HalfBlocks(np.full((1, 4), 255, np.uint8))) == "████\n"
    with pytest.raises(ShapeError, match="found"):
        HalfBlocks(np.zeros(4))
