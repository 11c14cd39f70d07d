"""An episode for the player of the page: its frames as PNG strips, and what happened when."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.errors import EmptyBufferError, NotSampleableError
from diskreplay.inspection.episodes import about
from diskreplay.pictures.channels import lines_of, steps_of
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
    buffer: ReplayBuffer,
    cameras: Sequence[FrameField],
    episodes: Episodes,
    number: int,
    most_bytes: int,
) -> dict[str, Any] | None:
    """Frames and figures of an episode, ready for JSON: what the player of the page plays.

    Parameters
    ----------
    cameras : sequence of FrameField
        Shown beside each other; may be empty.
    number : int
        Of the episode.
    most_bytes : int
        Of all strips together. A longer episode is thinned out until it fits: every second frame,
        every fourth, and so on.

    Returns
    -------
    dict or None
        None if the writer evicted a row meanwhile. ``strips`` has for each camera PNGs of ``per``
        frames below each other, as base64; ``stride`` says which frames are there; ``steps``, as
        `channels.steps_of` has them, and ``lines`` are of these, with rewards summed up to the next
        shown. The last frame may be that of the final row, which has no action. ``poster`` is the
        frame to begin with, where most was gained or lost, and of several the one nearest to the
        middle: first frames look alike.
    """
    ids = episodes.ids(number)
    final = int(episodes.final_id[number])
    stride = math.ceil(len(ids) / _FRAMES)
    try:
        rewards = buffer.take("reward", ids).astype(np.float64)
        while True:
            shown = ids[::stride]
            drawn = np.r_[shown, final] if final >= 0 else shown
            pictured = []
            for camera in cameras:
                parts = [fitted(part, _SIDE) for part in camera.parts(drawn)]
                if sum(map(len, parts)) < len(drawn):
                    return None
                pictured.append(np.concatenate(parts))
            strips = [_strips(pictures) for pictures in pictured]
            if sum(len(s) for each in strips for s in each) <= most_bytes or len(shown) < 3:
                break
            stride *= 2
        steps, lines = steps_of(buffer, shown), lines_of(buffer, ids)
    except (NotSampleableError, EmptyBufferError):
        return None
    gained = np.add.reduceat(rewards, np.arange(0, len(ids), stride))
    steps["rewards"] = gained.round(6).tolist()
    steps["values"]["return so far"] = np.cumsum(gained).round(6)[:, None].tolist()
    poster = _telling(np.abs(gained))
    return about(episodes, number) | {
        "cameras": [
            {"name": camera.name, "width": pictures.shape[2], "height": pictures.shape[1],
             "per": _STRIP // pictures.shape[1]}
            for camera, pictures in zip(cameras, pictured, strict=True)
        ],
        "strips": [[base64.b64encode(strip).decode() for strip in each] for each in strips],
        "stride": stride,
        "count": len(shown),
        "frames": len(drawn) if cameras else len(shown),
        "steps": steps,
        "lines": lines,
        "poster": poster,
        "stack": {"size": buffer.stack_size if stride == 1 else 1, "padding": buffer.stack_padding},
    }  # fmt: skip


def _telling(gained: np.ndarray) -> int:
    """The place of the largest value that is nearest to the middle."""
    (largest,) = np.nonzero(gained == gained.max())
    return int(largest[np.abs(largest - len(gained) // 2).argmin()])


def _strips(pictures: np.ndarray) -> list[bytes]:
    per = _STRIP // pictures.shape[1]
    starts = range(0, len(pictures), per)
    return [strip_of(pictures[start : start + per], small=True) for start in starts]
