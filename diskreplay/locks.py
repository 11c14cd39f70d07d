"""Locks that Ctrl-C cannot leave held."""

import _thread
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, starmap
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from diskreplay import fork
from diskreplay.errors import ReentryError, UsageError

Found = TypeVar("Found")
Owner = TypeVar("Owner")
Given = ParamSpec("Given")

# Who waits for a condition looks again so often: a signal may cut `notify_all`, which is Python,
# before it has told anybody.
LOOK_AGAIN_S = 0.1


class AnyLock(Protocol):
    """A lock of any kind."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


def taking(lock: AnyLock) -> Iterator[bool]:
    """Takes a lock at each step. It has no end, and keeps nothing between two steps.

    ``iter(lock.acquire, None)`` would, once a signal handler has raised StopIteration while it
    waits: it is over then for ever. Such a step ends a ``for`` here too, which has no lock then, so
    that `not_taken` is raised behind each.
    """
    return starmap(lock.acquire, repeat(()))


def not_taken() -> UsageError:
    """What a ``for`` over `taking` has ended without."""
    return UsageError(
        "a signal handler raised StopIteration while this thread waited for a lock; nothing was "
        "done: have it raise another exception, and call again"
    )


class Lock(_thread.RLock):  # type: ignore[misc]
    """As `threading.RLock`, in a ``with`` statement that a signal cannot cut behind its beginning.

    Python looks for signals when a call of a C function has ended. From Python 3.14 on the
    beginning of ``with lock:`` is such a call: if a handler raises an exception then, as that of
    Ctrl-C does, the lock stays held for ever. Python does not look for them when an iterator has
    given its next item, nor when a Python function has returned. Before 3.14 that beginning is an
    instruction of its own, which does not look for signals: there the RLock's `__enter__` is good
    enough, and takes less time.

    Attributes
    ----------
    taken : iterator of bool
        Takes the lock at each step: see `taking`.
    """

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = taking(self)

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:  # type: ignore[override]
            for taken in self.taken:
                return taken
            raise not_taken()

    # `__exit__` is that of the RLock, in C: before the first line of a Python function a signal
    # could come, and the lock would not be released.


def turn_of(lock: Lock, what: str, buffer: Any) -> Lock:
    """The lock of something that has a buffer, which may be None, for a call that is to begin.

    Raises
    ------
    ReentryError
        This thread is amid a call of it, which is half done; or amid one of the buffer, for whose
        end whoever has the lock may wait.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise _amid_a_call(what)
    if buffer is not None and buffer._pid == fork.pid:  # else a child's copy, which says so itself
        buffer._turn()
    return lock


def _amid_a_call(what: str) -> ReentryError:
    return ReentryError(
        f"{what}: called amid another call of the same thread, which goes on: by a signal "
        "handler, a __del__ or a callback. Let a handler set a flag, and call this when that "
        "is done"
    )


# Who is amid which call: thread, and id of what is called. Not an attribute of that, which may be
# pickled or copied amid the call.
_calls: set[tuple[int, int]] = set()


def one_call(
    method: Callable[Concatenate[Owner, Given], Found],
) -> Callable[Concatenate[Owner, Given], Found]:
    """The method, for an object with memory of its own beside a buffer: a thread is amid one call
    of such methods of it.

    It raises a ReentryError when a signal handler, say, calls it amid another one, which is half
    done. Other threads do not wait: unlike a lock this guards nothing between them. A method that
    has this calls no other one of the same object that has it, too.
    """

    get_ident, calls, enter, leave = _thread.get_ident, _calls, _calls.add, _calls.discard

    @functools.wraps(method)
    def call(self: Owner, /, *args: Given.args, **options: Given.kwargs) -> Found:
        mine = get_ident(), id(self)
        if mine in calls:
            raise _amid_a_call(f"{type(self).__name__}.{method.__name__}")
        try:
            enter(mine)
            return method(self, *args, **options)
        finally:
            leave(mine)

    return call


def _forget_others() -> None:
    """In a child: what threads of the parent were amid, which are not here."""
    mine = _thread.get_ident()
    _calls.difference_update([each for each in _calls if each[0] != mine])


os.register_at_fork(after_in_child=_forget_others)


def holding(locks: Sequence[Lock], call: Callable[[], Found]) -> Found:
    """What `call` returns, called with all of these locks held, which are taken in their order.

    Not a context manager: before the first line of its `__exit__` a signal could come, and the
    locks would stay held as long as somebody keeps the traceback, as a notebook does.
    """
    if len(locks) >= 8:  # at once, since Python limits how deep calls may go
        a, b, c, d, e, f, g, h = locks[:8]
        with a, b, c, d, e, f, g, h:
            return holding(locks[8:], call)
    if not locks:
        return call()
    with locks[0]:
        return holding(locks[1:], call)


def busy_in(sets: Sequence[set[int]], call: Callable[[], Found]) -> Found:
    """What `call` returns, called while this thread is in all of these sets, which hold the threads
    that are amid a call."""
    me = repeat(_thread.get_ident())
    # Python looks for signals neither within `any` nor, since these are made here, before the last.
    enter, leave = map(set.add, sets, me), map(set.discard, sets, me)
    try:
        any(enter)
        return call()
    finally:
        any(leave)


def wait_for(lock: AnyLock) -> None:
    """Wait until nobody holds a lock. A signal cannot leave it held."""
    for _ in taking(lock):
        lock.release()  # nothing looks for signals before that: see `Lock`
        return
    raise not_taken()
