"""An episode for the player of the page: its frames as PNG strips, and what happened when."""

import base64
import math
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.errors import EmptyBufferError, NotSampleableError
from diskreplay.pictures.channels import action_texts
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.strips import fitted, strip_of

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
            parts = [fitted(part, _SIDE) for part in field.parts(drawn)]
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


def _strips(pictures: np.ndarray) -> list[bytes]:
    per = _STRIP // pictures.shape[1]
    starts = range(0, len(pictures), per)
    return [strip_of(pictures[start : start + per], small=True) for start in starts]
