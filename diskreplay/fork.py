"""The id of this process, known without a system call on every `add`; it changes with a fork."""

import os

pid = os.getpid()


def _after_fork() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)
