"""Keeps the mapped segments in place while a batch is being copied."""

import threading
from typing import Any

from diskreplay.locks import LOOK_AGAIN_S, Lock, not_taken
from diskreplay.signals import undisturbed


class RWLock(Lock):  # type: ignore[misc]
    """Many readers or one changer of the segment table.

    Readers copy windows without the buffer's lock; a segment may be unmapped or swapped for its
    packed form only while none of them is inside. Passing is not tied to a thread: a batch can be
    planned (entered) on one thread and copied (left) on another. The changer has it as a `Lock`.
    """

    __slots__ = ("_changed", "_inside", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition(self)
        self._inside = 0
        self._waiting = 0

    @property
    def has_readers(self) -> bool:
        """Whether somebody is inside."""
        return self._inside > 0

    def acquire_read(self, guard: "ReadGuard", follower: Any = None) -> None:
        """Come in; waits while a changer is waiting, so that changers are never starved.

        `follower` is the store's: `ReadGuard.has_moved_on` asks it.
        """
        guard.rwlock = self
        if follower is not None:
            guard.follower, guard.looks = follower, follower.looks
        for _ in self.taken:
            try:
                while self._waiting:
                    self._wait()
                self._inside, guard.is_held = self._inside + 1, True  # both, or Ctrl-C came before
            finally:
                self.release()
            return
        raise not_taken()  # or rows would be read that are being unmapped

    def __enter__(self) -> bool:  # type: ignore[override]
        """The changer's side: wait until nobody is inside, and keep everybody out."""
        for taken in self.taken:
            try:
                self._waiting += 1
                try:
                    while self._inside:
                        self._wait()
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()  # they come in when this one is done
            except BaseException:
                self.release()
                raise
            return taken
        raise not_taken()

    def _wait(self) -> None:
        with undisturbed():  # a condition that is cut lets go of the lock, or keeps it: who knows
            self._changed.wait(LOOK_AGAIN_S)


class ReadGuard:
    """A reader's stay inside. It is made before the lock is taken, so that whoever makes it can
    release it whatever happens in between: Ctrl-C, say."""

    # Not set by `__init__`: where other work runs between two batches, a call takes its time.
    rwlock: RWLock
    is_held = False
    follower: Any = None
    looks = 0

    def has_moved_on(self) -> bool:
        """Whether what could not be read may be found now: a writer has moved it, or let it go,
        since."""
        return self.follower is not None and bool(self.follower.has_moved_on(self.looks))

    def release(self) -> None:
        """Go, if it is inside; the last one out lets a changer work. Twice is fine."""
        if not self.is_held:
            return
        rwlock = self.rwlock
        for _ in rwlock.taken:
            try:
                rwlock._inside, self.is_held = rwlock._inside - 1, False
                if not rwlock._inside and rwlock._waiting:
                    rwlock._changed.notify_all()
            finally:
                rwlock.release()
            return
        raise not_taken()
