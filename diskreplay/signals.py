"""Ctrl-C, and handlers of other signals, put off till what must not be cut short is done."""

import os
import signal
import threading
from types import FrameType
from typing import Any

# What people write handlers for: an end that is near, a checkpoint that is wanted, a timer.
_HANDLED = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM",
        "SIGPROF", "SIGXCPU",
    )
    if hasattr(signal, name)
)  # fmt: skip


# As in `signal`, without making an enum of each answer, which takes longer than all else.
_handler_of = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)


class undisturbed:
    """Puts Ctrl-C, and handlers of other signals, off until the end of the block.

    For what must not stop between any two of its steps, since handlers may raise exceptions. A
    second Ctrl-C ends that at once, unless it has a handler of the user's: `__exit__`, which it may
    cut, has nothing left to do then. Only on the main thread, where handlers run. A block inside of
    another one is part of that.
    """

    __slots__ = ("_came", "_handlers")
    _is_under_way = False  # on the main thread

    def __enter__(self) -> None:
        self._came: list[int] = []
        self._handlers: dict[int, Any] = {}
        if undisturbed._is_under_way or threading.current_thread() is not threading.main_thread():
            return
        for number in _HANDLED:
            handler = _handler_of(number)
            if callable(handler):
                self._handlers[number] = handler
        try:
            for number in self._handlers:
                _set_handler(number, self._note)
            undisturbed._is_under_way = bool(self._handlers)
        except BaseException:  # a signal of those that are not put off yet
            self._restore()
            raise

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._came:
            self._came.append(number)
        elif self._handlers[number] is signal.default_int_handler:
            self._restore()  # which raises KeyboardInterrupt

    def __exit__(self, *_exception: object) -> None:
        if self._handlers:
            self._restore()

    def _restore(self) -> None:
        undisturbed._is_under_way = False
        try:
            while self._handlers:
                number = next(reversed(self._handlers))  # Ctrl-C last: it raises nothing till then
                _set_handler(number, self._handlers[number])
                del self._handlers[number]
        finally:  # one that is there again may have come, and raised
            if self._handlers:
                self._restore()
            self._tell()

    def _tell(self) -> None:
        """Have the handlers called of all that came, also if one of them raises."""
        while self._came:
            number = self._came.pop(0)
            try:
                signal.raise_signal(number)
            finally:
                self._tell()


_main = threading.main_thread().ident


def _after_fork() -> None:
    """In a child that another thread than the main one has forked: the main thread may have been
    in a block, which does not come to its end here. What it put off would be for ever."""
    global _main
    if threading.get_ident() == _main:
        return
    _main, undisturbed._is_under_way = threading.get_ident(), False
    for number in _HANDLED:
        handler = _handler_of(number)
        while isinstance(block := getattr(handler, "__self__", None), undisturbed):
            handler = block._handlers[number]
            _set_handler(number, handler)


os.register_at_fork(after_in_child=_after_fork)
