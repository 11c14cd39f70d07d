"""What a store is, at a glance, without looking at a frame and without Numba."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.episodes import count_episodes
from diskreplay.inspection.surroundings import (
    Beside,
    Writer,
    checkpoints_beside,
    last_write,
    writer_of,
)
from diskreplay.store import format
from diskreplay.store.store import Store

_OPTIONS = (
    "stack_size", "update_horizon", "gamma", "batch_size", "alpha", "beta", "weight_normalization"
)  # fmt: skip


@dataclass(frozen=True)
class FieldOverview:
    """One field, in memory and on disk."""

    shape: tuple[int, ...]
    dtype: str
    compressor: str
    segment_rows: int
    segments: int
    raw_bytes: int
    """Of the retained rows as plain arrays."""
    disk_bytes: int
    """Of its files, room for coming rows included."""
    ratio: float | None
    """raw / disk."""


@dataclass(frozen=True)
class Overview:
    """A store or a checkpoint. Times are seconds since the epoch."""

    path: str
    what: str
    """``"live store"``, ``"checkpoint"`` or ``"checkpoint without its manifest"``."""
    kind: str
    """``"uniform"`` or ``"prioritized"``."""
    format_version: int
    created_by: str
    observation_space: str
    action_space: str
    options: dict[str, Any]
    num_envs: int
    capacity: int | None
    rows: int
    """Retained, final rows included."""
    fill: float | None
    """Share of the capacity; None if that has no limit."""
    transitions: int
    """Ever recorded."""
    retained: int
    """Of these; the other rows are final rows and rows that a repair has set aside."""
    episodes: int
    """With a retained transition."""
    bounds: list[list[int]]
    """For each env the oldest retained row and the number of rows ever."""
    fields: dict[str, FieldOverview]
    raw_bytes: int
    disk_bytes: int
    ratio: float | None
    segments: int
    last_write: float | None
    writer: Writer | None
    """None for a checkpoint."""
    closed: bool
    """Whether the last writer closed it in good order; False while one is at work."""
    checkpoints: list[Beside]


def overview_of(buffer: ReplayBuffer) -> Overview:
    """A look at a buffer that was opened for reading, and at what is beside it.

    Costs a look at every file's size, and reading 5 bytes a row.
    """
    attributes = format.read_attributes(buffer.path)
    bounds = buffer.bounds
    rows = int((bounds[:, 1] - bounds[:, 0]).sum())
    capacity = buffer.capacity
    store = Store.open(buffer.path, mode="r")
    try:
        episodes, retained = 0, 0
        for env, (first, count) in enumerate(zip(store.first, store.count, strict=True)):
            step, is_final = (store.read(n, env, first, count) for n in ("step", "is_final"))
            episodes += count_episodes(step, is_final)
            retained += len(is_final) - int(is_final.sum())
        closed = store.state is None or store.state.closed
        fields = {
            name: _field(store.columns[name].field, rows, disk, segments)
            for name, (disk, segments) in store.disk_usage().items()
        }
    finally:
        store.close()
    raw = sum(field.raw_bytes for field in fields.values())
    disk = sum(field.disk_bytes for field in fields.values())
    return Overview(
        path=str(buffer.path),
        what=_what_is(buffer.path),
        kind=attributes["kind"],
        format_version=attributes["format_version"],
        created_by=str(attributes.get("created_by", "unknown")),
        observation_space=str(buffer.observation_space),
        action_space=str(buffer.action_space),
        options={name: attributes[name] for name in _OPTIONS if name in attributes},
        num_envs=buffer.num_envs,
        capacity=capacity,
        rows=rows,
        fill=rows / (capacity // buffer.num_envs * buffer.num_envs) if capacity else None,
        transitions=buffer.add_count,
        retained=retained,
        episodes=episodes,
        bounds=bounds.tolist(),
        fields={name: fields[name] for name in buffer.fields},
        raw_bytes=raw,
        disk_bytes=disk,
        ratio=raw / disk if disk else None,
        segments=sum(field.segments for field in fields.values()),
        last_write=last_write(buffer.path),
        writer=writer_of(buffer.path),
        closed=closed,
        checkpoints=[b for b in checkpoints_beside(buffer.path) if b.path != buffer.path],
    )


def _what_is(path: Path) -> str:
    if (path / "manifest.json").exists():
        return "checkpoint"
    return "live store" if (path / "state").exists() else "checkpoint without its manifest"


def _field(field: format.Field, rows: int, disk: int, segments: int) -> FieldOverview:
    raw = rows * field.row_bytes
    known = dataclasses.asdict(field) | {"dtype": field.dtype.name}
    del known["name"]
    return FieldOverview(
        **known, segments=segments, raw_bytes=raw, disk_bytes=disk,
        ratio=raw / disk if disk else None,
    )  # fmt: skip
