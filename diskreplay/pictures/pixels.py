"""Observations as pictures: uint8 frames, grey or in colour, with the channels last."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from diskreplay.errors import ShapeError
from diskreplay.extensions import needed

_CHANNELS = (1, 3, 4)


def pictures(
    frames: np.ndarray, *, low: float | None = None, high: float | None = None
) -> np.ndarray:
    """Frames as uint8, channels last.

    Parameters
    ----------
    frames : array_like, shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c of 1, 3 or 4
        Channels are looked for along the last axis first. Of bool, uint8 or any other numbers.
    low, high : float, optional
        What is black and what is white. uint8 is taken as it is by default, floats within [0, 1]
        as shares of white, other numbers within [0, 255] as they are; else the smallest and the
        largest finite value are black and white. NaN is black.

    Returns
    -------
    ndarray of uint8, shape (n, h, w), (n, h, w, 3) or (n, h, w, 4)
        A view of `frames` where nothing has to be computed.

    Raises
    ------
    ShapeError
        These are no pictures.
    """
    frames = np.asarray(frames)
    if frames.dtype.kind not in "biuf":
        raise ShapeError(f"frames: numbers expected, found dtype {frames.dtype}")
    if frames.ndim == 4 and frames.shape[-1] not in _CHANNELS and frames.shape[1] in _CHANNELS:
        frames = np.moveaxis(frames, 1, -1)
    if frames.ndim == 4 and frames.shape[-1] == 1:
        frames = frames[..., 0]
    if not (frames.ndim == 3 or (frames.ndim == 4 and frames.shape[-1] in _CHANNELS)) or (
        0 in frames.shape[1:3]
    ):
        raise ShapeError(
            f"frames: shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c of 1, 3 or 4 expected, "
            f"found {frames.shape}"
        )
    if frames.dtype == np.uint8 and low is None and high is None:
        return frames
    if low is None or high is None:
        low, high = tones(frames)
    scaled = np.nan_to_num(frames.astype(np.float32), nan=low, posinf=high, neginf=low)
    scaled -= low
    scaled *= 255 / (high - low) if high > low else 0
    return np.clip(scaled.round(), 0, 255).astype(np.uint8)


def tones(frames: np.ndarray) -> tuple[float, float]:
    """The values that are black and white, as `pictures` takes them by default."""
    if frames.dtype.kind == "b":
        return 0.0, 1.0
    if frames.dtype == np.uint8:
        return 0.0, 255.0
    finite = frames[np.isfinite(frames)] if frames.dtype.kind == "f" else frames
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low >= 0 and high <= 255:
        return 0.0, 1.0 if high <= 1 and frames.dtype.kind == "f" else 255.0
    return low, high


def one_picture(frame: np.ndarray) -> np.ndarray:
    """A single frame as `pictures` gives it: uint8 of shape (h, w), (h, w, 3) or (h, w, 4)."""
    return pictures(np.asarray(frame)[None])[0]


def in_colour(picture: np.ndarray, paper: int = 0) -> np.ndarray:
    """A picture of `pictures` as (h, w, 3), over `paper` where it is transparent."""
    if picture.ndim == 2:
        return np.repeat(picture[..., None], 3, axis=-1)
    if picture.shape[-1] == 3:
        return picture
    opacity = picture[..., 3:].astype(np.float32) / 255
    return (picture[..., :3] * opacity + paper * (1 - opacity)).round().astype(np.uint8)


def shrunk(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """`picture` with at most this height and width: means over boxes, itself if it is smaller."""
    for axis, size in ((0, height), (1, width)):
        length = picture.shape[axis]
        if size < length:
            edges = np.arange(size) * length // size
            counts = np.diff(edges, append=length)
            counts = counts.reshape([-1 if a == axis else 1 for a in range(picture.ndim)])
            sums = np.add.reduceat(picture, edges, axis=axis, dtype=np.uint32)
            picture = ((sums + counts // 2) // counts).astype(np.uint8)
    return picture


def images(frames: Any, scale: int = 1) -> Iterator[Any]:
    """Pillow images of frames as `pictures` takes them, each pixel a square of `scale`.

    Raises
    ------
    ImportError
        Pillow is missing.
    """
    image = pillow()
    for picture in pictures(frames):
        made = image.fromarray(np.ascontiguousarray(picture))
        yield (
            made
            if scale == 1
            else made.resize((made.width * scale, made.height * scale), image.Resampling.NEAREST)
        )


def pillow() -> Any:
    """The module ``PIL.Image``."""
    with needed("pictures are written with Pillow", "plot"):
        from PIL import Image
    return Image
