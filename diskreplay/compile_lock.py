"""Kernels are compiled, and loaded, one at a time: neither a signal nor a fork comes amid it."""

import _thread
import os
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from diskreplay.signals import undisturbed

_lock = threading.RLock()


def alone(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same, made so.

    A signal handler that raises may leave a callback of LLVM without its answer, which ends the
    process, or LLVM's lock held for ever. In a child that was forked while another thread had that
    lock, nobody is left to let go of it: the first kernel there would wait for ever.
    """

    def compile_alone(*arguments: Any) -> Any:
        with undisturbed(), _lock:
            return compile_kernel(*arguments)

    return compile_alone


class _Forking(undisturbed):
    """Puts signals off while a fork waits, which no Ctrl-C ends, not even a second one: a fork goes
    on where what is called before it raises an exception, and would without the lock."""

    __slots__ = ()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._came:
            self._came.append(number)

    def _tell(self) -> None:
        """Nothing yet."""


_forking: list[_Forking] = []  # by the main thread


def _before() -> None:
    if threading.current_thread() is threading.main_thread():
        _forking.append(_Forking())
        _forking[-1].__enter__()


def _in_parent() -> Any:
    if _forking and threading.current_thread() is threading.main_thread():
        done = _forking.pop()
        done.__exit__()
        # When the fork is made: what a handler raises here is printed, and lost. Python does not
        # look for signals amid this line, nor behind it in this function.
        return [*map(_thread.interrupt_main, done._came)]  # type: ignore[arg-type]
    return None


def _in_child() -> None:
    while _forking:  # what came is the parent's
        _forking.pop().__exit__()


# Not `fork.tell`: a fork has to wait, too. What is registered last is called first before a fork,
# and last behind it.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
