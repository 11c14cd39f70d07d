"""Starts the actors of a sharded buffer, and finds those that run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from diskreplay.errors import InvalidInputError, ShardsLostError
from diskreplay.ray.actors import Actor, living_nodes, named, started, this_node
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.rate_limiter import RateLimiter
from diskreplay.ray.shard import Shard


def shards_of(name: str, count: int) -> list[Actor]:
    """The shards of a buffer that runs; also those that Ray is about to start again.

    Raises
    ------
    InvalidInputError, DisconnectedError
    """
    found = [named(f"{name}/{number}") for number in range(count)]
    shards = [shard for shard in found if shard is not None]
    if len(shards) < count:
        raise InvalidInputError(
            f"name: the sharded buffer {name!r} is about to be made or closed; connect again"
        )
    return shards


def refuse_running(name: str) -> None:
    """Raise an `InvalidInputError` if a buffer of this name runs."""
    if named(name) is not None:
        raise InvalidInputError(
            f"name: a sharded buffer {name!r} is running in this cluster; "
            f"ShardedReplayBuffer.connect({name!r}), or close it first"
        )


def start(
    directory: Path, options: dict[str, Any], limiter: RateLimiter | None,
    resources: Literal["spread"] | Sequence[Mapping[str, float]],
) -> tuple[Actor, list[Actor]]:  # fmt: skip
    """The coordinator and the shards, which have opened their stores; or nothing runs.

    Raises
    ------
    DiskReplayError
        What a shard could not be opened for.
    """
    name, shards, envs = options["name"], options["num_shards"], options["num_envs"]
    capacity = options["capacity"]
    nodes = living_nodes()
    coordinator = started(
        Coordinator, (options, limiter, directory / "counts"), name=name, node=this_node(),
        max_concurrency=10_000,
    )  # fmt: skip
    actors: list[Actor] = []
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
                place["node"] = nodes[number % len(nodes)]
            else:
                place["resources"] = resources[number]
            arguments = number, directory / f"shard-{number}", identity, own
            actors.append(started(Shard, arguments, name=f"{name}/{number}", **place))
        for number, shard in enumerate(actors):
            try:
                answer(shard.call("open"))
            except LOST as error:
                path = directory / f"shard-{number}"
                raise ShardsLostError(f"{path}: its shard did not start: {error}") from error
    except BaseException:
        for each in [coordinator, *actors]:
            each.kill()
        raise
    return coordinator, actors
