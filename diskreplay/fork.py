"""The id of this process, known without a system call on every `add`; it changes with a fork. And
who is told of one."""

import os
import weakref
from typing import Any

pid = os.getpid()
_told: "weakref.WeakSet[Any]" = weakref.WeakSet()


def tell(whom: Any) -> None:
    """Have the `_after_fork` of an object called in each child, as long as somebody else has it."""
    _told.add(whom)


def _after_fork() -> None:
    global pid
    pid = os.getpid()
    for each in list(_told):
        each._after_fork()


os.register_at_fork(after_in_child=_after_fork)
