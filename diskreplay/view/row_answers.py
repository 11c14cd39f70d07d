"""What the page of a row is answered."""

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError, NotSampleableError, UnknownIdError
from diskreplay.inspection.identity import component_names
from diskreplay.inspection.plain import plain
from diskreplay.pictures.channels import action_texts
from diskreplay.pictures.frame_field import FrameField
from diskreplay.pictures.strips import fitted, strip_of
from diskreplay.view.query import text
from diskreplay.view.readers import Readers
from diskreplay.view.store_look import StoreLook

_SHOWN = 256  # values of a field
_SIDE = 420  # pixels
_FIGURES = ("reward", "discount", "steps", "terminated", "truncated")


def row(readers: Readers, request: Request) -> dict[str, Any]:
    """All there is to say of a row: what is stored, its transition and its neighbours."""
    reader = readers.of(request.path_params["key"])
    look, id = reader.look(), request.path_params["id"]
    with reader.reading() as buffer:
        bounds = buffer.bounds
        number, env = divmod(id, buffer.num_envs)
        first, stop = bounds[env].tolist()
        if first == stop:
            raise InvalidInputError(f"row {id}: env {env} has no rows now")
        if not first <= number < stop:
            raise InvalidInputError(
                f"row {id}: env {env} has the rows {first} to {stop - 1} now, which are the ids "
                f"{first * buffer.num_envs + env} to {(stop - 1) * buffer.num_envs + env}"
            )
        one = np.array([id])
        episode = look.episodes.find(id)
        pictured = {field.name for field in FrameField.every(buffer)}
        return plain(
            {
                "id": id,
                "row": number,
                "env": env,
                "num_envs": buffer.num_envs,
                "first_id": first * buffer.num_envs + env,
                "last_id": (stop - 1) * buffer.num_envs + env,
                "before": id - buffer.num_envs if number > first else None,
                "behind": id + buffer.num_envs if number + 1 < stop else None,
                "episode": _episode(look, episode, id),
                "fields": [_field(buffer, name, one, name in pictured) for name in buffer.fields],
                "transition": _transition(buffer, one),
                "priority": _priority(look, one),
                "window": _window(buffer, number, env, first, stop),
                "stack": {"size": buffer.stack_size, "padding": buffer.stack_padding},
                "horizon": buffer.update_horizon,
            }
        )


def picture(readers: Readers, request: Request) -> Response:
    """A field of a row as a PNG: as it is stored, or as the stack that is sampled."""
    reader = readers.of(request.path_params["key"])
    id, which = np.array([request.path_params["id"]]), text(request, "which", "stored")
    if which not in ("stored", "observation", "next_observation"):
        raise InvalidInputError(f"which: stored or an observation expected, found {which!r:.40}")
    with reader.reading() as buffer:
        field = FrameField.named(buffer, text(request, "field"))
        if which == "stored":
            drawn = field.read(id, whole=True)
        elif field.name.split("/")[0] != "observation":
            raise InvalidInputError(
                f"which: stored expected for {field.name}, which is no observation, found {which}"
            )
        else:
            stack: Any = getattr(buffer.gather(id), which)
            for part in field.name.split("/")[1:]:
                stack = stack[int(part) if isinstance(stack, tuple) else part]
            frames = stack[0] if buffer.stack_size > 1 else stack
            drawn = np.concatenate(list(field.draw(frames, whole=True)), axis=1)[None]
    return Response(strip_of(fitted(drawn, 4 * _SIDE)), media_type="image/png")


def _episode(look: StoreLook, at: int, id: int) -> dict[str, Any] | None:
    if at < 0:
        return None
    start, num_envs = int(look.episodes.start_id[at]), look.episodes.num_envs
    return {
        "number": at,
        "start_id": start,
        "place": int(np.searchsorted(look.episodes.ids(at), id)),
        "rows": look.episodes.rows[at],
        "return": look.episodes.returns[at],
        "num_envs": num_envs,
    }


def _field(buffer: ReplayBuffer, name: str, one: np.ndarray, is_picture: bool) -> dict[str, Any]:
    shape, dtype = buffer.fields[name]
    size = int(np.prod(shape, dtype=np.int64))
    values = buffer.take(name, one).reshape(-1)
    return {
        "name": name,
        "shape": shape,
        "dtype": dtype,
        "is_picture": is_picture,
        "values": plain(values[:_SHOWN], spelled=True),  # one is told from another
        "size": size,
        "names": component_names(buffer, name) if len(shape) == 1 and size <= _SHOWN else None,
    }


def _transition(buffer: ReplayBuffer, one: np.ndarray) -> dict[str, Any]:
    """What is sampled of it, or why nothing is."""
    try:
        batch = buffer.gather(one)
    except (NotSampleableError, UnknownIdError) as error:
        return {"why_not": str(error)}
    return {name: getattr(batch, name)[0] for name in _FIGURES}


def _priority(look: StoreLook, one: np.ndarray) -> dict[str, Any] | None:
    (priority,) = look.priority(one).tolist()
    if np.isnan(priority):
        return None
    share = priority**look.alpha / look.leaf_total
    return {
        "priority": priority,
        "probability": share,
        "times": share * len(look.priorities),
        "below": float((look.priorities < priority).mean()),
    }


def _window(
    buffer: ReplayBuffer, number: int, env: int, first: int, stop: int
) -> list[dict[str, Any]]:
    """The rows around one: those of its stack and its n-step return, and some more."""
    around = range(
        max(first, number - max(4, buffer.stack_size)),
        min(stop, number + max(4, buffer.update_horizon) + 1),
    )
    ids = np.array(around) * buffer.num_envs + env
    names = ("step", "reward", "terminated", "truncated", "is_final")
    columns = dict(zip(names, buffer.take(names, ids), strict=True))
    actions = action_texts(buffer, ids)
    return [
        {"id": id, "action": actions[at], **{name: columns[name][at] for name in names}}
        for at, id in enumerate(ids.tolist())
    ]


def newest(readers: Readers, request: Request) -> dict[str, Any]:
    """Which rows there are: of each env the oldest and the newest id."""
    reader = readers.of(request.path_params["key"])
    with reader.reading() as buffer:
        bounds, num_envs = buffer.bounds, buffer.num_envs
    envs = np.arange(num_envs)
    return {
        "first": bounds[:, 0] * num_envs + envs,
        "last": (bounds[:, 1] - 1) * num_envs + envs,
        "num_envs": num_envs,
    }
