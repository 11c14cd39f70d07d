"""An episode for the player of the page: its frames as PNG strips, and what happened when."""

import base64
import io
import math
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.errors import EmptyBufferError, NotSampleableError
from diskreplay.inspection.identity import action_labels
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.pixels import in_colour, pillow, shrunk

_SIDE = 210  # pixels of a frame's longer side at most
_FRAMES = 1000  # of one episode
_STRIP = 8192  # pixels: what every browser decodes as one picture


def chosen(episodes: Episodes, count: int) -> dict[int, str]:
    """The numbers of up to `count` telling episodes, and what is telling about them."""
    candidates = np.flatnonzero(episodes.whole)
    if not len(candidates):
        candidates = np.arange(len(episodes))
    if not len(candidates):
        return {}
    ranked = candidates[np.argsort(episodes.returns[candidates], kind="stable")].tolist()
    picks = [
        ("Best", ranked[-1]), ("Newest", int(candidates[-1])),
        ("Median", ranked[len(ranked) // 2]), ("Worst", ranked[0]),
    ]  # fmt: skip
    more = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).astype(int)
    picks += [("Between", ranked[at]) for at in more]
    named: dict[int, str] = {}
    for name, number in picks:
        if len(named) < count:
            named.setdefault(number, name)
    return named


def reel_of(
    buffer: ReplayBuffer, field: FrameField, episodes: Episodes, number: int, most_bytes: int
) -> dict[str, Any] | None:
    """Frames and figures of an episode, ready for JSON.

    Parameters
    ----------
    field : FrameField
    number : int
        Of the episode.
    most_bytes : int
        Of all strips together. A longer episode is thinned out until it fits: every second frame,
        every fourth, and so on.

    Returns
    -------
    dict or None
        None if the writer evicted a row meanwhile. ``strips`` are PNGs of ``per`` frames below each
        other, as base64, `width` by `height` pixels a frame; ``stride`` says which frames are
        there; ``actions``, ``rewards`` (summed up to the next shown) and ``returns`` (before the
        step) are of each. The last frame may be that of the final row, which has no action.
    """
    ids = episodes.ids(number)
    final = int(episodes.final_id[number])
    stride = math.ceil(len(ids) / _FRAMES)
    try:
        rewards = buffer.take("reward", ids).astype(np.float64)
        while True:
            shown = ids[::stride]
            actions = action_texts(buffer, shown)
            drawn = np.r_[shown, final] if final >= 0 else shown
            parts = [_fitted(part) for part in field.parts(drawn)]
            if sum(map(len, parts)) < len(drawn):
                return None
            pictures = np.concatenate(parts)
            strips = _strips(pictures)
            if sum(map(len, strips)) <= most_bytes or len(shown) < 3:
                break
            stride *= 2
    except (NotSampleableError, EmptyBufferError):
        return None
    before = np.r_[0, np.cumsum(rewards)]
    return {
        "width": pictures.shape[2],
        "height": pictures.shape[1],
        "per": _STRIP // pictures.shape[1],
        "strips": [base64.b64encode(strip).decode() for strip in strips],
        "stride": stride,
        "frames": len(pictures),
        "actions": actions,
        "rewards": np.add.reduceat(rewards, np.arange(0, len(ids), stride)).round(6).tolist(),
        "returns": before[:-1:stride].round(6).tolist(),
        "total": round(float(before[-1]), 6),
    }


def _fitted(pictures: np.ndarray) -> np.ndarray:
    """Pictures no larger than the page shows them, (n, h, w) or (n, h, w, 3)."""
    height, width = pictures.shape[1:3]
    factor = math.ceil(max(height, width) / _SIDE)
    if factor == 1:
        return pictures
    return np.stack([shrunk(p, -(-height // factor), -(-width // factor)) for p in pictures])


def _strips(pictures: np.ndarray) -> list[bytes]:
    """PNGs of a column of frames each: what repeats from frame to frame is within reach of deflate,
    which looks back 32 KiB."""
    per = _STRIP // pictures.shape[1]
    strips = []
    for start in range(0, len(pictures), per):
        part = pictures[start : start + per]
        column = np.ascontiguousarray(part.reshape(-1, *part.shape[2:]))
        image = pillow().fromarray(column if column.ndim == 2 else in_colour(column))
        if image.mode != "L":
            image = image.quantize(256, dither=0)
        data = io.BytesIO()
        image.save(data, "PNG", optimize=True)
        strips.append(data.getvalue())
    return strips


def action_texts(buffer: ReplayBuffer, ids: np.ndarray) -> list[str]:
    """What was done in each row, by name where it is known; of a vector, the first numbers."""
    names = [name for name in buffer.fields if name.split("/")[0] == "action"]
    columns = [buffer.take(name, ids) for name in names]
    if (label := action_labels(buffer)) is not None:
        return [label(action) for action in columns[0]]
    texts = []
    for row in range(len(ids)):
        numbers = [value for column in columns for value in column[row].ravel().tolist()]
        shown = ", ".join(f"{value:.3g}" for value in numbers[:6])
        texts.append(shown + (", …" if len(numbers) > 6 else ""))
    return texts
