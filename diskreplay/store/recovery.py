"""Opening a store: which rows count, which files hold them, what is left over from a crash."""

import errno
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diskreplay.errors import CapacityError, CorruptSegmentError, FormatError, StorageError
from diskreplay.store import files, format, manifest, numbers, priorities, private
from diskreplay.store.column import Column
from diskreplay.store.mapping import Mapping
from diskreplay.store.state import State, finals_in, rows_behind

if TYPE_CHECKING:
    from diskreplay.store.store import Store

_TRIES = 50  # of a reader that finds the writer sealing or deleting under its hands


def recover(store: "Store", *, shrink: bool = False) -> None:
    """Bring a store that the caller has locked into a state that can be written to.

    After a clean close the record says which rows count. After a kill in the same run of the
    kernel all writes are there, and the counts in ``state`` do. After a power cut they may be ahead
    of the data, so the record does again, and what is dropped is said.

    Raises
    ------
    CapacityError
        The capacity that it was opened with does not hold all rows, and `shrink` does not say that
        the oldest may go. Nothing was changed.
    """
    for column in store.columns.values():
        column.check_directories()  # before anything is removed or written
    page = private.commit_page(store.path)
    state = State(page, store.num_envs, len(store.columns), writable=False)
    seen = np.array(state.count)
    clean = state.closed
    # Removals are not synced: after a power cut, files that were removed before it may be back.
    tidy = clean and state.same_boot
    by_record = clean or not state.same_boot
    if not by_record and (seen > numbers.MOST_ROWS // store.num_envs).any():
        raise FormatError(
            f"{page}: damaged ({seen.max()} rows of an env are counted); restore it, or load a "
            "checkpoint into a new store"
        )
    count = store.recorded.copy() if by_record else np.maximum(seen, store.recorded)
    if not shrink:
        _check_capacity(store, count)
    if by_record:
        dropped = int(np.maximum(seen - count, 0).sum())
        if not clean and dropped:
            warnings.warn(
                f"{store.path}: the machine went down while the store was open; at least {dropped} "
                f"rows, added after the last durable point at row {count.tolist()} of each env, "
                "are dropped",
                RuntimeWarning,
                stacklevel=2,
            )
        sealed = np.zeros_like(state.sealed)
    else:
        sealed = np.array(state.sealed)
    words = np.array(state.finals)
    del state
    if not tidy:
        _sweep(store.path)
        priorities.settle(store.path)
    # Also of a clean store: a kill may come after it was marked so, or before it is marked open.
    for leftover in private.begun(store.path):
        files.remove(leftover)
    # What had left a smaller store does not come back: it may have left without being sealed.
    for kept in (store.rows_per_env_before, store.rows_per_env):
        if kept is not None:
            store.first = np.maximum(store.first, count - kept)
    for column, further in zip(store.columns.values(), sealed, strict=True):
        _read_seals(column)
        np.maximum(column.sealed, further, out=column.sealed)
        for env in range(store.num_envs):
            _adopt_env(column, env, int(store.first[env]), int(count[env]), clean)
        if not tidy or (store.first > store.recorded_first).any():
            _sort_strays(column, store.recorded_first)
    finals = store.recorded - store.recorded_transitions
    for env in np.flatnonzero(count > store.recorded).tolist():
        word, high = int(words[env]), int(count[env])
        low = high - rows_behind(word, high, int(store.first[env]))
        if 0 <= finals_in(word) <= low:
            finals[env] = finals_in(word)
        else:  # rot: by the record, which does not know of rows that came and left since
            low = max(int(store.recorded[env]), int(store.first[env]))
        finals[env] += store.read("is_final", env, low, high).sum()
    store.begin_writing(count, finals)


def _check_capacity(store: "Store", count: np.ndarray) -> None:
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


def _read_seals(column: Column) -> None:
    path = column.directory / "zarr.json"
    try:
        column.load_seals(format.read_document(path))
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FormatError(f"{path}: damaged attributes ({error})") from error


def _adopt_env(column: Column, env: int, first: int, count: int, clean: bool) -> None:
    rows = column.field.segment_rows
    for segment in range(first // rows, -(-count // rows)):
        used = min(rows, count - segment * rows)
        if segment < column.sealed[env] and used == rows:
            with _all_there(column, segment, env, count):
                column.adopt_sealed(segment, env)
            column.complete_seal(segment, env)
        else:
            with _all_there(column, segment, env, count):
                _make_writable(column, segment, env, used)
            if not clean:
                # A row that was being written when the process died was never added.
                memory = column.mapping(segment, env).array
                memory[used * column.field.row_bytes :] = 0
            column.sealed[env] = min(column.sealed[env], segment)
    # A field may name segments that the record does not (a power cut between the two): their rows
    # do not count, and others will be written in their place.
    column.sealed[env] = max(min(column.sealed[env], count // rows), first // rows)
    for key in [k for k in column.seals if k[1] == env and k[0] >= column.sealed[env]]:
        del column.seals[key]


class _all_there:
    """Turns the error that a segment's file is missing into one that names its rows.

    Not a generator, as `files.explained` is none.
    """

    __slots__ = ("_at",)

    def __init__(self, column: Column, segment: int, env: int, count: int) -> None:
        self._at = column, segment, env, count

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, StorageError) or error.errno != errno.ENOENT:
            return
        column, segment, env, count = self._at
        path, root = column.chunk_path(segment, env), column.root
        if error.filename != os.fspath(path):
            return
        start = segment * column.field.segment_rows
        stop = min(start + column.field.segment_rows, count)
        if (root / manifest.NAME).exists():
            remedy = "or load another checkpoint"
        else:
            remedy = (
                "load a checkpoint, or go on without these rows after "
                f"`diskreplay verify {root} --repair`"
            )
        raise CorruptSegmentError(
            f"{path}: missing, and with it rows {start} to {stop - 1} of env {env}; restore the "
            f"file, {remedy}"
        ) from error


def _make_writable(column: Column, segment: int, env: int, used: int) -> None:
    """Map a segment that is not full, or not sealed yet, so that rows can go on.

    A packed one has its rows in the tail. Where there is none (a checkpoint that was loaded), or
    where its shard was named by a field but not by the record (a power cut between the two), the
    shard is unpacked into a new tail. A raw chunk that a checkpoint shares is copied.
    """
    chunk, tail = column.chunk_path(segment, env), column.tail_path(segment, env)
    if column.field.packed:
        if segment >= column.sealed[env] and tail.exists():
            column.adopt(segment, env, writable=True)
            return
    elif chunk.exists() and _is_ours_alone(chunk):
        column.adopt(segment, env, writable=True)
        return
    column.adopt_sealed(segment, env)
    start = segment * column.field.segment_rows
    values = column.read(env, start, start + used)
    column.drop(segment, env)
    path = column.open_path(segment, env)
    files.make_dirs(path.parent)
    beside = private.unsealed(column.root)
    mapping = Mapping.create(beside, column.open_bytes)
    flat = values.reshape(-1).view(np.uint8)
    mapping.array[: len(flat)] = flat
    files.sync([beside])
    files.rename(beside, path)
    files.sync_dirs([path.parent])
    column.adopt(segment, env, writable=True)


def _is_ours_alone(path: Path) -> bool:
    found = path.stat()
    return found.st_nlink == 1 and bool(found.st_mode & 0o200)


def _sweep(root: Path) -> None:
    """Remove what a killed writer had half written."""
    for base, _dirs, names in os.walk(root):
        for name in names:
            if name.endswith(".tmp"):
                files.remove(Path(base, name))


def _sort_strays(column: Column, recorded_first: np.ndarray) -> None:
    """Remove tails and chunks that no retained row is in.

    Those of rows that have left since the record are only listed: a power cut would go back to that
    record, which counts on them. They are deleted after the next one.
    """
    kept = set(column.mapped())

    def is_counted_on(segment: int, env: int) -> bool:
        """Whether it has left since the record. A reader that goes by that record needs it too."""
        if (segment, env) in kept or env >= column.num_envs or segment >= column.sealed[env]:
            return False
        return segment >= recorded_first[env] // column.field.segment_rows

    if column.tails.is_dir():
        for path in column.tails.iterdir():
            found = re.fullmatch(r"(\d+)\.(\d+)", path.name)
            if found is None:
                continue
            segment, env = int(found[1]), int(found[2])
            if is_counted_on(segment, env):
                column.strays.append((segment, env))
            elif (segment, env) not in kept or segment < column.sealed[env]:
                files.remove(path)
    for segment, env in _numbered(column.directory):
        if is_counted_on(segment, env):
            column.strays.append((segment, env))
        elif (segment, env) not in kept:
            column.remove_files(segment, env)


def _numbered(directory: Path) -> list[tuple[int, int]]:
    """Segment and env of every chunk file."""
    names = os.listdir(directory) if directory.is_dir() else []
    keys = (format.parse_chunk_key(name) for name in names)
    return [key for key in keys if key is not None]


# -- readers


def catch_up(store: "Store") -> None:
    """Map what a reader needs by now; start over when the writer seals or deletes in between."""
    for attempt in range(_TRIES):
        epoch = store.tail_epoch()
        try:
            store.look()
            _let_go(store, tails=epoch != store.mapped_epoch)
            store.place.check()  # else the segments of another store may be mapped
            for column in store.columns.values():
                for env in range(store.num_envs):
                    _map_env(store, column, env)
            if store.state is None:  # and of a checkpoint that was replaced meanwhile
                store.place.check()
        except (StorageError, CorruptSegmentError, FormatError):
            if attempt == _TRIES - 1 or store.state is None:
                raise
            if not store.follows:
                _check_place(store)
                store.give_up()
            continue
        if not store.follows:
            _check_place(store)  # after mapping: it is marked before the other store is there
        if epoch == store.tail_epoch():
            store.mapped_epoch = epoch
            return
        store.mapped_epoch = -1  # what was mapped meanwhile may be a tail with other rows
    raise StorageError(f"{store.path}: the writer is too fast to follow")


def _check_place(store: "Store") -> None:
    """Refuse to map files of another store as those of one that a reader holds."""
    if store.replaced():
        raise StorageError(
            f"{store.path}: another store was loaded in its place while it was read; open it again"
        )


def _let_go(store: "Store", *, tails: bool) -> None:
    """Forget what has left and, if asked, all tails: any of them may have got other rows."""
    gone = [
        (column, segment, env)
        for column in store.columns.values()
        for segment, env in column.mapped()
        if segment < store.first[env] // column.field.segment_rows
        or (tails and column.is_tail(segment, env))
    ]
    if gone:
        with store.gate:
            for column, segment, env in gone:
                column.drop(segment, env)


def _map_env(store: "Store", column: Column, env: int) -> None:
    rows, first, count = column.field.segment_rows, int(store.first[env]), int(store.count[env])
    for segment in range(first // rows, -(-count // rows) if first < count else 0):
        if not column.has(segment, env):
            with _all_there(column, segment, env, count):
                column.adopt(segment, env, writable=False)
