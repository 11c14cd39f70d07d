"""What is done beside adding: segments are sealed, recorded, and deleted when they have left."""

import os
import threading
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import numpy as np

from diskreplay.errors import DiskReplayError
from diskreplay.process import undisturbed
from diskreplay.store import files
from diskreplay.store.column import Column
from diskreplay.store.mapping import Mapping

_WORTH_A_SPARE = 1 << 20
_RECORD_EVERY = 2.0  # seconds


class Keeping:
    """The upkeep of a `Store`, of which this is a part: mostly on a thread, the keeper.

    Attributes
    ----------
    maintenance : threading.RLock
        Held by whoever touches files of segments that are there.
    busy : set of int
        The buffer's: threads on which no call of it may begin. A ``__del__`` that runs on the
        keeper would wait for a lock whose owner waits for the keeper.
    """

    def _begin_keeping(self) -> None:
        self.maintenance = threading.RLock()
        self.busy: set[int] = set()
        self._wake = threading.Event()
        self._keeper: threading.Thread | None = None
        self._closing = False
        self._failure: DiskReplayError | None = None
        self._unsynced: list[Path] = []  # files sealed since the last record
        self._idle_tails: list[tuple[Column, Mapping]] = []  # of sealed segments, not spares yet
        self._record_due = time.monotonic() + _RECORD_EVERY

    def _wake_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(
                target=self._keep, name=f"diskreplay keeper {self.path.name}", daemon=True
            )
            self._keeper.start()
        self._wake.set()

    def _keep(self) -> None:
        busy, me = self.busy, threading.get_ident()
        busy.add(me)
        try:
            self._keep_on()
        finally:
            busy.discard(me)

    def _keep_on(self) -> None:
        while True:
            self._wake.wait(_RECORD_EVERY if self._unsynced else None)
            self._wake.clear()
            if self._closing:
                return
            try:
                self.maintain(spares=True)
                self._failure = None
            except DiskReplayError as failure:
                # The segment stays a tail. The next pass tries again; flush and save raise.
                self._failure = failure

    def stop_maintenance(self) -> None:
        """From here on the keeper touches no file: they are about to be another store's."""
        self._closing = True

    def _make_room(self, column: Column, segment: int, env: int) -> None:
        """Sealing lags: wait for it, and say why if it fails."""
        self.maintain(durable=True)
        if not column.has_room(segment, env):
            raise self._failure or DiskReplayError(
                f"{column.directory}: segment {segment} of env {env} has no slot"
            )

    def maintain(self, *, durable: bool = False, spares: bool = False) -> None:
        """Seal what is full; every two seconds or so, if slots run out, or if `durable`, record it
        and delete the rest.

        A sealed segment survives the process at once. Syncing it, and naming it in the record, is
        put off a little: many envs seal many small files, and one sync does for all.
        """
        with undisturbed(), self.maintenance:
            if self._closing:
                return
            self.place.check()
            count = self.count.copy()
            gone = {c: self.first // c.field.segment_rows for c in self.columns.values()}
            full = [
                (column, s, e)
                for column, below in gone.items()
                for s, e in column.full(count)
                if s >= below[e]
            ]
            left = any(column.left(below) or column.strays for column, below in gone.items())
            durable = durable or time.monotonic() >= self._record_due
            durable = durable or any(column.is_crowded(below) for column, below in gone.items())
            # The last record (of a flush) counts on a tail that is about to be used again: the
            # segment has to be durable in its new form first.
            durable = durable or any(
                s * c.field.segment_rows < self.recorded[e] for c, s, e in full if c.field.packed
            )
            durable = durable or bool(self._idle_tails)  # that was so before, and failed
            # Short segments first: their tails are the first to be needed again.
            full.sort(key=lambda job: job[0].field.segment_rows)
            for _rows, jobs in groupby(full, key=lambda job: job[0].field.segment_rows):
                self._seal(list(jobs))
                if not durable:
                    self._reuse()
            if durable and (full or left or self._unsynced):
                self._record_sealed(count, gone)
            self._reuse()
            if spares:  # last: a full disk may have got room by what was deleted
                self._keep_spares()

    def _keep_spares(self) -> None:
        """Have a file ready for each raw segment that is opened soon: when the one before is half
        full, or the segments of the column that has the shortest ones wake the keeper twice."""
        shortest = min(column.field.segment_rows for column in self.columns.values())
        for column in self.columns.values():
            if not column.field.packed and not self._closing:
                # To open a file takes a millisecond; with many envs small files would be many.
                if self.num_envs == 1 or column.open_bytes * self.num_envs >= _WORTH_A_SPARE:
                    rows = column.field.segment_rows
                    soon = rows - self.count % rows <= max(rows // 2, 2 * shortest)
                    column.keep_spares(np.count_nonzero(soon))

    def _seal(self, full: list[tuple[Column, int, int]]) -> None:
        """Bring full segments into their final form; their tails are idle then."""
        if not full:
            return
        packed = [(*job, *job[0].pack(*job[1:])) for job in full]
        for column, segment, env, written, _seal in packed:
            path = column.chunk_path(segment, env)
            if written != path:
                if segment * column.field.segment_rows < self.recorded[env]:
                    files.sync([written])  # it replaces a shard that the record counts on
                files.rename(written, path)
            files.seal(path)
            self._unsynced.append(path)
        try:
            with self.gate:
                for column, segment, env, _written, seal in packed:
                    tail = column.swap_in(segment, env, seal)
                    if tail is not None:
                        self._idle_tails.append((column, tail))
        finally:
            for column, row in self._sealed_rows:
                row[:] = column.sealed

    def _record_sealed(self, count: np.ndarray, gone: dict[Column, np.ndarray]) -> None:
        """Make sealed segments durable, name them, and delete those that have left.

        The open segments of large columns are not synced here: the adding thread is writing to
        them, and would have to wait for the disk whenever it touches a page that is being synced.
        """
        began = time.monotonic()
        for column, below in gone.items():
            np.maximum(column.sealed, below, out=column.sealed)
        there = [path for path in self._unsynced if path.exists()]  # else it has left since
        small = [column for column in self.columns.values() if not column.large]
        files.sync(there + self._open_files(small))
        self._sync_names(there)
        count = self._durable(count)
        self._write_record(count, np.minimum(self.first, count))
        self._reuse()  # before the tail of a segment that has left by now is deleted by its name
        self._delete_left()
        # A slow disk, or a thousand files, is not kept busy with records alone, if there is room.
        ended = time.monotonic()
        self._record_due = ended + max(_RECORD_EVERY, 10 * (ended - began))

    def _durable(self, count: np.ndarray) -> np.ndarray:
        """The rows of each env that a record may name after `_seal`: of large columns those in
        sealed segments (or named before), of small ones all `count`."""
        for column in self.columns.values():
            if column.large:
                count = np.minimum(count, column.sealed * column.field.segment_rows)
        return np.maximum(count, self.recorded)

    def _reuse(self) -> None:
        """Make sealed segments' tails spares.

        A reader in another process may map a tail that is about to get other rows. Renamed first,
        none can be mapped any more by the old name; then the epoch changes, which a reader compares
        before and after reading; and only then is a tail written to again.
        """
        if not self._idle_tails:
            return
        for column, tail in self._idle_tails:
            column.retire_tail(tail)
        self._state.tail_epoch[0] += 1
        while self._idle_tails:
            column, tail = self._idle_tails[-1]
            column.recycle(tail)
            self._idle_tails.pop()

    def _delete_left(self) -> None:
        """Delete segments that the record does not name any more. Not `first`: rows that were
        added while the record was written may have advanced that further."""
        first = self.recorded_first
        left = [
            (column, segment, env)
            for column in self.columns.values()
            for segment, env in column.left(first // column.field.segment_rows)
        ]
        if left or any(column.strays for column in self.columns.values()):
            self.place.check()
        if left:
            with self.gate:
                for column, segment, env in left:
                    column.drop(segment, env)
            for column, segment, env in left:
                column.strays.append((segment, env))
        for column in self.columns.values():
            while column.strays:
                column.remove_files(*column.strays[-1])
                column.strays.pop()

    def _open_files(self, columns: Iterable[Column]) -> list[Path]:
        return [
            column.open_path(segment, env)
            for column in columns
            for segment, env in column.mapped()
            if segment >= column.sealed[env]
        ]

    def _sync_names(self, paths: Iterable[Path]) -> None:
        """Make the names of these files, and of segments opened since, durable up to the root."""
        opened = {column: list(column.new_files) for column in self.columns.values()}
        new = [*paths, *(path for files_ in opened.values() for path in files_)]
        names, root = set(), os.fspath(self.path)
        for path in map(os.fspath, new):  # as text: there may be thousands
            while path != root:
                path = os.path.dirname(path)
                if path in names:
                    break
                names.add(path)
        files.sync_dirs(map(Path, names))
        for column, known in opened.items():
            del column.new_files[: len(known)]  # more may have been opened meanwhile
