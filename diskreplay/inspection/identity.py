"""Who a store is: what was noted about it, what to call it, and what its actions mean."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium.spaces import Discrete

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.humanize import count_text
from diskreplay.metadata import parse
from diskreplay.store.format import read_attributes

_PARTS = 3  # of a path: runs/pong/replay, since most stores are called "replay"
_LARGE = 60  # characters of an object that is not shown
_LONGEST = 300  # characters of a value that is shown


def metadata_of(path: Path) -> dict[str, Any]:
    """The JSON object that was noted about the store or checkpoint at `path`; empty without one."""
    return parse(read_attributes(path))[0]


def title_of(path: Path) -> str:
    """What to call a store: the ``name`` that was noted, or the ``env_id``, or the end of its path,
    ``runs/pong/replay``."""
    noted = metadata_of(path)
    for key in ("name", "env_id"):
        if isinstance(noted.get(key), str) and noted[key].strip():
            return " ".join(noted[key].split())
    return "/".join(path.absolute().parts[1:][-_PARTS:])


def metadata_texts(noted: dict[str, Any]) -> list[str]:
    """A text for each key: ``seed 3``; of a large object, how many entries it has."""
    return [f"{key} {_text(value)}" for key, value in noted.items()]


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        text = " ".join(value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and len(text) > _LARGE:
        return f"with {count_text(len(value), 'key')}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def action_labels(buffer: ReplayBuffer) -> Callable[[Any], str] | None:
    """What to call an action of a Discrete space: ``2 RIGHT``; None if nobody noted it.

    The names are ``action_meanings`` of the metadata, a list with one for each action, as
    `get_action_meanings` of Atari environments returns it.
    """
    space = buffer.action_space
    names = metadata_of(buffer.path).get("action_meanings")
    if not (
        isinstance(space, Discrete)
        and isinstance(names, list)
        and len(names) == space.n
        and all(isinstance(name, str) for name in names)
    ):
        return None
    first = int(space.start)

    def label(action: Any) -> str:
        at = int(action) - first
        return f"{int(action)} {names[at]}" if 0 <= at < len(names) else f"{int(action)}"

    return label


def component_names(buffer: ReplayBuffer, field: str) -> list[str]:
    """What to call the entries of a field's vector: ``names`` of the metadata, or their numbers.

    ``names`` is an object with a list of texts for a field, one for each entry:
    ``{"observation": ["x", "speed"], "action": ["torque"]}``. What does not fit is left out.
    """
    size = math.prod(buffer.fields[field][0])
    noted = metadata_of(buffer.path).get("names")
    names = noted.get(field) if isinstance(noted, dict) else None
    if isinstance(names, list) and len(names) == size and all(isinstance(n, str) for n in names):
        return names
    return [f"{field}[{at}]" for at in range(size)]


def action_components(buffer: ReplayBuffer, field: str) -> list[str]:
    """What to call each entry of an action on a chart of its own: ``action: torque``, ``action[0]``
    without names, and the field's name where there is but one number."""
    if not buffer.fields[field][0]:
        return [field]
    numbered = f"{field}["
    return [
        name if name.startswith(numbered) else f"{field}: {name}"
        for name in component_names(buffer, field)
    ]
