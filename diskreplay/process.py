"""This process: its id, known without a system call on every `add`, and its Ctrl-C."""

import os
import signal
import threading
from types import FrameType

pid = os.getpid()


def _after_fork() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class undisturbed:
    """Puts Ctrl-C off until the end of the block; a second one is let through at once.

    For what must not stop between any two of its steps. Only where Ctrl-C raises
    ``KeyboardInterrupt``, as it does unless somebody has said otherwise, and on the main thread,
    where it does so.
    """

    __slots__ = ("_came", "_holds")

    def __enter__(self) -> None:
        self._came = False
        self._holds = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._holds:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *_exception: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._came:
                raise KeyboardInterrupt
