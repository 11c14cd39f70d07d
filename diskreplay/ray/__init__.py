"""Many machines: shards of one replay buffer in the actors of a Ray cluster.

Each shard is a `PrioritizedReplayBuffer` of its own on the disk of its node. Ray starts, places and
restarts the actors; a draw over all shards is exact. Needs ``diskreplay[ray]``.
"""

from diskreplay.extensions import needed

with needed("diskreplay.ray needs Ray, which is not installed", "ray"):
    import ray as _ray  # noqa: F401

from diskreplay.errors import RateLimiterTimeout, RowsMissingError, ShardsLostError
from diskreplay.ray.rate_limiter import MinSize, SampleToInsertRatio
from diskreplay.ray.shard_writer import ShardWriter
from diskreplay.ray.sharded_buffer import ShardedReplayBuffer

__all__ = [
    "MinSize",
    "RateLimiterTimeout",
    "RowsMissingError",
    "SampleToInsertRatio",
    "ShardWriter",
    "ShardedReplayBuffer",
    "ShardsLostError",
]
