"""What is done beside adding: blocks are compressed, segments sealed, recorded, and deleted."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import DiskReplayError, StorageError
from diskreplay.locks import Lock, holding
from diskreplay.signals import undisturbed
from diskreplay.store import files
from diskreplay.store.open_store import OpenStore
from diskreplay.store.record import Record
from diskreplay.store.spare_files import WORTH_A_SPARE
from diskreplay.thread_start import try_to_start

_RECORD_EVERY = 2.0  # seconds
_PAUSED = 0.02  # until the thread looks again whether it may go on


class DueRecord(NamedTuple):
    """A record that may be written when all that it counts on is durable.

    Attributes
    ----------
    named, first : ndarray of int64, shape (num_envs,)
        Rows that are durable then, and the oldest of them that is retained.
    sealed, open : list of Path
        The files that it counts on; of those that were sealed since the last one the names too.
    """

    named: np.ndarray
    first: np.ndarray
    sealed: list[Path]
    open: list[Path]


class Maintenance:
    """The upkeep of a store that is written to: mostly on a thread of its own.

    Attributes
    ----------
    lock : Lock
        Held by whoever touches files of segments that are there.
    busy : set of int
        The buffer's: threads on which no call of it may begin. A ``__del__`` that runs on the
        maintenance thread would wait for a lock whose owner waits for the maintenance thread.
    pausing : set of int
        Threads for which no pass of the maintenance thread begins. Who wants `lock` beside the
        buffer's is one of them, and waits for a pass that is under way before, so that no `add`
        does.
    """

    def __init__(self, store: OpenStore, record: Record) -> None:
        self.lock = Lock()
        self.busy: set[int] = set()
        self.pausing: set[int] = set()
        self._store, self._record = store, record
        # Putting into it is one step. Setting an Event is not: a handler of a signal that raises
        # amid it leaves its lock held, and the maintenance thread waits for that for ever.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._unsynced: list[Path] = []  # files sealed since the last record
        self._record_due = time.monotonic() + _RECORD_EVERY

    # -- the maintenance thread

    def wake(self) -> None:
        """There may be something to do. Where the system allows no more threads, whoever adds,
        flushes or saves does what cannot wait, and the next call tries to start one again."""
        if self._thread is None:
            name = f"diskreplay maintenance {self._store.path.name}"
            thread = threading.Thread(target=self._keep, name=name, daemon=True)
            with undisturbed():  # `join` waits for the one that is noted, and would miss it
                if try_to_start(thread):
                    self._thread = thread
        if self._woken.empty():
            self._woken.put(None)

    def _keep(self) -> None:
        busy, me = self.busy, threading.get_ident()
        busy.add(me)
        wait = _RECORD_EVERY
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    self._woken.get(timeout=wait)
                if self._closing:
                    return
                try:
                    with self.lock:
                        wait = _PAUSED if self.pausing else self.run(spares=True)
                except DiskReplayError:
                    # What was not done is tried again with the next pass; flush and save raise.
                    wait = _RECORD_EVERY
        finally:
            busy.discard(me)

    @property
    def is_here(self) -> bool:
        """Whether it is the maintenance thread that asks. Garbage is collected on any thread: what
        lets go of a buffer may run amid a pass."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """From here on the thread touches no file: they are about to be another store's."""
        self._closing = True

    def join(self) -> None:
        """Stop, and wait until the maintenance thread has."""
        self._closing = True
        self._woken.put(None)
        if self._thread is not None:
            self._thread.join()

    # -- one pass

    def run(self, *, durable: bool = False, spares: bool = False) -> float:
        """Compress what is to be compressed, and seal what is full. Every two seconds or so, or if
        `durable`, record it, and delete what has left.

        What was done survives the process at once. Syncing it, and naming it in the record, is put
        off a little: one sync does for much.

        Returns
        -------
        float
            In how many seconds the next pass is due, if nobody wakes the maintenance thread before.
        """
        store = self._store
        with undisturbed(), self.lock:
            if self._closing:
                return _RECORD_EVERY
            store.place.check()
            count = store.count.copy()
            for column in store.packed_columns:
                column.pack(count)
            self._seal(count)
            crowded = any(c.table.is_crowded(store.first) for c in store.columns.values())
            durable = durable or crowded or time.monotonic() >= self._record_due
            if durable:
                if spares:  # while the disk is busy, adding threads have none but these
                    with contextlib.suppress(StorageError):
                        self._keep_spares()
                self.place_copies()
                self._make_record(count)
            if spares:  # last: a full disk may have got room by what was deleted
                self._keep_spares()
            return max(self._record_due - time.monotonic(), 0.01)

    def _seal(self, count: np.ndarray) -> None:
        """Bring full segments into their final form."""
        store = self._store
        for column in self._store.packed_columns:
            progress = column.tail.packed.copy()
            full = column.segments.full(progress)
            for segment in column.segments.list_open():
                if segment in full or column.segments.outrun(segment, progress):
                    self._unsynced.append(column.seal(segment, count, store.durable_count))
        for raw in self._store.raw_columns:
            for whole in raw.segments.full(count):
                if not whole.is_handed_over:
                    raw.seal(whole)
                    self._unsynced.append(whole.path)  # each at once: the next may be refused
            for path in raw.seal_handed():
                self._unsynced.append(path)

    def freeze(self) -> None:
        """Seal segments of fields whose values may be replaced: a checkpoint is about to share
        them. Nobody writes meanwhile."""
        mutable = self._store.mutable_columns
        if not mutable:
            return
        with undisturbed(), self.lock:
            self._store.place.check()
            self._seal(self._store.count.copy())
            self.place_copies()
            for column in mutable:
                for path in column.freeze():
                    self._unsynced.append(path)

    def place_copies(self) -> None:
        """Put copies that values were written to in their places, durably. With the lock held."""
        for column in self._store.mutable_columns:
            column.place_copies()

    def _keep_spares(self) -> None:
        """Have a file ready for each raw segment that is opened soon: when the one before is half
        full, or the segments of the column that has the shortest ones wake the thread twice."""
        shortest = min(column.field.segment_rows for column in self._store.raw_columns)
        for column in self._store.raw_columns:
            field, count = column.field, self._store.count
            if not self._closing and field.segment_bytes >= WORTH_A_SPARE:
                starts = np.arange(0, len(count), field.env_group)
                fastest = np.maximum.reduceat(count, starts)
                left = field.segment_rows - fastest % field.segment_rows
                soon = np.flatnonzero(left <= max(field.segment_rows // 2, 2 * shortest))
                numbers = -(-fastest[soon] // field.segment_rows)
                column.keep_spares(list(zip(numbers.tolist(), soon.tolist(), strict=True)))

    # -- records

    def _durable(self, count: np.ndarray) -> np.ndarray:
        """The rows of each env that a record may name after `_seal`: what is in shards, in sealed
        segments of large raw columns, or in any of small ones; or what was named before."""
        store, named = self._store, count
        for column in store.columns.values():
            named = column.durable(named)
        # Rows that have left need not be durable. Were fewer named, an opening would ask which of
        # them were final ones, of segments that are gone.
        return np.maximum.reduce([named, store.durable_count, np.minimum(store.first, count)])

    def _make_record(self, count: np.ndarray) -> None:
        """Make sealed segments and open shards durable, name their rows, and delete those that have
        left.

        The open segments of large raw columns are not synced here: the adding thread is writing to
        them, and would have to wait for the disk whenever it touches a page that is being synced.
        """
        began = time.monotonic()
        due = self.due_record(count)
        if due is not None:
            files.sync([*due.sealed, *due.open])
            self.write_record(due)
        else:  # fewer files are wanted where no rows come
            self.delete_left()
        # A slow disk, or a thousand files, is not kept busy with records alone, if there is room.
        ended = time.monotonic()
        self._record_due = ended + max(_RECORD_EVERY, 10 * (ended - began))

    def due_record(self, count: np.ndarray) -> DueRecord | None:
        """What a record would name of these rows, None if it would say nothing new. Keep the lock
        until it is written."""
        store = self._store
        named = self._durable(count)
        first = np.minimum(store.first, named)
        is_new = (named > store.durable_count).any() or (first > store.durable_first).any()
        has_left = any(column.files.pending_deletes for column in store.columns.values())
        if not (self._unsynced or is_new or has_left):
            return None
        raw = [s.path for c in store.raw_columns if not c.large for s in c.segments.list_open()]
        shards = [s.path for c in store.packed_columns for s in c.segments.list_open()]
        return DueRecord(named, first, self.unsynced(), [*raw, *shards])

    def write_record(self, due: DueRecord) -> None:
        """Write one whose files are durable by now, and delete what has left."""
        self.sync_names(due.sealed)
        self._record.write(due.named, due.first)
        self._unsynced = []
        self.delete_left()

    def keep_priorities(
        self, names: Collection[str], meta: Mapping[str, Any], due: DueRecord | None
    ) -> None:
        """Take over the priorities of a checkpoint, and write the record that is due, or repeat
        the last one."""
        with self._record.replacing_priorities(names):
            self._record.keep_priorities(names, meta)
            if due is None:
                self._record.repeat()
            else:
                self.write_record(due)

    def unsynced(self) -> list[Path]:
        """Files that were sealed since the last record, and are not known to be durable."""
        return [path for path in self._unsynced if files.is_there(path)]

    def all_recorded(self) -> None:
        """A record has named all rows."""
        self._unsynced = []
        self._record_due = time.monotonic() + _RECORD_EVERY
        self.delete_left()

    def delete_left(self) -> None:
        """Delete segments that the record does not name any more. Not `first`: rows that were
        added while the record was written may have advanced that further."""
        store, columns = self._store, self._store.columns.values()
        if any(len(column.table.left(store.durable_first)[0]) for column in columns):
            # A shard is not closed while a block is written to it, and no segment goes that an env
            # is just coming to.
            held = [*(column.files.changing for column in columns), store.rwlock]
            # In a save Ctrl-C may come, and a segment would be forgotten whose file nobody deletes.
            with undisturbed():
                holding(held, self._forget_left)
        store.place.check()
        for column in columns:
            column.delete_pending()

    def _forget_left(self) -> None:
        """Let go of segments that the record does not name any more, and note their files: before
        an env can come to one of them, and has a new file made by that name."""
        store = self._store
        for column in store.columns.values():
            paths = column.files.paths
            for segment in column.segments.forget(store.durable_first, store.count):
                column.files.pending_deletes += paths.of_segment(*segment.key)

    def sync_names(self, paths: Iterable[Path]) -> None:
        """Make the names of these files, and of segments opened since, durable up to the root."""
        columns = self._store.columns.values()
        opened = {column: list(column.files.new) for column in columns}
        new = [*paths, *(path for files_ in opened.values() for path in files_)]
        names, root = set(), os.fspath(self._store.path)
        for path in map(os.fspath, new):  # as text: there may be thousands
            while path != root:
                path = os.path.dirname(path)
                if path in names:
                    break
                names.add(path)
        files.sync_dirs(map(Path, names))
        for column, known in opened.items():
            del column.files.new[: len(known)]  # more may have been opened meanwhile
