"""The store: columns of rows on disk, with one commit point and one writer.

What happens when, and why it is safe:

=====================  =====================================================================
a row is added         all its fields are written to mapped segments, then its env's count in
                       ``state`` is raised: a killed process leaves whole rows only
a block is full        it is compressed into its segment's shard and named in the index, ``packed``
                       is raised past it, and only then are its places in the tail used again
a segment is full      the maintenance thread seals it: it never changes again
every two seconds      sealed segments and open shards are synced, then named by the record
                       (``zarr.json``)
rows leave             the record says so first; only then are their segments deleted, so a power
                       cut never finds a record that counts on files that are gone
after a power cut      the record is the truth; after a kill ``state`` is
=====================  =====================================================================
"""

import re
import threading
from collections.abc import Callable, Container, Sequence
from collections.abc import Mapping as MappingType
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import (
    DiskReplayError,
    FormatError,
    LockedError,
    StorageError,
)
from diskreplay.signals import undisturbed
from diskreplay.store import (
    files,
    follow,
    format,
    interrupted_repair,
    manifest,
    priorities,
    private,
    recovery,
    tempfiles,
)
from diskreplay.store.column import Column
from diskreplay.store.commit_page import (
    MOST_AT_ONCE,
    CommitPage,
    finals_in,
    finals_word,
    rows_behind,
)
from diskreplay.store.field import Field
from diskreplay.store.maintenance import Maintenance
from diskreplay.store.mutable_column import MutableColumn
from diskreplay.store.numbers import MOST_ROWS
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.paths import resolved
from diskreplay.store.place import Place, read_steadily
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.rwlock import RWLock
from diskreplay.store.usage import sizes

_OWN_KEYS = frozenset(
    [
        "format_version",
        "created_by",
        "num_envs",
        "capacity",
        "fields",
        "first",
        "count",
        "transitions",
    ]
)
_LARGEST_TABLE = 1 << 30  # bytes of a segment table
_PACKED_IN = 2  # so many times are blocks compressed while the tail of a single env is filled


class Store:
    """A directory of columns. Knows rows, envs and fields; nothing of episodes.

    Use `create` or `open`. All methods but `read` belong to one writing thread at a time (the
    buffer's lock sees to that); the maintenance thread works beside it.

    Attributes
    ----------
    path : Path
    place : Place
        Says whether the directory is still at `path`: asked before files are touched.
    columns : dict of str to Column
    num_envs : int
    capacity, capacity_before : int or None
        Rows kept, and kept until the store was opened; None keeps all.
    rows_per_env, rows_per_env_before : int or None
        Those of each env.
    count, first : ndarray of int64, shape (num_envs,)
        Rows ever recorded, and the oldest row that is retained.
    durable_count, durable_transitions : ndarray of int64, shape (num_envs,)
        Rows that the record names as durable, and how many of all those were no final rows.
    is_resized : bool
        Whether it was opened with another capacity than it had.
    meta : dict
        What the buffer keeps in the group's attributes; opaque here, JSON.
    rwlock : RWLock
        Entered while batches are copied.
    page : CommitPage or None
        Of a live store; None of a checkpoint, and once it is closed.
    maintenance : Maintenance
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: str,
        lock: int | None = None,
        capacity: int | None = -1,
        shrink: bool = False,
        only: Container[str] | None = None,
        check: Callable[["Store"], None] | None = None,
    ) -> None:
        self.place = Place(path)
        attributes = format.read_attributes(path)
        self.is_resized = capacity not in (-1, attributes.get("capacity"))
        try:
            self.num_envs, before, fields = format.parse_head(attributes)
            if capacity != -1:
                attributes["capacity"] = capacity
                self.num_envs, capacity, fields = format.parse_head(attributes)
            self.capacity = before if capacity == -1 else capacity
            self.capacity_before = before
            self.rows_per_env, self.rows_per_env_before = (
                None if rows is None else rows // self.num_envs for rows in (self.capacity, before)
            )
            for field in fields:
                segments = (self.rows_per_env or 0) // field.segment_rows * self.num_envs
                if segments * (24 + 16 * field.blocks * field.packed) > _LARGEST_TABLE:
                    raise ValueError(f"{segments} segments of {field.name!r} are too many")
            durable_count, self.first = format.parse_rows(attributes, self.num_envs)
            self.durable_transitions = format.parse_transitions(attributes, durable_count)
        except (KeyError, TypeError, ValueError, OverflowError, DiskReplayError) as error:
            raise FormatError(f"{path / 'zarr.json'}: damaged attributes ({error})") from error
        self.path, self.mode = path, mode
        self.meta = {k: v for k, v in attributes.items() if k not in _OWN_KEYS}
        self.durable_count, self.durable_first = durable_count, self.first.copy()
        self.rwlock = RWLock()
        self.columns = {
            field.name: _column_type(field)(
                path, number, field, self.num_envs, self.rows_per_env, self.rwlock
            )
            for number, field in enumerate(fields)
            if only is None or field.name in only
        }
        self._fields = fields  # in the order of the attributes and of the commit page
        self.lock = lock
        # Below which row each env can be written to, in all columns and in the raw ones.
        self._ready, self._raw_ready = np.zeros((2, self.num_envs), np.int64)
        self._hand: list[tuple[np.ndarray | memoryview, int]] = []
        self._hand_until = 0
        self._clearing: threading.Thread | None = None
        self.maintenance = Maintenance(self, self._write_record)
        self._flushed: dict[tuple[str, int, int], bytes] = {}
        self._written: dict[str, bytes] = {}  # seals in the documents of fields
        self.page: CommitPage | None = None
        self.words: np.ndarray | None = None  # of a reader: page.finals, seen together with count
        self.mapped_epoch = 0  # of a reader: the epoch its mappings belong to
        self.mapped_count = np.zeros(self.num_envs, np.int64)  # and the rows that they have
        self.looks = 0  # of a reader: how often it has caught up
        self.follows = True  # of a reader: whether it takes over what the writer does
        if check is not None:
            check(self)
        if mode == "r":
            self._open_for_reading()
        else:
            recovery.recover(self, shrink=shrink)

    # -- opening and closing

    @classmethod
    def create(
        cls,
        path: Path,
        fields: Sequence[Field],
        *,
        num_envs: int,
        capacity: int | None,
        segment_rows: int | None,
        meta: MappingType[str, Any],
        env_group: int | None = None,
        sized: bool = False,
    ) -> "Store":
        """Make an empty store at `path`, which is missing, empty or a creation that was cut.

        With `sized` the fields are another store's, and keep the `segment_rows` that they have.
        """
        files.make_lasting_dirs(path)
        # What a creation that was cut had begun is gone over again. A store that another process
        # has made since we looked is left to the lock.
        ours = {private.PLACE.parts[0], *(f.name.split("/")[0] for f in fields)}
        foreign = [p.name for p in path.iterdir() if p.name not in ours]
        if manifest.is_checkpoint(path):  # one whose own metadata are gone
            foreign = [manifest.NAME.as_posix()]
        if foreign and not (path / "zarr.json").exists():
            raise FormatError(
                f"{path}: holds {foreign[0]!r} and no store; choose an empty or a new directory"
            )
        files.make_dirs(private.directory(path))
        lock = private.hold(path)
        try:
            if (path / "zarr.json").exists():
                raise LockedError(
                    f"{path}: another process has just created a store here; try again"
                )
            rows_per_env = None if capacity is None else capacity // num_envs
            if not sized:
                fields = [f.sized(rows_per_env, num_envs, segment_rows, env_group) for f in fields]
            zeros = [0] * num_envs
            nothing = np.zeros(num_envs, np.int64)
            CommitPage.create(private.commit_page(path), nothing, sum(f.packed for f in fields))
            files.sync_dirs([private.directory(path)])
            documents = {}
            for field in fields:
                for depth in range(1, field.name.count("/") + 1):
                    parent = path.joinpath(*field.name.split("/")[:depth])
                    documents[parent / "zarr.json"] = format.group_document()
                attributes = {"seals": {}}
                documents[path / field.name / "zarr.json"] = format.array_document(
                    field, 0, num_envs, attributes
                )
            files.replace({at: format.encode(d) for at, d in documents.items()})
            # Last: a directory with this file is a store, and all it names is there.
            attributes = {
                **_head(fields, num_envs, capacity),
                "first": zeros, "count": zeros, "transitions": zeros, **meta,
            }  # fmt: skip
            _write_group(path, attributes)
            return cls(path, mode="a", lock=lock)
        except BaseException:
            files.unlock(lock)
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        mode: str,
        capacity: int | None = -1,
        shrink: bool = False,
        only: Container[str] | None = None,
        check: Callable[["Store"], None] | None = None,
    ) -> "Store":
        """Open a store: ``"a"`` to go on writing, ``"r"`` to read along (or a checkpoint).

        `capacity` replaces the stored one; -1 keeps it. One that does not hold all rows is refused
        with a `CapacityError`, before anything is changed, unless `shrink` is true. Before that,
        `check` is given the store, whose metadata are read by then, to refuse it. With ``"r"``,
        `only` these columns are there: to map thousands of segments that nobody looks at takes
        long.
        """
        path = resolved(path)
        if mode == "r":
            return read_steadily(path, lambda: cls(path, mode="r", only=only))
        cls.sweep(path)
        format.read_attributes(path)
        if manifest.is_checkpoint(path):
            raise FormatError(
                f"{path}: a checkpoint, which never changes; open it with mode='r', or load() it "
                "into a live store"
            )
        lock = private.hold(path)
        try:
            return cls(path, mode="a", lock=lock, capacity=capacity, shrink=shrink, check=check)
        except BaseException:
            files.unlock(lock)
            raise

    @staticmethod
    def sweep(path: Path) -> None:
        """Finish or remove what a killed process left beside a store: before it is opened to be
        written to, and before it is found out whether there is one."""
        tempfiles.sweep(path.parent, re.escape(path.name))
        interrupted_repair.finish(path)

    def begin_writing(self, count: np.ndarray, finals: np.ndarray) -> None:
        """Called by recovery: from here on `count` rows are there, `finals` of them final ones, and
        more may come."""
        packed = [c for c in self._columns_as_stored() if isinstance(c, PackedColumn)]
        page = CommitPage(private.commit_page(self.path), self.num_envs, len(packed), writable=True)
        page.count[:] = count
        page.finals[:] = finals_word(finals, count)
        for column, numbers in zip(packed, page.packed, strict=True):
            numbers[:] = column.packed
            column.bind(column.tail, numbers, None)
        for column in self.columns.values():
            column.tell_readers = self._tell_readers
        page.mark_open()
        page.epoch[0] += 1  # for readers that followed the writer before
        self.page, self.count = page, page.count

    def _tell_readers(self) -> None:
        if self.page is not None:
            self.page.epoch[0] += 1

    def packed_rows(self, column: PackedColumn) -> np.ndarray:
        """What the commit page says of the rows of a field that are in shards."""
        return self.page.packed[sum(field.packed for field in self._fields[: column.number])]

    def _columns_as_stored(self) -> list[Column]:
        """In the order of the attributes; the buffer may put `columns` into another one."""
        return [self.columns[f.name] for f in self._fields if f.name in self.columns]

    def close(self) -> None:
        """Stop the maintenance thread, unmap everything, release the lock.

        Rows are safe from kills, and from power cuts up to the last `record`; call that first. Also
        of a directory that was moved.
        """
        self.maintenance.join()
        self.finish_clearing()
        self.count = np.array(self.count)
        self._hand = []
        with self.maintenance.lock, self.rwlock:
            is_there = self._holds_place()
            for column in self.columns.values():
                if not is_there:  # another store's private files may have these names
                    column.abandon()
                column.close()
            self.place.close()
        self.page = None
        if self.lock is not None:
            files.unlock(self.lock)
            self.lock = None

    def _holds_place(self) -> bool:
        try:
            return self.place.holds()
        except StorageError:  # closing goes on; the next opening removes what is left
            return False

    def move(self, path: Path) -> None:
        """The directory of this store, which was opened just now, is at `path`. Cannot fail."""
        self.path = self.place.path = path
        for column in self.columns.values():
            column.move(path)
        self.page.mapping.path = private.commit_page(path)

    def clear_away(self, replaced: "Store", room: tempfiles.Workspace, *, keep: bool) -> None:
        """Close the store that this one has replaced, and remove its files, which are in `room`
        now, unless the next opening is to do that (`keep`).

        Thousands of segments take a while to unmap. That is left to a thread, which `close` and
        the next `load` wait for; after a kill the next opening removes the files.
        """
        for column in replaced.columns.values():
            column.abandon()

        def clear() -> None:
            replaced.close()
            room.release() if keep else room.remove()

        name = f"diskreplay clearing {self.path.name}"
        thread = threading.Thread(target=clear, name=name)
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had
            clear()
        else:
            self._clearing = thread

    def finish_clearing(self) -> None:
        """Wait until the files of the store that this one has replaced are gone."""
        if self._clearing is not None:
            self._clearing.join()
            self._clearing = None

    # -- adding rows

    def reserve(self, envs: np.ndarray, stop: np.ndarray) -> None:
        """See to it that rows below ``stop[i]`` of ``envs[i]`` can be written; all or an error."""
        if (stop <= self._ready[envs]).all():
            return
        self.place.check()
        with undisturbed():
            if (stop > self._raw_ready[envs]).any():
                self._reserve_raw(envs, stop)
            ready = self._raw_ready[envs]
            for column in self.columns.values():
                if isinstance(column, PackedColumn):
                    column.reserve(envs, stop - 1, self.count)
                    ready = np.minimum(ready, column.packed[envs] + column.tail_rows)
            self._ready[envs] = ready
            if self.num_envs > 1:
                self.maintenance.wake()

    def _reserve_raw(self, envs: np.ndarray, stop: np.ndarray) -> None:
        """`reserve` in columns whose rows go straight to the files."""
        columns = [column for column in self.columns.values() if isinstance(column, RawColumn)]
        # First: an env of this call may be in one of them, and takes it back below.
        for column in columns:
            for slow in column.hand_over(self.count, self._raw_ready):
                self._ready[slow] = 0
        late = stop > self._raw_ready[envs]
        envs, last = envs[late], stop[late] - 1
        ready = np.full(len(envs), MOST_ROWS)
        for column in columns:
            column.reserve(envs, np.maximum(self.count[envs], self._raw_ready[envs]))
            column.reserve(envs, last)
            ready = np.minimum(ready, column.ready(last))
        self._raw_ready[envs] = ready
        self.maintenance.wake()

    def reserve_env(self, env: int, last: int) -> None:
        """`reserve` for one env, up to and including row `last`."""
        if last >= self._ready[env]:
            self.reserve(np.array([env]), np.array([last + 1]))

    def append_row(
        self, values: Sequence[Any], final: Sequence[Any] | None, *, is_final: bool = False
    ) -> None:
        """Add one row of the only env, and with `final` a second one, in one commit.

        Parameters
        ----------
        values, final : sequence
            A value for each column, in the order of `columns`; None for zeros.
        is_final : bool
            Whether `values` are a final row's.
        """
        row = self.count.item(0)
        rows = 1 if final is None else 2
        if row + rows > self._hand_until:
            self.reserve_env(0, row + rows - 1)
            if row >= self._hand_until:
                self._take_in_hand(row)
        try:
            self._put(row, values)
            if final is not None:
                if row + 1 >= self._hand_until:
                    self._take_in_hand(row + 1)
                self._put(row + 1, final)
            self.count[0] = row + rows  # the commit
        except BaseException:
            self._hand_until = 0  # the next row may go to the segment before
            raise
        if final is not None or is_final:
            self._count_finals(np.zeros(1, np.int64))

    def _put(self, row: int, values: Sequence[Any]) -> None:
        for (rows_of, first), value in zip(self._hand, values, strict=True):
            rows_of[row - first] = 0 if value is None else value

    def _count_finals(self, envs: np.ndarray, more: int = 1) -> None:
        finals = finals_in(self.page.finals[envs]) + more
        self.page.finals[envs] = finals_word(finals, self.count[envs])

    def recount(self) -> None:
        """After a commit that was not followed up: count its final rows, and let go of the rows
        that have left for it."""
        count = self.count.copy()
        self.page.finals[:] = finals_word(self._finals(count), count)
        self.first = self.first.copy()  # not that of an index which somebody still looks at
        self.evict()

    def evict(self) -> None:
        """Let go of the rows that have left for newer ones."""
        if self.rows_per_env is None:
            return
        if self.num_envs > 1:
            self.first = np.maximum(self.first, self.count - self.rows_per_env)
        elif (oldest := self.count.item(0) - self.rows_per_env) > self.first.item(0):
            self.first[0] = oldest

    def _take_in_hand(self, row: int) -> None:
        """Hold the places that `row` of the only env goes to: writing it is then an assignment for
        each column, until the first of them is full."""
        self._hand, until = [], []
        for column in self.columns.values():
            size = column.field.segment_rows
            if isinstance(column, PackedColumn):
                size = column.tail_rows
                column.pack_at_once(self.count)
                if len(column.open_segments()) > 1:  # the first of them is full
                    self.maintenance.wake()
                self._hand.append((column.places[0], row // size * size))
                until.append(column.packed.item(0) + size)
                until.append(row + max(size // _PACKED_IN, 1))
            else:
                rows = column.rows(row // size, 0)
                # Setting one number takes a memoryview half as long as an array.
                plain = column.field.shape == () and column.field.dtype != np.float16
                self._hand.append((memoryview(rows) if plain else rows, row // size * size))
            until.append((row // size + 1) * size)
        self._hand_until = min(until)

    def append(
        self,
        envs: np.ndarray,
        values: Sequence[np.ndarray],
        final_envs: np.ndarray,
        final: Sequence[np.ndarray],
        *,
        is_final: bool = False,
    ) -> np.ndarray:
        """Add one row to each of `envs` and a final row to each of `final_envs` (a subset).

        Parameters
        ----------
        values, final : sequence of ndarray, each of shape (num_envs, *field.shape)
            An array for each column, in the order of `columns`, C-contiguous.
        is_final : bool
            Whether `values` are final rows; there are no `final_envs` then.

        Returns
        -------
        ndarray of int64
            The rows' numbers, in the order of `envs`.
        """
        rows = self.count[envs]
        stop = self.count.copy()
        stop[envs] += 1
        final_rows = stop[final_envs]
        stop[final_envs] += 1
        self.reserve(envs, stop[envs])
        for column, value in zip(self.columns.values(), values, strict=True):
            column.scatter(envs, rows, value)
        if len(final_envs):
            for column, value in zip(self.columns.values(), final, strict=True):
                column.scatter(final_envs, final_rows, value)
        self.count[:] = stop  # the commit: each env's count is raised by one store
        if is_final or len(final_envs):
            self._count_finals(envs if is_final else final_envs)
        return rows

    def extend(self, env: int, values: Sequence[np.ndarray]) -> None:
        """Add rows to one env, in commits of at most `most_at_once`.

        Parameters
        ----------
        values : sequence of ndarray, each of shape (rows, *field.shape)
            An array for each column, in the order of `columns`, of its dtype.
        """
        row, rows = int(self.count[env]), len(values[0])
        self.reserve_env(env, row + rows - 1)
        self._hand_until = 0
        for column, value in zip(self.columns.values(), values, strict=True):
            column.write(env, row, value)
        self.count[env] = row + rows  # the commit
        finals = np.count_nonzero(values[list(self.columns).index("is_final")])
        self._count_finals(np.array([env]), finals)

    @property
    def most_at_once(self) -> int:
        """Rows of one env that one `extend` takes: not more than a segment of any column, so that
        there is always a place for the next one, nor than a tail has besides a block that is not
        full, nor than are kept."""
        rows = min(column.most_at_once for column in self.columns.values())
        return min(MOST_AT_ONCE, rows, self.rows_per_env or rows)

    def take(self, name: str, ids: np.ndarray, out: np.ndarray) -> None:
        """The row of each id (``row * num_envs + env``) of one field into ``out[i]``; zeros for
        negative ids. The caller holds `rwlock` and knows that the rows are retained."""
        self.columns[name].take(ids, _bytes(out))

    def overwrite(self, name: str, ids: np.ndarray, values: np.ndarray) -> None:
        """Replace the values of a mutable field in rows that are retained; all or an error.

        Waits until batches that are being read are whole: they have what was there before. So what
        a batch has depends on the order of calls, and not on how its reader was scheduled.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
            Of duplicates the last counts.
        values : ndarray of shape (n, *field.shape)
            C-contiguous, of the field's dtype.
        """
        column = self.columns[name]
        self.place.check()
        with undisturbed():
            column.own(ids)
            with self.rwlock:
                column.put(ids, values)

    # -- the record

    def attributes(self, count: np.ndarray, first: np.ndarray) -> dict[str, Any]:
        """The ``diskreplay`` object of the group's ``zarr.json``."""
        return self._attributes(count, first, self.transitions_at(count))

    def _attributes(
        self, count: np.ndarray, first: np.ndarray, transitions: np.ndarray
    ) -> dict[str, Any]:
        return {
            **_head(self._fields, self.num_envs, self.capacity),
            "first": first.tolist(),
            "count": count.tolist(),
            "transitions": transitions.tolist(),
            **self.meta,
        }

    def transitions_at(self, count: np.ndarray) -> np.ndarray:
        """How many of each env's first `count` rows (of late) were no final rows."""
        return count - self._finals(count)

    def _finals(self, count: np.ndarray) -> np.ndarray:
        """Final rows among each env's first `count` rows."""
        if self.words is None and self.mode == "r":
            return self.durable_count - self.durable_transitions
        now, words = (self.count, self.words) if self.mode == "r" else self.page.snapshot()
        finals = np.array(finals_in(words))
        unknown = now - rows_behind(words, now, self.first)
        return finals + self.finals_between(unknown, now) - self.finals_between(count, now)

    def finals_between(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many of the rows ``start[e]`` up to ``stop[e]`` of each env `e` are final ones."""
        finals = np.zeros(self.num_envs, np.int64)
        for _row, envs, values, wanted in self.columns["is_final"].pieces(start, stop):
            finals[envs] += np.count_nonzero((values.view(np.uint8) != 0) & wanted, axis=0)
        return finals

    def _write_record(self, count: np.ndarray, first: np.ndarray, *, closing: bool = False) -> None:
        """Name `count` rows as durable. Their data and names are synced already."""
        self.place.check()
        rows = int(count.max(initial=0))
        documents = {}
        for name, column in self.columns.items():
            document = column.document(rows, closing=closing)
            seals = format.encode(document["attributes"])
            if seals != self._written.get(name) or closing:
                documents[column.directory / "zarr.json"] = format.encode(document)
                self._written[name] = seals
        self._written = {} if closing else self._written
        files.replace(documents)
        attributes = self.attributes(count, first)
        self.place.check()
        _write_group(self.path, attributes)
        self.durable_transitions = np.array(attributes["transitions"], np.int64)
        self.durable_count, self.durable_first = count, first

    def record(
        self,
        meta: MappingType[str, Any],
        leaves: priorities.Sets | None = None,
        *,
        closing: bool = False,
    ) -> None:
        """Make every row durable and visible to plain Zarr readers.

        Parameters
        ----------
        meta : mapping
            Replaces `meta`.
        leaves : priorities.Sets, optional
            Priorities of the rows from ``first.min()`` on; NaN where a row has none.
        closing : bool
            Whether `mark_closed` follows: open segments get checksums then, for `verify`.
        """
        with undisturbed(), self.maintenance.lock:
            self.place.check()
            self.maintenance.run()
            self.maintenance.place_copies()
            count, first = self.count.copy(), self.first.copy()
            written, flushed = self._write_partial_shards(count)
            files.sync([*written, *self.maintenance.unsynced(), *self._unsynced_raw_files()])
            for beside in written:
                files.rename(beside, beside.with_suffix(""))
            self._flushed = flushed  # not before: a flush that failed writes them again
            self.maintenance.sync_names(written)
            for name, (values, alpha) in (leaves or {}).items():
                priorities.replace(self.path, name, values, int(first.min()), alpha)
            self.meta = dict(meta)
            self._written = {}  # all of them anew: a plain reader goes by their shapes
            self._write_record(count, first, closing=closing)
            self.maintenance.all_recorded()
            for column in self.columns.values():
                if isinstance(column, RawColumn):
                    column.flushed()

    def note_flushed(self, column: PackedColumn, count: np.ndarray) -> None:
        """The shards in their places have all these rows."""
        for key in column.unfinished(count):
            self._flushed[column.field.name, *key] = _used(column, key, count).tobytes()

    def _unsynced_raw_files(self) -> list[Path]:
        return [
            path
            for column in self.columns.values()
            if isinstance(column, RawColumn)
            for path in column.unsynced()
        ]

    def keep_priorities(self, written: Sequence[Path], meta: MappingType[str, Any]) -> None:
        """Take over the priorities of a checkpoint, so that a kill costs those since then only.

        Nothing else of `meta` than what belongs to them: a power cut may go back to rows before it.
        """
        self.place.check()
        for each in written:
            priorities.adopt(self.path, each)
        belongs = priorities.LARGEST, priorities.VIEWS
        self.meta |= {name: meta[name] for name in belongs if name in meta}
        attributes = self._attributes(
            self.durable_count, self.durable_first, self.durable_transitions
        )
        _write_group(self.path, attributes)

    def _write_partial_shards(self, count: np.ndarray) -> tuple[list[Path], dict]:
        """Shards of segments not sealed yet, beside their places, and what `_flushed` is then."""
        written, flushed = [], {}
        for column in self.columns.values():
            if not isinstance(column, PackedColumn):
                continue
            for key in column.unfinished(count):
                used, name = _used(column, key, count), (column.field.name, *key)
                if not used.any():
                    continue
                flushed[name] = used.tobytes()
                if self._flushed.get(name) != flushed[name]:
                    column.reopen_sealed(key)
                    with column.changing:
                        path = column.new_path(column.path(*key))
                    beside = path.with_name(path.name + ".tmp")
                    column.partial[key] = column.write_partial(key, count, beside)
                    written.append(beside)
        return written, flushed

    def mark_closed(self) -> None:
        """Say that the record is the whole truth; only after `record`. What is needed only while
        rows come is removed."""
        self.place.check()
        self.page.mark_closed()
        self.page.epoch[0] += 1  # readers go by the shards in their places from here on
        private.clear(self.path)

    # -- reading

    def read(self, name: str, env: int, start: int, stop: int) -> np.ndarray:
        """A copy of the rows ``start..stop`` of one env of one field."""
        return self.columns[name].read(env, start, stop)

    def newest(self, name: str, without: Any) -> np.ndarray:
        """The value of a field in the newest row of each env; `without` where there is no row."""
        column = self.columns[name]
        found = np.full((self.num_envs, *column.field.shape), without, column.field.dtype)
        start = np.maximum(self.count - 1, self.first)
        for _row, envs, values, wanted in column.pieces(start, self.count):
            at, places = np.nonzero(wanted)
            found[envs][places] = values[at, places]
        return found

    def read_priorities(self, name: str = priorities.MAIN) -> priorities.Saved | None:
        """The saved leaves of a set, or None if none were saved."""
        return priorities.read(self.path / name, self.num_envs)

    def _open_for_reading(self) -> None:
        path = private.commit_page(self.path)
        if path.exists():
            packed = sum(field.packed for field in self._fields)
            self.page = CommitPage(path, self.num_envs, packed, writable=False)
        self.count = self.durable_count.copy()
        follow.catch_up(self)

    @property
    def is_live(self) -> bool:
        """Of a reader: whether a writer has the store open, or was killed since the last boot."""
        return self.page is not None and not self.page.closed and self.page.same_boot

    def look(self) -> None:
        """For a reader that follows: take over which rows count now."""
        if not self.follows:
            return
        if self.is_live:
            count, words = self.page.snapshot()
            if (count < self.durable_count).any() or (count > MOST_ROWS // self.num_envs).any():
                raise FormatError(
                    f"{self.page.mapping.path}: {count.tolist()} rows are counted "
                    f"and {self.durable_count.tolist()} recorded; restore it, or let a writer open "
                    "the store"
                )
            self.count, self.words = count, words
        if self.rows_per_env is not None:  # the record may be a little older than the count
            self.first = np.maximum(self.first, self.count - self.rows_per_env)

    def give_up(self) -> None:
        """For a reader that does not follow: do without rows whose files are gone. All were mapped
        when it was opened, but one had its rows in a tail, and has left since."""
        if self.rows_per_env is not None:
            left = np.minimum(self.page.snapshot()[0] - self.rows_per_env, self.count)
            self.first = np.maximum(self.first, left)

    def outdated(self) -> bool:
        """For a reader: whether a writer has opened the store with another capacity since, or has
        let go of rows that this capacity would keep."""
        attributes = format.read_attributes(self.path)
        num_envs, capacity, _fields = format.parse_head(attributes)
        if (num_envs, capacity) != (self.num_envs, self.capacity) or self.replaced():
            return True
        return bool((format.parse_rows(attributes, num_envs)[1] > self.first).any())

    def replaced(self) -> bool:
        """For a reader: whether `load` has put another store in this one's place."""
        return self.page is not None and bool(self.page.replaced[0])

    def epoch(self) -> int:
        """Changes whenever a file that a reader may have mapped is not the one to read any more."""
        return 0 if self.page is None else int(self.page.epoch[0])

    def is_behind(self) -> bool:
        """For a reader: whether rows that it looks for in the tail may be in a shard by now, or in
        another file."""
        if self.page is None:
            return False
        return self.epoch() != self.mapped_epoch or any(
            column.is_passed for column in self.columns.values() if isinstance(column, PackedColumn)
        )

    def has_moved_on(self, looks: int) -> bool:
        """For a reader that could not read a row, having caught up so many times: whether it may
        find that now."""
        return self.mode == "r" and (self.looks != looks or self.is_behind())

    def refresh(self) -> bool:
        """For a reader: follow the writer; True if there are new rows."""
        before = self.count
        if not self.is_behind() and (
            self.page is None or not self.follows or (self.page.count <= before).all()
        ):
            return False
        follow.catch_up(self)
        return bool((self.count > before).any())

    # -- figures

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """For each field the bytes its files take on disk, tails included, and its segments."""
        usage = {}
        live = sizes(private.directory(self.path))
        for name, column in self.columns.items():
            shards = sizes(private.open_shards(self.path, column.number))
            files_ = *sizes(column.directory).values(), *shards.values()
            tail = live.get(private.tail(self.path, column.number).name, 0)
            usage[name] = sum(files_) + tail, len(column.segments)
        return usage


def _column_type(field: Field) -> type[Column]:
    if field.packed:
        return PackedColumn
    return MutableColumn if field.mutable else RawColumn


def _write_group(path: Path, attributes: dict[str, Any]) -> None:
    """Replace the group's ``zarr.json``: built among the private files, since Zarr warns of any
    other name in a group."""
    document = format.encode(format.group_document(attributes))
    files.replace({path / "zarr.json": document}, build=private.directory(path))


def _used(column: Column, key: tuple[int, int], count: np.ndarray) -> np.ndarray:
    """Rows of each env of a group in a segment."""
    field, (number, group) = column.field, key
    envs = slice(group * field.env_group, (group + 1) * field.env_group)
    return np.clip(count[envs] - number * field.segment_rows, 0, field.segment_rows)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _head(fields: Sequence[Field], num_envs: int, capacity: int | None) -> dict[str, Any]:
    from diskreplay import __version__

    return {
        "format_version": format.VERSION,
        "created_by": f"diskreplay {__version__}",
        "num_envs": num_envs,
        "capacity": capacity,
        "fields": [field.describe() for field in fields],
    }
