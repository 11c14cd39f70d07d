"""Which envs of a checkpoint's parts each shard gets; pure functions, without Ray."""

from typing import Any, NamedTuple

from diskreplay.convert.regrouping import divided
from diskreplay.errors import InvalidInputError, SchemaError

_LEAST_ENVS, _MANY_GROUPS = 8, 16


class PartPiece(NamedTuple):
    """Some envs of one part of a checkpoint, one behind the other.

    Attributes
    ----------
    part : dict
        As the shard that saved it described it.
    start, stop : int
    """

    part: dict[str, Any]
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether they are all envs of the part."""
        return self.start == 0 and self.stop == len(self.part["count"])


def default_group(num_envs: int, num_shards: int) -> int:
    """How many envs share files where nobody has said it.

    Small groups cost twice the time of an add, large ones cannot be divided among more shards. So
    it is 8, fewer where a shard has no more or would have half more than another, and more where
    there would be more than 16 groups, or two for each shard.
    """
    many = num_envs // max(_MANY_GROUPS, 2 * num_shards)
    most = max(many, min(_LEAST_ENVS, num_envs // num_shards))
    for size in range(most, 1, -1):
        groups, left = divmod(num_envs, size)
        if not left:
            shares = divided(groups, num_shards)
            if shares[0] <= 1.5 * shares[-1]:
                return size
    return 1


def envs_of_shards(num_envs: int, num_shards: int, env_group: int) -> list[int]:
    """How many envs each shard has: whole groups, the first shards one more.

    Raises
    ------
    InvalidInputError
    """
    groups, left = divmod(num_envs, env_group)
    if left:
        raise InvalidInputError(
            f"env_group: {env_group} does not divide num_envs={num_envs}; groups move whole, so "
            "all have one size"
        )
    if groups < num_shards:
        raise InvalidInputError(
            f"num_envs: at least one group of {env_group} envs a shard, "
            f"{env_group * num_shards} for {num_shards} shards, expected; found {num_envs}"
        )
    return [env_group * count for count in divided(groups, num_shards)]


def pieces_of_shards(
    document: dict[str, Any], envs: list[int], where: str
) -> list[list[PartPiece]]:
    """The pieces that each shard loads: all envs of a checkpoint in their order.

    Parameters
    ----------
    document : dict
        Of the checkpoint.
    envs : list of int
        How many each shard has.
    where : str
        The checkpoint, for messages.

    Raises
    ------
    SchemaError
        They cannot be divided so.
    """
    parts = document["shards"]
    there = [len(part["count"]) for part in parts]
    if there == envs:
        return [[PartPiece(part, 0, size)] for part, size in zip(parts, there, strict=True)]
    group = document.get("env_group")
    if sum(there) != sum(envs):
        raise SchemaError(
            f"{where}: num_envs is {sum(there)} in the checkpoint, and {sum(envs)} here; make the "
            "buffer with the same"
        )
    if group is None:
        raise SchemaError(
            f"{where}: its {len(parts)} shards have {there} envs, those here {envs}, and it does "
            f"not say which envs share files; make the buffer with num_shards={len(parts)}"
        )
    if any(size % group for size in envs):
        groups = sum(there) // group
        works = (
            f"make the buffer with env_group={group}"
            if len(envs) <= groups else f"make it with num_shards of 1 to {groups}"
        )  # fmt: skip
        raise SchemaError(
            f"{where}: its envs are in {groups} groups of {group}, which move whole, and the "
            f"{len(envs)} shards here have {envs} envs; {works}"
        )
    flat = [(number, env) for number, size in enumerate(there) for env in range(size)]
    found, at = [], 0
    for size in envs:
        pieces: list[PartPiece] = []
        for number, env in flat[at : at + size]:
            if pieces and pieces[-1].part is parts[number]:
                pieces[-1] = pieces[-1]._replace(stop=env + 1)
            else:
                pieces.append(PartPiece(parts[number], env, env + 1))
        found.append(pieces)
        at += size
    return found
