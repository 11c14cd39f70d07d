"""Starts the actors of a sharded buffer, and finds those that run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskreplay.errors import InvalidInputError, ShardsLostError
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.rate_limiter import RateLimiter
from diskreplay.ray.shard import Shard

_NAMESPACE = "diskreplay"


def running(name: str) -> Any:
    """The coordinator of this name in the cluster, None if there is none."""
    try:
        return ray.get_actor(name, namespace=_NAMESPACE)
    except ValueError:  # what Ray raises when there is none
        return None


def shards_of(name: str, count: int) -> list[Any]:
    """The shards of a buffer that runs; also those that Ray is about to start again.

    Raises
    ------
    InvalidInputError
    """
    try:
        return [ray.get_actor(f"{name}/{number}", namespace=_NAMESPACE) for number in range(count)]
    except ValueError as error:
        raise InvalidInputError(
            f"name: the sharded buffer {name!r} is about to be made or closed; connect again"
        ) from error


def refuse_running(name: str) -> None:
    """Raise an `InvalidInputError` if a buffer of this name runs."""
    if running(name) is not None:
        raise InvalidInputError(
            f"name: a sharded buffer {name!r} is running in this cluster; "
            f"ShardedReplayBuffer.connect({name!r}), or close it first"
        )


def start(
    directory: Path, options: dict[str, Any], limiter: RateLimiter | None,
    resources: Literal["spread"] | Sequence[Mapping[str, float]],
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The coordinator and the shards, which have opened their stores; or nothing runs.

    Raises
    ------
    DiskReplayError
        What a shard could not be opened for.
    """
    name, shards, envs = options["name"], options["num_shards"], options["num_envs"]
    capacity = options["capacity"]
    nodes: list[str] = sorted(node["NodeID"] for node in _nodes() if node["Alive"])
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    how: dict[str, Any] = {
        "namespace": _NAMESPACE, "lifetime": "detached", "max_restarts": -1, "num_cpus": 0,
    }  # fmt: skip
    actor_of: Any = ray.remote(Coordinator)
    coordinator = actor_of.options(
        **how, name=name, max_concurrency=10_000, scheduling_strategy=here
    ).remote(options, limiter, directory / "counts")
    actors: list[Any] = []
    actor_of = ray.remote(Shard)
    try:
        for number in range(shards):
            mine = options["envs"][number]
            identity = {"shard": number, "num_shards": shards, "num_envs": mine}
            own = options["buffer"] | {
                "num_envs": mine, "env_group": options["env_group"], "name": f"{name}-{number}",
                "capacity": None if capacity is None else capacity // envs * mine,
            }  # fmt: skip
            place: dict[str, Any] = {}
            if isinstance(resources, str):
                node = nodes[number % len(nodes)]
                place["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
            else:
                place["resources"] = dict(resources[number])
            actor = actor_of.options(**how, **place, name=f"{name}/{number}")
            actors.append(actor.remote(number, directory / f"shard-{number}", identity, own))
        for number, shard in enumerate(actors):
            _opened(shard, directory / f"shard-{number}")
    except BaseException:
        for each in [coordinator, *actors]:
            ray.kill(each)
        raise
    return coordinator, actors


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _opened(actor: Any, path: Path) -> None:
    try:
        answer(actor.open.remote())
    except LOST as error:
        raise ShardsLostError(f"{path}: its shard did not start: {error}") from error
