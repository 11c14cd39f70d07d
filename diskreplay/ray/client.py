"""What a process knows of the shards of one buffer."""

import secrets
import time
from typing import Any

import numpy as np

from diskreplay.batch import Batch
from diskreplay.errors import EmptyBufferError, PriorityError, ShardsLostError
from diskreplay.given_numbers import exponent
from diskreplay.locks import Lock
from diskreplay.options import Beta
from diskreplay.ray.actors import Actor, wait
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.ray.block_frames import BlockFrames
from diskreplay.ray.calls import LOST, answer, let_pass, patient
from diskreplay.ray.coordinator import Ticket
from diskreplay.ray.draw_graph import DrawGraph
from diskreplay.ray.joined_batches import joined
from diskreplay.ray.messages import ShardState
from diskreplay.ray.rate_limiter import RateLimiter
from diskreplay.ray.shard_handle import NOTHING, ShardHandle
from diskreplay.ray.shard_ids import global_ids
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store.priorities import LARGEST_LEAF

_LOOK_S = 0.02  # between two looks at shards that have nothing yet


class Client:
    """The shards, the generator and the counts of one process.

    Parameters
    ----------
    coordinator : Actor
    options : dict
        As the coordinator has them.
    limiter : RateLimiter or None
    shards : list of Actor
    rng : ReplayableRng
    transport : {"call", "graph"}

    Attributes
    ----------
    lock : Lock
        Of all that changes here; not held while shards work.
    """

    def __init__(
        self, coordinator: Actor, options: dict[str, Any], limiter: RateLimiter | None,
        shards: list[Actor], rng: ReplayableRng, transport: str = "call",
    ) -> None:  # fmt: skip
        self.coordinator, self.options, self.limiter = coordinator, options, limiter
        token = secrets.token_hex(8)
        self.handles = [ShardHandle(number, actor, token) for number, actor in enumerate(shards)]
        self.graph = DrawGraph(self.handles) if transport == "graph" else None
        self.frames = BlockFrames(options["buffer"])
        self.rng = rng
        self.lock = Lock()
        self.timeout: float = options["timeout"]
        self.shard_timeout: float = options["shard_timeout"]
        self.largest = 1.0
        self.beta_of: Beta = options["buffer"]["beta"]

    @property
    def actors(self) -> list[Actor]:
        """The shards."""
        return [handle.actor for handle in self.handles]

    # -- what the shards have

    def refresh(self) -> None:
        """Ask all shards what they hold."""
        with self.lock:
            for handle in self.handles:
                self._look(handle)
            asked = [
                (handle, handle.actor.call("state"))
                for handle in self.handles if not handle.is_lost
            ]  # fmt: skip
        wait([call for _handle, call in asked], self.shard_timeout)
        with self.lock:
            for handle, call in asked:
                try:
                    self.learn(handle, answer(call, 0.0))
                except LOST:
                    handle.lose()

    def learn(self, handle: ShardHandle, state: ShardState) -> None:
        """A shard has answered. Needs the lock."""
        known = handle.state.generation
        handle.learn(state)
        self._note_load(handle, known)
        self.note_largest(state.mass.largest)

    def _look(self, handle: ShardHandle) -> None:
        """Take a shard back that was lost, if it answers."""
        known = handle.state.generation
        handle.look()
        self._note_load(handle, known)

    def _note_load(self, handle: ShardHandle, known: int) -> None:
        """The largest priority of rows that are gone is not for those that come. What is known of
        the other shards may be of such rows, too; each of their answers says it again."""
        if known not in (handle.state.generation, NOTHING.generation):
            self.largest = handle.state.mass.largest

    def known_totals(self) -> np.ndarray:
        """The sum of the leaves of each shard, as far as it is known."""
        with self.lock:
            for handle in self.handles:
                self._look(handle)
            return np.array([handle.state.mass.total for handle in self.handles])

    def wait_for_totals(self, until: float) -> np.ndarray:
        """The known totals, once one is positive. Without the client's lock: priorities are set
        meanwhile.

        Waits for shards that do not answer. And for rows where there is a limiter: it counts
        transitions before they are sent, so the first ones that it lets be sampled may still be on
        their way.

        Raises
        ------
        EmptyBufferError
            There is nothing to draw.
        ShardsLostError
            There may be, and who has it does not answer.
        """
        begun, has_looked = time.monotonic(), False
        while not ((found := self.known_totals()) > 0).any():
            lost = sum(handle.is_lost for handle in self.handles)
            now = time.monotonic()
            if has_looked:
                if now >= until or (not lost and self.limiter is None):
                    raise no_totals(lost, len(self.handles), round(now - begun, 1))
                time.sleep(_LOOK_S)
            self.refresh()
            has_looked = True
        return found

    def note_largest(self, priority: float) -> None:
        """A priority that was seen somewhere, of rows that are there."""
        self.largest = max(self.largest, priority)

    def add_count(self) -> int:
        """Transitions ever recorded, as far as it is known."""
        return sum(handle.state.add_count for handle in self.handles)

    def beta(self) -> float:
        """The exponent of the importance weights now."""
        beta = self.beta_of
        return exponent(beta(self.add_count()) if callable(beta) else beta)

    # -- the rate limiter

    def acquire(self, count: int, ticket: Ticket | None) -> str | None:
        """Wait for it; what `give_back` wants. None: the `ticket` was cancelled meanwhile."""
        if self.limiter is None:
            return ""
        found: str | None = let_pass(
            self.coordinator, "acquire_sample", count, self.timeout, ticket
        )
        return found

    def cancel(self, ticket: Ticket) -> None:
        """Have the limiter let go of a request that waits."""
        if self.limiter is not None:
            self.coordinator.call("cancel", ticket)

    def give_back(self, samples: int, epoch: str) -> None:
        """Samples that the limiter let pass and that were not taken."""
        if self.limiter is not None:
            self.coordinator.call("give_back", samples, epoch)

    # -- all shards

    def gather(self, shards: np.ndarray, ids: np.ndarray) -> Batch:
        """The transitions of these ids of shards, shard by shard.

        Raises
        ------
        ShardsLostError, UnknownIdError, NotSampleableError
        """
        pieces, all_ids, owners = [], [], []
        for number in np.unique(shards).tolist() or [0]:  # of none, who says what fields there are
            mine = ids[shards == number]
            try:
                actor = self.handles[number].actor
                pieces.append(patient(actor, "gather", mine, timeout=self.timeout))
            except LOST as error:
                raise ShardsLostError(f"shard {number} does not answer") from error
            all_ids.append(global_ids(number, mine))
            owners.append(np.zeros(len(mine), np.int64))
        order = BatchOrder(owners, 1)
        return joined(pieces, order, {"id": order.rows(all_ids)}, self.frames)[0]

    def described(self) -> list[dict[str, Any]]:
        """Figures of each shard."""
        found: list[dict[str, Any]] = []
        for handle in self.handles:
            try:
                described = answer(handle.actor.call("describe"), self.shard_timeout)
                found.append({"alive": True, **described})
            except LOST:
                found.append({"alive": False, "shard": handle.number})
        return found

    def add_updates(
        self, shards: np.ndarray, ids: np.ndarray, priorities: np.ndarray, generations: np.ndarray
    ) -> None:
        """Priorities of rows of some shards, to be sent with the next requests.

        Raises
        ------
        PriorityError
            None was taken.
        """
        wrong = np.flatnonzero(~((priorities >= 0) & (priorities < np.inf)))
        if len(wrong):
            raise PriorityError(
                f"priority {priorities[wrong[0]]} at position {wrong[0]}: finite and not negative "
                "expected"
            )
        largest = priorities.max(initial=0.0)
        with np.errstate(over="ignore"):
            too_large = largest ** self.options["buffer"]["alpha"] > LARGEST_LEAF
        if too_large:  # shards would refuse it in each request from here on
            raise PriorityError(
                f"priority {largest}: raised to alpha, at most {LARGEST_LEAF} expected"
            )
        with self.lock:
            for number in set(shards.tolist()):
                mine, handle = shards == number, self.handles[number]
                handle.add_update(generations[mine], ids[mine], priorities[mine])
                current = generations[mine] == handle.state.generation  # else they are void
                self.note_largest(float(priorities[mine][current].max(initial=0.0)))

    def send_updates(self) -> None:
        """Have all priorities arrive; of shards that do not answer they go on waiting."""
        with self.lock:
            sent = []
            for handle in self.handles:
                if handle.waiting and not handle.is_lost:
                    updates = handle.updates()
                    call = handle.actor.call("update", updates, handle.known(self.largest))
                    sent.append((handle, call, updates))
            for handle, call, updates in sent:
                try:
                    self.learn(handle, answer(call, self.shard_timeout))
                    handle.sent(updates)
                except LOST:
                    handle.lose()


def no_totals(lost: int, count: int, waited: float) -> Exception:
    """Why there is nothing to draw from."""
    if lost:
        return ShardsLostError(
            f"{lost} of {count} shards do not answer, and the others have nothing to draw; waited "
            f"{waited:g} s. Ray restarts a shard where its resource is: see `ray status`"
        )
    return EmptyBufferError("nothing to sample: no complete transition in any shard yet")
