"""What the pages of episodes are answered."""

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.episodes import about, with_final
from diskreplay.inspection.plain import plain
from diskreplay.pictures.channels import lines_of, steps_of
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.strips import fitted, strip_of
from diskreplay.view.episode_table import EpisodeQuery
from diskreplay.view.query import number, text, whole
from diskreplay.view.readers import Readers

_MOST_STEPS, _MOST_FRAMES = 2048, 256  # of an answer
_SIDE, _LARGEST = 420, 1600  # pixels
_STRIP = 4096  # pixels of a strip's height, about
_EVER = 1 << 62


def episodes(readers: Readers, request: Request) -> dict[str, Any]:
    """A page of the table."""
    query = EpisodeQuery(
        order=text(request, "order", "newest"),
        reverse=text(request, "reverse") == "1",
        least_return=number(request, "least_return", -np.inf),
        most_return=number(request, "most_return", np.inf),
        least_length=number(request, "least_length", -np.inf),
        most_length=number(request, "most_length", np.inf),
        since=number(request, "since", -np.inf),
        until=number(request, "until", np.inf),
        after=number(request, "after", -np.inf),
        before=number(request, "before", np.inf),
        end=text(request, "end"),
        env=whole(request, "env", 0, most=_EVER) if text(request, "env") else None,
        start=whole(request, "start", 0, most=_EVER),
        size=whole(request, "size", 50, most=_EVER),
    )
    look = readers.of(request.path_params["key"]).look()
    page = query.page(look.episodes, look.ended, look.is_latest)
    return page | {"version": look.version}


def episode(readers: Readers, request: Request) -> dict[str, Any]:
    """One episode: its figures, its cameras and its lines."""
    reader = readers.of(request.path_params["key"])
    look = reader.look()
    at = _found(look.episodes, request)
    ids = look.episodes.ids(at)
    priorities = look.priority(ids)
    more = {} if np.isnan(priorities).all() else {"priority": priorities}
    with reader.reading() as buffer:
        return plain(
            about(look.episodes, at)
            | {
                "version": look.version,
                "ended": look.ended[at],
                "is_latest": look.is_latest[at],
                "frames": len(with_final(look.episodes, at)),
                "num_envs": buffer.num_envs,
                "stack": {"size": buffer.stack_size, "padding": buffer.stack_padding},
                "cameras": [_camera(f, ids[:1]) for f in FrameField.every(buffer)],
                "lines": lines_of(buffer, ids, more),
                "before": _start(look.episodes, at - 1),
                "behind": _start(look.episodes, at + 1),
            }
        )


def steps(readers: Readers, request: Request) -> dict[str, Any]:
    """Some transitions of an episode, one by one."""
    reader = readers.of(request.path_params["key"])
    look = reader.look()
    first = whole(request, "first", 0, most=_EVER)
    count = whole(request, "count", 256, most=_MOST_STEPS)
    before = look.episodes.ids(_found(look.episodes, request))[: first + count]
    ids = before[first:]
    with reader.reading() as buffer:
        found = steps_of(buffer, ids)
        gained = np.cumsum(buffer.take("reward", before), dtype=np.float64)
    found["values"]["return so far"] = plain(gained[first:, None])
    priorities = look.priority(ids)
    if not np.isnan(priorities).all():
        found["values"]["priority"] = plain(priorities[:, None])
    return found


def frames(readers: Readers, request: Request) -> Response:
    """Some frames of an episode below each other, as a PNG."""
    reader = readers.of(request.path_params["key"])
    look = reader.look()
    first = whole(request, "first", 0, most=_EVER)
    count = whole(request, "count", 1, most=_MOST_FRAMES)
    side = whole(request, "side", _SIDE, most=_LARGEST)
    rows = with_final(look.episodes, _found(look.episodes, request))[first : first + count]
    if not len(rows) or not side:
        raise InvalidInputError(f"first: the episode has no frame {first}")
    with reader.reading() as buffer:
        field = FrameField.named(buffer, text(request, "field"))
        drawn = field.read(rows, whole=text(request, "whole") == "1")
    return Response(strip_of(fitted(drawn, side)), media_type="image/png")


def _found(episodes: Episodes, request: Request) -> int:
    """The number of the episode that has the row of the address."""
    given = request.path_params["id"]
    at = episodes.find(given) if given < _EVER else -1
    if at < 0:
        raise InvalidInputError(
            f"row {given}: no episode that this page knows has it: it was evicted, was never "
            "recorded, or has come since the page last looked"
        )
    return at


def _start(episodes: Episodes, at: int) -> int | None:
    return int(episodes.start_id[at]) if 0 <= at < len(episodes) else None


def _camera(field: FrameField, one: np.ndarray) -> dict[str, Any]:
    height, width = fitted(field.read(one), _SIDE).shape[1:3]
    return {
        "name": field.name,
        "stacked": field.stacked,
        "width": width,
        "height": height,
        "per": max(1, min(_MOST_FRAMES, _STRIP // height)),
    }
