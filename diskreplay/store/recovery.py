"""Opening a store to write: which rows count, which files hold them, what a crash has left over.

=================  =================================================================================
it was closed      the record says which rows count, and shards in their places have them all
killed, same boot  the commit page does: open shards have the rows below ``packed``, the tail the
                   others
a power cut        the record does: open shards were synced before it, and what a flush had of the
                   tail is in shards in their places; the tail itself is worth nothing
=================  =================================================================================
"""

import contextlib
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CapacityError, CorruptSegmentError, FormatError, StorageError
from diskreplay.store import codec, files, format, generation, numbers, priorities, private
from diskreplay.store.catalog import is_still_sealed, segments_of
from diskreplay.store.column import Column
from diskreplay.store.commit_page import finals_in, finals_word, rows_behind
from diskreplay.store.field import parse_chunk_key
from diskreplay.store.mapping import Mapping
from diskreplay.store.missing import all_there, check_used
from diskreplay.store.mutable_column import MutableColumn
from diskreplay.store.open_store import OpenStore
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.seals import parse_seals
from diskreplay.store.segment import RawSegment, Shard
from diskreplay.store.spare_files import WORTH_A_SPARE


def recover(store: OpenStore, *, shrink: bool = False) -> bool:
    """Bring a store that the caller has locked into a state that can be written to.

    After a power cut the commit page may be ahead of the data, and what is dropped is said. Returns
    whether it was closed: then all rows are in the files in their places.

    Raises
    ------
    CapacityError
        The capacity that it was opened with does not hold all rows, and `shrink` does not say that
        the oldest may go. Nothing was changed.
    """
    _check_directories(store)  # before anything is removed or written
    path = private.commit_page(store.path)
    packed = store.packed_columns
    page = store.open_page(writable=False)
    seen = np.array(page.count)
    clean = page.closed
    # Removals are not synced: after a power cut, files that were removed before it may be back.
    tidy = clean and page.same_boot
    by_record = clean or not page.same_boot
    if not by_record and (seen > numbers.MOST_ROWS // store.num_envs).any():
        raise FormatError(
            f"{path}: damaged ({seen.max()} rows of an env are counted); restore it, or load a "
            "checkpoint"
        )
    count = store.durable_count.copy() if by_record else np.maximum(seen, store.durable_count)
    if not by_record:  # what `evict` let go of since the record stays away
        first = np.array(page.first)
        if (first > count).any() or (first < 0).any():
            raise FormatError(
                f"{path}: damaged (rows are kept from {first.tolist()} on, of {count.tolist()}); "
                "restore it, or load a checkpoint"
            )
        store.first = np.maximum(store.first, first)
    if not shrink:
        _check_capacity(store, count)
    lost = _rows_lost(store, seen, count, clean=clean, by_record=by_record)
    if lost:
        warnings.warn(lost, RuntimeWarning, stacklevel=2)
        # Other rows get their numbers; the caller has it recorded.
        store.meta[generation.KEY] = generation.following(store.meta)
    in_shards = [np.array(numbers_) for numbers_ in page.packed]
    words = np.array(page.finals)
    del page
    if not tidy:
        _sweep(store.path)
        priorities.finish_exchanges(store.path)
    # Also of a clean store: a kill may come after it was marked so, or before it is marked open.
    if clean:
        private.clear(store.path)
    for leftover in private.begun(store.path):
        files.remove(leftover)
    # Rows that a smaller capacity let go of stay away when it is opened with a larger one.
    for kept in (store.rows_per_env_before, store.rows_per_env):
        if kept is not None:
            store.first = np.maximum(store.first, count - kept)
    for column in store.columns.values():
        _read_seals(column)
        if not clean:
            column.segments.seals = {
                key: seal for key, seal in column.segments.seals.items()
                if is_still_sealed(column.field, key, store.durable_count, count,
                                   same_boot=not by_record)
            }  # fmt: skip
        if isinstance(column, RawColumn):
            if isinstance(column, MutableColumn):
                _place_copies(column, are_whole=not by_record)
            _open_raw(column, store.first, count, clean)
        else:
            known = None if by_record else in_shards[packed.index(column)]
            _open_packed(column, store.first, count, known)
        if not tidy or (store.first > store.durable_first).any():
            _sort_pending_deletes(
                column, store.first, count, store.durable_first, store.durable_count
            )
        elif isinstance(column, RawColumn):
            _remove_placed(column, count)
    finals = store.durable_count - store.durable_transitions
    low = count - rows_behind(words, count, store.first)
    later = count > store.durable_count
    # Else by the record: it is rot, or does not know of rows that came and left since.
    known = later & (finals_in(words) >= 0) & (finals_in(words) <= low)
    finals[known] = finals_in(words)[known]
    low = np.where(known, low, np.maximum(store.durable_count, store.first))
    finals += store.finals_between(low, np.where(later, count, low))
    _begin_writing(store, count, finals)
    return clean


def _rows_lost(
    store: OpenStore, seen: np.ndarray, count: np.ndarray, *, clean: bool, by_record: bool
) -> str:
    """What to say of rows that were added and are not among the `count` rows that are there, where
    the commit page has `seen`; empty if none are known to be missing."""
    dropped = int(np.maximum(seen - count, 0).sum())
    behind = f"the last durable point at row {count.tolist()} of each env"
    if by_record and dropped and not clean:
        return (
            f"{store.path}: the machine went down while the store was open; at least {dropped} "
            f"rows, added after {behind}, are dropped"
        )
    # Rows are recorded when they are counted, and all of them before a store is marked as closed.
    missing = (clean or not by_record) and (seen < store.durable_count).any()
    if (by_record and dropped) or missing:
        return (
            f"{private.commit_page(store.path)}: damaged, or copied while rows came "
            f"({seen.tolist()} rows are counted, {store.durable_count.tolist()} recorded); rows "
            f"added after {behind} are lost, if there were any, and rows that are recorded may be "
            "none: a checkpoint may have them"
        )
    return ""


def _begin_writing(store: OpenStore, count: np.ndarray, finals: np.ndarray) -> None:
    """From here on `count` rows are there, `finals` of them final ones, and more may come."""
    page = store.open_page(writable=True)
    page.count[:] = count
    page.finals[:] = finals_word(finals, count)
    page.first[:] = store.first
    for packed, numbers_ in zip(store.packed_columns, page.packed, strict=True):
        numbers_[:] = packed.tail.packed
        packed.tail.bind(packed.tail.mapping, numbers_, None)
    for column in store.columns.values():
        column.segments.tell_readers = store.tell_readers
    page.mark_open()
    page.epoch[0] += 1  # for readers that followed the writer before
    store.page, store.count = page, page.count


def _check_directories(store: OpenStore) -> None:
    """Refuse directories of segments that are links, and may lead out of the store."""
    real = os.path.realpath(store.path)
    for column in store.columns.values():
        shards = column.files.paths.open_segments
        for directory in (shards, column.files.paths.directory):
            if os.path.realpath(directory) != os.path.join(real, directory.relative_to(store.path)):
                raise CorruptSegmentError(
                    f"{directory}: it is, or is in, a link to another directory; move the files "
                    "themselves there"
                )


def _check_capacity(store: OpenStore, count: np.ndarray) -> None:
    """Refuse a capacity that does not hold the rows that are there."""
    if store.rows_per_env is None:
        return
    first = store.first
    if store.rows_per_env_before is not None:
        first = np.maximum(first, count - store.rows_per_env_before)
    there = count - first
    gone = int(np.maximum(there - store.rows_per_env, 0).sum())
    if gone:
        raise CapacityError(
            f"capacity: {store.capacity} would delete the oldest {gone} of the {there.sum()} rows "
            f"in {store.path}, whose capacity is {store.capacity_before or 'unlimited'}; give "
            f"{int(there.max()) * store.num_envs} or more, or shrink=True to let these rows go"
        )


def _read_seals(column: Column[Any]) -> None:
    path = column.files.paths.directory / "zarr.json"
    try:
        attributes = format.read_document(path)["attributes"]["diskreplay"]
        column.segments.seals |= parse_seals(column.field, attributes["seals"], column.num_envs)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FormatError(f"{path}: damaged attributes ({error})") from error


def _open_raw(column: RawColumn, first: np.ndarray, count: np.ndarray, clean: bool) -> None:
    for key, envs in segments_of(column.field, first, count):
        with all_there(column, key, envs, count):
            path = column.files.paths.chunk(*key)
            segment = RawSegment.open(column.field, *key, path, writable=True)
        column.adopt(segment, envs)
    if not clean:
        for segment in column.segments.list_open():
            segment.clear_behind(count)
    _forget_seals(column)


def _place_copies(column: MutableColumn, *, are_whole: bool) -> None:
    """Files that values were written to, and that are not in their places: after a kill they are
    the newest, after a power cut nothing is known of them."""
    where = column.files.paths
    keys = _pairs(where.open_segments)
    found = {where.open_segment(*key): where.chunk(*key) for key in keys}
    if are_whole:
        for copy in found:  # before the first file is replaced by what is none
            Mapping.open(copy, size=column.field.segment_bytes)
        files.sync(found)
    for copy, place in found.items():
        if are_whole:
            files.rename(copy, place)
            column.files.new.append(place)
        else:
            files.remove(copy)


def _forget_seals(column: Column[Any]) -> None:
    """What the record says of segments that are not there, or written to again."""
    for key in list(column.segments.seals):
        segment = column.segments.mapped.get(key)
        if segment is None or segment.seal is None:
            del column.segments.seals[key]


def _open_packed(
    column: PackedColumn, first: np.ndarray, count: np.ndarray, in_shards: np.ndarray | None
) -> None:
    """Open the shards of a packed field, and its tail: as they are after a kill, with `in_shards`
    of the commit page; else the tail is made anew from shards."""
    field, size = column.field, column.field.tail_bytes(column.num_envs)
    whole = count // field.block_rows * field.block_rows
    if in_shards is not None:
        if (in_shards < 0).any() or (count - np.minimum(in_shards, whole) > column.tail.rows).any():
            raise FormatError(
                f"{private.commit_page(column.files.root)}: damaged (field {field.name!r}: "
                f"{in_shards.min()} of {count.max()} rows in shards); restore it, or load a "
                "checkpoint"
            )
        packed = np.minimum(in_shards, whole)
        tail = Mapping.open(column.files.paths.tail, size=size, writable=True)
    else:
        packed = whole
        tail = None
    for key, envs in segments_of(field, first, count if tail is None else packed):
        with all_there(column, key, envs, count):
            shard = _open_shard(column, key, packed, count, salvage=tail is None)
        if shard.seal is not None:
            check_used(column, shard, first, count if tail is None else packed)
        column.segments.adopt(shard, envs)
    if tail is None:
        tail = _new_tail(column, np.maximum(first, packed), count, size)
    column.tail.bind(tail, packed, None)
    for segment in column.segments.list_open():
        behind = segment.behind(packed) & (segment.index[:, 0] != codec.MISSING)
        if behind.any():  # their rows are in the tail: other blocks come, and none may be unnamed
            index = segment.index.copy()
            index[behind] = codec.MISSING
            column.segments.replace(segment, column.copied(segment, index, segment.path))
        else:
            segment.write_index(segment.index)
    _forget_seals(column)


def _open_shard(
    column: PackedColumn,
    key: tuple[int, int],
    packed: np.ndarray,
    count: np.ndarray,
    *,
    salvage: bool,
) -> Shard:
    """The shard of a segment: one that was still appended to, or else one in its place.

    After a power cut (`salvage`), blocks of the first that were not synced are taken from the other
    one, which a flush may have written.
    """
    field, paths = column.field, column.files.paths
    path = paths.open_segment(*key)
    if not os.path.lexists(path):
        return Shard.open_whole(field, *key, paths.chunk(*key))
    about = path.lstat()  # of a link or a pipe, mapping it says what it is
    size = about.st_size  # 0 too, which cannot be mapped: made, and cut off before its index
    if stat.S_ISREG(about.st_mode) and size < field.index_bytes + 4:
        if salvage:
            files.remove(path)
            return Shard.open_whole(field, *key, paths.chunk(*key))
        raise CorruptSegmentError(
            f"{path}: {size} bytes are too few for its index; restore the file, or load a "
            "checkpoint"
        )
    mapping = Mapping.open(path)
    index = mapping.array[: field.index_bytes].copy().view("<i8").reshape(-1, 2)
    index[codec.misplaced(field, index, mapping.size)] = codec.MISSING
    begun = Shard(field, *key, mapping, index)
    if salvage:
        index[begun.rotten()] = codec.MISSING
        if files.is_there(paths.chunk(*key)):
            whole = Shard.open_whole(field, *key, paths.chunk(*key))
            return _combined(column, begun, whole, count)
    if not salvage:
        index[begun.behind(packed)] = codec.MISSING
    there = index[:, 0] != codec.MISSING
    if int(index[there, 1].sum()) != mapping.size - field.index_bytes - 4:
        return column.copied(begun, index, path)  # without what nothing names
    return Shard.open_to_append(field, *key, path, index)


def _combined(column: PackedColumn, begun: Shard, whole: Shard, count: np.ndarray) -> Shard:
    """One open shard with the blocks of two, rather those of the first. A block in which the other
    one lacks some of `count` rows is none."""
    lacking = (begun.index[:, 0] == codec.MISSING) & (whole.index[:, 0] != codec.MISSING)
    if (used := whole.used) is not None:
        has, wanted = np.full(column.num_envs, numbers.MOST_ROWS), count[whole.envs]
        there = whole.start + used[: len(wanted)]
        has[whole.envs] = np.where(wanted > there, there, numbers.MOST_ROWS)
        lacking &= ~whole.behind(has)
    shard = column.copied(begun, begun.index, column.files.paths.open_segment(*begun.key))
    places = np.flatnonzero(lacking)
    if len(places):
        blocks = [whole.mapping.array[at : at + size] for at, size in whole.index[places].tolist()]
        shard.write(np.concatenate(blocks))
        nobody = np.empty(0, np.int64)
        shard.enter(places, whole.index[places, 1].copy(), 0, nobody, nobody)
    return shard


def _new_tail(column: PackedColumn, start: np.ndarray, count: np.ndarray, size: int) -> Mapping:
    """A tail with the rows from `start` on, which are in blocks that are not full."""
    files.remove(column.files.paths.tail)
    tail = Mapping.create(column.files.paths.tail, size)
    column.tail.bind(tail, column.tail.packed, None)
    field = column.field
    for env in np.flatnonzero(count > start).tolist():
        row = int(start[env]) // field.block_rows * field.block_rows
        key = row // field.segment_rows, env // field.env_group
        shard = column.segments.mapped[key]
        rows = shard.block(shard.places_of(env, row))
        if rows is None:
            column.complain(row, env)
        column.write(env, row, rows[: int(count[env]) - row])
    return tail


def _sweep(root: Path) -> None:
    """Remove what a killed writer had half written."""
    for base, _dirs, names in os.walk(root):
        for name in names:
            if name.endswith(".tmp"):
                files.remove(Path(base, name))


def _sort_pending_deletes(
    column: Column[Any],
    first: np.ndarray,
    count: np.ndarray,
    durable_first: np.ndarray,
    durable_count: np.ndarray,
) -> None:
    """Remove files of segments that no retained row is in.

    Those of rows that have left since the record are only listed: a power cut would go back to that
    record, which counts on them. They are deleted after the next one.
    """
    # Of rows that are in the tail too: what a flush wrote stays until there is better.
    where = column.files.paths
    found = [(where.open_segment(*key), key) for key in _pairs(where.open_segments)]
    there = files.listed(where.directory) if files.is_dir(where.directory) else []
    keys = (parse_chunk_key(path.name) for path in there)
    found += [(where.chunk(*key), key) for key in keys if key is not None]
    kept = {key for key, _envs in segments_of(column.field, first, count)}
    # If the record is damaged, there may be more before these than memory holds.
    oldest = min((number for _path, (number, _group) in found), default=0)
    begin = np.maximum(durable_first, oldest * column.field.segment_rows)
    counted_on = {key for key, _envs in segments_of(column.field, begin, durable_count)}
    for path, key in found:
        if key in kept:
            continue
        if key in counted_on:
            column.files.pending_deletes.append(path)
        else:
            files.remove(path)


def _remove_placed(column: RawColumn, count: np.ndarray) -> None:
    """Remove the files that a close found in the places of the next segments and was not let
    remove. No other place can have one: so the directory need not be listed."""
    field = column.field
    if field.segment_bytes < WORTH_A_SPARE:
        return
    fastest = np.maximum.reduceat(count, np.arange(0, len(count), field.env_group))
    for group, number in enumerate((-(-fastest // field.segment_rows)).tolist()):
        with contextlib.suppress(StorageError):  # a segment that is opened there replaces it
            files.remove(column.files.paths.chunk(number, group))


def _pairs(directory: Path) -> list[tuple[int, int]]:
    paths = files.listed(directory) if files.is_dir(directory) else []
    matches = (re.fullmatch(r"(\d+)\.(\d+)", path.name) for path in paths)
    return [(int(match[1]), int(match[2])) for match in matches if match]
