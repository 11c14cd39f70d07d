"""Whether a call may begin: open, writable, in its own process, and not amid another call."""

from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, NoReturn, TypeVar

from diskreplay import fork
from diskreplay.errors import (
    ClosedError,
    CorruptSegmentError,
    ForkedError,
    ReadOnlyError,
    ReentryError,
)
from diskreplay.indexed_store import IndexedStore
from diskreplay.locks import Lock, busy_in
from diskreplay.member_group import MemberGroup, is_called_beside
from diskreplay.prefetchers import Prefetchers
from diskreplay.sequence_view import Views
from diskreplay.store.open_store import LET_GO
from diskreplay.store.rwlock import ReadGuard

Read = TypeVar("Read")


class CallGuard:
    """What each public call of a `Session` asks first.

    Whoever has the lock, or is listed as busy, is amid a call: no other one of that thread may
    begin. A set, and a `Lock`: Ctrl-C cannot come amid what they do.
    """

    path: Path
    _closed: bool
    _pid: int
    _lock: Lock
    _busy: set[int]
    _busy_sets: list[set[int]]
    _group: MemberGroup | None = None  # as it was at the last call; None: no union has it
    _was_forked_amid = False
    _rows: IndexedStore
    _prefetchers: Prefetchers
    _views: Views

    def _guard_calls(self) -> None:
        self._lock, self._busy = Lock(), set()
        self._busy_sets = [self._busy]
        fork.tell(self)

    def _after_fork(self) -> None:
        """In a child: see whether another thread of the parent, which is not here, was amid a call
        of this reader. What it holds stays held."""
        rows = getattr(self, "_rows", None)
        if rows is None or rows.store.opened_as != "r":  # a writer is refused anyway
            return
        rwlock = rows.store.rwlock
        self._was_forked_amid = bool(
            self._busy - {get_ident()} or rwlock.has_readers
            or self._prefetchers.open or self._views.prefetching
        )  # fmt: skip
        for lock in (self._lock, rwlock):
            if lock.acquire(blocking=False):
                lock.release()
            else:
                self._was_forked_amid = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or Python has let go of the store."""
        return self._closed or self._rows.store.mode == LET_GO

    @property
    def mode(self) -> str:
        """``"r"`` for a reader, else ``"a"``."""
        return self._rows.store.opened_as

    def _is_ours(self) -> bool:
        """Whether calls may be made in this process: a forked child has a copy, and of some it may
        make none."""
        is_reader = self._rows.store.opened_as == "r"
        return fork.pid == self._pid or (is_reader and not self._was_forked_amid)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: the buffer is closed; open it again")
        if fork.pid == self._pid:
            if self._rows.store.mode == LET_GO:
                self._refuse_late()
            return
        if self._rows.store.opened_as != "r":
            # Not only writing: the parent puts other rows into memory that is still mapped here.
            raise ForkedError(
                f"{self.path}: opened by process {self._pid}, and this is its child {fork.pid}; "
                'let the parent write, and open(path, mode="r") here'
            )
        if self._was_forked_amid:
            raise ForkedError(
                f"{self.path}: as process {self._pid} was forked, another of its threads read from "
                "this reader, or had a prefetcher of it, and is not in this child; open(path) here"
            )

    def _check_writable(self) -> None:
        # All that speaks against it in one line, since each `add` asks.
        if self._closed or fork.pid != self._pid or self._rows.store.mode != "a":
            self._check_open()
            raise ReadOnlyError(
                f'{self.path}: opened with mode="r"; open it with mode="a" to write'
            )

    def _refuse_late(self) -> NoReturn:
        raise ClosedError(
            f"{self.path}: the store was let go of, since Python ends or since this buffer is "
            "garbage; all rows that were added are in it. Close the buffer before that, and use it "
            "no more: in a function for `atexit` that is registered after the buffer is made, say"
        )

    def _turn(self) -> Any:
        """The lock, for a call that is to begin.

        Raises
        ------
        ClosedError, ForkedError
            A child of the process that opened it: no other thread is there to let go of the lock.
        ReentryError
            This thread is amid one already, of this buffer or of one that is in a union with it.
            The lock would let it pass, into what is half done; and a batch that is read, or one
            that is waited for, would be waited for for ever.
        """
        if fork.pid != self._pid:
            self._check_open()  # here: in a child the lock may be held for ever
        lock, group = self._lock, self._group
        if (
            lock._is_owned() or get_ident() in self._busy  # type: ignore[attr-defined]
            or (group is not None and is_called_beside(self, group))
        ):  # fmt: skip
            self._refuse()
        return lock

    def _turn_when_drawn(self) -> Any:
        """As `_turn`, for a call that changes or draws something."""
        if fork.pid != self._pid:
            self._check_open()
        lock, group = self._lock, self._group
        if (
            lock._is_owned() or get_ident() in self._busy  # type: ignore[attr-defined]
            or (group is not None and is_called_beside(self, group))
        ):  # fmt: skip
            self._refuse()
        if self._prefetchers.open or self._views.prefetching:
            busy_in(self._busy_sets, self._draw_pending)
        return lock

    def _refuse(self) -> NoReturn:
        raise ReentryError(
            f"{self.path}: called amid another call of the same thread, of this buffer or of one "
            "that is in a union with it, which goes on: by a signal handler, a __del__ or a "
            "callback (a schedule for beta, say). Let a handler set a flag, and call the buffer, "
            "to save it say, when the step is done"
        )

    def _read_held(self, attempt: Callable[[ReadGuard], Read | None]) -> Read:
        """What `attempt` finds, under the lock, holds with the guard, and reads without the lock.

        It is called again where a writer has moved or evicted meanwhile what a reader was about to
        read: it returns None then, or raises `CorruptSegmentError`.
        """
        guard, me = ReadGuard(), get_ident()
        try:
            self._busy.add(me)
            while True:
                try:
                    read = attempt(guard)
                    if read is not None:
                        if guard.is_held:  # here too: Ctrl-C may come as `finally` begins
                            guard.release()
                        return read
                except CorruptSegmentError:
                    if not guard.has_moved_on():
                        raise
                guard.release()
                guard = ReadGuard()  # the old one knows what the follower had seen before
        finally:
            try:
                if guard.is_held:  # Ctrl-C may have come before it was released
                    guard.release()
            finally:
                self._busy.discard(me)

    def _draw_pending(self) -> None:
        """Let prefetchers draw what was asked of them before anything changes. Without the lock."""
        self._prefetchers.draw_pending()
        self._views.draw_pending()

    def _take_waiting(self) -> None:
        """Take in what other processes have added and this one has not taken yet, if there is such
        a thing."""

    def _refuse_more(self) -> None:
        """Before the store is closed: let other processes add no more."""
