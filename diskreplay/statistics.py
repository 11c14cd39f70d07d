"""Figures of a buffer at one moment."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diskreplay.indexed_store import IndexedStore


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
    """That of the buffer; None keeps everything."""
    num_envs: int
    """Parallel environments."""
    fields: dict[str, FieldStatistics]
    """Figures of each field, by name."""
    raw_bytes: int
    """Bytes of all retained rows as plain arrays."""
    disk_bytes: int
    """Bytes that the files of all fields take on disk."""
    ratio: float
    """raw / disk."""
    segments: int
    """Files in use, of all fields."""
    ignored_updates: int
    """Priorities given for rows that could not be sampled, since this buffer was opened."""
    priorities: PriorityStatistics | None
    """None for a uniform buffer, and for one with nothing to sample."""


def measured(
    rows: "IndexedStore", ignored_updates: int, priorities: PriorityStatistics | None
) -> Statistics:
    """Figures of this moment, of rows that are indexed. With the buffer's lock."""
    store = rows.store
    retained = int((store.count - rows.index.first).sum())
    fields = {}
    for name, (disk, segments) in store.disk_usage().items():
        raw = retained * store.columns[name].field.row_bytes
        fields[name] = FieldStatistics(raw, disk, raw / disk if disk else 0.0, segments)
    raw = sum(f.raw_bytes for f in fields.values())
    disk = sum(f.disk_bytes for f in fields.values())
    return Statistics(
        rows=retained,
        sampleable=rows.index.sampleable,
        transitions=rows.add_count,
        episodes=rows.index.episodes(),
        capacity=store.capacity,
        num_envs=store.num_envs,
        fields=fields,
        raw_bytes=raw,
        disk_bytes=disk,
        ratio=raw / disk if disk else 0.0,
        segments=sum(f.segments for f in fields.values()),
        ignored_updates=ignored_updates,
        priorities=priorities,
    )
