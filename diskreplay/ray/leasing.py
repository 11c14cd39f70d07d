"""Finds the shard that a writer adds to."""

from diskreplay.errors import InvalidInputError, ShardsLostError
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.client import Client
from diskreplay.ray.shard_writer import ShardWriter


def leased(client: Client, envs: int, chunk_rows: int) -> ShardWriter:
    """A writer of so many envs of the shard that has the most free ones, or the fewest rows.

    Raises
    ------
    InvalidInputError
        No shard has as many that are free.
    ShardsLostError
    """
    free: dict[int, tuple[int, int]] = {}
    for handle in client.handles:
        try:
            found = answer(handle.actor.describe.remote(), client.timeout)
        except LOST:
            continue
        free[handle.number] = found["free_envs"], -found["transitions"]
    for number in sorted(free, key=free.__getitem__, reverse=True):
        actor = client.handles[number].actor
        try:
            lease = answer(
                actor.lease.remote(envs, client.options["lease_seconds"]), client.timeout
            )
        except LOST:  # what it may have leased is free again later
            continue
        if lease is not None:
            return ShardWriter(
                client.coordinator, actor, number, lease, client.options, chunk_rows=chunk_rows,
                limited=client.limiter is not None,
            )  # fmt: skip
    if not free:
        raise ShardsLostError("no shard answers: see `ray status`")
    raise InvalidInputError(
        f"num_envs: {envs} free envs of one shard asked for, and the shards have "
        f"{[each for each, _rows in free.values()]}; close writers, or make the buffer with more "
        "envs"
    )
