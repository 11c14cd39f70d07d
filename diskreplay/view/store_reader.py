"""One store that is read for the page, whatever becomes of it meanwhile."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import diskreplay
from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import DiskReplayError, FormatError, StorageError, StoreMovedError
from diskreplay.inspection.store_activity import Writer, last_write, writer_of
from diskreplay.locks import Lock
from diskreplay.store import files, private
from diskreplay.store.commit_page import says_closed
from diskreplay.store.paths import identity
from diskreplay.view.shown_stores import ShownStore
from diskreplay.view.store_look import StoreLook, look_at

_HISTORY = 1_800  # looks at the counts
_BETWEEN = 0.5  # seconds from one to the next, at least
_LEAST_AGE = 1.5  # seconds from one look to the next, of a store that changes
_AT_REST = 15.0  # and of one that does not
_SHARE = 12  # so many times what a look costs lies between two of them
_ATTEMPTS = 4  # to read a store that is moved amid it
_QUIET = 10.0  # seconds without a row after which a writer is not said to write


T = TypeVar("T")


@dataclass
class _Handle:
    """A buffer, and how many read from it now."""

    buffer: ReplayBuffer
    inode: tuple[int, int]
    users: int = 0
    is_dropped: bool = False


@dataclass(frozen=True)
class _Noted:
    """What a pulse found."""

    inode: tuple[int, int]
    generation: int
    ever: int


class StoreReader:
    """Reads a store or a checkpoint, which may be closed, loaded over, replaced or removed at any
    time: the next call looks at what is at its path by then.

    Safe for threads. It holds files open only from a call until `close`, which whoever has it calls
    when the page has not asked for a while.
    """

    def __init__(self, store: ShownStore) -> None:
        self.store = store
        self.used = time.monotonic()
        self._lock = Lock()
        self._looking = threading.Lock()
        # Held from reading counts until they are noted: two pulses that note them in another order
        # than they read them would make rows that came look like rows that went back.
        self._noting = Lock()
        self._handle: _Handle | None = None
        self._history: deque[tuple[float, int]] = deque(maxlen=_HISTORY)
        self._begun = 0.0
        self._noted: _Noted | None = None
        self._grew = float("-inf")
        self._events: deque[dict[str, Any]] = deque(maxlen=20)
        self._look: StoreLook | None = None
        self._tried = float("-inf")
        self._looked_for: Any = None
        self._is_gone = False

    # -- reading

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReplayBuffer]:
        """A buffer that follows the writer; of the store that is at the path now.

        Raises
        ------
        DiskReplayError
            There is none, or it cannot be read.
        """
        with self._using() as handle:
            yield handle.buffer

    @contextlib.contextmanager
    def _using(self) -> Iterator[_Handle]:
        handle = self._opened()
        try:
            yield handle
        except DiskReplayError:
            self._drop(handle)  # the next one opens what is there by then
            raise
        finally:
            with self._lock:
                handle.users -= 1
                is_last = handle.is_dropped and not handle.users
            if is_last:
                handle.buffer.close()

    def _opened(self) -> _Handle:
        self.used = time.monotonic()
        inode = self._there()
        old = None
        try:
            with self._lock:
                handle = self._handle
                # To read what is gone of a file that was cut would kill the process. To open the
                # store is an error then, or finds the file that is there by now.
                if handle is None or handle.inode != inode or handle.buffer._rows.store.is_cut():
                    old, self._handle = handle, None
                    handle = self._handle = _Handle(diskreplay.open(self.store.path), inode)
                handle.users += 1
                return handle
        finally:
            if old is not None:
                self._drop(old)

    def _drop(self, handle: _Handle) -> None:
        with self._lock:
            if self._handle is handle:
                self._handle = None
            was, handle.is_dropped = handle.is_dropped, True
            is_idle = not handle.users
        if is_idle and not was:
            handle.buffer.close()

    def _there(self) -> tuple[int, int]:
        try:
            found = os.stat(self.store.path)
            os.stat(self.store.path / "zarr.json")
        except OSError as error:
            raise FormatError(f"{self.store.path}: no store is there now") from error
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Let go of all files, and of the memory of the last look."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._drop(handle)
        self._look, self._looked_for = None, None

    # -- figures

    def pulse(self, after: float = 0.0) -> dict[str, Any]:
        """How it goes, cheaply.

        Parameters
        ----------
        after : float
            Counts that were taken later are returned, in seconds since the epoch.

        Returns
        -------
        dict
            ``state``: ``checkpoint``, ``writing``, ``idle`` (a writer has it open), ``closed``,
            ``abandoned`` (its last writer ended without closing it), ``gone`` or ``unreadable``;
            ``message``; ``counts``: pairs of a time and the number of rows ever; ``begun``: counts
            that were taken before are of other rows; ``events``: what happened to the store while
            it was watched.
        """
        with self._noting:
            now, path = time.time(), self.store.path
            document: dict[str, Any] = {
                "key": self.store.key, "time": now, "path": str(path), "message": None, "pid": None,
            }  # fmt: skip
            try:
                document |= unless_moved(lambda: self._counted(now))
                document["state"], document["pid"] = self._state(now, path)
                written = last_write(path)
                if document["state"] == "writing":
                    written = max(written or 0.0, self._grew)
                document["last_write"] = written
            except DiskReplayError as error:
                is_gone = _is_gone(path)
                document["state"] = "gone" if is_gone else "unreadable"
                document["message"] = str(error)
                if is_gone and not self._is_gone:
                    self._event(now, "the store is gone from its path")
                self._is_gone = is_gone
            document["counts"] = [list(pair) for pair in self._history if pair[0] > after]
            document["begun"] = self._begun
            document["events"] = list(self._events)
            return document

    def _counted(self, now: float) -> dict[str, Any]:
        """How many rows there are, which is noted; all figures are of one store."""
        while True:
            with self._using() as handle:
                buffer = handle.buffer
                generation, bounds = buffer.generation, buffer.bounds
                found = {"transitions": buffer.add_count, "capacity": buffer.capacity}
            if self._there() == handle.inode:  # else another one has come into its place amid it
                break
        self._note(now, _Noted(handle.inode, generation, int(bounds[:, 1].sum())))
        return found | {"rows": int((bounds[:, 1] - bounds[:, 0]).sum())}

    def _state(self, now: float, path: Path) -> tuple[str, int | None]:
        if self.store.is_checkpoint:
            return "checkpoint", None
        writer = writer_of(path)
        if not _is_held(writer):
            # It is marked as closed before the lock is let go of.
            if says_closed(private.commit_page(path)):
                return "closed", None if writer is None else writer.pid
            writer = writer_of(path)
            if not _is_held(writer):  # nor has one just opened it
                return "abandoned", None if writer is None else writer.pid
        assert writer is not None
        return "writing" if now - self._grew < _QUIET else "idle", writer.pid

    def _note(self, now: float, found: _Noted) -> None:
        """Note a count. Needs the lock of noting."""
        if self._is_gone:
            self._event(now, "a store is at the path again")
            self._is_gone = False
        before, self._noted = self._noted, found
        what = None
        if before is not None and before.inode != found.inode:
            what = "another store is in its place"
        elif before is not None and found.ever < before.ever:
            what = f"rows went back from {before.ever:,} to {found.ever:,}"
        elif before is not None and before.generation != found.generation:
            what = "it was loaded over or cleared"
        if what is not None:
            self._event(now, what)
            self._begun = now
            self._history.clear()
        elif before is not None and found.ever > before.ever:
            self._grew = now
        if not self._history or now - self._history[-1][0] >= _BETWEEN:
            self._history.append((now, found.ever))

    def _event(self, now: float, text: str) -> None:
        self._events.append({"time": now, "text": text})

    def look(self) -> StoreLook:
        """Figures of a moment ago: of the last look, and another one is begun where that is old.

        How often depends on what a look costs: at most a twelfth of a processor.

        Raises
        ------
        DiskReplayError
            It cannot be read, and never could be.
        """
        self.used = time.monotonic()
        look = self._look
        if look is None:
            with self._looking:
                return self._look or self._take()
        if self._is_due(look) and self._looking.acquire(blocking=False):
            try:
                threading.Thread(target=self._renew, name="diskreplay-look", daemon=True).start()
            except BaseException:
                self._looking.release()
                raise
        return look

    def _is_due(self, look: StoreLook) -> bool:
        age = time.time() - self._tried
        if age < max(_LEAST_AGE, _SHARE * look.seconds):
            return False
        return age > _AT_REST or self._marks() != self._looked_for

    def _marks(self) -> Any:
        """What differs where another look would find something else."""
        noted = identity(self.store.path / "zarr.json")
        if noted is None:
            return None
        writer = writer_of(self.store.path)
        return noted, self._noted, writer and writer.holds

    def _take(self) -> StoreLook:
        marks, self._tried = self._marks(), time.time()
        look = self._look = look_at(self.store.path)
        self._looked_for = marks
        return look

    def _renew(self) -> None:
        try:
            with contextlib.suppress(DiskReplayError):  # the last look stays; the pulse says why
                self._take()
        finally:
            self._looking.release()


def unless_moved(read: Callable[[], T]) -> T:
    """What `read` returns, which is called again where the store was moved amid it: `load` and
    `clear` put another one in its place, which the next call opens.

    Raises
    ------
    DiskReplayError
        As `read` does.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(StoreMovedError):
            return read()
    return read()


def _is_held(writer: Writer | None) -> bool:
    return writer is not None and writer.holds is not False


def _is_gone(path: Path) -> bool:
    try:
        return not files.is_there(path / "zarr.json")
    except StorageError:  # who may not look cannot say so
        return False
