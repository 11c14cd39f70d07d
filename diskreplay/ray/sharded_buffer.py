"""The replay buffer whose shards are on many machines."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import given_numbers, validation
from diskreplay.batch import Batch
from diskreplay.closing import Closing
from diskreplay.errors import (
    ClosedError,
    DisconnectedError,
    DtypeError,
    InvalidInputError,
    PriorityError,
    ShapeError,
    UnknownIdError,
)
from diskreplay.given_numbers import as_array, as_reals
from diskreplay.ray.actors import named
from diskreplay.ray.arguments import check_transport, options_of
from diskreplay.ray.calls import LOST, answer, patient
from diskreplay.ray.checkpoint_calls import CheckpointCalls
from diskreplay.ray.client import Client
from diskreplay.ray.draw_request import begin
from diskreplay.ray.launcher import refuse_running, shards_of, start
from diskreplay.ray.leasing import leased
from diskreplay.ray.rate_limiter import RateLimiter
from diskreplay.ray.shard_ids import split
from diskreplay.ray.shard_writer import ShardWriter
from diskreplay.ray.sharded_checkpoints import CheckpointPlaces, finish_load
from diskreplay.ray.sharded_prefetcher import ShardedPrefetcher
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.store.paths import local


class ShardedReplayBuffer(CheckpointCalls, Closing):
    """Prioritized experience replay whose rows are on the disks of many machines.

    Each of `num_shards` actors of Ray has a `PrioritizedReplayBuffer` of some of the envs. A draw
    is exact: a transition comes with the probability that one buffer with all rows would give it.
    A shard that dies is restarted by Ray and opens its store again; no row that was acknowledged is
    lost, and none is there twice. The actors are detached: they outlive the process that made them.

    Parameters
    ----------
    path : path
        A directory on each shard's node; shard ``i`` has ``<path>/shard-<i>``. Made, or opened
        again if shards of the same number and envs are there.
    num_shards, num_envs : int
        Envs over all shards, divided as evenly as groups of `env_group` can be.
    observation_space, action_space, stack_size, stack_padding, update_horizon, gamma, alpha, beta
        As for `PrioritizedReplayBuffer`, and so are the next ones.
    weight_normalization, extras, compressor, segment_rows
    capacity : int or None
        Rows kept over all shards; each env keeps ``capacity // num_envs``.
    batch_size : int
        Default of `sample` and `prefetch`.
    rate_limiter : SampleToInsertRatio or MinSize, optional
    resources : "spread" or sequence of dict
        Where the shards run: one after the other over the nodes that are there; or for each shard
        the resources that its node has, ``[{"replay0": 1}, {"replay1": 1}]``: the one with its
        disk, also after a restart.
    timeout : float
        Seconds that a call waits for a rate limiter, or for a shard if none answers.
    shard_timeout : float
        Seconds after which a shard that does not answer is drawn around.
    lease_seconds : float
        A writer that has sent no rows for so long may lose its envs to another one.
    failover_after : float, optional
        A writer whose shard has not answered for so many seconds goes on in envs of another one,
        with the next episode of each. What was not acknowledged is lost then, unless the old shard
        has it. Without it the writer waits `timeout` and says so.
    transport : {"call", "graph"}
        How this client draws: by a call of each shard; or by a compiled graph of Ray, which costs
        less a batch and takes a thread of each shard. One learner at a time has a graph, of the
        shards on its own node. Where a shard is elsewhere or lost, or the graph is in use, draws go
        by calls.
    env_group : int, optional
        Envs whose rows share files. They move whole where another number of shards loads a
        checkpoint. Divides `num_envs`. By default 8, or what a shard has, and more of many envs;
        with fewer an add costs up to twice the time.
    seed : int or numpy.random.Generator, optional
        Of this client's draws.
    name : str
        By which `connect` finds it, and prefix of checkpoints. One of a name at a time.

    Raises
    ------
    InvalidInputError, CapacityError
        An argument makes no sense, or a sharded buffer of that name is running: `connect` to it.
    DisconnectedError
        `ray.init` was not called, or it was with a ``ray://`` address. By each method: Ray was
        shut down since, or connected anew.
    SchemaError, FormatError, LockedError
        As for `PrioritizedReplayBuffer`, of what a shard has at its path.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, num_shards: int, num_envs: int,
        observation_space: gym_spaces.Space[Any], action_space: gym_spaces.Space[Any],
        capacity: int | None, stack_size: int = 1, stack_padding: Literal["zero", "reset"] = "zero",
        update_horizon: int = 1, gamma: float = 0.99, batch_size: int = 32,
        extras: Mapping[str, tuple[Any, ...]] | None = None,
        compressor: str | Mapping[str, str] = "auto", segment_rows: int | None = None,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        weight_normalization: Literal["batch", "buffer"] = "batch",
        rate_limiter: RateLimiter | None = None,
        resources: Literal["spread"] | Sequence[Mapping[str, float]] = "spread",
        timeout: float = 60.0, shard_timeout: float = 2.0, lease_seconds: float = 600.0,
        failover_after: float | None = None, env_group: int | None = None,
        transport: Literal["call", "graph"] = "call",
        seed: int | np.random.Generator | None = None, name: str = "replay",
    ) -> None:  # fmt: skip
        arguments = dict(locals())
        self._closed = True
        options = options_of(arguments)
        check_transport(transport)
        rng = ReplayableRng(validation.generator(seed))  # before anything is started
        refuse_running(name)
        coordinator, actors = start(
            local(path, "path").absolute(), options, rate_limiter, resources
        )
        self._start(Client(coordinator, options, rate_limiter, actors, rng, transport))

    @classmethod
    def connect(
        cls, name: str = "replay", *, seed: int | np.random.Generator | None = None,
        transport: Literal["call", "graph"] = "call",
    ) -> Self:  # fmt: skip
        """A client of a sharded buffer that is running: for a second learner, an evaluator, or a
        learner that was killed and goes on.

        Parameters
        ----------
        name : str
        seed : int or numpy.random.Generator, optional
            Of this client's draws.
        transport : {"call", "graph"}
            Of this client's draws. A graph is taken from the learner that has one; where that was
            killed, its shards are restarted for it.

        Raises
        ------
        InvalidInputError, DisconnectedError
        """
        check_transport(transport)
        rng = ReplayableRng(validation.generator(seed))
        coordinator = named(name)
        if coordinator is None:
            raise InvalidInputError(
                f"name: no sharded buffer {name!r} is running in this cluster; make one"
            )
        options, limiter = patient(coordinator, "options", timeout=60.0)
        shards = shards_of(name, options["num_shards"])
        self = cls.__new__(cls)
        self._start(Client(coordinator, options, limiter, shards, rng, transport))
        return self

    def _start(self, client: Client) -> None:
        self._client, self._closed = client, False
        self._prefetchers: list[ShardedPrefetcher] = []
        self._places = CheckpointPlaces(client)
        self.batch_size: int = client.options["buffer"]["batch_size"]
        # Of one call, as far as is known here.
        self._most_inserted, self._most_sampled = 1, self.batch_size
        self.name: str = client.options["name"]
        finish_load(client)
        client.refresh()
        if client.graph is not None:
            client.graph.start()

    # -- adding

    def writer(self, num_envs: int = 1, chunk_rows: int = 32) -> ShardWriter:
        """Lease envs of one shard, and add to them.

        Parameters
        ----------
        num_envs : int
            How many, of one shard that has as many which nobody leases.
        chunk_rows : int
            Steps of each env that are sent together: ``chunk_rows * num_envs`` of 1,024 or more
            cost the least.

        Raises
        ------
        InvalidInputError
            No shard has as many free envs; or the rate limiter could never let such a chunk pass.
        ShardsLostError
        """
        self._check_open()
        envs = given_numbers.whole("num_envs", num_envs)
        rows = given_numbers.whole("chunk_rows", chunk_rows)
        self._check_turns(inserted=rows * envs)
        client = self._client
        number, lease = leased(
            dict(enumerate(client.actors)), envs, client.options, client.timeout
        )  # fmt: skip
        self._most_inserted = max(rows * envs, self._most_inserted)
        return ShardWriter(
            client.coordinator, client.actors[number], number, lease, client.options,
            chunk_rows=rows, limited=client.limiter is not None,
        )  # fmt: skip

    # -- drawing

    def sample(self, batch_size: int | None = None) -> Batch:
        """Draw transitions of all shards, with replacement.

        Parameters
        ----------
        batch_size : int, optional

        Returns
        -------
        Batch
            As of a `PrioritizedReplayBuffer`, and `generation`, int64: what `update_priorities`
            wants. `id` is ``shard << 48`` plus the id in that shard.

        Raises
        ------
        EmptyBufferError
            Nothing can be sampled yet.
        InvalidInputError
            The rate limiter could never let so many pass.
        RateLimiterTimeout, ShardsLostError
            The limiter did not let it pass, or no shard answered, within `timeout`.
        CorruptSegmentError
            Stored bytes do not match their checksum, in a shard or after the way from it.

        Notes
        -----
        A call of each shard. What falls to a shard that does not answer is drawn from the others.
        """
        self._check_open()
        size = given_numbers.whole("batch_size", batch_size, optional=True) or self.batch_size
        self._check_turns(sampled=size)
        request = begin(self._client, 1, size)
        assert request is not None  # there is no ticket to cancel
        return request.finish()[0]

    def prefetch(
        self, depth: int = 2, batches_per_request: int = 1, batch_size: int | None = None
    ) -> ShardedPrefetcher:
        """Batches that a thread asks for ahead; an iterator and context manager.

        Parameters
        ----------
        depth : int
            Requests that are under way or wait to be taken.
        batches_per_request : int
            Batches drawn together: fewer and larger calls. A batch's priorities are up to ``depth *
            batches_per_request`` batches old.
        batch_size : int, optional

        Raises
        ------
        InvalidInputError
            The rate limiter could never let such a request pass.
        """
        self._check_open()
        ahead = given_numbers.whole("depth", depth)
        together = given_numbers.whole("batches_per_request", batches_per_request)
        size = given_numbers.whole("batch_size", batch_size, optional=True) or self.batch_size
        self._check_turns(sampled=together * size)
        made = ShardedPrefetcher(self._client, ahead, together, size)
        self._prefetchers = [each for each in self._prefetchers if not each.closed]
        self._prefetchers.append(made)
        return made

    def gather(self, ids: np.ndarray) -> Batch:
        """The transitions with these ids, in the order of their shards, with weights of 1.

        Parameters
        ----------
        ids : array_like of int, shape (batch,)

        Raises
        ------
        UnknownIdError, NotSampleableError, ShardsLostError
        """
        self._check_open()
        return self._client.gather(*self._split(ids))

    def update_priorities(
        self, ids: np.ndarray, priorities: np.ndarray, generation: np.ndarray
    ) -> None:
        """Set the priorities of transitions; they travel with the next request to their shard.

        Parameters
        ----------
        ids, generation : array_like of int, shape (batch,)
            ``batch.id`` and ``batch.generation``. Where a shard's generation is another one by now,
            a checkpoint was loaded and its ids are void: those are dropped and counted.
            So are those of ids that their shard has never given out.
        priorities : array_like of float, shape (batch,)
            Finite and not negative.

        Raises
        ------
        PriorityError, UnknownIdError, ShapeError, DtypeError
            Nothing was changed.
        """
        self._check_open()
        shards, own = self._split(ids)
        values = as_reals("priorities", priorities, PriorityError).copy()  # they travel later
        runs = as_array("generation", generation)
        if runs.size and runs.dtype.kind not in "iu":
            raise DtypeError(f"generation: integers expected, found dtype {runs.dtype}")
        if runs.shape not in ((), own.shape):
            raise ShapeError(f"generation: shape {own.shape} expected, found {runs.shape}")
        runs = np.broadcast_to(runs.astype(np.int64), own.shape)
        if values.shape != own.shape:
            raise ShapeError(f"priorities: shape {own.shape} expected, found {values.shape}")
        self._client.add_updates(shards, own, values, runs)

    def _check_turns(self, inserted: int = 1, sampled: int = 1) -> None:
        """Refuse calls of so many transitions or samples, if they and the largest ones of the other
        side that this client knows of could wait for each other for ever."""
        if self._client.limiter is not None:
            sampled = max(sampled, self._most_sampled)
            self._client.limiter.check_chunks(max(inserted, self._most_inserted), sampled)
            self._most_sampled = sampled

    def _split(self, ids: Any) -> tuple[np.ndarray, np.ndarray]:
        checked = validation.checked_ids(ids)
        shards, own = split(checked)
        wrong = np.flatnonzero((checked < 0) | (shards >= len(self._client.handles)))
        if len(wrong):
            raise UnknownIdError(
                f"id {checked[wrong[0]]} at position {wrong[0]} is of no shard; there are "
                f"{len(self._client.handles)}"
            )
        return shards, own

    # -- looking

    def __len__(self) -> int:
        """Transitions that can be sampled, in the shards that answer. A call of each shard."""
        self._check_open()
        self._client.refresh()
        return sum(handle.state.mass.sampleable for handle in self._client.handles)

    @property
    def add_count(self) -> int:
        """Transitions ever recorded; of a shard that does not answer, those known. A call each."""
        self._check_open()
        self._client.refresh()
        return self._client.add_count()

    def shards(self) -> list[dict[str, Any]]:
        """Figures of each shard: where it is, what it holds, since when. ``alive`` is False, and no
        more is known, where it does not answer."""
        self._check_open()
        return self._client.described()

    def limiter_counts(self) -> tuple[int, int]:
        """Inserts and samples that the rate limiter has let pass."""
        self._check_open()
        coordinator, timeout = self._client.coordinator, self._client.timeout
        inserts, samples = patient(coordinator, "counts", timeout=timeout)
        return inserts, samples

    # -- the end

    def flush(self) -> None:
        """Have all priorities that were set arrive at the shards that answer."""
        self._check_open()
        self._client.send_updates()

    def disconnect(self) -> None:
        """Let go of the shards, which go on; what was not sent of priorities is.

        Notes
        -----
        After ``ray.shutdown`` there is nobody to send them to, and they are lost.
        """
        if self._closed:
            return
        for prefetcher in self._prefetchers:
            prefetcher.close()
        with contextlib.suppress(DisconnectedError):
            self._client.send_updates()
            if self._client.graph is not None:
                self._client.graph.end()
        self._closed = True

    def close(self) -> None:
        """Flush and close the stores of all shards and end their actors, for all clients. Closing
        twice is fine.

        Notes
        -----
        After ``ray.shutdown`` the shards of a cluster that goes on are not reached, and go on too.
        """
        if self._closed:
            return
        self.disconnect()
        client = self._client
        with contextlib.suppress(DisconnectedError):
            for actor in client.actors:
                with contextlib.suppress(*LOST):  # its store recovers what a kill leaves
                    answer(actor.call("close"), client.timeout)
            for actor in [*client.actors, client.coordinator]:
                actor.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this sharded buffer was closed; connect to it, or make it again")
