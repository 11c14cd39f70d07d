"""Frames for a player: PNGs of a column of frames each."""

import io
import math

import numpy as np

from diskreplay.pictures.pixels import in_colour, pillow, shrunk


def fitted(pictures: np.ndarray, side: int) -> np.ndarray:
    """Pictures no larger than they are shown, (n, h, w) or (n, h, w, 3): shrunk by a whole number
    of times until the longer side is at most `side` pixels."""
    height, width = pictures.shape[1:3]
    factor = math.ceil(max(height, width) / side)
    if factor == 1:
        return pictures
    return np.stack([shrunk(p, -(-height // factor), -(-width // factor)) for p in pictures])


def strip_of(pictures: np.ndarray, *, small: bool = False) -> bytes:
    """A PNG of some frames below each other: what repeats from frame to frame is within reach of
    deflate, which looks back 32 KiB.

    Parameters
    ----------
    pictures : ndarray of uint8, shape (n, h, w) or (n, h, w, 3)
        At least one.
    small : bool
        256 colours and more work for fewer bytes; else every pixel is exact.
    """
    column = np.ascontiguousarray(pictures.reshape(-1, *pictures.shape[2:]))
    image = pillow().fromarray(column if column.ndim == 2 else in_colour(column))
    data = io.BytesIO()
    if small:
        if image.mode != "L":
            image = image.quantize(256, dither=0)
        image.save(data, "PNG", optimize=True)
    else:
        image.save(data, "PNG", compress_level=2)
    return data.getvalue()
