"""ReAgent's replay buffers: the original's calls, tensors and checkpoints, on the disk.

Needs torch: ``pip install "diskreplay[torch]"``.
"""

from diskreplay.extensions import needed

with needed("diskreplay.compat.reagent returns torch tensors, and torch is not installed", "torch"):
    import torch  # noqa: F401 - asked for here, so that its absence is explained once

from diskreplay.compat.reagent.buffer import (
    CHECKPOINT_DURATION,
    STORE_FILENAME_PREFIX,
    ReplayBuffer,
    ReplayElement,
)
from diskreplay.compat.reagent.frame import replay_buffer_to_pre_timeline_df
from diskreplay.compat.reagent.prioritized import PrioritizedReplayBuffer
from diskreplay.compat.reagent.sum_tree import SumTree

create_from_env = ReplayBuffer.create_from_env
"""`ReplayBuffer.create_from_env`, by the original's name."""

__all__ = [
    "ReplayBuffer",
    "PrioritizedReplayBuffer",
    "SumTree",
    "create_from_env",
    "ReplayElement",
    "replay_buffer_to_pre_timeline_df",
    "CHECKPOINT_DURATION",
    "STORE_FILENAME_PREFIX",
]
