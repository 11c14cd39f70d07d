"""The ids of transitions over all shards: the shard in the upper bits, its own id below."""

import numpy as np

_BITS = 48
MOST_SHARDS = 1 << 14


def global_ids(shard: int | np.ndarray, ids: np.ndarray) -> np.ndarray:
    """``shard << 48 | id``, int64."""
    return ids | (np.asarray(shard, np.int64) << _BITS)


def split(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shard of each id, and what its buffer calls it."""
    return ids >> _BITS, ids & ((1 << _BITS) - 1)
