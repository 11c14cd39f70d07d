"""Elements of rows, and those that an environment asks for."""

from collections import namedtuple
from typing import Any

import numpy as np

from diskreplay.compat.base import is_kind

ReplayElement = namedtuple("shape_type", ["name", "shape", "type"])  # type: ignore[name-match]
"""An element of each row: its name, shape and dtype."""


def native_rewards(rewards: np.ndarray) -> np.ndarray:
    """What a store shows for rewards that are no float32 scalars, and so are kept beside: the
    nearest float32, 0 for vectors and what is not finite."""
    if rewards.ndim > 1:
        return np.zeros(len(rewards), np.float32)
    with np.errstate(over="ignore"):
        found = rewards.astype(np.float32)
    return np.where(np.isfinite(found), found, np.float32(0))


def environment_elements(env: Any) -> tuple[Any, list[ReplayElement]]:
    """The space of observations of an environment, and the further elements it brings.

    Spaces are told by their class's name, so gym's and gymnasium's do alike.

    Raises
    ------
    NotImplementedError
        A space is of another kind.
    """
    space = env.observation_space
    if is_kind(env.unwrapped, "RecSimGymEnv") or (
        is_kind(space, "Dict") and {"user", "doc", "response"} <= set(space.spaces)
    ):
        return _checked(space["user"], "user observation", "Box"), _recsim_elements(space)
    return _checked(space, "observation", "Box"), []


def action_space(env: Any) -> Any:
    """The space of actions of an environment, if it is one that can be stored."""
    return _checked(env.action_space, "action", "Box", "MultiDiscrete", "Discrete")


def _recsim_elements(space: Any) -> list[ReplayElement]:
    """Of the documents, their augmentation and the responses; all of a kind share a space."""
    documents = space["doc"]
    _checked(documents, "doc", "Dict")
    found = []
    first = next(iter(documents.spaces.values()))
    if is_kind(first, "Box"):
        found.append(ReplayElement("doc", (len(documents.spaces), *first.shape), first.dtype))
    else:
        found += _features("doc", _checked(first, "document", "Dict"), len(documents.spaces))
    if "augmentation" in space.spaces:
        first = next(iter(space["augmentation"].spaces.values()))
        found += _features("augmentation", first, len(documents.spaces))
    slate = space["response"]
    if not is_kind(slate, "Tuple") or not is_kind(slate[0], "Dict"):
        raise AssertionError(f"response: a Tuple of Dict spaces expected, found {slate}")
    return found + _features("response", slate[0], len(slate.spaces))


def _features(name: str, space: Any, count: int) -> list[ReplayElement]:
    found = []
    for key, feature in space.spaces.items():
        _checked(feature, f"{name} feature {key}", "Box", "Discrete")
        shape = (count,) if is_kind(feature, "Discrete") else (count, *feature.shape)
        found.append(ReplayElement(f"{name}_{key}", shape, np.dtype(feature.dtype)))
    return found


def _checked(space: Any, what: str, *names: str) -> Any:
    if not any(is_kind(space, name) for name in names):
        raise NotImplementedError(
            f"{what}: a space of the kind {' or '.join(names)} expected, found {space}"
        )
    return space
