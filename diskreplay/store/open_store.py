"""A store that is open: its directory, its columns, and which rows count."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CapacityError, FormatError
from diskreplay.store import format, numbers, private
from diskreplay.store.commit_page import CommitPage, finals_in, rows_behind
from diskreplay.store.field import Field
from diskreplay.store.mutable_column import MutableColumn
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.place import Place
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.rwlock import RWLock

OWN_KEYS = frozenset(
    ("format_version", "created_by", "num_envs", "capacity", "fields", "first", "count",
     "transitions")
)  # fmt: skip
"""Attributes of the group that are the store's; all others are what a buffer keeps there."""

LET_GO = "let go"
"""The mode of a store that nobody may use any more."""

_LARGEST_TABLE = 1 << 30  # bytes of a segment table


class OpenStore:
    """What all that works on a store shares: recovery, records, maintenance, writers, followers.

    Parameters
    ----------
    mode : {"a", "r"}
    capacity : int or None
        Rows kept from now on; None keeps all, -1 what the store says.
    only : container of str, optional
        These columns are there, and no others.

    Attributes
    ----------
    mode : {"a", "r", "let go"}
        As it was opened, which `opened_as` keeps, until its buffer has let go of it: calls look at
        this to see whether they may touch its memory.
    place : Place
        Says whether the directory is still at `path`: asked before files are touched.
    columns : dict of str to Column
    fields : list of Field
        In the order of the attributes and of the commit page.
    num_envs : int
    capacity, capacity_before : int or None
        Rows kept, and kept until the store was opened; None keeps all.
    rows_per_env, rows_per_env_before : int or None
        Those of each env.
    count, first : ndarray of int64, shape (num_envs,)
        Rows ever recorded, and the oldest row that is retained.
    durable_count, durable_first, durable_transitions : ndarray of int64, shape (num_envs,)
        What the record says of them, and how many of the rows were no final rows.
    is_resized : bool
        Whether it was opened with another capacity than it had.
    meta : dict
        What the buffer keeps in the group's attributes; opaque here, JSON.
    rwlock : RWLock
        Held for reading while batches are copied.
    page : CommitPage or None
        Of a live store; None of a checkpoint, and once it is closed.
    words : ndarray of int64, shape (num_envs,), or None
        Of a reader: `page.finals`, seen together with `count`.
    """

    def __init__(
        self,
        path: Path,
        mode: str,
        *,
        capacity: int | None = -1,
        only: Container[str] | None = None,
    ) -> None:
        self.place = Place(path)
        self.path, self.mode, self.opened_as = path, mode, mode
        attributes = format.read_attributes(path)
        try:
            self._parse(attributes)
        # Not all errors of ours: a signal handler's call may raise one here.
        except (KeyError, TypeError, ValueError, OverflowError, FormatError) as error:
            raise FormatError(f"{path / 'zarr.json'}: damaged attributes ({error})") from error
        self._resize(self.capacity_before if capacity == -1 else capacity)
        self.meta = {k: v for k, v in attributes.items() if k not in OWN_KEYS}
        self.count: np.ndarray = self.durable_count.copy()
        self.durable_first = self.first.copy()
        self.rwlock = RWLock()
        self.columns: dict[str, RawColumn | PackedColumn] = {
            field.name: _column_type(field)(
                self.place, number, field, self.num_envs, self.rows_per_env, self.rwlock
            )
            for number, field in enumerate(self.fields)
            if only is None or field.name in only
        }
        self.page: CommitPage | None = None
        self.words: np.ndarray | None = None

    def _parse(self, attributes: dict[str, Any]) -> None:
        self.num_envs, self.capacity_before, self.fields = parse_sizes(attributes)
        self.rows_per_env_before = rows_of_each(self.capacity_before, self.num_envs)
        self.durable_count, self.first = format.parse_rows(attributes, self.num_envs)
        self.durable_transitions = format.parse_transitions(attributes, self.durable_count)

    def _resize(self, capacity: int | None) -> None:
        self.capacity, self.is_resized = capacity, capacity != self.capacity_before
        self.rows_per_env = rows_of_each(capacity, self.num_envs)
        try:
            if capacity is not None:
                numbers.integer("capacity", capacity, self.num_envs, numbers.MOST_ROWS)
            _check_tables(self.fields, self.num_envs, self.rows_per_env)
        except ValueError as error:
            raise CapacityError(f"{self.path}: capacity {capacity}: {error}") from error

    # -- columns

    def is_cut(self) -> bool:
        """Whether somebody has cut a file that is mapped, see `Mapping.is_cut`. A microsecond or
        two for each."""
        mappings = [mapping for column in self.columns.values() for mapping in column.mappings]
        page = self.page
        return any(mapping.is_cut() for mapping in [*mappings, *([page.mapping] if page else [])])

    @property
    def raw_columns(self) -> list[RawColumn]:
        return [c for c in self.columns.values() if isinstance(c, RawColumn)]

    @property
    def mutable_columns(self) -> list[MutableColumn]:
        """Those of `raw_columns` whose values may be replaced."""
        return [c for c in self.columns.values() if isinstance(c, MutableColumn)]

    @property
    def packed_columns(self) -> list[PackedColumn]:
        """In the order of the attributes; the buffer may put `columns` into another one."""
        columns = (self.columns.get(field.name) for field in self.fields)
        return [column for column in columns if isinstance(column, PackedColumn)]

    def packed_rows(self, column: PackedColumn) -> np.ndarray:
        """What the commit page says of the rows of a field that are in shards."""
        assert self.page is not None
        return self.page.packed[
            sum(field.packed for field in self.fields[: column.files.paths.number])
        ]

    def open_page(self, *, writable: bool) -> CommitPage:
        packed = sum(field.packed for field in self.fields)
        return CommitPage(private.commit_page(self.path), self.num_envs, packed, writable=writable)

    def tell_readers(self) -> None:
        """A file that a reader may have mapped is not the one to read any more."""
        if self.page is not None:
            self.page.epoch[0] += 1

    # -- rows

    def spans(self, name: str, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """A copy of a field's rows ``start[e]`` up to ``stop[e]`` of each env `e`, env by env."""
        column = self.columns[name]
        if column.field.env_group == 1:  # an env's rows lie behind each other: copied as they are
            ranges = enumerate(zip(start.tolist(), stop.tolist(), strict=True))
            return np.concatenate([column.read(env, *rows) for env, rows in ranges])
        ends = np.cumsum(stop - start)
        out = np.empty((int(ends[-1]), *column.field.shape), column.field.dtype)
        place_of_row_0 = ends - stop
        for row, envs, values, wanted in column.pieces(start, stop):
            at, env = np.nonzero(wanted)
            out[place_of_row_0[envs][env] + row + at] = values[at, env]
        return out

    def newest(self, name: str, without: Any) -> np.ndarray:
        """The value of a field in the newest row of each env; `without` where there is no row."""
        column = self.columns[name]
        found = np.full((self.num_envs, *column.field.shape), without, column.field.dtype)
        start = np.maximum(self.count - 1, self.first)
        for _row, envs, values, wanted in column.pieces(start, self.count):
            at, places = np.nonzero(wanted)
            found[envs][places] = values[at, places]
        return found

    def transitions_at(self, count: np.ndarray) -> np.ndarray:
        """How many of each env's first `count` rows (of late) were no final rows."""
        return count - self.finals_at(count)

    def finals_at(self, count: np.ndarray) -> np.ndarray:
        """Final rows among each env's first `count` rows."""
        if self.mode == "r":
            if self.words is None:
                return self.durable_count - self.durable_transitions
            now, words = self.count, self.words
        else:
            assert self.page is not None
            now, words, _first = self.page.snapshot()
        finals = np.array(finals_in(words))
        unknown = now - rows_behind(words, now, self.first)
        return finals + self.finals_between(unknown, now) - self.finals_between(count, now)

    def finals_between(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many of the rows ``start[e]`` up to ``stop[e]`` of each env `e` are final ones."""
        finals = np.zeros(self.num_envs, np.int64)
        for _row, envs, values, wanted in self.columns["is_final"].pieces(start, stop):
            finals[envs] += np.count_nonzero((values.view(np.uint8) != 0) & wanted, axis=0)
        return finals

    def attributes(
        self, count: np.ndarray, first: np.ndarray, transitions: np.ndarray | None = None
    ) -> dict[str, Any]:
        """The ``diskreplay`` object of the group's ``zarr.json``, with these rows."""
        if transitions is None:
            transitions = self.transitions_at(count)
        return group_attributes(self.fields, self.capacity, first, count, transitions, self.meta)


def rows_of_each(capacity: int | None, num_envs: int) -> int | None:
    """Rows that each env keeps of a capacity; None for all."""
    return None if capacity is None else capacity // num_envs


def parse_sizes(attributes: dict[str, Any]) -> tuple[int, int | None, list[Field]]:
    """As `format.parse_head`, and a ``ValueError`` too where they take more memory than any store
    does."""
    num_envs, capacity, fields = format.parse_head(attributes)
    _check_tables(fields, num_envs, rows_of_each(capacity, num_envs))
    return num_envs, capacity, fields


def _check_tables(fields: Sequence[Field], num_envs: int, rows_per_env: int | None) -> None:
    for field in fields:
        segments = (rows_per_env or 0) // field.segment_rows * num_envs
        if segments * (24 + 16 * field.blocks * field.packed) > _LARGEST_TABLE:
            raise ValueError(f"{segments} segments of {field.name!r} are too many")


def _column_type(field: Field) -> type[RawColumn] | type[PackedColumn]:
    if field.packed:
        return PackedColumn
    return MutableColumn if field.mutable else RawColumn


def group_attributes(
    fields: Sequence[Field],
    capacity: int | None,
    first: np.ndarray,
    count: np.ndarray,
    transitions: np.ndarray,
    meta: Mapping[str, Any],
) -> dict[str, Any]:
    """The ``diskreplay`` object of a group's ``zarr.json``: `OWN_KEYS`, and what a buffer keeps."""
    from diskreplay import __version__

    return {
        "format_version": format.VERSION,
        "created_by": f"diskreplay {__version__}",
        "num_envs": len(count),
        "capacity": capacity,
        "fields": [field.describe() for field in fields],
        "first": first.tolist(),
        "count": count.tolist(),
        "transitions": transitions.tolist(),
        **meta,
    }
