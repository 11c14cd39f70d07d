"""Threads that are started where there may be no more."""

import builtins
import threading

from diskreplay.signals import undisturbed

# As Python says it: there are too many by now, or the interpreter is about to end (from 3.13 on).
_NO_MORE = (RuntimeError, getattr(builtins, "PythonFinalizationError", RuntimeError))


def try_to_start(thread: threading.Thread) -> bool:
    """Start a thread; False if no more are to be had.

    No other kind of `RuntimeError` is taken for that, of which there are many: a signal handler may
    raise one, or there is no room on the stack. Undisturbed, for a new thread waits for ever if its
    `start` is cut; who has to know of the thread calls this in such a block of its own.
    """
    with undisturbed():
        try:
            thread.start()
        except RuntimeError as error:
            if type(error) not in _NO_MORE:
                raise
            return False
        return True
