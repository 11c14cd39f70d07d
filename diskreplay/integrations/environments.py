"""What a Gymnasium environment, vector ones included, tells of itself."""

import json
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError, SchemaError
from diskreplay.metadata import checked

_FORGETFUL = (1, 4)  # the newest Gymnasium of which `resets_again` is known
_NO_OBJECTS = (1, 4)  # and of which `_check_tensors` is
_TO_TENSORS = {"ArrayConversion", "NumpyToTorch"}  # the second one is of its own before 1.2
_INNERMOST = re.compile(r"<([^<>]+)>+$")  # of what Gymnasium prints of an environment


def attribute(env: Any, name: str) -> list[Any]:
    """The attribute of an environment or of one of its wrappers, for each env of a vector one.

    Empty where there is none, and for vector environments that do not say what their envs have.
    """
    if isinstance(env, gymnasium.Env):
        return [env.get_wrapper_attr(name)] if env.has_wrapper_attr(name) else []
    base = env.unwrapped
    # An env in another process that lacks an attribute it is asked for is closed: ask before.
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv) and all(
        base.call("has_wrapper_attr", name)
    ):
        return list(base.get_attr(name))
    return []


def resets_again(env: Any) -> bool:
    """Whether an env whose episode has ended resets in its next step, even after a `reset`.

    An `AsyncVectorEnv` without shared memory does: its workers forget no end when they are reset.
    """
    base = env.unwrapped
    forgets = isinstance(base, AsyncVectorEnv) and not base.shared_memory
    return forgets and _version() <= _FORGETFUL


def _version() -> tuple[int, ...]:
    """Gymnasium's."""
    return tuple(map(int, gymnasium.__version__.split(".")[:2]))


def check_spaces(name: str, env: Any, buffer: ReplayBuffer) -> gym_spaces.Space[Any]:
    """Refuse an environment of another number of envs, or with other actions, than the buffer.

    `name` is the recorder's, for errors. Returned is the observation space of one env, for others
    to compare.

    Raises
    ------
    InvalidInputError
        The buffer is none; or the environment fails at the end of an episode.
    SchemaError
        It does not fit, or the buffer was made with the spaces of all envs together.
    """
    if not isinstance(buffer, ReplayBuffer):
        raise InvalidInputError(
            f"{name}: buffer: a ReplayBuffer expected, found {type(buffer).__name__}"
            + ("; give its `add` each step yourself" if hasattr(buffer, "add") else "")
        )
    num_envs, shown, actions = 1, env.observation_space, env.action_space
    if isinstance(env, VectorEnv):
        _check_tensors(name, env)
        num_envs = env.num_envs
        shown, actions = env.single_observation_space, env.single_action_space
        for which, of_one in ("observation_space", shown), ("action_space", actions):
            mine = getattr(buffer, which)
            if mine != of_one and mine == getattr(env, which):
                raise SchemaError(
                    f"{name}: the buffer's {which} is the one of {num_envs} envs together; make "
                    f"the buffer with that of one, the environment's single_{which}"
                )
    if buffer.num_envs != num_envs:
        raise SchemaError(
            f"{name}: {num_envs} env(s) found and {buffer.num_envs} in the buffer; the same "
            "number expected"
        )
    if _outline(actions) != _outline(buffer.action_space):
        raise SchemaError(
            f"the environment's action space is {actions}, the buffer's {buffer.action_space}; "
            "make the buffer with the environment's"
        )
    return shown


def _check_tensors(name: str, env: Any) -> None:
    """Refuse a `NumpyToTorch` that ends in an error as soon as an episode does.

    With ``SAME_STEP`` Gymnasium's own environments give ``final_obs`` as an array of objects, which
    no tensor can be. A wrapper of somebody else may make it another one before.
    """
    mode = env.metadata.get("autoreset_mode")
    if getattr(mode, "value", mode) != "SameStep" or _version() > _NO_OBJECTS:
        return
    layers, base = [], env.unwrapped
    while env is not base:
        layers.append(type(env))
        env = env.env
    for layer in reversed(layers if isinstance(base, SyncVectorEnv | AsyncVectorEnv) else ()):
        if not layer.__module__.startswith("gymnasium."):
            return
        if not _TO_TENSORS.isdisjoint(each.__name__ for each in layer.__mro__):
            raise InvalidInputError(
                f"{name}: env: with AutoresetMode.SAME_STEP Gymnasium's {layer.__name__} fails at "
                "the end of an episode: the infos have final observations as an array of objects, "
                "and it cannot convert that. Make the environment with AutoresetMode.NEXT_STEP or "
                "DISABLED, or make tensors by a wrapper of your own around the recorder"
            )


def describe(env: Any) -> dict[str, Any]:
    """What a store should say of the environment that its rows come from, as far as it can be had:
    ``env_id``; ``env_spec``, Gymnasium's own JSON of it, wrappers included; ``env_kwargs``, those
    of ``gymnasium.make`` that are JSON; ``action_meanings``, as ALE's environments have them;
    ``gymnasium_version``."""
    found: dict[str, Any] = {}
    spec = _spec(env)
    if spec is not None:
        found["env_id"] = spec.id
        found["env_kwargs"] = {k: v for k, v in spec.kwargs.items() if _is_json(v)}
        found["env_spec"] = _as_json(spec)
    elif (name := _id_of_another_process(env)) is not None:
        found["env_id"] = name
    found["action_meanings"] = _action_meanings(env, found.get("env_id", ""))
    found["gymnasium_version"] = gymnasium.__version__
    return {key: value for key, value in found.items() if value and _is_json(value)}


def note(env: Any, buffer: ReplayBuffer) -> None:
    """Add to the metadata of a buffer what they do not say yet of the environment."""
    if buffer.mode == "r":
        return
    there = buffer.metadata
    notes = {key: value for key, value in describe(env).items() if key not in there}
    while notes:
        try:
            return buffer.set_metadata(there | notes)
        except InvalidInputError:  # they are too large together: the longest is missed least
            del notes[max(notes, key=lambda key: len(json.dumps(notes[key])))]


def _spec(env: Any) -> EnvSpec | None:
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv):
        found = base.envs[0].spec or base.spec
    else:
        # To ask for that of an env in another process would end it if the spec cannot be pickled.
        found = env.spec if isinstance(env, gymnasium.Env) else base.spec
    return found if isinstance(found, EnvSpec) else None  # EnvPool's have another one


def _action_meanings(env: Any, name: str) -> Any:
    """What each action is called, as ALE says it."""
    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv) and not name.startswith("ALE/"):
        return None  # an error of another's method of this name would end the env
    try:
        if isinstance(env, gymnasium.Env) or not hasattr(base, "ale"):
            for meanings in attribute(env, "get_action_meanings")[:1]:
                return meanings() if callable(meanings) else meanings
        if isinstance(env.single_action_space, Discrete):  # ALE's own vector environment
            return [action.name for action in base.ale.get_action_set()]
    except Exception:  # an environment's own method of this name may do and want anything
        return None
    return None


def _as_json(spec: EnvSpec) -> Any:
    try:
        return json.loads(spec.to_json())
    except Exception:  # it copies what users gave to `make`, and that may raise anything
        return None


def _id_of_another_process(env: Any) -> str | None:
    base = env.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        return None
    found = _INNERMOST.search(str(base.call("__str__")[0]))
    return found[1] if found and found[1] in gymnasium.registry else None


def _is_json(value: Any) -> bool:
    try:
        checked({"value": value})
    except InvalidInputError:
        return False
    return True


def _outline(space: gym_spaces.Space[Any]) -> Any:
    """What must agree of action spaces; the bounds and the width of a Box need not."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _outline(inner) for key, inner in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return [_outline(inner) for inner in space.spaces]
    if isinstance(space, gym_spaces.Discrete):
        return int(space.n), int(space.start)
    if isinstance(space, gym_spaces.MultiDiscrete):
        return space.nvec.tolist(), space.start.tolist()
    return space.shape, np.dtype(space.dtype).kind
