"""Figures of a buffer at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldStatistics:
    """One field on disk."""

    raw_bytes: int
    """Bytes of all retained rows as plain arrays."""
    disk_bytes: int
    """Bytes that its files take on disk, the newest segments' tails and unused room included."""
    ratio: float
    """raw / disk."""
    segments: int
    """Files in use, over all envs."""


@dataclass(frozen=True)
class PriorityStatistics:
    """Leaves of the sum tree (``priority ** alpha``) of the rows that can be sampled."""

    total: float
    min: float
    max: float
    mean: float
    largest_seen: float
    """The priority that new rows get, before the power of alpha."""


@dataclass(frozen=True)
class Statistics:
    """What `ReplayBuffer.statistics` returns; nothing in it changes later."""

    rows: int
    """Retained rows, final rows included, over all envs."""
    sampleable: int
    """Transitions that can be sampled; ``len(buffer)``."""
    transitions: int
    """Transitions ever recorded; ``buffer.add_count``."""
    episodes: int
    """Episodes with at least one retained row, cut and unfinished ones included."""
    capacity: int | None
    num_envs: int
    fields: dict[str, FieldStatistics]
    raw_bytes: int
    disk_bytes: int
    ratio: float
    segments: int
    ignored_updates: int
    """Priorities given for rows that could not be sampled, since this buffer was opened."""
    priorities: PriorityStatistics | None
    """None for a uniform buffer, and for one with nothing to sample."""
