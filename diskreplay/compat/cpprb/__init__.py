"""cpprb's replay buffers, on the disk: change the import, and say where with ``path=``."""

from typing import Any

from diskreplay.compat.cpprb.buffer import ReplayBuffer
from diskreplay.compat.cpprb.nstep import NstepBuffer
from diskreplay.compat.cpprb.prioritized import PrioritizedReplayBuffer

__all__ = ["NstepBuffer", "PrioritizedReplayBuffer", "ReplayBuffer", "create_buffer"]


def create_buffer(
    size: int | float,
    env_dict: dict[Any, Any] | None = None,
    *,
    prioritized: bool = False,
    **options: Any,
) -> ReplayBuffer:
    """A `PrioritizedReplayBuffer`, or a `ReplayBuffer`.

    Parameters
    ----------
    size, env_dict, **options
        As for these.
    prioritized : bool
    """
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    return kind(size, env_dict, **options)
