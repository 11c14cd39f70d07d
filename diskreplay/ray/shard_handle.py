"""A shard as one client knows it."""

import numpy as np

from diskreplay.ray.actors import Actor, Call, wait
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.messages import KnownLargest, ShardState, Updates
from diskreplay.sampling.prioritized import PriorityMass

NOTHING = ShardState(PriorityMass(0.0, np.inf, 0, 0.0), -1, 0)


class ShardHandle:
    """What a client knows of a shard, and what it has to tell it. Needs the client's lock.

    Attributes
    ----------
    actor : Actor
    state : ShardState
        Of its last answer.
    is_lost : bool
        It did not answer; it is asked again and again, and is back with its answer.
    """

    def __init__(self, number: int, actor: Actor, client: str) -> None:
        self.number, self.actor = number, actor
        self.state, self.is_lost = NOTHING, False
        self._updates = Updates.none(client)
        self._added: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # behind those
        self._asked: Call | None = None

    def add_update(self, generations: np.ndarray, ids: np.ndarray, priorities: np.ndarray) -> None:
        """Priorities to be sent with the next request. The arrays are ours from now on."""
        self._added.append((generations, ids, priorities))

    def known(self, largest: float) -> KnownLargest:
        """The largest priority that this client has seen, as the shard is told it."""
        return KnownLargest(largest, self.state.generation)

    @property
    def waiting(self) -> int:
        """How many priorities wait to be sent."""
        return len(self._updates.ids) + sum(len(ids) for _generations, ids, _ in self._added)

    def updates(self) -> Updates:
        """Those to be sent now; they stay here until `sent`, since a request may be lost."""
        if self._added:
            client, first, *had = self._updates
            generations, ids, priorities = map(np.concatenate, zip(had, *self._added, strict=True))
            self._updates, self._added = Updates(client, first, generations, ids, priorities), []
        return self._updates

    def sent(self, updates: Updates) -> None:
        """These have arrived, and with another request, perhaps, others after them."""
        client, first, *had = self._updates
        count = max(updates.stop - first, 0)
        self._updates = Updates(client, first + count, *(array[count:] for array in had))

    def learn(self, state: ShardState) -> None:
        """It has answered."""
        self.state, self.is_lost, self._asked = state, False, None

    def lose(self) -> None:
        """It did not answer: Ray restarts it, and it answers this call then."""
        self.is_lost, self.state = True, self.state._replace(mass=NOTHING.mass)
        if self._asked is None:
            self._asked = self.actor.call("state", again=True)

    def look(self, seconds: float = 0.0) -> None:
        """Take it back, if it has answered by now or in so many seconds."""
        if not self.is_lost:
            return
        assert self._asked is not None
        if not wait([self._asked], seconds):
            return
        try:
            self.learn(answer(self._asked))
        except LOST:
            self._asked = None
            self.lose()
