"""One call for each of many things, several at the same time."""

import _thread
from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def at_once(call: Callable[[Thing], object], things: Iterable[Thing], most: int) -> None:
    """Call it for each of `things`, at most so many at a time, on threads that end with this.

    Where no thread is to be had, as at the interpreter's exit, one after the other. If a call
    fails, others may be made all the same; the first error is raised when all have ended.
    """
    waiting = list(things)
    left, errors = iter(waiting), list[BaseException]()

    def call_some(ended: _thread.LockType | None = None) -> None:
        try:
            for thing in left:
                call(thing)
        except BaseException as error:  # of whichever thread, the caller gets it
            errors.append(error)
        finally:
            if ended is not None:
                ended.release()

    helpers = []
    for _ in range(min(len(waiting), most) - 1):
        helpers.append(_thread.allocate_lock())
        helpers[-1].acquire()
        try:  # not a `Thread`, whose start waits until it has had the GIL
            _thread.start_new_thread(call_some, (helpers[-1],))
        except RuntimeError:
            helpers.pop()
            break
    call_some()
    for ended in helpers:
        ended.acquire()
    if errors:
        raise errors[0]
