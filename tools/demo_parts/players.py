"""Actors on the head of a cluster: they play Pong, and say at the end what they have added."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demo_parts import evidence
from demo_parts.journal import row_checksum


class Played(NamedTuple):
    """What one writer has added.

    Attributes
    ----------
    shard : int
    envs : list of int
        Of the shard.
    rows : list of list of int
        The checksum of each row, env by env.
    """

    shard: int
    envs: list[int]
    rows: list[list[int]]


def play(writer: Any, seed: int, stop: Path, games: Any = None) -> Played:
    """Play until there is a file at `stop`, and return once all rows are acknowledged.

    Parameters
    ----------
    writer : ShardWriter
    seed : int
    stop : Path
    games : sequence of iterator of Step, optional
        Of each env; Pong by default.
    """
    if games is None:
        from demo_parts import pong

        games = [pong.play(seed + env) for env in range(writer.num_envs)]
    rows: list[list[int]] = [[] for _ in games]
    while not stop.exists():
        steps = [next(game) for game in games]
        columns = [np.array(column) for column in zip(*(step[:5] for step in steps), strict=True)]
        writer.add(*columns, np.array([step.next_observation for step in steps]))
        for mine, step in zip(rows, steps, strict=True):
            mine.append(row_checksum(*step[:5], False))
            if step.terminated or step.truncated:
                mine.append(row_checksum(step.next_observation, 0, 0, False, False, True))
    writer.close()
    return Played(writer.shard, writer._envs.tolist(), rows)


class Compared(NamedTuple):
    """Rows that were added, and how many of them are not in the stores as they were."""

    rows: int
    missing: int
    different: int
    more: int

    @property
    def holds(self) -> bool:
        """Whether each is there, once, and as it was."""
        return self.rows > 0 and not (self.missing or self.different or self.more)


def compare(stores: list[Path], played: list[list[int]]) -> Compared:
    """Hold every row of the stores against what was played, by zarr-python.

    Parameters
    ----------
    stores : list of Path
        Closed; the envs of all, in their order, are those of `played`.
    played : list of list of int
        The checksums of the rows of each env.
    """
    import zarr

    found: list[list[int]] = []
    for store in stores:
        group = zarr.open_group(store, mode="r")
        counts = group.attrs["diskreplay"]["count"]  # type: ignore[index,call-overload]
        for env, count in enumerate(counts):
            rows = evidence.read_rows(group, 0, int(count), env)
            found.append(list(evidence.row_checksums(rows)))
    found += [[]] * (len(played) - len(found))
    pairs = list(zip(played, found, strict=True))
    return Compared(
        sum(map(len, played)),
        sum(max(0, len(mine) - len(theirs)) for mine, theirs in pairs),
        sum(a != b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=False)),
        sum(max(0, len(theirs) - len(mine)) for mine, theirs in pairs),
    )
