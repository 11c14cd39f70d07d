"""Buffers that unions have together: a thread calls one of them at a time."""

import weakref
from collections.abc import Sequence
from itertools import repeat
from threading import get_ident
from typing import Protocol

from diskreplay.locks import Lock


class Member(Protocol):
    """What is asked of a buffer."""

    _lock: Lock
    _busy: set[int]
    _group: "MemberGroup | None"


class MemberGroup:
    """The members of a union, and those of each other union that has one of them.

    A signal handler amid a call of one member must not call another one. The call would wait for a
    lock, or for a draw, of which another thread may have the half by then: it draws from the union
    and waits for what this thread has.
    """

    __slots__ = ("_busy", "_locks")

    def __init__(self, members: Sequence[Member]) -> None:
        # Not the buffers: one that is dropped is to let go of its store at once.
        self._locks = [member._lock for member in members]
        self._busy = [member._busy for member in members]

    def is_called(self) -> bool:
        """Whether this thread is amid a call of any of them."""
        owned = map(Lock._is_owned, self._locks)  # type: ignore[attr-defined]
        return any(owned) or any(map(set.__contains__, self._busy, repeat(get_ident())))


class Membership:
    """That of some buffers in one union, from when it is made until `end`, or until nobody refers
    to it."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)
        self._known = weakref.ref(self, _memberships.discard)
        _memberships.add(self._known)
        _tell(self._members)

    def end(self) -> None:
        """The union is closed. Again is fine."""
        _memberships.discard(self._known)
        _tell(self._members)


_memberships: set[weakref.ref[Membership]] = set()
_latest = object()  # another one at each change


def _tell(changed: Sequence[Member]) -> None:
    """Have all buffers know their groups, and those whose memberships changed.

    Without a lock: other threads may make and close unions meanwhile, and so may a `__del__` amid
    this. Whoever comes to the end and finds a later change begins anew, so that no group stays that
    was made of less.
    """
    global _latest
    _latest = began = object()
    while True:
        groups: dict[int, dict[int, Member]] = {id(member): {} for member in changed}
        for each in [known() for known in list(_memberships)]:
            joined: dict[int, Member] = {}
            for member in each._members if each is not None else ():
                joined |= groups.get(id(member), {})
                joined[id(member)] = member
            groups |= dict.fromkeys(joined, joined)
        told = {id(group): MemberGroup([*group.values()]) for group in groups.values() if group}
        for member in changed:
            if not groups[id(member)]:
                member._group = None
        for group in groups.values():
            for member in group.values():
                member._group = told[id(group)]
        if _latest is began:
            return
        began = _latest
