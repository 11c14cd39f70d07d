"""What a buffer was made with, as JSON in what is exported of it; and another one made like it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskreplay import spaces
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import FormatError
from diskreplay.metadata import parse as parse_metadata
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store import format
from diskreplay.stored_space import StoredSpace

if TYPE_CHECKING:
    import gymnasium

_PLAIN = (
    "capacity", "max_transitions", "num_envs", "stack_size", "stack_padding", "update_horizon",
    "gamma", "batch_size",
)  # fmt: skip
_PRIORITIZED = ("alpha", "beta", "weight_normalization")
_OPTIONS = frozenset(
    (
        *("kind", "observation_space", "action_space", "extras", "compressor", "metadata"),
        *_PLAIN, *_PRIORITIZED,
    )
)  # fmt: skip
_KINDS = {"buffer": dict, "largest_priority": int | float | None}
_BOOKKEEPING = frozenset(("reward", "terminated", "truncated", "step", "is_final"))


def options_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """The options of a buffer as JSON: spaces, extras, capacity, compressors and all else but the
    state of its generator."""
    stored = format.read_attributes(buffer.path)["fields"]
    document = {
        "kind": "uniform",
        "observation_space": spaces.describe(buffer.observation_space, "observation"),
        "action_space": spaces.describe(buffer.action_space, "action"),
        "extras": {name: [list(shape), dtype.name, *more] for name, (shape, dtype, *more) in
                   buffer.extras.items()},
        "compressor": {field["name"]: field["compressor"] for field in stored
                       if field["name"] not in _BOOKKEEPING},
        **{name: getattr(buffer, name) for name in _PLAIN},
        "metadata": buffer.metadata,
    }  # fmt: skip
    if isinstance(buffer, PrioritizedReplayBuffer):
        document["kind"] = "prioritized"
        document |= {name: getattr(buffer, name) for name in _PRIORITIZED}
        if callable(buffer.beta):  # a schedule is the training program's own
            document["beta"] = 0.4
    return document


def foreign_options(
    observation_space: "gymnasium.Space[Any]",
    action_space: "gymnasium.Space[Any]",
    extras: Mapping[str, Sequence[Any]],
    prioritized: bool,
) -> dict[str, Any]:
    """The options for a data set that others wrote, as `options_of` has them."""
    return {
        "kind": "prioritized" if prioritized else "uniform",
        "observation_space": StoredSpace.of(observation_space, "observation").document,
        "action_space": StoredSpace.of(action_space, "action").document,
        "extras": extras,
        "compressor": {},
    }


def of_episodes(options: Mapping[str, Any]) -> dict[str, Any]:
    """What describes a data set of episodes, as `parse_description` has it: they go one after the
    other into one env, all are kept, and nothing says which priorities they had."""
    return {
        "buffer": {**options, "capacity": None, "max_transitions": None, "num_envs": 1},
        "largest_priority": None,
    }


def make_buffer(
    document: Mapping[str, Any], path: str | os.PathLike[str], **options: Any
) -> ReplayBuffer:
    """A new buffer at `path` as `options_of` said; `options` go before. A `FormatError` if the
    document is damaged."""
    try:
        document = {**document, "metadata": parse_metadata(document)[0]}
        unknown = document.keys() - _OPTIONS
        if unknown or not isinstance(document["extras"], Mapping) \
                or not isinstance(document["compressor"], str | Mapping):  # fmt: skip
            raise TypeError(f"unknown {sorted(unknown)}" if unknown else "extras or compressor")
        kind = {"uniform": ReplayBuffer, "prioritized": PrioritizedReplayBuffer}[
            document.pop("kind")
        ]
        for name in ("observation", "action"):
            document[f"{name}_space"] = StoredSpace(document[f"{name}_space"], name).space
        options = {**document, **options}
        if isinstance(options["compressor"], Mapping):
            stored: Any = document["compressor"]
            options["compressor"] = {**stored, **options["compressor"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: the description of the buffer is damaged ({error})") from error
    return kind(path, **options)


def parse_description(
    path: Path,
    text: str | bytes,
    version_key: str,
    version: int,
    kinds: Mapping[str, type] | None = None,
) -> dict[str, Any]:
    """The document in `text`, of this version by the entry `version_key`, with entries of these
    kinds besides ``buffer`` and ``largest_priority``. A `FormatError`, which names `path`, if it is
    no such document, of another version, or an entry is missing or of another type."""
    try:
        document = json.loads(text)
        found = document[version_key]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: the description of the buffer it came from is damaged ({error})"
        ) from error
    if found != version:
        raise FormatError(f"{path}: version {found!r}; this diskreplay reads {version}")
    for name, kind in (_KINDS | dict(kinds or {})).items():
        if name not in document or not isinstance(document[name], kind):
            raise FormatError(
                f"{path}: the description of the buffer it came from is damaged: {name!r} is "
                f"{document.get(name, 'missing')!r}; export it again"
            )
    return document
