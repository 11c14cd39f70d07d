"""Readers: they map what a writer in another process has, and keep up with it."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diskreplay.errors import CorruptSegmentError, FormatError, StorageError
from diskreplay.store import private
from diskreplay.store.catalog import segments_of
from diskreplay.store.mapping import Mapping
from diskreplay.store.missing import all_there
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.segment import Shard

if TYPE_CHECKING:
    from diskreplay.store.store import Store

_TRIES = 50  # of a reader that finds the writer sealing or deleting under its hands


def catch_up(store: "Store") -> None:
    """Map what a reader needs by now; start over when the writer seals or deletes in between."""
    for attempt in range(_TRIES):
        epoch, store.looks = store.epoch(), store.looks + 1
        try:
            is_live = store.is_live
            store.look()
            _let_go(store, replaced=epoch != store.mapped_epoch)
            store.place.check()  # else the segments of another store may be mapped
            for column in store.columns.values():
                if isinstance(column, PackedColumn):
                    _map_packed(store, column, is_live)
                else:
                    _map_raw(store, column, is_live)
            if store.page is None:  # and of a checkpoint that was replaced meanwhile
                store.place.check()
        except (StorageError, CorruptSegmentError, FormatError):
            if attempt == _TRIES - 1 or store.page is None:
                raise
            if not store.follows:
                _check_place(store)
                store.give_up()
            continue
        if not store.follows:
            _check_place(store)  # after mapping: it is marked before the other store is there
        if epoch == store.epoch():
            store.mapped_epoch, store.mapped_count = epoch, store.count
            return
        store.mapped_epoch = -1  # what was mapped meanwhile may be a file that is not read any more
    raise StorageError(f"{store.path}: the writer is too fast to follow")


def _check_place(store: "Store") -> None:
    """Refuse to map files of another store as those of one that a reader holds."""
    if store.replaced():
        raise StorageError(
            f"{store.path}: another store was loaded in its place while it was read; open it again"
        )


def _let_go(store: "Store", *, replaced: bool) -> None:
    """Forget what has left and, where files were replaced, the tails and the segments that had not
    all rows yet, or whose values change. The others have theirs for ever, also where the writer has
    deleted them since."""
    columns = store.columns.values()
    if replaced:
        with store.rwlock:
            for column in columns:
                is_packed = isinstance(column, PackedColumn)
                progress = column.packed if is_packed else store.mapped_count
                for segment in list(column.segments.values()):
                    is_partial = progress[segment.envs].min() < segment.stop
                    if is_partial or column.field.mutable:
                        column.drop(segment)
                if is_packed:
                    column.bind(None, column.packed.copy(), None)
    elif any(len(column.left(store.first)[0]) for column in columns):
        with store.rwlock:
            for column in columns:
                column.forget(store.first)


def _map_raw(store: "Store", column: RawColumn, is_live: bool) -> None:
    for key, envs in segments_of(column.field, store.first, store.count):
        segment = column.segments.get(key)
        if segment is None:
            with all_there(column, key, envs, store.count):
                column.open_segment(*key, envs, writable=False, is_live=is_live)
        else:
            _point(column, segment, envs)


def _map_packed(store: "Store", column: PackedColumn, is_live: bool) -> None:
    # Before the indexes are looked at: they name at least these rows then.
    packed = store.packed_rows(column).copy() if is_live else store.count.copy()
    if is_live and column.tail is None:
        size = column.field.tail_bytes(store.num_envs)
        tail = Mapping.open(column.tail_path, size=size)
        with store.rwlock:
            column.bind(tail, column.packed, store.packed_rows(column))
    for key, envs in segments_of(column.field, store.first, np.minimum(packed, store.count)):
        segment = column.segments.get(key)
        if segment is not None and segment.seal is None:
            # One that had all its rows at the last look is as good as a sealed one, which it is by
            # now, and may be deleted since.
            had_all = column.packed[segment.envs].min() >= segment.stop
            if not had_all and not segment.look():
                with store.rwlock:  # it was sealed meanwhile: it is in its place, and whole
                    column.drop(segment)
                segment = None
        if segment is None:
            with all_there(column, key, envs, store.count):
                column.adopt(_open_shard(column, key, is_live), envs)
        else:
            _point(column, segment, envs)
    column.follow(packed, store.count)


def _point(column, segment, envs: np.ndarray) -> None:
    new = envs[~column.has(segment.number, envs)]
    if len(new):
        column.point(segment, new)


def _open_shard(column: PackedColumn, key: tuple[int, int], is_live: bool) -> Shard:
    """One that is still appended to, which is the truth where there is one, or one in its place."""
    path: Path = private.open_shard(column.root, column.number, *key)
    if is_live and path.exists():
        return Shard.open_to_follow(column.field, *key, path)
    return Shard.open_whole(column.field, *key, column.path(*key))
