"""What `ShardedReplayBuffer` is given, checked before anything is started."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from diskreplay import given_numbers
from diskreplay.brief import brief
from diskreplay.distribution import PrioritizedDistribution
from diskreplay.errors import InvalidInputError
from diskreplay.options import Options
from diskreplay.ray.resharding import default_group, envs_of_shards
from diskreplay.ray.shard_ids import MOST_SHARDS
from diskreplay.schema import Schema
from diskreplay.store import checkpoint_names
from diskreplay.store.numbers import MOST_ROWS

_OF_THE_BUFFER = (
    "observation_space", "action_space", "stack_size", "stack_padding", "update_horizon", "gamma",
    "batch_size", "extras", "compressor", "segment_rows", "alpha", "beta", "weight_normalization",
)  # fmt: skip
_RAY_WITH_GRAPHS = (2, 50)
_LONGEST_S = 1e8  # three years. Ray takes no longer time, and none without an end for a graph


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What all clients and shards are made from.

    Parameters
    ----------
    given : mapping
        The arguments, by their names.

    Returns
    -------
    dict
        ``buffer`` has what each shard's buffer is given.

    Raises
    ------
    InvalidInputError, SchemaError
    """
    shards = given_numbers.whole("num_shards", given["num_shards"], most=MOST_SHARDS)
    envs = given_numbers.whole("num_envs", given["num_envs"])
    group = given_numbers.whole("env_group", given["env_group"], optional=True)
    group = group or default_group(envs, shards)
    divided = envs_of_shards(envs, shards, group)
    buffer = {name: given[name] for name in _OF_THE_BUFFER}
    Options.checked(
        envs, buffer["stack_size"], buffer["stack_padding"], buffer["update_horizon"],
        buffer["gamma"], buffer["batch_size"],
    )  # fmt: skip
    PrioritizedDistribution(buffer["alpha"], buffer["beta"], buffer["weight_normalization"])
    Schema.of(
        buffer["observation_space"], buffer["action_space"], buffer["extras"], buffer["compressor"]
    )
    buffer["extras"] = dict(buffer["extras"] or {})
    _check_resources(given["resources"], shards)
    seconds = {
        name: min(given_numbers.seconds(name, given[name]), _LONGEST_S)
        for name in ("timeout", "shard_timeout")
    }
    lease = given_numbers.seconds("lease_seconds", given["lease_seconds"])
    capacity = given_numbers.whole("capacity", given["capacity"], optional=True, most=MOST_ROWS)
    failover = given["failover_after"]
    return {
        "buffer": buffer, "num_shards": shards, "num_envs": envs, "envs": divided,
        "env_group": group, "capacity": capacity,
        "name": checkpoint_names.checked_suffix(given["name"]), **seconds, "lease_seconds": lease,
        "failover_after": (
            None if failover is None else given_numbers.seconds("failover_after", failover)
        ),
    }  # fmt: skip


def check_transport(transport: Any) -> None:
    """Refuse what is no transport, and a graph where Ray is too old for it.

    Raises
    ------
    InvalidInputError
    """
    if transport not in ("call", "graph"):
        raise InvalidInputError(f"transport: 'call' or 'graph' expected, found {brief(transport)}")
    has = tuple(int(number) for number in re.findall(r"\d+", ray.__version__)[:2])
    if transport == "graph" and has < _RAY_WITH_GRAPHS:
        raise InvalidInputError(
            f"transport: 'graph' needs Ray {'.'.join(map(str, _RAY_WITH_GRAPHS))} or later, and "
            f"{ray.__version__} is installed; use 'call', or pip install -U 'ray[default]'"
        )


def _check_resources(resources: Any, shards: int) -> None:
    if resources != "spread" and (
        not isinstance(resources, Sequence) or len(resources) != shards
    ):  # fmt: skip
        raise InvalidInputError(
            f"resources: 'spread', or one dict a shard ({shards}) expected, found "
            f"{brief(resources, 100)}"
        )
