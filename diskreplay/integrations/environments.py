"""What a Gymnasium environment, vector ones included, tells of itself."""

from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


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
