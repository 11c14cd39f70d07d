"""One open buffer a process and path, for all who ask for it there.

A store has one writer, so that a second `ReplayBuffer` of a path is refused, in the same process
too: a notebook's cell that is run twice, or a framework that makes a buffer for evaluation beside
the one that trains. They share one.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diskreplay import fork
from diskreplay.buffer import ReplayBuffer
from diskreplay.closing import Closing
from diskreplay.errors import ClosedError, ReentryError, UsageError
from diskreplay.locks import Lock
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store.paths import resolved

_lock = Lock()
_entries: "weakref.WeakValueDictionary[tuple[int, Path], _Entry]" = weakref.WeakValueDictionary()
_all: "set[weakref.ref[_Entry]]" = set()  # those without a path, and with one that is gone, too


def _turn() -> Lock:
    """The lock, for a call that is to begin.

    Raises
    ------
    ReentryError
        This thread is amid such a call; or amid one of a shared buffer, for whose end whoever has
        the lock may wait, to close the buffer.
    """
    if _lock._is_owned():  # type: ignore[attr-defined]
        raise ReentryError(
            "a shared buffer is being opened or closed by this thread, amid which a signal handler "
            "or a __del__ called this: let a handler set a flag, and call this when that is done"
        )
    for known in list(_all):
        entry = known()
        buffer = None if entry is None else entry.buffer
        if buffer is not None and buffer._pid == fork.pid and not buffer.closed:
            buffer._turn()
    return _lock


def _after_fork() -> None:
    """In a child: who has the lock in the parent may not be here."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_after_fork)


class _Entry:
    """What the handles of one path share; it lives as long as one of them."""

    def __init__(
        self, path: Path | None, kind: type[ReplayBuffer], options: Mapping[str, Any]
    ) -> None:
        self.path, self.kind, self.options = path, kind, dict(options)
        self.buffer: ReplayBuffer | None = None
        self.handles: set[object] = set()
        self.claim: object = None
        self.pause: Callable[[], None] | None = None
        _all.add(weakref.ref(self, _all.discard))

    @property
    def is_gone(self) -> bool:
        """Whether the directory of the open buffer was moved or deleted: rows that are added to it
        are not at this path. With the buffer's lock, since a `load` exchanges directories."""
        buffer = self.buffer
        if buffer is None or buffer.closed:
            return False
        with buffer._lock:
            return not (buffer.closed or buffer._rows.store.place.holds())

    def check_alike(self, kind: type[ReplayBuffer], options: Mapping[str, Any]) -> None:
        if self.buffer is None or self.buffer.closed:
            self.kind, self.options = kind, dict(options)  # nobody has used the others
            return
        there = {"prioritized": self.kind is PrioritizedReplayBuffer, **self.options}
        asked = {"prioritized": kind is PrioritizedReplayBuffer, **options}
        differing = sorted(
            name for name in there.keys() | asked.keys()
            if name not in there or name not in asked or there[name] != asked[name]
        )  # fmt: skip
        if differing:
            raise UsageError(
                f"{self.path}: open in this process with another {', '.join(differing)}; close it "
                "first, or ask for it with the same options"
            )


class SharedBuffer(Closing):
    """A handle of a buffer that others in this process may use, too; see `shared`.

    A context manager; `close` it when done. The buffer is closed with the last handle of its path,
    and let go of, as that of a process that ends, when the last one is dropped.

    Parameters
    ----------
    path : Path or None
        Without links.
    kind : type
        `ReplayBuffer` or `PrioritizedReplayBuffer`.
    options : mapping
        Those of the class.

    Raises
    ------
    UsageError
        The buffer is open in this process with other options.
    ReentryError
        As `shared`.
    """

    def __init__(
        self, path: Path | None, kind: type[ReplayBuffer], options: Mapping[str, Any]
    ) -> None:
        self.path = path
        with _turn():
            entry = None if path is None else _entries.get((fork.pid, path))
            if path is None:
                entry = _Entry(path, kind, options)
            elif entry is None or entry.is_gone:
                entry = _entries[fork.pid, path] = _Entry(path, kind, options)
            else:
                entry.check_alike(kind, options)
            mine = object()
            entry.handles.add(mine)
        self._entry: _Entry | None = entry
        # Without the lock, since garbage is collected amid any call: whoever has the lock may wait
        # for the end of that call, to close the buffer.
        self._release = weakref.finalize(self, entry.handles.discard, mine)

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer, opened (or made) by the first handle that asks.

        Raises
        ------
        ClosedError
            This handle was closed; or its buffer was, after the directory was moved or deleted, and
            newer handles have the path.
        LockedError
            Another process writes to the store.
        DiskReplayError
            Whatever else the constructor raises; the next call tries again.
        """
        entry = self._entry
        if entry is None:
            raise ClosedError(f"{self.path}: this handle was closed; ask for another one")
        buffer = entry.buffer
        if buffer is None or buffer.closed:
            with _turn():
                if entry.buffer is None or entry.buffer.closed:
                    self._check_place(entry)
                    entry.buffer = entry.kind(entry.path, **entry.options)
                buffer = entry.buffer
        return buffer

    def _check_place(self, entry: _Entry) -> None:
        """Have one entry a path: after its directory was gone, there may be another one."""
        if self.path is None:
            return
        if _entries.setdefault((fork.pid, self.path), entry) is not entry:
            raise ClosedError(
                f"{self.path}: the buffer of this handle was closed after its directory was moved "
                "or deleted, and newer handles have this path; ask for another one"
            )

    @property
    def is_open(self) -> bool:
        """Whether the buffer is open, by this handle or another one."""
        buffer = self._entry.buffer if self._entry is not None else None
        return buffer is not None and not buffer.closed

    def claim(self, pause: "Callable[[], None] | None" = None) -> object:
        """Have the buffer to oneself: for an adapter that keeps count of its rows.

        Parameters
        ----------
        pause : callable, optional
            What `pause` calls: stops whatever of the adapter's draws on the buffer by itself. Must
            not keep the adapter alive.

        Returns
        -------
        object
            `has` says of it whether nobody has claimed the buffer since.
        """
        if self._entry is None:
            raise ClosedError(f"{self.path}: this handle was closed; ask for another one")
        self._entry.claim = claim = object()
        self._entry.pause = pause
        return claim

    def pause(self) -> None:
        """Have whoever claimed the buffer stop what draws on it, before its rows are exchanged."""
        if self._entry is not None and self._entry.pause is not None:
            self._entry.pause()

    def has(self, claim: object) -> bool:
        """Whether this is the last claim.

        Parameters
        ----------
        claim : object
            What the call that claimed the buffer returned.
        """
        return self._entry is None or self._entry.claim is claim

    def close(self) -> None:
        """Give the handle back; the last one of a path closes the buffer. Twice is fine.

        Raises
        ------
        StorageError
            As `ReplayBuffer.close` does; the handle is as it was, to be closed again.
        """
        with _turn():
            entry = self._entry
            if entry is None:
                return
            if len(entry.handles) == 1 and entry.buffer is not None:
                entry.buffer.close()
                entry.buffer = None
            self._entry = None
            self._release()

    def __repr__(self) -> str:
        state = "closed" if self._entry is None else "open" if self.is_open else "not open yet"
        return f"{type(self).__name__}({str(self.path)!r}, {state})"


def shared(
    path: str | os.PathLike[str] | None, *, prioritized: bool = False, **options: Any
) -> SharedBuffer:
    """A handle of the buffer at `path` that all of this process share; opened when it is used.

    Parameters
    ----------
    path : path or None
        As for `ReplayBuffer`; links are followed. None: a temporary store, which nobody else has.
    prioritized : bool
        Whether it is a `PrioritizedReplayBuffer`.
    **options
        Those of the class.

    Returns
    -------
    SharedBuffer
        Its `buffer` is made, or opened, when it is first looked at: until then nothing is on the
        disk, and no lock is taken. A forked child that asks gets a buffer of its own, which the
        parent's lock keeps out. If the directory was moved or deleted since, this handle gets a new
        buffer; older handles keep the old one, which says what happened when it is saved or closed.

    Raises
    ------
    UsageError
        The buffer is open in this process with other options.
    ReentryError
        A signal handler, or a ``__del__``, calls this amid a call of a shared buffer.
    """
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    place = None if path is None else resolved(path)
    return SharedBuffer(place, kind, options)
