"""Kernels are compiled, and loaded, one at a time: neither a signal nor a fork comes amid it."""

import os
import threading
from collections.abc import Callable
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


# Not `fork.tell`: a fork has to wait, too.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
