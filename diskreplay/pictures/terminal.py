"""Frames in a terminal: two pixels a character."""

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from diskreplay.pictures.pixels import in_colour, one_picture, shrunk

_WIDEST = 84  # columns: an Atari frame, pixel by pixel
_SHADES, _ASCII = " ░▒▓█", " .:-=+*#%@"
_LUMA = np.array([299, 587, 114])  # of ITU-R BT.601, in thousandths


class HalfBlocks:
    """A frame for ``rich``'s `Console.print`, drawn with half blocks: in shades of one character a
    pixel pair where the console has no colours, and in ASCII where it has nothing else.

    Parameters
    ----------
    frame : array_like, shape (h, w), (h, w, c) or (c, h, w) with c of 1, 3 or 4
        As `diskreplay.pictures.pixels.pictures` takes frames.
    width : int
        Columns that it may fill; never more than the console has. Pixels are averaged until it
        fits, and never enlarged.

    Raises
    ------
    ShapeError
        This is no picture.
    """

    def __init__(self, frame: np.ndarray, width: int = _WIDEST) -> None:
        self._picture, self._width = one_picture(frame), width

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(self._width, options.max_width, self._picture.shape[1])
        return Measurement(width, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height, width = self._picture.shape[:2]
        columns = max(1, min(self._width, options.max_width, width))
        lines = max(1, round(height * columns / width / 2))
        if options.is_terminal:  # all of it in sight, with room for a prompt
            room = max(8, options.size.height - 3)
            columns, lines = max(1, columns * min(lines, room) // lines), min(lines, room)
        picture = in_colour(shrunk(self._picture, 2 * lines, columns))
        if len(picture) % 2:
            picture = np.concatenate([picture, picture[-1:]])
        pairs = picture[::2], picture[1::2]
        if console.color_system is None or console.no_color:
            yield from _shaded(pairs, _ASCII if options.ascii_only else _SHADES)
        else:
            yield from _coloured(pairs, options.ascii_only)


def _coloured(pairs: tuple[np.ndarray, np.ndarray], ascii_only: bool) -> RenderResult:
    for upper, lower in zip(*pairs, strict=True):
        for top, bottom in zip(upper.tolist(), lower.tolist(), strict=True):
            if ascii_only:
                mean = [(a + b) // 2 for a, b in zip(top, bottom, strict=True)]
                yield Segment(" ", Style(bgcolor=Color.from_rgb(*mean)))
            else:
                yield Segment(
                    "▀", Style(color=Color.from_rgb(*top), bgcolor=Color.from_rgb(*bottom))
                )
        yield Segment.line()


def _shaded(pairs: tuple[np.ndarray, np.ndarray], ramp: str) -> RenderResult:
    upper, lower = ((half.astype(np.int64) @ _LUMA) // 1000 for half in pairs)
    for line in ((upper + lower) * len(ramp) // 512).tolist():
        yield Segment("".join(ramp[shade] for shade in line))
        yield Segment.line()
