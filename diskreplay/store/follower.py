"""Readers: they map what a writer in another process has, and keep up with it."""

import contextlib
import os
from collections.abc import Sequence

import numpy as np

from diskreplay.errors import CorruptSegmentError, FormatError, StorageError
from diskreplay.store import format
from diskreplay.store.catalog import segments_of
from diskreplay.store.mapping import Mapping
from diskreplay.store.missing import all_there, check_used
from diskreplay.store.numbers import MOST_ROWS
from diskreplay.store.open_store import LET_GO, OpenStore
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.priorities import LARGEST
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.segment import RawSegment, Shard

_LIMITS = "capacity", "max_transitions"  # attributes of the group: how many rows are kept
_TRIES = 50  # of a reader that finds the writer sealing or deleting under its hands


class Follower:
    """What a reader has mapped, and how it keeps up with the writer.

    Attributes
    ----------
    follows : bool
        Whether it takes over what the writer does; else it keeps the rows that it was opened with.
    looks : int
        How often it has caught up.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._mapped_epoch = 0  # of what is mapped
        self._mapped_count = np.zeros(store.num_envs, np.int64)  # the rows that it has
        self._mapped_packed: dict[str, np.ndarray] = {}  # of each packed field, those in shards
        self._is_amid = False  # a `refresh`, which may have stopped short: rows are not mapped yet
        # A writer raises it when it opens, and behind closing.
        self._opened_epoch: int | None = None
        self._limited_epoch: int | None = None  # at which the record had our limits
        self.follows = True
        self.looks = 0

    @property
    def is_live(self) -> bool:
        """Whether a writer has the store open, or was killed since the last boot."""
        page = self._store.page
        return page is not None and not page.closed and page.same_boot

    def look(self) -> None:
        """Take over which rows count now."""
        store, page = self._store, self._store.page
        if not self.follows:
            return
        if page is not None and page.is_older and self.epoch() != self._mapped_epoch:
            longer = store.open_page(writable=False)  # a writer may have made it so
            if not self.replaced():  # that is said before another store's page is there
                page = store.page = longer
        if page is not None and self.is_live:
            count, words, first = page.snapshot()
            most = MOST_ROWS // store.num_envs
            if (count < store.durable_count).any() or (count > most).any():
                raise FormatError(
                    f"{page.mapping.path}: {count.tolist()} rows are counted and "
                    f"{store.durable_count.tolist()} recorded; restore it, or let a writer open "
                    "the store"
                )
            if (first > count).any() or (first < 0).any():
                raise FormatError(
                    f"{page.mapping.path}: rows are kept from {first.tolist()} on, of "
                    f"{count.tolist()} that are counted; restore it, or load a checkpoint"
                )
            store.count, store.words = count, words
            store.first = np.maximum(store.first, first)
        if store.rows_per_env is not None:  # the record may be a little older than the count
            store.first = np.maximum(store.first, store.count - store.rows_per_env)

    def unrecorded(self) -> str:
        """What is wrong with a store that is closed, if the commit page counts other rows than the
        record has; empty if it does not."""
        store, page = self._store, self._store.page
        if page is None or not (page.count != store.durable_count).any():
            return ""
        return (
            f"{page.mapping.path}: damaged, or copied while rows came: the store was closed with "
            f"{page.count.tolist()} rows of each env, and {store.durable_count.tolist()} are "
            "recorded; restore it, or let a writer open the store, which goes by the record"
        )

    def _give_up(self) -> None:
        """Of one that does not follow: do without rows whose files are gone. All were mapped when
        it was opened, but one had its rows in a tail, or values that change, and has left since.
        Files are deleted after a record without them."""
        store = self._store
        with contextlib.suppress(
            KeyError, TypeError, ValueError, OverflowError, FormatError, StorageError
        ):
            attributes = format.read_attributes(store.path)
            first = format.parse_rows(attributes, store.num_envs)[1]
            store.first = np.maximum(store.first, np.minimum(first, store.count))

    def outdated(self) -> bool:
        """Whether a writer has opened the store with another capacity since, or has let go of rows
        that this capacity would keep."""
        store, attributes = self._store, format.read_attributes(self._store.path)
        num_envs, capacity, _fields = format.parse_head(attributes)
        if (num_envs, capacity) != (store.num_envs, store.capacity) or self.replaced():
            return True
        return bool((format.parse_rows(attributes, num_envs)[1] > store.first).any())

    def replaced(self) -> bool:
        """Whether `load` has put another store in this one's place."""
        page = self._store.page
        return page is not None and bool(page.replaced[0])

    def epoch(self) -> int:
        """Changes whenever a file that a reader may have mapped is not the one to read any more."""
        page = self._store.page
        return 0 if page is None else int(page.epoch[0])

    def flushes(self) -> int:
        """Changes whenever the writer has saved priorities; odd while it does."""
        page = self._store.page
        return 0 if page is None else int(page.flushes[0])

    def renew_largest(self) -> None:
        """Of a reader: have the largest priority in `meta` that goes with the saved ones."""
        store = self._store
        if store.mode == "r" and store.page is not None:
            found = format.read_attributes(store.path)
            store.place.check()
            store.meta = store.meta | {LARGEST: found.get(LARGEST, 1.0)}

    def is_behind(self) -> bool:
        """Whether rows that were in the tail may be in a shard by now, or in another file."""
        if self._store.page is None:
            return False
        return self.epoch() != self._mapped_epoch or any(
            column.tail.is_passed for column in self._store.packed_columns
        )

    def has_moved_on(self, looks: int) -> bool:
        """Whether a row that could not be read, after so many looks, may be found now."""
        if self._store.mode == LET_GO:  # whoever looks again is told so
            return True
        return self._store.mode == "r" and (self.looks != looks or self.is_behind())

    def refresh(self) -> bool:
        """Follow the writer; True if rows have come, or have left."""
        store = self._store
        before, first = store.count, store.first
        was_amid = self._is_amid
        if not (was_amid or self.is_behind() or (self.follows and self._is_ahead())):
            return False
        self._is_amid = True
        self.catch_up()
        self._is_amid = False
        return was_amid or bool((store.count > before).any() or (store.first > first).any())

    def _is_ahead(self) -> bool:
        """Whether rows have come that this has not taken over, or `evict` has let go of some."""
        store, page = self._store, self._store.page
        return page is not None and bool(
            (page.count > store.count).any() or (page.first > store.first).any()
        )

    def is_over(self) -> bool:
        """Whether what this follows is no more: another store is in its place, a writer keeps more
        rows or fewer, or it has closed it with rows that this has not seen. The record is the truth
        then, and not the page.
        """
        page = self._store.page
        if page is None or not self.follows:
            return False
        return (
            self.replaced()
            or (page.closed and self.epoch() != self._opened_epoch and self._is_ahead())
            or self._is_otherwise()
        )

    def _is_otherwise(self) -> bool:
        """Whether a writer has opened the store with another capacity or `max_transitions`, or with
        another page. The record is read once an epoch: a writer raises it behind that, too."""
        store, epoch = self._store, self.epoch()
        if epoch == self._limited_epoch:
            return False
        ours = store.meta | {"capacity": store.capacity}
        try:
            found = format.read_attributes(store.path)
            is_exchanged = store.page is not None and store.page.is_exchanged()
            if not store.place.holds():  # following it says so
                return False
        except (StorageError, FormatError):
            return False
        if is_exchanged or any(found.get(name) != ours.get(name) for name in _LIMITS):
            return True
        self._limited_epoch = epoch
        return False

    # -- mapping

    def catch_up(self) -> None:
        """Map what a reader needs by now; begin anew if the writer seals or deletes meanwhile."""
        store = self._store
        for attempt in range(_TRIES):
            epoch, self.looks = self.epoch(), self.looks + 1
            try:
                is_live = self.is_live
                self.look()
                self._let_go(replaced=epoch != self._mapped_epoch)
                store.place.check()  # else the segments of another store may be mapped
                mapped: list[RawSegment] = []
                for column in store.columns.values():
                    if isinstance(column, PackedColumn):
                        self._map_packed(column, is_live)
                    else:
                        mapped += self._map_raw(column, is_live)
                if is_live and mapped:
                    self._do_without_left(mapped)
                if store.page is None:  # and of a checkpoint that was replaced meanwhile
                    store.place.check()
            except (StorageError, CorruptSegmentError, FormatError):
                if attempt == _TRIES - 1 or store.page is None:
                    raise
                if not self.follows:
                    self._check_replaced()
                    self._give_up()
                continue
            if not self.follows:
                self._check_replaced()  # it is marked before the other store is there
            if epoch == self.epoch():
                if self._opened_epoch is None:
                    self._opened_epoch = epoch
                self._mapped_epoch, self._mapped_count = epoch, store.count
                self._mapped_packed = {
                    c.field.name: c.tail.packed.copy() for c in store.packed_columns
                }
                return
            # What was mapped meanwhile may be a file that is not read any more.
            self._mapped_epoch = -1
        raise StorageError(f"{store.path}: the writer is too fast to follow")

    def _check_replaced(self) -> None:
        """Refuse to map files of another store as those of one that a reader holds."""
        if self.replaced():
            raise StorageError(
                f"{self._store.path}: another store was loaded in its place while it was read; "
                "open it again"
            )

    def _let_go(self, *, replaced: bool) -> None:
        """Forget what has left and, where files were replaced, the tails and the segments that had
        not all rows yet, or whose values change. The others have theirs for ever, also where the
        writer has deleted them since.

        Which had all rows is asked of the last time that went well. A look that did not may have
        found that a slow env has passed a segment, of which it has mapped the file from before.
        """
        store, columns = self._store, self._store.columns.values()
        if replaced:
            with store.rwlock:
                for column in columns:
                    if isinstance(column, PackedColumn):
                        none = np.zeros_like(column.tail.packed)
                        packed = self._mapped_packed.get(column.field.name, none)
                        column.segments.drop_unfinished(packed)
                        column.tail.bind(None, column.tail.packed.copy(), None)
                    else:
                        column.segments.drop_unfinished(self._mapped_count)
        elif any(len(column.table.left(store.first)[0]) for column in columns):
            with store.rwlock:
                for column in columns:
                    column.segments.forget(store.first)

    def _do_without_left(self, mapped: Sequence[RawSegment]) -> None:
        """Do without the rows of segments that were just mapped and have left by now: such a file
        may have been made anew for a slow env, or be used again, and have others or none.

        The record is read behind the mapping. A file is deleted or renamed only after a record
        without its rows.
        """
        store, gone = self._store, self._store.first.copy()
        first = format.parse_rows(format.read_attributes(store.path), store.num_envs)[1]
        store.place.check()
        for segment in mapped:
            envs = segment.envs.start + np.flatnonzero(first[segment.envs] >= segment.stop)
            gone[envs] = np.maximum(gone[envs], segment.stop)
        store.first = np.minimum(gone, np.maximum(store.first, store.count))

    def _map_raw(self, column: RawColumn, is_live: bool) -> list[RawSegment]:
        """Map what is missing; returns that."""
        store, new = self._store, []
        for key, envs in segments_of(column.field, store.first, store.count):
            segment = column.segments.mapped.get(key)
            if segment is None:
                where = column.files.paths
                path = (where.live_chunk if is_live else where.chunk)(*key)
                with all_there(column, key, envs, store.count):
                    segment = RawSegment.open(column.field, *key, path, writable=False)
                column.segments.adopt(segment, envs)
                new.append(segment)
            else:
                column.table.point_new(segment, envs)
        return new

    def _map_packed(self, column: PackedColumn, is_live: bool) -> None:
        store = self._store
        # Before the indexes are looked at: they name at least these rows then.
        packed = store.packed_rows(column).copy() if is_live else store.count.copy()
        if is_live and column.tail.mapping is None:
            size = column.field.tail_bytes(store.num_envs)
            tail = Mapping.open(column.files.paths.tail, size=size)
            with store.rwlock:
                column.tail.bind(tail, column.tail.packed, store.packed_rows(column))
        for key, envs in segments_of(column.field, store.first, np.minimum(packed, store.count)):
            segment = column.segments.mapped.get(key)
            if segment is not None and segment.seal is None:
                # One that had all its rows at the last look is as good as a sealed one, which it is
                # by now, and may be deleted since.
                had_all = column.tail.packed[segment.envs].min() >= segment.stop
                if not had_all and not segment.look():
                    with store.rwlock:  # it was sealed meanwhile: it is in its place, and whole
                        column.segments.drop(segment)
                    segment = None
            if segment is None:
                with all_there(column, key, envs, store.count):
                    shard = _open_shard(column, key, is_live, store.first, packed)
                column.segments.adopt(shard, envs)
            else:
                column.table.point_new(segment, envs)
        column.tail.follow(packed, store.count)


def _open_shard(
    column: PackedColumn,
    key: tuple[int, int],
    is_live: bool,
    first: np.ndarray,
    packed: np.ndarray,
) -> Shard:
    """One that is still appended to, which is the truth where there is one, or one in its place."""
    path = column.files.paths.open_segment(*key)
    if is_live and os.path.lexists(path):
        return Shard.open_to_follow(column.field, *key, path)
    shard = Shard.open_whole(column.field, *key, column.files.paths.chunk(*key))
    if is_live:
        check_used(column, shard, first, packed)
    return shard
