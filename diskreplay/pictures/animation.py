"""Frames that move: GIF files."""

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import real
from diskreplay.pictures.pixels import images, in_colour, pictures
from diskreplay.store import files
from diskreplay.store.paths import local

_SIDE = 252  # pixels of the longer side, about; small frames are enlarged by whole steps


def save_gif(
    frames: np.ndarray | Iterable[np.ndarray],
    path: str | os.PathLike[str],
    fps: float = 15,
    *,
    scale: int | None = None,
) -> Path:
    """Write an animation that repeats for ever.

    Parameters
    ----------
    frames : array_like, shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c of 1, 3 or 4
        As `diskreplay.pictures.pixels.pictures` takes them, or an iterator of such arrays, which
        are then the parts of one animation and of which one at a time is looked at.
    path : path
        Replaced as a whole.
    fps : float
        Frames a second, to the nearest that GIF knows: it counts in hundredths of a second, and
        browsers play nothing faster than 50.
    scale : int, optional
        Each pixel becomes a square of this side; by default what brings the longer side near 252.

    Returns
    -------
    Path

    Raises
    ------
    ShapeError, InvalidInputError
        These are no pictures, or there is none; a rate that GIF has not.
    StorageError
        The file cannot be written.
    ImportError
        Pillow is missing.

    Notes
    -----
    A frame of up to 256 colours is exact. The encoder holds the frames of the whole animation, at a
    byte a pixel, and of a run of equal frames only the first.
    """
    path = local(path, "path")
    if path.suffix.lower() != ".gif":
        raise InvalidInputError(f"{path}: a name that ends with .gif expected")
    fps = real("fps", fps, 0.02, 50.0)
    parts = frames if isinstance(frames, Iterator) else iter([frames])
    drawn = _indexed(parts, scale)
    first = next(drawn, None)
    if first is None:
        raise InvalidInputError("frames: at least one expected, found none")
    data = io.BytesIO()
    first.save(
        data, "GIF", save_all=True, append_images=drawn, duration=round(100 / fps) * 10, loop=0,
        optimize=False,
    )  # fmt: skip
    files.replace({path: data.getvalue()})
    return path


def _indexed(parts: Iterator[np.ndarray], scale: int | None) -> Iterator[Any]:
    """Each frame as an image of grey tones or of a palette of its own."""
    for frame in itertools.chain.from_iterable(map(pictures, parts)):
        if scale is None:
            scale = max(1, round(_SIDE / max(frame.shape[:2])))
        picture = frame if frame.ndim == 2 else in_colour(frame, 255)
        (image,) = images(picture[None], scale)
        yield image if image.mode == "L" else image.quantize(256, dither=0)
