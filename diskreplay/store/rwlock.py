"""Keeps the mapped segments in place while a batch is being copied."""

import threading
from typing import Any


class RWLock:
    """Many readers or one changer of the segment table.

    Readers copy windows without the buffer's lock; a segment may be unmapped or swapped for its
    packed form only while none of them is inside. Passing is not tied to a thread: a batch can be
    planned (entered) on one thread and copied (left) on another.
    """

    def __init__(self) -> None:
        # Taken by itself: a signal that comes in `Condition.__enter__`, which is Python, would
        # leave it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._waiting = 0

    def acquire_read(self, guard: "ReadGuard", follower: Any = None) -> None:
        """Come in; waits while a changer is waiting, so that changers are never starved.

        `follower` is the store's: `ReadGuard.has_moved_on` asks it.
        """
        guard.rwlock = self
        if follower is not None:
            guard.follower, guard.looks = follower, follower.looks
        with self._lock:
            while self._waiting:
                self._changed.wait()
            self._inside, guard.is_held = self._inside + 1, True  # both, or Ctrl-C came before

    def release_read(self, guard: "ReadGuard") -> None:
        """Go; the last one out lets a changer work."""
        with self._lock:
            self._inside, guard.is_held = self._inside - 1, False
            if not self._inside and self._waiting:
                self._changed.notify_all()

    def __enter__(self) -> "RWLock":
        """The changer's side: wait until nobody is inside, and keep everybody out."""
        self._changed.acquire()
        try:
            self._waiting += 1
            try:
                while self._inside:
                    self._changed.wait()
            finally:
                self._waiting -= 1
                self._changed.notify_all()  # they come in when this one is done
        except BaseException:
            self._changed.release()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._changed.release()


class ReadGuard:
    """A reader's stay inside. It is made before the lock is taken, so that whoever makes it can
    release it whatever happens in between: Ctrl-C, say."""

    __slots__ = ("follower", "is_held", "looks", "rwlock")

    def __init__(self) -> None:
        self.rwlock: RWLock | None = None
        self.is_held = False
        self.follower: Any = None
        self.looks = 0

    def has_moved_on(self) -> bool:
        """Whether what could not be read may be found now: a writer has moved it, or let it go,
        since."""
        return self.follower is not None and bool(self.follower.has_moved_on(self.looks))

    def release(self) -> None:
        """Release the lock if it is held. Twice is fine."""
        if self.rwlock is not None and self.is_held:
            self.rwlock.release_read(self)
