"""The contact sheet: many frames beside each other in one picture file."""

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import InvalidInputError
from diskreplay.pictures.pixels import images, pictures, pillow
from diskreplay.store import files
from diskreplay.store.paths import local

_PAPER, _INK, _SOFT = (250, 250, 249), (28, 28, 30), (110, 110, 115)
_MARGIN, _GAP, _LINE = 24, 12, 18
_CELL = 168  # pixels of a frame's longer side, about; small frames are enlarged by whole steps
_SHEET = 1600  # pixels of a sheet's width that the columns should fit into
_PIXELS = 1 << 28  # of a sheet: more is refused before any memory is taken
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def save_sheet(
    frames: np.ndarray,
    path: str | os.PathLike[str],
    columns: int | None = None,
    *,
    captions: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Write frames beside each other into a picture.

    Parameters
    ----------
    frames : array_like, shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c of 1, 3 or 4
        As `diskreplay.pictures.pixels.pictures` takes them. In reading order.
    path : path
        Its ending says the format: .png, .jpg or .webp. Replaced as a whole.
    columns : int, optional
        Frames in a line; by default so many that the sheet is a little wider than high.
    captions : sequence of str, optional
        A line below each frame; one may be empty, and is cut where it is too long. Lines within a
        caption are kept.
    title : str
        A line on top.

    Returns
    -------
    Path

    Raises
    ------
    ShapeError, InvalidInputError
        These are no pictures, or there is none; another ending; too large a sheet.
    StorageError
        The file cannot be written.
    ImportError
        Pillow is missing.
    """
    path = local(path, "path")
    kind = format_of(path)
    frames = pictures(frames)
    if not len(frames):
        raise InvalidInputError("frames: at least one expected, found none")
    if captions is not None and len(captions) != len(frames):
        raise InvalidInputError(f"captions: {len(frames)} expected, found {len(captions)}")
    data = io.BytesIO()
    _draw(frames, columns, captions, title).save(data, kind)
    files.replace({path: data.getvalue()})
    return path


def format_of(path: Path, *more: str) -> str:
    """The format that the ending of a sheet's name says.

    Raises
    ------
    InvalidInputError
        It is none of a sheet; `more` says which others the caller takes.
    """
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InvalidInputError(
            f"{path}: a name that ends with {', '.join(sorted([*_FORMATS, *more]))} expected"
        )
    return kind


def _draw(
    frames: np.ndarray, columns: int | None, captions: Sequence[str] | None, title: str
) -> Any:
    image = pillow()
    from PIL import ImageDraw, ImageFont

    count, height, width = frames.shape[:3]
    scale = max(1, round(_CELL / max(height, width)))
    lines = max(caption.count("\n") + 1 if caption else 0 for caption in captions or [""])
    cell_width = width * scale + _GAP
    cell_height = height * scale + _GAP + lines * _LINE
    if columns is None:
        columns = math.ceil(math.sqrt(1.4 * count * cell_height / cell_width))
        columns = max(1, min(columns, (_SHEET - 2 * _MARGIN) // cell_width))
        # One or two fewer where that fills the last line.
        columns = min(range(columns, max(columns - 3, 0), -1), key=lambda c: -count % c)
    columns = min(columns, count)
    if columns < 1:
        raise InvalidInputError(f"columns: a positive integer expected, found {columns}")
    top = _MARGIN + (2 * _LINE if title else 0)
    size = (
        2 * _MARGIN + columns * cell_width - _GAP,
        top + -(-count // columns) * cell_height - _GAP + _MARGIN,
    )
    if size[0] * size[1] > _PIXELS:
        raise InvalidInputError(
            f"a sheet of {count} frames would have {size[0]} x {size[1]} pixels; draw fewer"
        )
    sheet = image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    if title:
        heading = ImageFont.load_default(17)
        pen.text((_MARGIN, _MARGIN - 4), _cut(title, heading, size[0] - 2 * _MARGIN), _INK, heading)
    for at, picture in enumerate(images(frames, scale)):
        left = _MARGIN + at % columns * cell_width
        upper = top + at // columns * cell_height
        sheet.paste(picture, (left, upper), picture if picture.mode == "RGBA" else None)
        for number, line in enumerate(captions[at].split("\n") if captions else ()):
            pen.text(
                (left, upper + height * scale + 3 + number * _LINE),
                _cut(line, font, width * scale), _SOFT if number else _INK, font,
            )  # fmt: skip
    return sheet


def _cut(text: str, font: Any, width: int) -> str:
    """The text, or as much of it as the width has room for."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
