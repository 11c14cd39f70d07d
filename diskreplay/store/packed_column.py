"""A field whose rows are compressed: the newest are in its tail, the others in shards."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.locks import Lock, wait_for
from diskreplay.store import codec, files
from diskreplay.store.column import Column
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import NoShard, PartialShard
from diskreplay.store.segment import Segment, Shard
from diskreplay.store.tail import Tail


class PackedColumn(Column[Shard]):
    """Rows are written to the tail, and compressed from there, a block at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tail = Tail(self.field, self.num_envs, self.table)
        self.most_at_once = self.tail.rows - self.field.block_rows
        self._has_packed = False
        # Which call of `_pack` is compressing a block of each env, 0 where none is; and, of each
        # call, a lock that it has until it is done.
        self._packing = np.zeros(self.num_envs, np.int64)
        self._under_way: dict[int, threading.Lock] = {}
        self._calls = itertools.count(1)
        self._next: dict[tuple[int, int], Shard] = {}  # that no block has come to
        self._making = Lock()

    # -- writing

    def reserve(self, envs: np.ndarray, rows: np.ndarray, count: np.ndarray) -> None:
        """See to it that these rows, one of each of `envs`, can be written, of which `count` were
        committed: those whose places they take are compressed."""
        if not self._has_packed and self.num_envs > 1:
            self._has_packed = True
            codec.load_kernels(self.field)
        while (short := rows >= self.tail.packed[envs] + self.tail.rows).any():
            # Else the maintenance thread has just done it, or is about to.
            if not self._pack(envs[short], count):
                for call, done in list(self._under_way.items()):
                    wait_for(done)
                    self._end(call)  # a second Ctrl-C may have come before it could

    def write(self, env: int, start: int, values: np.ndarray) -> None:
        """Write consecutive rows of one env from `start` on; there is room for them."""
        places = self.tail.places[env]
        at = start % self.tail.rows
        first = min(len(values), self.tail.rows - at)
        places[at : at + first] = values[:first]
        places[: len(values) - first] = values[first:]

    # -- packing

    def pack(self, count: np.ndarray) -> None:
        """Compress all blocks of committed rows, but for those that another thread has begun."""
        everybody = np.arange(self.num_envs)
        while self._pack(everybody, count):
            self._make_next()

    def _pack(self, envs: np.ndarray, count: np.ndarray) -> bool:
        """Compress the oldest blocks of some envs, a few megabytes at most; whether there were any
        that nobody else has begun.

        An adding thread and the maintenance thread compress at the same time, without
        `changing`, never two blocks of one env: those of an env are entered in their order.
        """
        field, size, call = self.field, self.field.block_rows, next(self._calls)
        done = threading.Lock()
        done.acquire()
        try:
            with self.files.changing:
                which, starts = self.tail.oldest(envs[self._packing[envs] == 0], count)
                if not len(which):
                    return False
                self._under_way[call] = done
                self._packing[which] = call
            sources = self.tail.addresses(which, starts)
            data, lengths = codec.encode(field, sources, np.full(len(which), size))
            with self.files.changing:
                # Not before: meanwhile it may have been sealed for slow envs.
                key = int(starts[0]) // field.segment_rows, int(which[0]) // field.env_group
                segment = self._shard(*key, which)
                segment.write(data)
                places, packed = segment.places_of(which, starts), self.tail.packed
                segment.enter(places, lengths, packed.ctypes.data, which, starts + size)
            return True
        finally:
            try:
                self._end(call)
            finally:
                done.release()

    def _end(self, call: int) -> None:
        """No block is compressed by this call of `_pack` any more."""
        self._packing[self._packing == call] = 0
        self._under_way.pop(call, None)

    def _make_next(self) -> None:
        """Have the next shard of each group ready when half of the newest one is full: the thread
        that has the first block for it does not wait for the file system."""
        if self.num_envs == 1:  # it has one for each few thousand rows
            return
        field, mapped = self.field, self.segments.mapped
        for group in range(field.groups(self.num_envs)):
            newest = max((number for number, of in list(mapped) if of == group), default=None)
            fastest = int(self.tail.packed[field.envs(group)].max())
            if newest is None or 2 * fastest < (2 * newest + 1) * field.segment_rows:
                continue
            key = newest + 1, group
            if key in self._next:
                continue
            with self.files.changing:
                if key in mapped:
                    continue
                path = self.files.make_way(self.files.paths.open_segment(*key))
                self._making.acquire()  # before `changing` is let go of: nobody else makes it
            try:
                with contextlib.suppress(StorageError):  # who needs it makes it, or says why not
                    self._next[key] = Shard.create(field, *key, path)
            finally:
                self._making.release()

    def _shard(self, number: int, group: int, envs: np.ndarray) -> Shard:
        """The open shard of a segment, which these envs find afterwards."""
        segment = self.segments.mapped.get((number, group))
        if segment is None:
            with self._making:  # perhaps this one is being made
                segment = self._next.pop((number, group), None)
            if segment is None:
                path = self.files.make_way(self.files.paths.open_segment(number, group))
                segment = Shard.create(self.field, number, group, path)
            # Moved meanwhile: an opening would not find what is packed into it.
            self.files.place.check()
            self.files.new.append(segment.path)
            self.segments.adopt(segment, envs)
        else:
            if segment.seal is not None:
                segment = self._reopen(segment)
            self.table.point_new(segment, envs)
        return segment

    def reopen_sealed(self, key: tuple[int, int]) -> None:
        """If a segment is sealed, go on in a copy: its place is about to get another file."""
        segment = self.segments.mapped.get(key)
        if segment is not None and segment.seal is not None:
            with self.files.changing:
                self._reopen(segment)

    def _reopen(self, old: Shard) -> Shard:
        """A copy of a sealed shard among the private files, to go on in."""
        path = self.files.make_way(self.files.paths.open_segment(*old.key))
        index = old.index.copy()
        index[old.behind(self.tail.packed)] = codec.MISSING
        segment = self.copied(old, index, path)
        self.files.new.append(path)
        self.segments.reopen(old, segment)
        return segment

    def copied(self, old: Shard, index: np.ndarray, path: Path) -> Shard:
        """An open shard at `path` with those blocks of another one that `index` names there."""
        field, beside = self.field, self.files.paths.unsealed()
        where = np.flatnonzero(index[:, 0] != codec.MISSING)
        blocks = [old.mapping.array[at : at + size] for at, size in index[where].tolist()]
        made = codec.blank_index(field)
        codec.enter(made, where, field.index_bytes + 4, index[where, 1])
        files.write(beside, [made.tobytes(), bytes(4), *(block.data for block in blocks)])
        files.sync([beside])  # the record may count on what is in the one it replaces
        files.rename(beside, path)
        return Shard.open_to_append(field, old.number, old.group, path, made)

    # -- sealing

    def durable(self, count: np.ndarray) -> np.ndarray:
        """How many rows of each env are in shards."""
        return np.minimum(count, self.tail.packed)

    def seal(self, segment: Shard, count: np.ndarray, durable_count: np.ndarray) -> Path:
        """Bring an open shard into its place and final form; returns that.

        What the tail has of its rows is put into it too, for plain readers, and because the record
        may count on it.
        """
        # It replaces a shard that the record counts on.
        to_sync = [segment.path] if (segment.start < durable_count[segment.envs]).any() else []
        if self.tail.packed[segment.envs].min() >= segment.stop:
            # Full: nobody appends to it, and no `add` waits for the disk.
            nothing = np.empty(0, np.uint8)
            segment.finish(segment.index, nothing)
            files.sync(to_sync)
            with self.files.changing:
                path = self.files.make_way(self.files.paths.chunk(*segment.key))
            return self._put_in_place(segment, path, segment.index, nothing)
        with self.files.changing:
            path = self.files.make_way(self.files.paths.chunk(*segment.key))
            index, (envs, starts, used) = segment.index.copy(), self.tail.blocks_of(segment, count)
            more, lengths = codec.encode(self.field, self.tail.addresses(envs, starts), used)
            codec.enter(index, segment.places_of(envs, starts), segment.end, lengths)
            rows = segment.used_of(np.maximum(count, self.tail.packed))
            behind = np.frombuffer(codec.used_bytes(self.field, rows), np.uint8)
            more = np.concatenate([more, behind])
            segment.finish(index, more)
            files.sync(to_sync)
            return self._put_in_place(segment, path, index, more)

    def _put_in_place(
        self, segment: Shard, path: Path, index: np.ndarray, more: np.ndarray
    ) -> Path:
        """Bring what `Shard.finish` has made to `path`, and seal it; returns that."""
        files.rename(segment.path, path)
        segment.mapping.path = path  # what fails behind this is done again by the next pass
        files.seal(path)
        segment.became(index, more)
        seal = segment.sum()
        segment.close_file()
        self.segments.seal(segment, seal)
        return path

    # -- checkpoints, and flushes for plain readers

    def unfinished(self, count: np.ndarray) -> list[tuple[int, int]]:
        """``(number, group)`` of segments that are not sealed, or have rows in the tail."""
        keys, field = set(self.segments.open), self.field
        for group in range(field.groups(self.num_envs)):
            envs = field.envs(group)
            waiting = count[envs] > self.tail.packed[envs]
            low, high = self.tail.packed[envs][waiting], count[envs][waiting] - 1
            for numbers in (low // field.segment_rows, high // field.segment_rows):
                keys.update((number, group) for number in np.unique(numbers).tolist())
        return sorted(keys)

    def linkable(self, count: np.ndarray) -> Callable[[Segment], bool]:
        starts = np.arange(0, self.num_envs, self.field.env_group)
        slowest = np.minimum.reduceat(self.tail.packed, starts).tolist()

        def is_linkable(segment: Segment) -> bool:
            if segment.seal is None or segment.stop <= slowest[segment.group]:
                return segment.seal is not None
            packed = self.tail.packed[segment.envs]
            in_tail = np.maximum(packed, segment.start) < count[segment.envs]
            return not (in_tail & (packed < segment.stop)).any()

        return is_linkable

    def partial(self, key: tuple[int, int], count: np.ndarray) -> PartialShard:
        """As in `Column`. A segment of which all is in the tail has no shard yet."""
        with self.files.changing:
            segment = self.segments.mapped.get(key) or NoShard(self.field, *key)
            return PartialShard(segment, self.tail, count, self.take)

    # -- opening and leaving

    def close(self) -> None:
        super().close()
        for shard in self._next.values():  # their files go with the other private ones
            shard.close()
        self._next.clear()
        self.tail.mapping = None

    @property
    def mappings(self) -> list[Mapping]:
        tail = [] if self.tail.mapping is None else [self.tail.mapping]
        return [*super().mappings, *tail, *(shard.mapping for shard in self._next.values())]

    # -- reading

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        out = np.empty((max(stop - start, 0), *self.field.shape), self.field.dtype)
        ids = np.arange(start, max(start, stop)) * self.num_envs + env
        self.take(ids, out)
        return out

    def complain(self, row: int, env: int) -> NoReturn:
        field, size = self.field, self.field.block_rows
        number, group = row // field.segment_rows, env // field.env_group
        if (number, group) not in self.segments.mapped:
            raise self.missing(env, row, row + 1)
        first = row // size * size
        path = self.segments.mapped[number, group].path
        raise CorruptSegmentError(
            f"{path}: field {field.name!r}, env {env}, rows {first} to {first + size - 1} cannot "
            "be read: the block is rotten or missing; restore the file, or load a checkpoint"
        )
