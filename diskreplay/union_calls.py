"""Whether a call of a union may begin, and what it keeps from beginning meanwhile."""

from collections.abc import Callable
from contextlib import ExitStack

from diskreplay import fork
from diskreplay.errors import ClosedError
from diskreplay.locks import Found, Lock, busy_in
from diskreplay.member_group import Membership
from diskreplay.union_members import UnionMembers, UnionPrefetchers


class UnionCalls:
    """What each public call of a `ReplayUnion` asks first, as `CallGuard` has it of a buffer.

    A union keeps no list of the threads that are amid its calls: such a thread is amid a call of
    each member. So neither the union nor a member lets another call of it begin, which would wait
    for a prefetcher that waits for the union's lock.
    """

    _closed: bool
    _lock: Lock
    _members: UnionMembers
    _prefetchers: UnionPrefetchers

    def _guard_calls(self, opened: ExitStack) -> None:
        """`opened` is closed with the union, or where it cannot be made."""
        self._lock = Lock()
        buffers = [member.buffer for member in self._members]
        self._busy_sets = [buffer._busy for buffer in buffers]
        membership = Membership(buffers)
        opened.callback(membership.end)  # first: nobody that has the traceback keeps it
        membership.begin()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the union is closed; make it again")

    def _close_prefetchers(self) -> None:
        """Let no call begin any more, and leave no prefetcher."""
        if not all(member.buffer._is_ours() for member in self._members):
            self._closed = True  # a child's copy: the threads are the parent's
        while not self._closed:
            self._turn()
            self._prefetchers.close()
            with self._lock:  # a signal handler, or another thread, may have opened one since
                self._closed = not self._prefetchers.open

    def _turn(self) -> None:
        """Refuse a call that must not begin; see `CallGuard._turn`."""
        self._check_open()
        buffers = [member.buffer for member in self._members]
        for buffer in buffers:
            if fork.pid != buffer._pid:
                buffer._check_open()
        buffers[0]._turn()  # which asks all members: see `MemberGroup`

    def _amid(self, call: Callable[[], Found]) -> Found:
        """What `call` returns; no other call of this thread begins meanwhile."""
        self._turn()
        return busy_in(self._busy_sets, call)

    def _at_one_moment(self, call: Callable[[], Found]) -> Found:
        """What `call` returns, called while nobody adds, draws or updates."""
        with self._lock:
            return self._members.at_one_moment(call)

    def _draw_pending(self) -> None:
        """Let prefetchers draw what was asked of them before anything changes. Without locks."""
        self._prefetchers.draw_pending()
        for member in self._members:
            member.buffer._draw_pending()
