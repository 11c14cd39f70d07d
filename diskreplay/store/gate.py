"""Keeps the mapped segments in place while a batch is being copied."""

import threading


class Gate:
    """Many readers or one changer of the segment table.

    Readers copy windows without the buffer's lock; a segment may be unmapped or swapped for its
    packed form only while none of them is inside. Passing is not tied to a thread: a batch can be
    planned (entered) on one thread and copied (left) on another.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._waiting = 0

    def enter(self) -> None:
        """Come in; waits while a changer is waiting, so that changers are never starved."""
        with self._changed:
            while self._waiting:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """Go; the last one out lets a changer work."""
        with self._changed:
            self._inside -= 1
            if not self._inside and self._waiting:
                self._changed.notify_all()

    def __enter__(self) -> "Gate":
        """The changer's side: wait until nobody is inside, and keep everybody out."""
        self._changed.acquire()
        self._waiting += 1
        while self._inside:
            self._changed.wait()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._waiting -= 1
        self._changed.notify_all()
        self._changed.release()
