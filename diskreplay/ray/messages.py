"""What clients and writers send to shards, and what these answer."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np

from diskreplay.ray.packed_rows import PackedRows
from diskreplay.sampling.prioritized import PriorityMass


class Updates(NamedTuple):
    """Priorities that one client sets, in their order; sent again until they are known to be here.

    Three arrays, and not three for each batch: each array of a call costs Ray some microseconds.

    Attributes
    ----------
    client : str
    first : int
        The number of the first of them, of all that this client has ever had for this shard.
    generations, ids, priorities : ndarray
        Of each; ids in the shard.
    """

    client: str
    first: int
    generations: np.ndarray
    ids: np.ndarray
    priorities: np.ndarray

    @classmethod
    def none(cls, client: str) -> Self:
        """None at all."""
        nothing = np.empty(0, np.int64)
        return cls(client, 0, nothing, nothing, np.empty(0))

    @property
    def stop(self) -> int:
        """The number of the one that comes after these."""
        return self.first + len(self.ids)


class KnownLargest(NamedTuple):
    """The largest priority that a client has seen, and the generation of the shard that it knew
    then: one from before a load is not for the rows that are there since."""

    priority: float
    generation: int


class ShardState(NamedTuple):
    """What a shard says of itself in each answer."""

    mass: PriorityMass
    generation: int
    add_count: int


class Chunk(NamedTuple):
    """Rows of some envs of a shard, as `ReplayBuffer.extend_many` takes them, of which some
    columns are packed."""

    columns: Mapping[str, np.ndarray | PackedRows]
    envs: np.ndarray
    first_rows: np.ndarray
    lengths: np.ndarray
    priority: np.ndarray

    def unpacked(self) -> dict[str, np.ndarray]:
        """The columns as arrays; those that are packed are copied."""
        return {
            name: values.unpacked() if isinstance(values, PackedRows) else values
            for name, values in self.columns.items()
        }


class Lease(NamedTuple):
    """Who may add to some envs of a shard."""

    token: str
    envs: list[int]
    counts: list[int]
    generation: int
