"""Adds the steps of some environments to a sharded buffer, each row exactly once."""

import contextlib
import time
import warnings
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from diskreplay.closing import Closing
from diskreplay.errors import (
    ClosedError,
    DisconnectedError,
    InvalidInputError,
    RateLimiterTimeout,
    RowsMissingError,
    ShardsLostError,
)
from diskreplay.ray.actors import Actor, Call
from diskreplay.ray.calls import LOST, answer, let_pass, patient
from diskreplay.ray.launcher import shards_of
from diskreplay.ray.leasing import leased
from diskreplay.ray.messages import Chunk, Lease
from diskreplay.ray.trajectory_builder import TrajectoryBuilder
from diskreplay.schema import Schema
from diskreplay.signals import undisturbed

_IN_FLIGHT = 2  # chunks that are sent and not acknowledged
_UNSENT = 2  # chunks that could not be sent; a writer takes no more steps then


class _Sent(NamedTuple):
    chunk: Chunk
    call: Call


class _Unsent(NamedTuple):
    """Rows that were collected, and have no numbers yet; and how many transitions of them the
    limiter has not let pass."""

    chunk: Chunk
    transitions: int


class ShardWriter(Closing):
    """Leases envs of one shard and sends it their rows in chunks; made by
    `ShardedReplayBuffer.writer`.

    It may be sent to another process of the Ray cluster, as long as no rows wait in it. The copy
    that sends rows last has the lease, so a task or an actor that Ray runs again goes on with it;
    the others cannot add any more.

    Parameters
    ----------
    coordinator, actor, shard, lease, options, chunk_rows, limited
        Given by `ShardedReplayBuffer.writer`.

    Attributes
    ----------
    num_envs : int
    shard : int
        Which one; another one after `failover_after` seconds without an answer.
    acknowledged : ndarray of int64, shape (num_envs,)
        How many rows of each env are in the shard's store for certain: no kill loses them.
    """

    def __init__(
        self, coordinator: Actor, actor: Actor, shard: int, lease: Lease, options: dict[str, Any],
        *, chunk_rows: int, limited: bool,
    ) -> None:  # fmt: skip
        self._coordinator, self._chunk_rows = coordinator, chunk_rows
        self._options, self._limited = options, limited
        buffer = options["buffer"]
        schema = Schema.of(
            buffer["observation_space"], buffer["action_space"], buffer["extras"],
            buffer["compressor"],
        )  # fmt: skip
        self.num_envs = len(lease.envs)
        self._builder = TrajectoryBuilder(schema, self.num_envs, chunk_rows)
        self._sent: deque[_Sent] = deque()
        self._unsent: deque[_Unsent] = deque()
        self._take(actor, shard, lease)
        self._closed = False

    def _take(self, actor: Actor, shard: int, lease: Lease) -> None:
        """Add to these envs from here on."""
        self._actor, self.shard, self._is_copy = actor, shard, False
        self._envs = np.array(lease.envs, np.int64)
        self._token, self._generation = lease.token, lease.generation
        self._next = np.array(lease.counts, np.int64)
        self.acknowledged = self._next.copy()

    def add(
        self, observation: Any, action: Any, reward: Any, terminated: Any, truncated: Any,
        next_observation: Any = None, *, mask: Any = None, priority: Any = None, **extras: Any,
    ) -> None:  # fmt: skip
        """Record one step of each env; as `ReplayBuffer.add` with several envs.

        Parameters
        ----------
        observation, action, reward, terminated, truncated, next_observation, mask, **extras
            As for `ReplayBuffer.add`, always with a leading axis of envs. Values are copied.
        priority : float or array_like of float, shape (num_envs,), optional
            The priority that each new transition gets, as actors of Ape-X and R2D2 compute it; NaN
            or None for the largest one seen.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, ExtrasError, PriorityError
            Nothing was recorded.
        RateLimiterTimeout, ShardsLostError
            A chunk could not be sent, and the next call tries again. The step is recorded here,
            unless two chunks wait already: then ``error.is_recorded`` is False, and it has to be
            added again. Where `flush` is called until it returns, that does not happen.
        DisconnectedError
            Ray was shut down; this writer can send nothing any more.
        ClosedError

        Notes
        -----
        Rows are safe once they are `acknowledged`: some chunks later, or after `flush`.
        """
        if self._closed:
            raise ClosedError("this writer was closed; make a new one")
        if self._builder.is_full:  # Ctrl-C came before it was collected
            self._collect()
        if len(self._unsent) >= _UNSENT:  # else they would fill the memory
            self._make_room()
        self._builder.add(
            observation, action, reward, terminated, truncated, next_observation, mask, priority,
            extras,
        )  # fmt: skip
        if self._builder.is_full:
            self._collect()
        self._send()

    def end_episode(self, mask: Any = None) -> None:
        """Cut the episodes under way: the next step begins one.

        Parameters
        ----------
        mask : ndarray of bool, shape (num_envs,), optional
            Envs whose episode is cut; all by default.
        """
        self._builder.end_episodes(mask)

    def flush(self) -> None:
        """Send what waits, and return when all rows are acknowledged.

        Raises
        ------
        RateLimiterTimeout, ShardsLostError
            Rows wait here; call it again.
        DisconnectedError
        """
        if self._builder.filled.any():
            self._collect()
        self._send()
        while self._sent:
            self._acknowledge()

    def close(self) -> None:
        """Flush, and give the envs back: where the shard does not answer any more they are free
        after `lease_seconds`. Closing twice is fine. After ``ray.shutdown`` rows that were not
        acknowledged are given up, with a warning.

        Raises
        ------
        RateLimiterTimeout, ShardsLostError
            Rows wait here, and the writer is open; call it again.
        """
        if self._closed:
            return
        try:
            self.flush()
            self._closed = True
            with contextlib.suppress(*LOST):  # all rows are there; and its envs are free later
                patient(self._actor, "release", self._token, timeout=self._options["timeout"])
        except DisconnectedError:
            self._closed = True  # the envs are free after `lease_seconds`
            lost = self._waiting
            if lost:
                warnings.warn(
                    f"shard {self.shard}: Ray was shut down before {lost} rows of this writer were "
                    "acknowledged; those that it had not sent are lost. Close writers before "
                    "ray.shutdown",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _make_room(self) -> None:
        """Send what waits before a step is recorded."""
        try:
            self._send()
        except (RateLimiterTimeout, ShardsLostError) as error:
            refused = type(error)(
                f"{error}; this step is not recorded, since {len(self._unsent)} chunks of "
                f"{self._chunk_rows} steps wait in this writer: add it again, or call flush first"
            )
            refused.is_recorded = False
            raise refused from error

    def _collect(self) -> None:
        """Make a chunk of the steps so far, whether or not it can be sent: there is room for the
        next one then."""
        with undisturbed():  # or rows are in no chunk, and not in the builder any more
            columns, lengths, priority, transitions = self._builder.take()
            chunk = Chunk(columns, self._envs, self._next, lengths, priority)
            self._unsent.append(_Unsent(chunk, transitions))

    def _send(self) -> None:
        """Send all chunks that wait."""
        if self._unsent and self._is_copy:
            # Another copy may have added rows: these would be taken for those, and left out.
            self._begin_again()
        while self._unsent:
            while len(self._sent) >= _IN_FLIGHT:
                self._acknowledge()
            unsent = self._unsent[0]
            if self._limited and unsent.transitions:
                timeout = self._options["timeout"]
                let_pass(self._coordinator, "acquire_insert", unsent.transitions, timeout)
                self._unsent[0] = unsent._replace(transitions=0)
            chunk = unsent.chunk._replace(envs=self._envs, first_rows=self._next.copy())
            with undisturbed():  # or the next rows get the numbers of these, and are left out
                self._sent.append(_Sent(chunk, self._call(chunk)))
                self._unsent.popleft()
                self._next += chunk.lengths

    def _call(self, chunk: Chunk) -> Call:
        return self._actor.call(
            "append", self._token, self._generation, chunk, self._options["lease_seconds"]
        )

    def _acknowledge(self) -> None:
        """Wait for the oldest chunk; where the shard has died, send all again that it may not
        have: it leaves out rows that it has."""
        try:
            counts, _state = answer(self._sent[0].call, self._patience)
        except LOST:
            self._begin_again()
        except RowsMissingError as error:
            self._renumber(error)
        else:
            # Two chunks may be there by now: these counts are at least those of the first.
            chunk = self._sent[0].chunk
            assert (np.array(counts) >= chunk.first_rows + chunk.lengths).all()
            self.acknowledged = np.maximum(self.acknowledged, chunk.first_rows + chunk.lengths)
            self._sent.popleft()  # last: what is cut before is done once more

    @property
    def _patience(self) -> float:
        """Seconds that the shard may take to answer."""
        timeout, failover = self._options["timeout"], self._options["failover_after"]
        return float(timeout if failover is None else min(timeout, failover))

    def _renew(self, *, hand_on: bool = False) -> Lease:
        begun = time.monotonic()
        try:
            lease: Lease = patient(
                self._actor, "renew", self._token, self._envs.tolist(), hand_on,
                timeout=self._patience,
            )  # fmt: skip
        except LOST as error:
            raise ShardsLostError(
                f"shard {self.shard} does not answer, waited {time.monotonic() - begun:.0f} s; "
                f"{self._waiting} rows wait in this writer: call flush to try again"
            ) from error
        return lease

    @property
    def _unacknowledged(self) -> int:
        return sum(int(sent.chunk.lengths.sum()) for sent in self._sent)

    @property
    def _waiting(self) -> int:
        """Rows that are not acknowledged, sent or not."""
        unsent = sum(int(each.chunk.lengths.sum()) for each in self._unsent)
        return self._unacknowledged + unsent + int(self._builder.filled.sum())

    def _begin_again(self) -> None:
        begun, failover = time.monotonic(), self._options["failover_after"]
        while True:
            try:
                lease = self._renew(hand_on=self._is_copy)
                break
            except ShardsLostError:
                waited = time.monotonic() - begun
                if failover is None:
                    raise
                if waited >= failover:
                    return self._fail_over(waited)
                time.sleep(0.05)  # its process answers, and cannot open its store yet
        if self._is_copy:
            with undisturbed():  # or rows get the numbers of before
                return self._take(self._actor, self.shard, lease)
        if lease.generation != self._generation:
            return self._renumber(None, lease)
        self._send_again([sent.chunk for sent in self._sent])

    def _fail_over(self, waited: float) -> None:
        """Go on in envs of another shard, with the next episode of each env. What this one has not
        acknowledged may be there, so it is not sent to the other: no row is there twice."""
        actors = shards_of(self._options["name"], self._options["num_shards"])
        others = {number: actor for number, actor in enumerate(actors) if number != self.shard}
        try:
            number, lease = leased(
                others, self.num_envs, self._options, self._options["shard_timeout"]
            )
        except (InvalidInputError, ShardsLostError) as error:
            raise ShardsLostError(
                f"shard {self.shard} does not answer, and no other one has {self.num_envs} envs "
                f"for this writer ({error}); {self._waiting} rows wait in it: call flush to "
                "try again"
            ) from error
        lost, given_up = self.shard, self._unacknowledged
        with undisturbed():  # or some rows go to a shard with the numbers of the other
            rests = self._leave_out_rests(np.ones(self.num_envs, np.bool_))
            self._sent.clear()
            self._take(others[number], number, lease)
        warnings.warn(  # last: it is raised where warnings are errors
            f"shard {lost} has not answered for {waited:.0f} s; this writer goes on in shard "
            f"{number}. {given_up} rows that were not acknowledged are given up, since the lost "
            f"shard may have them; so is the rest of the episodes under way, {rests} rows so far",
            RuntimeWarning,
            stacklevel=5,
        )

    def _leave_out_rests(self, waiting: np.ndarray) -> int:
        """Of what was not sent, leave out what `_without_rests` says; how many rows that is."""
        dropped = 0
        if self._builder.filled.any():
            self._collect()
        for at, (chunk, transitions) in enumerate(self._unsent):
            kept = _without_rests(chunk, waiting)
            dropped += int(chunk.lengths.sum() - kept.lengths.sum())
            own = int(np.count_nonzero(~kept.unpacked()["is_final"]))
            self._unsent[at] = _Unsent(kept, min(transitions, own))
        self._builder.leave_out_rests(waiting)
        return dropped

    def _send_again(self, chunks: list[Chunk]) -> None:
        self._sent = deque(_Sent(chunk, self._call(chunk)) for chunk in chunks)

    def _renumber(self, cause: RowsMissingError | None, lease: Lease | None = None) -> None:
        """Rows that were there are gone: go on from what there is."""
        lease, chunks = lease or self._renew(), [sent.chunk for sent in self._sent]
        counts = np.array(lease.counts, np.int64)
        if lease.generation == self._generation and (counts >= chunks[0].first_rows).all():
            return self._send_again(chunks)  # one came before the one that it follows
        had = self.acknowledged
        with undisturbed():  # or rows have numbers of before, of which some are gone
            self._generation, self._next = lease.generation, counts.copy()
            self.acknowledged = counts.copy()
            waiting = np.ones(self.num_envs, np.bool_)  # for an episode to begin
            for at, chunk in enumerate(chunks):
                kept = _without_rests(chunk, waiting)._replace(first_rows=self._next.copy())
                chunks[at] = kept
                self._next += kept.lengths
            self._leave_out_rests(waiting)
            self._send_again(chunks)
        warnings.warn(  # last: it is raised where warnings are errors
            f"shard {self.shard}: its envs {self._envs.tolist()} had {had.tolist()} "
            f"rows and have {counts.tolist()} now, after a power cut or since a checkpoint was "
            "loaded; the next episodes follow those, without the rest of those under way",
            RuntimeWarning,
            stacklevel=4,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._waiting:
            raise InvalidInputError("a writer can be sent elsewhere only when no rows wait in it")
        lease = Lease(self._token, self._envs.tolist(), self._next.tolist(), self._generation)
        arguments = self._coordinator, self._actor, self.shard, lease, self._options
        return _received, (arguments, self._chunk_rows, self._limited)


def _received(arguments: tuple[Any, ...], chunk_rows: int, limited: bool) -> ShardWriter:
    made = ShardWriter(*arguments, chunk_rows=chunk_rows, limited=limited)
    made._is_copy = True
    return made


def _without_rests(chunk: Chunk, waiting: np.ndarray) -> Chunk:
    """Without the rows of the envs that wait for an episode to begin, up to where one does; they do
    not wait any more then."""
    columns, lengths = chunk.unpacked(), chunk.lengths.copy()
    step = columns["step"]
    kept, starts = np.ones(len(step), np.bool_), np.cumsum(lengths) - lengths
    for env in np.flatnonzero(waiting).tolist():
        start, rows = int(starts[env]), int(lengths[env])
        begins = np.flatnonzero(step[start : start + rows] == 0)
        dropped = int(begins[0]) if len(begins) else rows
        kept[start : start + dropped] = False
        lengths[env] -= dropped
        waiting[env] = not len(begins)
    columns = {name: values[kept] for name, values in columns.items()}
    return chunk._replace(columns=columns, lengths=lengths, priority=chunk.priority[kept])
