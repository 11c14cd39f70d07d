"""Buffers that unions have together: a thread calls one of them at a time."""

import os
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

    def _is_ours(self) -> bool: ...


class MemberGroup:
    """The members of a union, and those of each other union that has one of them.

    A signal handler amid a call of one member must not call another one. The call would wait for a
    lock, or for a draw, of which another thread may have the half by then: it draws from the union
    and waits for what this thread has.

    Attributes
    ----------
    of : object
        `_latest` as it was before this was made.
    """

    __slots__ = ("_busy", "_locks", "of")

    def __init__(self, members: Sequence[Member], of: object) -> None:
        # Not the buffers: one that is dropped is to let go of its store at once.
        self._locks = [member._lock for member in members]
        self._busy = [member._busy for member in members]
        self.of = of

    def is_called(self) -> bool:
        """Whether this thread is amid a call of any of them."""
        owned = map(Lock._is_owned, self._locks)  # type: ignore[attr-defined]
        return any(owned) or any(map(set.__contains__, self._busy, repeat(get_ident())))


_NOT_LOOKED_FOR = MemberGroup([], None)


class Membership:
    """That of some buffers in one union, from `begin` until `end`, or until nobody refers to it."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)
        self._known = weakref.ref(self, _forget)

    def begin(self) -> None:
        """The union is about to be used."""
        _memberships.add(self._known)
        _change()
        for member in self._members:
            member._group = _NOT_LOOKED_FOR

    def end(self) -> None:
        """The union is closed. Again is fine."""
        _forget(self._known)


_memberships: set[weakref.ref[Membership]] = set()
_latest = object()  # another one at each change


def _change() -> None:
    """Have each group be looked for anew, at the next call of its members.

    Not here: other threads may make and close unions meanwhile, and so may a `__del__` amid this.
    """
    global _latest
    _latest = object()


def _forget(known: weakref.ref[Membership]) -> None:
    _memberships.discard(known)
    _change()


# What a child may not call is as it was at the fork, and a thread of the child may have the number
# of one that was amid a call of it then.
os.register_at_fork(after_in_child=_change)


def is_called_beside(member: Member, group: MemberGroup) -> bool:
    """Whether this thread is amid a call of a buffer that is in a union with this one, which has
    this group, as it was at its last call."""
    found = group if group.of is _latest else _look_for_group(member)
    return found is not None and found.is_called()


def _look_for_group(member: Member) -> MemberGroup | None:
    latest = _latest
    joined, others = {id(member): member}, []
    for known in list(_memberships):
        each = known()
        if each is None:  # Ctrl-C amid `_forget`
            _memberships.discard(known)
        else:
            others.append(each)
    before = -1
    while len(others) != before:
        before, left = len(others), []
        for each in others:
            if any(id(one) in joined for one in each._members):
                joined |= {id(one): one for one in each._members}
            else:
                left.append(each)
        others = left
    found = None
    if len(joined) > 1:
        found = MemberGroup([one for one in joined.values() if one._is_ours()], latest)
    member._group = found
    # No thread and no signal comes between these two, which call nothing.
    if found is None and latest is not _latest:
        member._group = _NOT_LOOKED_FOR
    return found
