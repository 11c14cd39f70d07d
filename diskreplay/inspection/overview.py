"""What a store is, at a glance: its metadata, the sizes of its files, and four small columns."""

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import DiskReplayError, FormatError, StorageError
from diskreplay.inspection.episodes import starts_of
from diskreplay.inspection.identity import metadata_of, title_of
from diskreplay.inspection.store_activity import (
    Beside,
    Writer,
    checkpoints_beside,
    last_write,
    writer_of,
)
from diskreplay.open_episodes import parse_begins
from diskreplay.schema import Schema
from diskreplay.store import actor_ring, files, format, manifest, priorities, private
from diskreplay.store.catalog import keys_beside_files
from diskreplay.store.field import Field
from diskreplay.store.field_paths import FieldPaths
from diskreplay.store.store import Store
from diskreplay.store.usage import sizes

_COUNTED = ("step", "is_final", "terminated", "truncated")

_OPTIONS = (
    "max_transitions", "stack_size", "stack_padding", "update_horizon", "gamma", "batch_size",
    "alpha", "beta", "weight_normalization",
)  # fmt: skip


@dataclass(frozen=True)
class FieldOverview:
    """One field, in memory and on disk."""

    shape: tuple[int, ...]
    dtype: str
    compressor: str
    segment_rows: int
    env_group: int
    """Envs whose rows share files."""
    block_rows: int
    mutable: bool
    """Whether its values may be written again."""
    segments: int
    raw_bytes: int
    """Of the retained rows as plain arrays."""
    disk_bytes: int
    """Of its files, room for coming rows included."""
    tail_bytes: int
    """Of these, those of its tails, which a live store of packed rows has. They hold the newest
    rows of each env and do not grow with the rows."""
    ratio: float | None
    """raw / disk."""
    missing: list[str]
    """Files with retained rows that are not there, as paths below the store. None is looked for
    while a writer is at work, which deletes some."""


@dataclass(frozen=True)
class Overview:
    """A store or a checkpoint. Times are seconds since the epoch."""

    path: str
    title: str
    """What to call it."""
    metadata: dict[str, Any]
    """What was noted about it."""
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
    """Share of `max_transitions`, or of the capacity; None if there is no limit."""
    transitions: int
    """Ever recorded."""
    retained: int
    """Of these; the other rows are final rows and rows that a repair has set aside."""
    waiting: int
    """Rows that actors have added and that no writer has taken into the store yet."""
    episodes: int
    """With a retained transition."""
    bounds: list[list[int]]
    """For each env the oldest retained row and the number of rows ever."""
    fields: dict[str, FieldOverview]
    raw_bytes: int
    disk_bytes: int
    priorities_bytes: int
    """Of the rows and of views, besides."""
    tail_bytes: int
    ratio: float | None
    segments: int
    last_write: float | None
    """The newest that is known. Exact for a checkpoint and a store that was closed in good order;
    else the store may have been written to later, see `store_activity.last_write`."""
    writing: bool
    """Whether rows came in while it was looked at."""
    writer: Writer | None
    """None for a checkpoint."""
    closed: bool
    """Whether the last writer closed it in good order; False while one is at work."""
    checkpoints: list[Beside]


def overview_of(path: Path, *, patience: float = 0.3) -> Overview:
    """A look at a live store or a checkpoint, and at what is beside it.

    Parameters
    ----------
    patience : float
        Seconds to wait for a row, of a store that a process holds, to say that rows come in.

    Raises
    ------
    FormatError, CorruptSegmentError, StorageError

    Notes
    -----
    Costs a look at every file's size, also of the checkpoints beside it, and reading 7 bytes a row
    and their metadata; no other file is opened, so a store of which others
    are damaged or missing is described too.
    """
    path = path.absolute()
    attributes = format.read_attributes(path)
    schema, on_disk = _described(path, attributes)
    store = Store.open(path, mode="r", only=_COUNTED)
    try:
        bounds = np.stack([store.first, store.count], axis=1)
        step, is_final, *ends = (store.spans(name, *bounds.T) for name in _COUNTED)
        begins = parse_begins(store.meta, store)
        starts = starts_of(step, is_final, ends[0] | ends[1], bounds, begins)
        retained = len(is_final) - int(np.count_nonzero(is_final))
        transitions_of = (
            np.add.reduceat(~is_final, starts, dtype=np.int64) if len(starts) else starts
        )
        episodes = int(np.count_nonzero(transitions_of))
        closed = store.page is None or store.page.closed
        live = store.follower.is_live
        transitions = int(store.transitions_at(store.count).sum())
        writer = writer_of(path)
        is_held = writer is not None and writer.holds is not False
        writing = live and is_held and _grows(store, patience)
    finally:
        store.close()
    rows = int((bounds[:, 1] - bounds[:, 0]).sum())
    fields = {name: _field(path, *on_disk[name], bounds, live=live) for name in schema.names}
    raw = sum(field.raw_bytes for field in fields.values())
    disk = sum(field.disk_bytes for field in fields.values())
    of_priorities = sum(sum(sizes(path / name).values()) for name in priorities.sets(path))
    return Overview(
        path=str(path),
        title=title_of(path),
        metadata=metadata_of(path),
        what=_what_is(path),
        kind=attributes["kind"],
        format_version=attributes["format_version"],
        created_by=str(attributes.get("created_by", "unknown")),
        observation_space=str(schema.observation.space),
        action_space=str(schema.action.space),
        options={name: attributes[name] for name in _OPTIONS if attributes.get(name) is not None},
        num_envs=store.num_envs,
        capacity=store.capacity,
        rows=rows,
        fill=_fill(store, rows, retained, attributes.get("max_transitions")),
        transitions=transitions,
        retained=retained,
        waiting=_waiting(path),
        episodes=episodes,
        bounds=bounds.tolist(),
        fields=fields,
        raw_bytes=raw,
        disk_bytes=disk,
        priorities_bytes=of_priorities,
        tail_bytes=sum(field.tail_bytes for field in fields.values()),
        ratio=raw / disk if disk else None,
        segments=sum(field.segments for field in fields.values()),
        last_write=time.time() if writing else last_write(path),
        writing=writing,
        writer=writer,
        closed=closed,
        checkpoints=[b for b in checkpoints_beside(path) if b.path != path],
    )


def _grows(store: Store, patience: float) -> bool:
    """Whether rows have come since the store was opened, or come now.

    Files that are mapped into memory do not say when they were written to last, so it is watched
    for a moment.
    """
    until = time.monotonic() + patience
    assert store.page is not None
    while True:
        now = np.array(store.page.count)
        if (now != store.count).any():
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(patience / 20)


def _described(
    path: Path, attributes: dict[str, Any]
) -> tuple[Schema, dict[str, tuple[int, Field]]]:
    """The schema and the numbered fields of a store, which a buffer would open."""
    try:
        schema = Schema.parse(attributes)
        parsed = map(Field.parse, attributes["fields"])
        fields = {field.name: (number, field) for number, field in enumerate(parsed)}
        if {name: (f.shape, f.dtype) for name, (_, f) in fields.items()} != schema.shapes:
            raise ValueError("the fields are not those of the spaces and extras")
        if attributes["kind"] not in ("uniform", "prioritized"):
            raise ValueError(f"unknown kind of buffer {attributes['kind']!r:.60}")
        return schema, fields
    except (DiskReplayError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path / 'zarr.json'}: damaged attributes ({error})") from error


def _waiting(path: Path) -> int:
    waiting = 0
    for ring in private.rings(path):
        with contextlib.suppress(StorageError):  # just removed, or no file: a writer will say so
            waiting += actor_ring.waiting_in(ring)
    return waiting


def _what_is(path: Path) -> str:
    if manifest.is_checkpoint(path):
        return "checkpoint"
    if files.is_there(private.commit_page(path)):
        return "live store"
    return "checkpoint without its manifest"


def _fill(store: Store, rows: int, retained: int, most: int | None) -> float | None:
    if most is not None:
        return retained / most
    return rows / (store.rows_per_env * store.num_envs) if store.rows_per_env else None


def _field(
    path: Path, number: int, field: Field, bounds: np.ndarray, *, live: bool
) -> FieldOverview:
    paths = FieldPaths(path, number, field)
    chunks, private_files = sizes(paths.directory), sizes(private.directory(path))
    open_segments = sizes(paths.open_segments)
    found = keys_beside_files(paths, bounds[:, 0], bounds[:, 1])
    missing = [
        f"{field.name}/{field.chunk_key(*key)}"
        for key in found
        # A writer may have deleted it since its rows were counted.
        if not live
        and field.chunk_key(*key) not in chunks
        and "{}.{}".format(*key) not in open_segments
    ]
    raw = int((bounds[:, 1] - bounds[:, 0]).sum()) * field.row_bytes
    tail = private_files.get(paths.tail.name, 0)
    disk = sum(chunks.values()) + sum(open_segments.values()) + tail
    known = dataclasses.asdict(field) | {"dtype": field.dtype.name}
    del known["name"]
    return FieldOverview(
        **known, segments=len(found), raw_bytes=raw, disk_bytes=disk, tail_bytes=tail,
        ratio=raw / disk if disk else None, missing=missing,
    )  # fmt: skip
