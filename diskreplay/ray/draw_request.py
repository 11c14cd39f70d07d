"""Batches that were asked of the shards, and what came."""

import contextlib
import time
from typing import Any

import numpy as np

from diskreplay.batch import Batch
from diskreplay.errors import DisconnectedError
from diskreplay.packed_batch import PackedBatch
from diskreplay.ray import global_draw
from diskreplay.ray.actors import Call, wait
from diskreplay.ray.batch_order import BatchOrder
from diskreplay.ray.calls import LOST, answer
from diskreplay.ray.client import Client
from diskreplay.ray.coordinator import Ticket
from diskreplay.ray.draw_graph import Execution, let_go
from diskreplay.ray.global_draw import Allotment
from diskreplay.ray.joined_batches import joined
from diskreplay.ray.messages import ShardState
from diskreplay.ray.shard_handle import ShardHandle
from diskreplay.ray.shard_ids import global_ids

_AFTER_GRAPH_S = 1.0


class _Part:
    """What one shard was asked for: of each batch so many transitions."""

    def __init__(
        self, handle: ShardHandle, owners: np.ndarray, positions: np.ndarray, largest: float
    ) -> None:
        self.handle, self.owners, self.positions = handle, owners, positions
        self.updates = handle.updates()
        self.asked = positions, self.updates, handle.known(largest)
        self.call: Call | None = None  # there is none where a graph asks
        self.packed: PackedBatch | None = None
        self.state: ShardState | None = None

    def ask(self) -> None:
        """By a call."""
        self.call = self.handle.actor.call("draw", *self.asked)


class DrawRequest:
    """Some batches of one size, drawn together; see `global_draw`.

    Parameters
    ----------
    client : Client
    uniform : list of ndarray, each of shape (batch,)
        The random numbers of each batch.
    totals : ndarray of float64, shape (shards,)
        The sum of the leaves of each shard; one is positive.
    epoch : str
        For `Client.give_back`.
    """

    def __init__(
        self, client: Client, uniform: list[np.ndarray], totals: np.ndarray, epoch: str
    ) -> None:
        self._client, self.uniform, self._totals = client, uniform, totals
        self.epoch = epoch
        self._parts: list[_Part] = []
        self._execution: Execution | None = None
        drawn = [global_draw.stratified(numbers, self._totals) for numbers in uniform]
        self._send(drawn)

    def _send(self, drawn: list[Allotment]) -> None:
        """Ask the shards for what falls to them."""
        owners = np.repeat(np.arange(len(drawn)), [len(batch.shards) for batch in drawn])
        shards = np.concatenate([batch.shards for batch in drawn])
        positions = np.concatenate([batch.positions for batch in drawn])
        client, parts = self._client, {}
        for number in np.unique(shards).tolist():
            mine = shards == number
            parts[number] = _Part(
                client.handles[number], owners[mine], positions[mine], client.largest
            )
        if client.graph is not None:
            asked = {number: part.asked for number, part in parts.items()}
            self._execution = client.graph.execute(asked)
        for number, part in parts.items():
            if self._execution is None or number not in self._execution.numbers:
                part.ask()
        self._parts += parts.values()

    def finish(self) -> list[Batch]:
        """The batches. Without the client's lock.

        Raises
        ------
        ShardsLostError
            No shard answered in time.
        EmptyBufferError
            None has anything to draw any more.
        CorruptSegmentError
            What a shard sent was damaged on its way.
        """
        client = self._client
        try:
            return self._finish()
        except BaseException as error:
            let_go(error)
            with contextlib.suppress(DisconnectedError):  # the limiter's actor is not reached
                client.give_back(sum(map(len, self.uniform)), self.epoch)
            raise
        finally:
            self._parts = []  # a graph wants its memory back

    def _finish(self) -> list[Batch]:
        client = self._client
        until = time.monotonic() + client.timeout
        while lost := self._collect():
            with client.lock:
                for part in lost:
                    self._parts.remove(part)
                self._totals[[part.handle.number for part in lost]] = 0.0
                gone = {part.handle.number for part in self._parts} & set(
                    np.flatnonzero(self._totals == 0).tolist()
                )
                lost += [part for part in self._parts if part.handle.number in gone]
                self._parts = [part for part in self._parts if part.handle.number not in gone]
            if not (self._totals > 0).any():
                self._totals = client.wait_for_totals(until)
                lost += self._parts  # all of it is drawn anew
                self._parts = []
            with client.lock:
                self._send(self._redrawn(lost))
        return self._batches()

    def _collect(self) -> list[_Part]:
        """Wait for the answers; the parts that did not come."""
        client, lost, patience = self._client, [], self._client.shard_timeout
        waited = [part for part in self._parts if part.state is None]
        found: dict[int, Any] | None = {}
        if self._execution is not None:
            # Behind a graph that is broken the calls of who is there take a moment more.
            after = min(_AFTER_GRAPH_S, patience / 2)
            began = time.monotonic()
            found, self._execution = self._execution.answers(patience - after), None
            patience = max(patience - (time.monotonic() - began), after)
        if found is None:  # the graph is broken
            for part in waited:
                if part.call is None:
                    part.ask()
        wait([part.call for part in waited if part.call is not None], patience)
        with client.lock:
            for part in waited:
                try:
                    if part.call is not None:
                        part.packed, part.state = answer(part.call, 0.0)
                    else:
                        assert found is not None
                        drawn, error, _padding = found.pop(part.handle.number)
                        if error is not None:
                            raise error
                        part.packed, part.state = drawn
                except LOST:
                    part.handle.lose()
                    lost.append(part)
                    continue
                part.handle.sent(part.updates)
                client.learn(part.handle, part.state)
                if part.packed is None:  # it has nothing any more
                    lost.append(part)
        return lost

    def _redrawn(self, lost: list[_Part]) -> list[Allotment]:
        """What fell to shards that did not answer, drawn from the others: a place in the sum of a
        shard that is gone is as evenly spread over theirs."""
        owners = np.concatenate([part.owners for part in lost])
        places = np.concatenate([part.positions for part in lost])
        return [
            global_draw.at(places[owners == batch], self._totals)
            for batch in range(len(self.uniform))
        ]

    def _batches(self) -> list[Batch]:
        client, parts = self._client, self._parts
        count, totals = len(client.handles), self._totals
        sums, least = np.zeros(count), np.full(count, np.inf)
        for part in parts:
            assert part.state is not None
            sums[part.handle.number] = part.state.mass.total
            least[part.handle.number] = part.state.mass.least
        with client.lock:
            for handle in client.handles:
                mass = handle.state.mass
                if not sums[handle.number]:  # nothing was drawn there
                    sums[handle.number], least[handle.number] = mass.total, mass.least
        floor = None
        if client.options["buffer"]["weight_normalization"] == "buffer":
            floor = global_draw.least_probability(least, sums, totals)
        order = BatchOrder([part.owners for part in parts], len(self.uniform))
        packed = [part.packed for part in parts if part.packed is not None]
        numbers = [part.handle.number for part in parts]
        runs = [part.state.generation for part in parts if part.state is not None]
        lengths = [len(part.owners) for part in parts]
        shards = order.rows([np.repeat(numbers, lengths)])
        within = order.rows([part.arrays["probability"] for part in packed])
        probability = global_draw.probabilities(shards, within, totals)
        rarest = np.minimum.reduceat(probability, order.starts[:-1])
        rarest = np.minimum(rarest, floor) if floor else rarest
        weight = global_draw.weights(probability, client.beta(), np.repeat(rarest, order.sizes))
        ids = order.rows([part.arrays["id"] for part in packed])
        more = {
            "id": global_ids(shards, ids),
            "weight": weight,
            "probability": probability,
            "generation": order.rows([np.repeat(runs, lengths)]),
        }
        return joined(packed, order, more, client.frames)


def begin(
    client: Client, batches: int, size: int, ticket: Ticket | None = None
) -> DrawRequest | None:
    """Ask for batches. None: the `ticket` was cancelled while the rate limiter had it wait."""
    epoch = client.acquire(batches * size, ticket)
    if epoch is None:
        return None
    try:
        until = time.monotonic() + client.timeout
        while True:
            client.wait_for_totals(until)  # before numbers are taken
            with client.lock:
                totals = client.known_totals()
                if not (totals > 0).any():
                    continue  # lost since
                client.rng.taken()
                numbers = [client.rng.random(size) for _ in range(batches)]
                client.rng.taken()
                return DrawRequest(client, numbers, totals, epoch)
    except BaseException:
        client.give_back(batches * size, epoch)
        raise
