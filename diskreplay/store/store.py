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

import contextlib
import re
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import FormatError, InvalidInputError, LockedError, StorageError
from diskreplay.signals import undisturbed
from diskreplay.store import (
    file_locks,
    files,
    format,
    generation,
    interrupted_repair,
    manifest,
    own_files,
    priorities,
    private,
    recovery,
    tempfiles,
)
from diskreplay.store.commit_page import CommitPage
from diskreplay.store.field import Field
from diskreplay.store.follower import Follower
from diskreplay.store.held_file import HeldFile
from diskreplay.store.maintenance import Maintenance
from diskreplay.store.open_store import OpenStore, group_attributes, parse_sizes, rows_of_each
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import identity, resolved
from diskreplay.store.place import read_steadily
from diskreplay.store.record import Record, of_priorities, write_group
from diskreplay.store.row_writer import RowWriter
from diskreplay.store.usage import sizes
from diskreplay.thread_start import try_to_start

_TRIES = 20  # of a reader


class Store(OpenStore):
    """A directory of columns. Knows rows, envs and fields; nothing of episodes.

    Use `create` or `open`. All methods but `read` belong to one writing thread at a time (the
    buffer's lock sees to that); the maintenance thread works beside it.

    Attributes
    ----------
    writer : RowWriter
        Adds rows.
    follower : Follower
        Of a reader: keeps up with the writer.
    was_closed : bool
        Of a writer: whether the one before closed the store in good order.
    seen_record : HeldFile or None
        Of a reader: the record that it read last, when it followed the writer.
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
        super().__init__(path, mode, capacity=capacity, only=only)
        self.lock = lock
        self.was_closed = True
        self._clearing: threading.Thread | None = None
        self._record = Record(self)
        self.maintenance = Maintenance(self, self._record)
        self.writer = RowWriter(self, self.maintenance)
        self.follower = Follower(self)
        self.seen_record: HeldFile | None = None
        if check is not None:
            check(self)
        if mode == "r":
            self._open_for_reading()
        else:
            self._open_for_writing(shrink)

    # -- opening and closing

    def _open_for_reading(self) -> None:
        private.check_place(self.path)
        if private.has_page(self.path) or not manifest.was_checkpoint(self.path):
            private.check_page(self.path)
            self.page = self.open_page(writable=False)
        self.follower.catch_up()

    def _open_for_writing(self, shrink: bool) -> None:
        private.check_page(self.path)
        before = generation.current(self.meta)
        self.was_closed = recovery.recover(self, shrink=shrink)
        if self.was_closed:
            self._record.note_all_flushed(self.count)
        if generation.current(self.meta) != before:
            with contextlib.suppress(StorageError):  # the next record has it
                self.record(self.meta)
        if any(column.files.pending_deletes for column in self.columns.values()):
            with contextlib.suppress(StorageError):  # the maintenance thread tries again
                self.maintenance.run(durable=True)

    @classmethod
    def create(
        cls,
        path: Path,
        fields: Sequence[Field],
        *,
        num_envs: int,
        capacity: int | None,
        segment_rows: int | None,
        meta: Mapping[str, Any],
        env_group: int | None = None,
        sized: bool = False,
    ) -> "Store":
        """Make an empty store at `path`, which is missing, empty or a creation that was cut.

        With `sized` the fields are another store's, and keep the `segment_rows` that they have.
        """
        if not sized:
            rows_per_env = rows_of_each(capacity, num_envs)
            fields = [f.sized(rows_per_env, num_envs, segment_rows, env_group) for f in fields]
        nothing = np.zeros(num_envs, np.int64)
        attributes = group_attributes(fields, capacity, nothing, nothing, nothing, meta)
        try:
            parse_sizes(attributes)  # as each opening does
        except ValueError as error:
            raise InvalidInputError(f"no store can have such fields and sizes: {error}") from error
        files.make_lasting_dirs(path)
        # What a creation that was cut had begun is gone over again. A store that another process
        # has made since we looked is left to the lock.
        ours = {private.PLACE.parts[0], *(f.name.split("/")[0] for f in fields)}
        foreign = [p.name for p in files.listed(path) if p.name not in ours]
        if manifest.is_checkpoint(path):  # one whose own metadata are gone
            foreign = [manifest.NAME.as_posix()]
        if foreign and not cls.is_at(path):
            raise FormatError(
                f"{path}: holds {foreign[0]!r} and no store; choose an empty or a new directory"
            )
        files.make_dirs(private.directory(path))
        lock = private.hold(path)
        try:
            if cls.is_at(path):
                raise LockedError(
                    f"{path}: another process has just created a store here; try again"
                )
            CommitPage.create(private.commit_page(path), nothing, sum(f.packed for f in fields))
            files.sync_dirs([private.directory(path)])
            documents: dict[Path, dict[Any, Any]] = {}
            for field in fields:
                document = format.array_document(field, 0, num_envs, {"seals": {}})
                documents |= format.field_documents(path, field, document)
            files.replace({at: format.encode(d) for at, d in documents.items()})
            # Last: a directory with this file is a store, and all it names is there.
            write_group(path, attributes)
            return cls(path, mode="a", lock=lock)
        except BaseException:
            file_locks.unlock(lock)
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
            return read_steadily(path, lambda: cls._opened_to_read(path, only))
        cls.sweep(path)
        format.read_attributes(path)
        if manifest.is_checkpoint(path):
            raise FormatError(
                f"{path}: a checkpoint, which never changes; open it with mode='r', or load() it "
                "into a live store"
            )
        lock = private.hold(path)
        try:
            own_files.make_own(path)
            return cls(path, mode="a", lock=lock, capacity=capacity, shrink=shrink, check=check)
        except BaseException:
            file_locks.unlock(lock)
            raise

    @classmethod
    def _opened_to_read(cls, path: Path, only: Container[str] | None) -> "Store":
        """Of a store that is closed meanwhile the record may have been read before it had the last
        rows, and the page, which says to go by the record, after that: look again then."""
        for tries_left in reversed(range(_TRIES)):
            record, store = identity(path / "zarr.json"), cls(path, mode="r", only=only)
            lacking = store.follower.unrecorded()  # before it is asked whether it is closed
            live = store.page is None or not store.page.closed
            if live or identity(path / "zarr.json") == record or not tries_left:
                break
            store.close()
        if lacking and not live:
            store.close()
            raise FormatError(lacking)
        return store

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether there is a store, or what is left of one."""
        return files.is_there(path / "zarr.json")

    @staticmethod
    def sweep(path: Path) -> None:
        """Before a store is opened to be written to, and before it is found out whether there is
        one: refuse a place inside another, and finish or remove what a killed process left."""
        check_outside(path)
        tempfiles.sweep(path.parent, re.escape(path.name))
        interrupted_repair.finish(path)

    def close(self) -> None:
        """Stop the maintenance thread, unmap everything, release the lock.

        Rows are safe from kills, and from power cuts up to the last `record`; call that first. Also
        of a directory that was moved.
        """
        self.maintenance.join()
        self.finish_clearing()
        self.count = np.array(self.count)
        self.writer.let_go()
        with self.maintenance.lock, self.rwlock:
            try:
                is_there = self.place.holds()
            except StorageError:  # closing goes on; the next opening removes what is left
                is_there = False
            for raw in self.raw_columns:
                if not is_there:  # another store's private files may have these names
                    raw.spares.forget()
            for column in self.columns.values():
                column.close()
            self.place.close()
            if self.seen_record is not None:
                self.seen_record.close()
        self.page = None
        if self.lock is not None:
            file_locks.unlock(self.lock)
            self.lock = None

    def move(self, path: Path) -> None:
        """The directory of this store, which was opened just now, is at `path`. Cannot fail."""
        before, self.path = self.path, path
        self.place.path = path
        for column in self.columns.values():
            column.move(before)
        assert self.page is not None
        self.page.mapping.path = private.commit_page(path)

    def clear_away(self, replaced: "Store", room: tempfiles.Workspace, *, keep: bool) -> None:
        """Close the store that this one has replaced, and remove its files, which are in `room`
        now, unless the next opening is to do that (`keep`).

        Thousands of segments take a while to unmap. That is left to a thread, which `close` and
        the next `load` wait for; after a kill the next opening removes the files.
        """
        for column in replaced.raw_columns:
            column.spares.forget()

        def clear() -> None:
            replaced.close()
            room.release() if keep else room.remove()

        name = f"diskreplay clearing {self.path.name}"
        thread = threading.Thread(target=clear, name=name)
        if try_to_start(thread):
            self._clearing = thread
        else:
            clear()

    def finish_clearing(self) -> None:
        """Wait until the files of the store that this one has replaced are gone."""
        if self._clearing is not None:
            self._clearing.join()
            self._clearing = None

    # -- the record

    def record(
        self,
        meta: Mapping[str, Any],
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
            written, flushed = self._record.write_partial_shards(count)
            raw = [path for column in self.raw_columns for path in column.unsynced()]
            files.sync([*written, *self.maintenance.unsynced(), *raw])
            for made, place in written.items():
                files.rename(made, place)
            self._record.note_flushed(flushed)  # not before: one that failed writes them again
            self.maintenance.sync_names(written.values())
            with self._record.replacing_priorities(leaves or {}):
                for name, unsaved in (leaves or {}).items():
                    priorities.replace(self.path, name, unsaved, int(first.min()))
                before, self.meta = self.meta, dict(meta)
                self._record.forget_documents()
                try:
                    self._record.write(count, first, closing=closing)
                except BaseException:
                    # A later record says nothing that this one was refused; but new priorities
                    # are in their place by now.
                    self.meta = before | of_priorities(meta)
                    raise
            self.maintenance.all_recorded()
            for column in self.mutable_columns:
                column.flushed()

    def amend(self, attributes: Mapping[str, Any], *, needed: bool = True) -> None:
        """Add to `meta`, or replace in it, and have that on the disk. The record names the same
        rows as before.

        If the disk refuses it, `meta` is as it was, and the error is raised; unless it is
        not `needed`: then the next record has it.
        """
        with undisturbed(), self.maintenance.lock:
            before, self.meta = self.meta, {**self.meta, **attributes}
            try:
                self._record.repeat()
            except StorageError:
                if needed:
                    self.meta = before  # what it says is taken for what is on the disk
                    raise

    def mark_closed(self) -> None:
        """Say that the record is the whole truth; only after `record`. What is needed only while
        rows come is removed. No row may be added afterwards, but after an error."""
        self.place.check()
        assert self.page is not None
        with self.maintenance.lock:  # of a closed store no file is looked at that has no rows
            for raw in self.raw_columns:
                raw.spares.remove()
            self.page.mark_closed()
        self.page.epoch[0] += 1  # readers go by the shards in their places from here on
        with contextlib.suppress(StorageError):  # the next opening removes it
            private.clear(self.path)

    def read_priorities(self, name: str = priorities.MAIN) -> priorities.Saved | None:
        """The saved leaves of a set, or None if none were saved."""
        place = self.path / name  # a writer puts a new one there
        return read_steadily(place, lambda: priorities.read(place, self.num_envs))

    # -- figures

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """For each field the bytes its files take on disk, tails included, and its segments."""
        usage = {}
        live = sizes(private.directory(self.path))
        for name, column in self.columns.items():
            shards = sizes(column.files.paths.open_segments)
            files_ = *sizes(column.files.paths.directory).values(), *shards.values()
            tail = live.get(column.files.paths.tail.name, 0)
            usage[name] = sum(files_) + tail, len(column.segments.mapped)
        return usage
