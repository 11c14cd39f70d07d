"""The prefetcher of a union, which its members know of too."""

from collections.abc import Callable, Sequence
from typing import Any

from diskreplay.locks import Lock
from diskreplay.prefetchers import OneAtATime
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.union_members import UnionMembers


class UnionPrefetchers(OneAtATime):
    """That of a union, for which the members' calls wait too."""

    def __init__(self, members: UnionMembers, lock: Lock, rng: ReplayableRng) -> None:
        listed = [member.buffer._views.prefetching for member in members]
        super().__init__(lock, rng, "the union", listed)
        self._members, self._stores = members, members.stores()

    def put_back_void(self) -> None:
        """A member that is cleared or loaded cannot put a union's batches back: whoever holds its
        lock must not wait for that of the union."""
        stores = self._members.stores()
        if stores != self._stores:
            drawn = self.under_way()
            if any(part.drawn.store not in stores for each in drawn for part in each.parts):
                self.put_back(self.open)
            self._stores = stores

    def _whole(self, call: Callable[[], None]) -> None:
        # The members' locks first: what waits for them can be ended by Ctrl-C.
        whole = super()._whole
        self._members.held(lambda: whole(call))

    def _undo(self, drawn: Sequence[Any]) -> None:
        super()._undo(drawn)
        self._members.undo(drawn)
