"""Which rows count and which segments a store has: worked out from its metadata, in one place."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.store import files
from diskreplay.store.field import Field
from diskreplay.store.field_paths import FieldPaths
from diskreplay.store.segment import Seal

_AT_ONCE = 1 << 16  # segments, each counted for each env
_MOST_LACKING = 1 << 16  # files of a field that somebody may have removed

Key = tuple[str, int, int]  # name of a field, number, group


class SegmentEntry(NamedTuple):
    """A segment that has rows which count.

    Attributes
    ----------
    low, used : ndarray of int64, shape (env_group,)
        Of each env the rows ``low`` up to ``used`` of the segment are retained.
    seal : Seal or None
        What the file that is in its place has to be, as far as that is recorded.
    """

    field: Field
    number: int
    group: int
    low: np.ndarray
    used: np.ndarray
    seal: Seal | None

    @property
    def key(self) -> Key:
        return self.field.name, self.number, self.group

    @property
    def start(self) -> int:
        return self.number * self.field.segment_rows

    @property
    def first_env(self) -> int:
        return self.group * self.field.env_group

    @property
    def counted(self) -> np.ndarray:
        """Which rows count, bool of shape (segment_rows, env_group)."""
        return rows_between(self.field, np.zeros_like(self.used), self.used)

    @property
    def retained(self) -> np.ndarray:
        """Which rows are retained, bool of shape (segment_rows, env_group)."""
        return rows_between(self.field, self.low, self.used)

    @property
    def is_full(self) -> bool:
        """Whether every env has passed it."""
        return bool((self.used == self.field.segment_rows).all())


@dataclass(frozen=True)
class Catalog:
    """What a store has.

    Attributes
    ----------
    fields : tuple of Field
        In the order of the group's attributes.
    first, count : ndarray of int64, shape (num_envs,)
        Which rows are retained, and how many there ever were.
    durable_count : ndarray of int64, shape (num_envs,)
        What the record says of the count.
    is_settled : bool
        A checkpoint, or a store that was closed: all rows are in files in their places, and nothing
        has changed since that was recorded.
    is_live : bool
        A writer is at work, or was killed since the machine was started: open shards have the rows
        below `packed`, and tails the others. Of neither kind is a store after a power cut: there
        each block is in an open shard, or else in the shard in its place.
    packed : mapping of str to ndarray of int64, shape (num_envs,)
        For each packed field how many rows are in shards.
    seals : mapping of str to mapping of (number, group) to Seal
        What is recorded of the files of each field.
    """

    path: Path
    fields: tuple[Field, ...]
    first: np.ndarray
    count: np.ndarray
    durable_count: np.ndarray
    is_settled: bool
    is_live: bool
    packed: Mapping[str, np.ndarray]
    seals: Mapping[str, Mapping[tuple[int, int], Seal]]

    @property
    def num_envs(self) -> int:
        return len(self.count)

    @property
    def groups(self) -> int:
        """Groups of envs, the same ones for all fields."""
        return self.fields[0].groups(self.num_envs)

    def envs(self, group: int) -> slice:
        size = self.fields[0].env_group
        return slice(group * size, min((group + 1) * size, self.num_envs))

    def entries(self, field: Field) -> list[SegmentEntry]:
        """The segments that have retained rows, the oldest first; a `FormatError` where they are
        far more than there are files."""
        found = keys_beside_files(self.paths(field), self.first, self.count)
        return [self.segment(field, *key) for key in found]

    def entry(self, field: Field, number: int, group: int) -> SegmentEntry | None:
        """One segment; None if none of its rows is retained."""
        if group >= self.groups:
            return None
        found = self.segment(field, number, group)
        return found if (found.low < found.used).any() else None

    def segment(self, field: Field, number: int, group: int) -> SegmentEntry:
        """One segment, whether any of its rows is retained or not."""
        low, used = np.zeros((2, field.env_group), np.int64)
        there = field.used(number, group, self.count)
        used[: len(there)] = there
        low[: len(there)] = np.minimum(field.used(number, group, self.first), there)
        seal = self.seals[field.name].get((number, group))
        if seal is not None and not self.is_settled:
            key, same_boot = (number, group), self.is_live
            if not is_still_sealed(field, key, self.durable_count, self.count, same_boot=same_boot):
                seal = None
        return SegmentEntry(field, number, group, low, used, seal)

    def in_tail(self, entry: SegmentEntry) -> np.ndarray:
        """Which rows of a segment are in the tail, bool of shape (segment_rows, env_group)."""
        if not self.is_live or not entry.field.packed:
            return np.zeros((entry.field.segment_rows, entry.field.env_group), np.bool_)
        envs = self.envs(entry.group)
        packed = np.zeros_like(entry.used)
        packed[: envs.stop - envs.start] = self.packed[entry.field.name][envs] - entry.start
        return rows_between(entry.field, np.clip(packed, 0, entry.used), entry.used)

    # -- files

    def paths(self, field: Field) -> FieldPaths:
        return FieldPaths(self.path, self.fields.index(field), field)

    def chunk(self, field: Field, number: int, group: int) -> Path:
        """The chunk or shard of a segment, in its place; where values may be replaced, the copy
        that has the newest ones."""
        paths = self.paths(field)
        return (paths.live_chunk if self.is_live else paths.chunk)(number, group)

    def shards(self, entry: SegmentEntry) -> list[Path]:
        """The files that have the blocks of a packed segment, looked for in this order."""
        chunk = self.chunk(*entry[:3])
        begun = self.paths(entry.field).open_segment(*entry[1:3])
        if self.is_settled or not os.path.lexists(begun):
            return [chunk]
        # After a power cut blocks may be missing that were not synced; a flush had them.
        return [begun] if self.is_live or not files.is_there(chunk) else [begun, chunk]


def is_still_sealed(
    field: Field,
    key: tuple[int, int],
    durable_count: np.ndarray,
    count: np.ndarray,
    *,
    same_boot: bool,
) -> bool:
    """Whether what the record of an open store says of a sealed segment is of the file that is in
    its place now.

    An env that comes to a segment which was sealed without it gets a new file, which may have been
    sealed as well since the record. So every env had passed it by then, or has added no row since.
    After a power cut nobody knows what was added. A file gets another one, too, when values in it
    are replaced.
    """
    if field.mutable:
        return False
    number, group = key
    envs = field.envs(group)
    passed = durable_count[envs] >= (number + 1) * field.segment_rows
    return bool((passed | ((count[envs] == durable_count[envs]) & same_boot)).all())


def rows_between(field: Field, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The rows ``low[e]`` up to ``high[e]`` of each env: bool, shape (segment_rows, env_group)."""
    rows = np.arange(field.segment_rows)[:, None]
    return (rows >= low) & (rows < high)


def segments_of(
    field: Field, first: np.ndarray, count: np.ndarray
) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """The segments that hold rows ``first[e]`` up to ``count[e]`` of any env `e`.

    They are worked out some at a time: numbers that are damaged may say that there are more than
    memory holds, and who opens them ends at the first one whose file is missing.

    Parameters
    ----------
    first, count : ndarray of int64, shape (num_envs,)

    Yields
    ------
    ((number, group), envs)
        The oldest first, each with the envs that have rows in it, in order.
    """
    low = first // field.segment_rows
    high = np.where(count > first, -(-count // field.segment_rows), low)
    some, at = max(_AT_ONCE // len(first), 1), 0
    while len(left := low[high > np.maximum(low, at)]):
        at = max(at, int(left.min()))
        yield from _segments_between(field, low.clip(at, at + some), high.clip(at, at + some))
        at += some


def _segments_between(
    field: Field, low: np.ndarray, high: np.ndarray
) -> Iterable[tuple[tuple[int, int], np.ndarray]]:
    """The same of the segments ``low[e]`` up to ``high[e]`` of each env `e`; there is one."""
    sizes = high - low
    envs = np.repeat(np.arange(len(low)), sizes)
    numbers = low[envs] + np.arange(len(envs)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.argsort(numbers, kind="stable")  # they are in the order of the envs
    numbers, envs = numbers[order], envs[order]
    groups = envs // field.env_group
    changes = (np.diff(numbers) != 0) | (np.diff(groups) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    keys = zip(numbers[starts].tolist(), groups[starts].tolist(), strict=True)
    stops = [*starts[1:].tolist(), len(envs)]
    # Not `np.split`, which takes some microseconds a part, also where only the first is wanted.
    parts = (envs[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True))
    return zip(keys, parts, strict=True)


def keys_beside_files(
    paths: FieldPaths, first: np.ndarray, count: np.ndarray
) -> list[tuple[int, int]]:
    """``(number, group)`` of the segments that `segments_of` gives, in that order.

    Raises
    ------
    FormatError
        They are far more than the field has files: the numbers are damaged.
    """
    field, places = paths.field, (paths.directory, paths.open_segments)
    keys = (key for key, _envs in segments_of(field, first, count))
    found = list(islice(keys, _MOST_LACKING + 1))
    if len(found) > _MOST_LACKING:
        there = sum(len(os.listdir(place)) for place in places if files.is_dir(place))
        found += islice(keys, there)
        if len(found) > _MOST_LACKING + there:
            raise FormatError(
                f"{paths.root}: rows {first.min()} to {count.max()} are counted, of which the "
                f"field {field.name!r} lacks more than {_MOST_LACKING} files, and has {there}: "
                "damaged; restore zarr.json, or load a checkpoint"
            )
    return found


def keys_of(field: Field, first: np.ndarray, count: np.ndarray) -> list[tuple[int, int]]:
    """``(number, group)`` of the segments that `segments_of` returns, in that order. Costs
    some bytes for each segment, and for each env."""
    has = np.flatnonzero(count > first)
    if not len(has):
        return []
    rows, groups = field.segment_rows, has // field.env_group
    low, high = first[has] // rows, -(-count[has] // rows)
    start = low.min()
    # How many envs begin to have rows with a segment, less those whose last one is before it.
    change = np.zeros((high.max() - start + 1, field.groups(len(first))), np.int64)
    np.add.at(change, (low - start, groups), 1)
    np.add.at(change, (high - start, groups), -1)
    numbers, groups = np.nonzero(change.cumsum(axis=0))
    return list(zip((numbers + start).tolist(), groups.tolist(), strict=True))
