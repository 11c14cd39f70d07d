"""One shard: a buffer of its own in an actor of Ray."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import (
    ClosedError,
    DiskReplayError,
    EmptyBufferError,
    RowsMissingError,
    SchemaError,
    ShardsLostError,
    UsageError,
)
from diskreplay.locks import Lock
from diskreplay.packed_batch import PackedBatch
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.ray.actors import leave_torch_alone, this_node, was_restarted
from diskreplay.ray.destination import Bucket
from diskreplay.ray.env_leases import EnvLeases
from diskreplay.ray.messages import Chunk, KnownLargest, Lease, ShardState, Updates
from diskreplay.ray.quiet_reads import read_quietly
from diskreplay.ray.resharding import PartPiece
from diskreplay.ray.shard_parts import ShardParts
from diskreplay.store import files
from diskreplay.store.format import read_document

_PICKLED = 1 << 16  # bytes of an answer beside its arrays


class GraphName(NamedTuple):
    """Which compiled graph: when its learner connected, and the number of it there."""

    learner: int
    number: int


class Shard:
    """The methods that clients call by way of Ray, one at a time and in the order of each client.

    A compiled graph calls `draw_in_graph` on a thread of its own, beside the others. `_lock` is for
    what must not come between the two steps of a draw, or of another method.

    Parameters
    ----------
    number : int
    directory : Path
        On the node's disk: ``store`` is the buffer, beside it who leases its envs and which shard
        this is.
    identity : dict
        What has to agree with what is at `directory`: the number of shards, the envs.
    options : dict
        Of the buffer.
    """

    def __init__(
        self, number: int, directory: Path, identity: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._number, self._directory = number, directory
        self._identity, self._options = identity, options
        self._parts = ShardParts(number, directory, options["name"])
        self._dropped, self._opened = 0, time.time()
        self._lock = Lock()
        self._updated: dict[str, int] = {}  # by client: how many of its updates were made
        self._graph: GraphName | None = None
        self._graph_room = 0
        self._buffer: PrioritizedReplayBuffer | None = None
        with contextlib.suppress(DiskReplayError):  # who asks for something is told
            self.open()

    def open(self, *, anew: bool = False) -> None:
        """Open what is at the directory, if it is not open.

        Raises
        ------
        DiskReplayError
            It cannot be opened.
        """
        with self._lock:
            if self._buffer is not None:
                return
            self._adopt_directory(anew=anew)
            self._parts.sweep()
            buffer = PrioritizedReplayBuffer(self._directory / "store", **self._options)
            buffer._rows.indexed()  # else the first draw would wait for it
            self._leases = EnvLeases(
                self._directory / "leases.json", buffer.num_envs, restarted=was_restarted()
            )
            self._buffer = buffer

    def _adopt_directory(self, *, anew: bool) -> None:
        path = self._directory / "shard.json"
        if not files.is_there(path):
            if not anew and was_restarted():
                raise ShardsLostError(
                    f"{self._directory}: the rows of shard {self._number} are not on "
                    f"{socket.gethostname()}, where it was started again: its disk is gone, or on "
                    "another node. Call restore_shard with a checkpoint, or start a node with its "
                    "disk and resource"
                )
            if files.is_there(self._directory / "store" / "zarr.json"):
                raise SchemaError(
                    f"{self._directory / 'store'}: holds a store, and {path} is missing: it is no "
                    "shard; choose another directory"
                )
            # Another actor may have just made the directory of all, and not synced its name.
            files.make_lasting_dirs(self._directory.parent)
            files.make_lasting_dirs(self._directory)
            files.replace({path: json.dumps(self._identity).encode()})
            return
        found = read_document(path)
        for name, value in self._identity.items():
            if found.get(name) != value:
                raise SchemaError(
                    f"{path}: {name} is {found.get(name)} there, and {value} was asked for; open "
                    "it with the same number of shards and envs, or load a checkpoint of it into "
                    "a new directory"
                )

    # -- looking

    def state(self) -> ShardState:
        """What it holds now."""
        with self._lock:
            buffer = self._checked()
            return ShardState(buffer.priority_mass(), buffer.generation, buffer.add_count)

    def describe(self) -> dict[str, Any]:
        """Figures for people."""
        buffer = self._checked()
        bounds = buffer.bounds
        return {
            "shard": self._number,
            "host": socket.gethostname(),
            "node": this_node(),
            "pid": os.getpid(),
            "path": str(buffer.path),
            "rows": int((bounds[:, 1] - bounds[:, 0]).sum()),
            "sampleable": len(buffer),
            "transitions": buffer.add_count,
            "num_envs": buffer.num_envs,
            "free_envs": len(self._leases.free()),
            "generation": buffer.generation,
            "dropped_updates": self._dropped,
            "ignored_updates": buffer._ignored,
            "opened": self._opened,
        }

    def _checked(self) -> PrioritizedReplayBuffer:
        """The buffer. A process that was killed may still have its lock for a moment."""
        if self._buffer is None:
            try:
                self.open()
            except DiskReplayError as error:
                raise ShardsLostError(
                    f"shard {self._number} on {socket.gethostname()} cannot open its store: {error}"
                ) from error
        assert self._buffer is not None
        if self._buffer.closed:
            raise ClosedError(f"{self._buffer.path}: this shard was closed")
        return self._buffer

    # -- drawing

    def draw(
        self, positions: np.ndarray, updates: Updates, largest: KnownLargest
    ) -> tuple[PackedBatch | None, ShardState]:
        """Set priorities, then the transitions at these places of the sum; None if the shard has
        nothing to draw."""
        with self._lock:
            buffer = self._update(updates, largest)
            try:
                batch, mass = buffer._sample_packed(positions)
            except EmptyBufferError:
                return None, self.state()
            state = ShardState(mass, buffer.generation, buffer.add_count)
        return batch, state

    def draw_in_graph(self, asked: tuple[np.ndarray, Updates, KnownLargest] | None) -> Any:
        """`draw`, as a compiled graph calls it: its answer, the error in its place, and padding.
        None if nothing falls to this shard.

        An error that was raised would take the place of all shards' answers. Ray keeps memory of
        the size of the largest answer by now, and never gives back what was too small. So an answer
        that needs more of it than all before has room for some that are larger.
        """
        if asked is None:
            return None
        try:
            drawn = self.draw(*asked)
        except DiskReplayError as error:
            return None, error, None
        needed, padding = (drawn[0].nbytes if drawn[0] else 0) + _PICKLED, None
        if needed > self._graph_room:
            self._graph_room = needed + needed // 4
            padding = np.zeros(self._graph_room - needed, np.uint8)
        return drawn, None, padding

    def begin_graph(self, graph: GraphName) -> bool:
        """Whether a learner may have a graph here. There is one thread for its loop.

        Returns
        -------
        bool
            False: an earlier learner has one, or died and left its loop; only another process is
            rid of it.

        Raises
        ------
        UsageError
            A later learner has one.
        """
        there = self._graph
        if there is not None and there.learner < graph.learner:
            return False
        if there is not None and there.learner > graph.learner:
            raise UsageError(
                f"a learner that connected later has the graph of shard {self._number} by now: one "
                "learner at a time has one"
            )
        self._graph, self._graph_room = graph, 1_000_000  # what Ray begins with
        leave_torch_alone()
        read_quietly()
        return True

    def end_graph(self, graph: GraphName) -> None:
        """A graph has ended; perhaps there is another one by now."""
        if self._graph == graph:
            self._graph = None

    def update(self, updates: Updates, largest: KnownLargest) -> ShardState:
        """Set priorities."""
        with self._lock:
            self._update(updates, largest)
            return self.state()

    def _update(self, updates: Updates, largest: KnownLargest) -> PrioritizedReplayBuffer:
        """Set priorities, but for those that another request has brought already, and those of ids
        that mean nothing here."""
        buffer = self._checked()
        done = self._updated.get(updates.client, 0)
        # First: priorities that are refused are so once, and not with each request from here on.
        self._updated[updates.client] = max(done, updates.stop)
        new = slice(max(done - updates.first, 0), None)
        ids = updates.ids[new]
        current = updates.generations[new] == buffer.generation
        if current.any():
            rows, envs = np.divmod(ids, buffer.num_envs)
            current &= rows < buffer.bounds[envs, 1]  # else the others would be refused with them
            buffer.update_priorities(ids[current], updates.priorities[new][current])
        self._dropped += len(current) - int(np.count_nonzero(current))
        if largest.generation == buffer.generation:
            buffer.raise_largest_priority(largest.priority)
        return buffer

    def gather(self, ids: np.ndarray) -> PackedBatch:
        """The transitions of these ids."""
        return PackedBatch.of(self._checked().gather(ids))

    # -- adding

    def lease(self, size: int, seconds: float) -> Lease | None:
        """Envs for one writer, None if there are not as many that nobody has.

        What a writer that died has leased is free again `seconds` after its last rows.
        """
        buffer = self._checked()
        taken = self._leases.take(size, seconds)
        if taken is None:
            return None
        token, envs = taken
        return Lease(token, envs, self.counts(envs), buffer.generation)

    def renew(self, token: str, envs: list[int], hand_on: bool = False) -> Lease:
        """The counts of leased envs, for a writer that does not know what has come. With `hand_on`
        it is one of several copies, perhaps: it gets the lease, and the others do not have it.

        Raises
        ------
        UsageError
            Somebody else leases one of them by now.
        """
        buffer = self._checked()
        token = self._leases.hand_on(token, envs) if hand_on else token
        self._leases.check(token, envs)
        return Lease(token, envs, self.counts(envs), buffer.generation)

    def release(self, token: str) -> None:
        """Let others lease the envs of a writer that has ended."""
        self._checked()
        self._leases.release(token)

    def counts(self, envs: list[int]) -> list[int]:
        """How many rows each env has had."""
        count: list[int] = self._checked().bounds[envs, 1].tolist()
        return count

    def append(
        self, token: str, generation: int, chunk: Chunk, seconds: float
    ) -> tuple[list[int], ShardState]:
        """Record rows exactly once; how many rows each env has then.

        Raises
        ------
        RowsMissingError
            The rows before these are not there: dropped after a power cut, or by a `load`.
        UsageError
            Somebody else leases one of the envs by now.
        """
        buffer, envs = self._checked(), chunk.envs.tolist()
        self._leases.check(token, envs)
        has = buffer.bounds[chunk.envs, 1]
        if generation != buffer.generation or (chunk.first_rows > has).any():
            raise RowsMissingError(
                f"{buffer.path}: rows from {chunk.first_rows.tolist()} on were sent for envs "
                f"{envs}, which have {has.tolist()} rows: those before are gone, after a power cut "
                "or since a checkpoint was loaded"
            )
        # Ray's memory is read only and shared: what is stored is copied from it.
        counts = buffer.extend_many(
            chunk.unpacked(), chunk.envs, chunk.first_rows, chunk.lengths, priority=chunk.priority
        )
        self._leases.extend(token, envs, seconds)
        return counts.tolist(), self.state()

    # -- checkpoints

    def save(
        self, where: str | Bucket, suffix: str, updates: Updates, largest: KnownLargest,
        run: str | None,
    ) -> tuple[dict[str, Any], ShardState]:  # fmt: skip
        """Save this shard's part of a checkpoint; nobody knows of it before the whole is published.

        Returns
        -------
        dict
            As `ShardParts.save` describes it.
        ShardState
            What it holds, and the checkpoint too.
        """
        with self._lock:
            buffer = self._update(updates, largest)
            return self._parts.save(buffer, where, suffix, run), self.state()

    def is_pushed(self, suffix: str) -> bool:
        """Whether a part that was saved is in the object store."""
        return self._parts.is_pushed(suffix)

    def prepare(self, pieces: list[PartPiece], bucket: Bucket | None, load: str) -> None:
        """Have the envs of a checkpoint that this shard is to load here; nothing changes yet.

        Raises
        ------
        CheckpointError, StoreError, RemoteError
        """
        buffer = self._checked()
        self._parts.prepare(pieces, bucket, load)
        self._parts.check(buffer)

    def load(self, load: str) -> ShardState:
        """Go back to what was prepared for this load. Once: it may be asked again.

        Raises
        ------
        CheckpointError
        """
        with self._lock:
            buffer = self._checked()
            self._parts.load(buffer, load)
            buffer._rows.indexed()
            return self.state()

    def restore(self, pieces: list[PartPiece], bucket: Bucket | None, load: str) -> ShardState:
        """Both where the disk is another one."""
        self._parts.prepare(pieces, bucket, load)
        self.open(anew=True)
        return self.load(load)

    def remove(self, paths: list[str]) -> None:
        """Remove parts of checkpoints that no published one names."""
        self._parts.remove(paths)

    def close(self) -> None:
        """Flush and release the store."""
        with self._lock:
            if self._buffer is not None:
                self._buffer.close()
