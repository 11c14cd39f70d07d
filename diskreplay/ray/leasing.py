"""Finds the shard that a writer adds to."""

from collections.abc import Mapping
from typing import Any

from diskreplay.errors import InvalidInputError, ShardsLostError
from diskreplay.ray.actors import Actor
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.messages import Lease


def leased(
    actors: Mapping[int, Actor], envs: int, options: Mapping[str, Any], timeout: float
) -> tuple[int, Lease]:
    """A lease of so many envs of the shard that has the most free ones, or the fewest rows; and
    which shard that is.

    Parameters
    ----------
    actors : mapping of int to Actor
        The shards to choose from.
    envs : int
    options : mapping
        Of the buffer.
    timeout : float
        Seconds that each shard may take to answer.

    Raises
    ------
    InvalidInputError
        No shard has as many that are free.
    ShardsLostError
        None answers.
    """
    free: dict[int, tuple[int, int]] = {}
    asked = {number: actor.call("describe") for number, actor in actors.items()}
    for number, call in asked.items():
        try:
            found = answer(call, timeout)
        except LOST:
            continue
        free[number] = found["free_envs"], -found["transitions"]
    for number in sorted(free, key=free.__getitem__, reverse=True):
        try:
            call = actors[number].call("lease", envs, options["lease_seconds"])
            lease = answer(call, timeout)
        except LOST:  # what it may have leased is free again later
            continue
        if lease is not None:
            return number, lease
    if not free:
        raise ShardsLostError("no shard answers: see `ray status`")
    raise InvalidInputError(
        f"num_envs: {envs} free envs of one shard asked for, and the shards have "
        f"{[each for each, _rows in free.values()]}; close writers, or make the buffer with more "
        "envs"
    )
