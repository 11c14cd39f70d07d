"""A field whose rows are compressed: the newest are in its tail, the others in shards."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.signals import undisturbed
from diskreplay.store import codec, files, private
from diskreplay.store.column import Column
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import NoShard, PartialShard, enter
from diskreplay.store.segment import Seal, Segment, Shard

_AT_ONCE = 4 << 20  # bytes of rows that are compressed before others may do so


class PackedColumn(Column[Shard]):
    """Rows are written to the tail, and compressed from there, a block at a time.

    The tail is one mapped file, with places for some blocks of each env that are used in turn. A
    full block is compressed and appended to its segment's shard, named in the index, and said to be
    there by `packed`; then its places may get other rows.

    Attributes
    ----------
    packed : ndarray of int64, shape (num_envs,)
        Rows of each env that are in shards, always whole blocks. Of a writer a view of the commit
        page; of a reader a copy, or all rows where there is no tail.
    tail_rows : int
        Rows of each env that the tail has room for.
    copies : dict of (number, group) to Seal
        Shards in their places that flushes wrote of segments which are not sealed.
    """

    def __init__(self, *arguments: Any) -> None:
        self.tail: Mapping | None = None
        self._live: np.ndarray | None = None
        self._wanted = np.zeros(arguments[3], np.int64)
        self.packed = np.zeros(arguments[3], np.int64)
        self.copies: dict[tuple[int, int], Seal] = {}
        self._has_packed = False
        self.tail_rows = arguments[2].tail_rows(arguments[3])
        self.block_rows = arguments[2].block_rows
        super().__init__(*arguments)

    def _words_of_scratch(self) -> int:
        return -(-self.field.block_bytes // 8)

    def _fill_figures(self, table: np.ndarray) -> None:
        field = self.field
        live = self.packed if self._live is None else self._live
        table[3] = field.block_rows
        table[6] = 16 * field.env_group
        table[7:9] = (0, 0) if self.tail is None else (self.tail.address, self.tail_rows)
        table[9], table[10] = self.packed.ctypes.data, live.ctypes.data

    def _addresses(self, segment: Shard, places: np.ndarray) -> tuple[Any, Any]:
        return segment.mapping.address, segment.entries(places)

    def bind(self, tail: Mapping | None, packed: np.ndarray, live: np.ndarray | None) -> None:
        """Go by this tail and these numbers from now on, and hold what is copied from the tail
        against `live` ones, if given."""
        self.tail, self.packed, self._live = tail, packed, live
        self._fill_figures(self.table)

    def follow(self, packed: np.ndarray, count: np.ndarray) -> None:
        """For a reader of `count` rows, whose indexes name all blocks of rows below `packed`."""
        self.packed[:], self._wanted = packed, count

    @property
    def is_passed(self) -> bool:
        """For a reader: whether rows that it looks for in the tail are in a shard by now."""
        if self._live is None:
            return False
        return bool((np.minimum(self._live, self._wanted) > self.packed).any())

    @property
    def tail_path(self) -> Path:
        return private.tail(self.root, self.number)

    @property
    def places(self) -> np.ndarray:
        """The tail's memory, shape ``(num_envs, tail_rows, *field.shape)``: row ``t`` of an env is
        at ``t % tail_rows``."""
        field = self.field
        size = self.num_envs * self.tail_rows * field.row_bytes
        assert self.tail is not None
        flat = self.tail.array[:size].view(field.dtype)
        return flat.reshape(self.num_envs, self.tail_rows, *field.shape)

    # -- writing

    def reserve(self, envs: np.ndarray, rows: np.ndarray, count: np.ndarray) -> None:
        """See to it that these rows, one of each of `envs`, can be written, of which `count` were
        committed: those whose places they take are compressed."""
        if not self._has_packed and self.num_envs > 1:
            self._has_packed = True
            codec.load_kernels(self.field)
        while (short := rows >= self.packed[envs] + self.tail_rows).any():
            self._pack(envs[short], count)  # or the maintenance thread has just done it

    @property
    def most_at_once(self) -> int:
        return self.tail_rows - self.block_rows

    def write(self, env: int, start: int, values: np.ndarray) -> None:
        """Write consecutive rows of one env from `start` on; there is room for them."""
        places = self.places[env]
        at = start % self.tail_rows
        first = min(len(values), self.tail_rows - at)
        places[at : at + first] = values[:first]
        places[: len(values) - first] = values[first:]

    # -- packing

    def pack(self, count: np.ndarray) -> None:
        """Compress all blocks of committed rows."""
        everybody = np.arange(self.num_envs)
        while self._pack(everybody, count):
            pass

    def pack_at_once(self, count: np.ndarray) -> None:
        """Compress the blocks of committed rows now, unless the maintenance thread is doing so.
        What fails is tried again, and fails for good when a row has no place left.

        For a single env: its `add` takes microseconds and hardly ever gives up the GIL, for which
        the maintenance thread would wait longer than this takes.
        """
        if not self.changing.locked():
            with contextlib.suppress(StorageError), undisturbed():
                self._pack(np.zeros(1, np.int64), count)

    def _pack(self, envs: np.ndarray, count: np.ndarray) -> bool:
        """Compress the oldest blocks of some envs, some megabytes at most; whether there were any.

        Not for long at once: an adding thread may wait for its turn.
        """
        with self.changing:
            which, starts = self._oldest(envs, count)
            if not len(which):
                return False
            field, size = self.field, self.block_rows
            key = int(starts[0]) // field.segment_rows, int(which[0]) // field.env_group
            segment = self._shard(*key, which)
            sources = self._sources(which, starts)
            data, lengths = codec.encode(field, sources, np.full(len(which), size))
            segment.write(data)
            segment.enter(
                self._entries_of(segment, which, starts), lengths, self.packed.ctypes.data, which,
                starts + size,
            )  # fmt: skip
            return True

    def _oldest(self, envs: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The env and first row of the oldest full blocks in the tail, those of each env in their
        order, all of one segment."""
        field, size = self.field, self.block_rows
        packed = self.packed[envs]
        most = max(_AT_ONCE // field.block_bytes, 1)
        until = np.minimum(count[envs], (packed // field.segment_rows + 1) * field.segment_rows)
        ahead = np.minimum((until - packed) // size, max(most // len(envs), 1))
        if len(envs) == 1:  # thrice as fast, and what a single env does
            steps = np.arange(max(int(ahead[0]), 0))
            return np.full(len(steps), envs[0]), packed[0] + steps * size
        where = np.flatnonzero(ahead > 0)[:most]
        if not len(where):
            return where, where
        numbers, groups = packed[where] // field.segment_rows, envs[where] // field.env_group
        where = where[(numbers == numbers[0]) & (groups == groups[0])]
        times = ahead[where]
        steps = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return np.repeat(envs[where], times), np.repeat(packed[where], times) + steps * size

    def _sources(self, envs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Where these rows of these envs are in the tail."""
        assert self.tail is not None
        places = envs * self.tail_rows + rows % self.tail_rows
        return self.tail.address + places * self.field.row_bytes

    def entry(self, segment: Shard, env: int, row: int) -> int:
        """The number of the entry for the block of a row."""
        return int(self._entries_of(segment, np.array([env]), np.array([row]))[0])

    def _entries_of(self, segment: Shard, envs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The numbers of the index's entries for the blocks of these rows."""
        group = self.field.env_group
        blocks = (rows - segment.start) // self.block_rows
        return blocks * group + envs - segment.group * group

    def _shard(self, number: int, group: int, envs: np.ndarray) -> Shard:
        """The open shard of a segment, which these envs find afterwards."""
        segment = self.segments.get((number, group))
        if segment is None:
            path = self.new_path(private.open_shard(self.root, self.number, number, group))
            segment = Shard.create(self.field, number, group, path)
            self.place.check()  # moved meanwhile: an opening would not find what is packed into it
            self.new_files.append(path)
            self.adopt(segment, envs)
        else:
            if segment.seal is not None:
                segment = self._reopen(segment)
            self.point_new(segment, envs)
        return segment

    def reopen_sealed(self, key: tuple[int, int]) -> None:
        """If a segment is sealed, go on in a copy: its place is about to get another file."""
        segment = self.segments.get(key)
        if segment is not None and segment.seal is not None:
            with self.changing:
                self._reopen(segment)

    def _reopen(self, old: Shard) -> Shard:
        """A copy of a sealed shard among the private files, to go on in."""
        path = self.new_path(private.open_shard(self.root, self.number, *old.key))
        index = old.index.copy()
        index[self.behind(old, self.packed)] = codec.MISSING
        segment = self.copied(old, index, path)
        segment.reopened_at = max(s.stop for s in self.segments.values() if s.group == old.group)
        self.new_files.append(path)
        self.seals.pop(old.key, None)
        self.replace(old, segment)
        return segment

    def copied(self, old: Shard, index: np.ndarray, path: Path) -> Shard:
        """An open shard at `path` with those blocks of another one that `index` names there."""
        field, beside = self.field, private.unsealed(self.root, self.number)
        where = np.flatnonzero(index[:, 0] != codec.MISSING)
        blocks = [old.mapping.array[at : at + size] for at, size in index[where].tolist()]
        made = codec.blank_index(field)
        made[where, 1] = index[where, 1]
        made[where, 0] = field.index_bytes + 4 + np.cumsum(index[where, 1]) - index[where, 1]
        files.write(beside, [made.tobytes(), bytes(4), *(block.data for block in blocks)])
        files.sync([beside])  # the record may count on what is in the one it replaces
        files.rename(beside, path)
        return Shard.open_to_append(field, old.number, old.group, path, made)

    def behind(self, segment: Shard, packed: np.ndarray) -> np.ndarray:
        """Which entries of a segment's index are of blocks with rows from ``packed[e]`` on: those
        are in the tail, and other blocks come in their place. Bool, one for each entry."""
        size = self.field.env_group
        blocks, places = np.divmod(np.arange(self.field.blocks * size), size)
        # The last group may have fewer envs than entries.
        envs = np.minimum(segment.group * size + places, self.num_envs - 1)
        return segment.start + (blocks + 1) * self.block_rows > packed[envs]

    # -- sealing

    def durable(self, count: np.ndarray) -> np.ndarray:
        """How many rows of each env are in shards."""
        return np.minimum(count, self.packed)

    def open_paths(self) -> list[Path]:
        """The shards that are appended to."""
        return [segment.path for segment in self.open_segments()]

    def seal(self, segment: Shard, count: np.ndarray, durable_count: np.ndarray) -> Path:
        """Bring an open shard into its place and final form; returns that.

        What the tail has of its rows is put into it too, for plain readers, and because the record
        may count on it.
        """
        # It replaces a shard that the record counts on.
        to_sync = [segment.path] if (segment.start < durable_count[segment.envs]).any() else []
        is_full = self.packed[segment.envs].min() >= segment.stop
        if is_full:  # nobody appends to it: no `add` waits for the disk
            segment.finish(segment.index, np.empty(0, np.uint8))
            files.sync(to_sync)
        with self.changing:
            path = self.new_path(self.path(*segment.key))
            index, more = self.with_tail(segment, count)
            behind = self._behind(segment, np.maximum(count, self.packed))
            more = np.concatenate([more, np.frombuffer(behind, np.uint8)])
            if not is_full:
                segment.finish(index, more)
                files.sync(to_sync)
            files.rename(segment.path, path)
            segment.mapping.path = path  # what fails behind this is done again by the next pass
            files.seal(path)
            segment.became(index, more)
            seal = segment.sum()
            segment.close_file()
            self.copies.pop(segment.key, None)
            self.note_sealed(segment, seal)
            return path

    def _behind(self, segment: Segment, count: np.ndarray) -> bytes:
        """What comes behind the blocks of a shard in its place, which has `count` rows."""
        used = np.clip(count[segment.envs] - segment.start, 0, self.field.segment_rows)
        return codec.used_bytes(self.field, used)

    def with_tail(self, segment: Shard, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a shard is with those of `count` rows that the tail has of its segment: its index,
        and the blocks that are appended. The caller sees to it that nothing is packed meanwhile."""
        index, envs, starts, used = segment.index.copy(), *self._in_tail(segment, count)
        data, lengths = codec.encode(self.field, self._sources(envs, starts), used)
        enter(index, self._entries_of(segment, envs, starts), segment.end, lengths)
        return index, data

    def _in_tail(
        self, segment: Segment, count: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The blocks of a segment with rows in the tail: their envs, first rows, and rows."""
        size = self.block_rows
        packed = np.maximum(self.packed[segment.envs], segment.start)
        rows = np.minimum(count[segment.envs], segment.stop) - packed
        blocks = np.maximum(-(-rows // size), 0)
        places = np.repeat(np.arange(len(rows)), blocks)
        step = np.arange(len(places)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        starts = packed[places] + step * size
        used = np.minimum(packed[places] + rows[places] - starts, size)
        return segment.envs.start + places, starts, used

    # -- checkpoints, and flushes for plain readers

    def unfinished(self, count: np.ndarray) -> list[tuple[int, int]]:
        """``(number, group)`` of segments that are not sealed, or have rows in the tail."""
        keys, field = {segment.key for segment in self.open_segments()}, self.field
        for group in range(field.groups(self.num_envs)):
            envs = slice(group * field.env_group, (group + 1) * field.env_group)
            waiting = count[envs] > self.packed[envs]
            low, high = self.packed[envs][waiting], count[envs][waiting] - 1
            for numbers in (low // field.segment_rows, high // field.segment_rows):
                keys.update((number, group) for number in np.unique(numbers).tolist())
        return sorted(keys)

    def linkable(self, count: np.ndarray) -> Callable[[Segment], bool]:
        starts = np.arange(0, self.num_envs, self.field.env_group)
        slowest = np.minimum.reduceat(self.packed, starts).tolist()

        def is_linkable(segment: Segment) -> bool:
            if segment.seal is None or segment.stop <= slowest[segment.group]:
                return segment.seal is not None
            packed = self.packed[segment.envs]
            in_tail = np.maximum(packed, segment.start) < count[segment.envs]
            return not (in_tail & (packed < segment.stop)).any()

        return is_linkable

    def partial(self, key: tuple[int, int], count: np.ndarray) -> PartialShard:
        """As in `Column`. A segment of which all is in the tail has no shard yet."""
        with self.changing:
            segment = self.segments.get(key) or NoShard(self.field, *key)
            envs, starts, used = self._in_tail(segment, count)
            entries = self._entries_of(segment, envs, starts)
            behind = self._behind(segment, count)
            return PartialShard(segment, envs, starts, used, entries, behind, self._read_rows)

    def _read_rows(self, envs: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
        self.take(rows * self.num_envs + envs, out)

    def _more_seals(self, closing: bool) -> dict[str, Any]:
        sealed = {key for key, segment in self.segments.items() if segment.seal is not None}
        if not closing:
            return {}
        copies = sorted(self.copies.keys() - sealed)
        return {"open": {"{}/{}".format(*key): self.copies[key].entry for key in copies}}

    def check_used(self, shard: Shard, first: np.ndarray, stop: np.ndarray) -> None:
        """Refuse a shard in its place that ends amid a block where there has to be one that was
        appended to since: with the rows of each env from `first` up to `stop`. Such a block has
        zeros where the later rows are."""
        used = shard.used
        if used is None:
            return
        end = np.minimum(stop[shard.envs], shard.stop)
        begin = shard.start + used[: len(end)]
        lacking = np.flatnonzero((end > begin) & (first[shard.envs] < end))
        if len(lacking):
            env = int(lacking[0])
            raise CorruptSegmentError(
                f"{private.open_shard(self.root, self.number, *shard.key)}: missing, and with it "
                f"rows {begin[env]} to {end[env] - 1} of env {shard.envs.start + env}, and of "
                f"{len(lacking) - 1} more envs, which the shard in its place does not have; "
                "restore the file, load a checkpoint, or go on without these rows after "
                f"`diskreplay verify {self.root} --repair`"
            )

    # -- opening and leaving

    def files_of(self, segment: Segment) -> list[Path]:
        return [self.path(*segment.key), private.open_shard(self.root, self.number, *segment.key)]

    def _drop(self, segment: Shard) -> None:
        super()._drop(segment)
        self.copies.pop(segment.key, None)

    def close(self) -> None:
        super().close()
        self.tail = None

    def move(self, root: Path) -> None:
        before = self.root
        super().move(root)
        if self.tail is not None:
            self.tail.path = root / self.tail.path.relative_to(before)

    # -- reading

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        out = np.empty((max(stop - start, 0), *self.field.shape), self.field.dtype)
        ids = np.arange(start, max(start, stop)) * self.num_envs + env
        self.take(ids, out.reshape(-1).view(np.uint8))
        return out

    def complain(self, row: int, env: int) -> NoReturn:
        field, size = self.field, self.block_rows
        number, group = row // field.segment_rows, env // field.env_group
        if (number, group) not in self.segments:
            raise self.missing(env, row, row + 1)
        first = row // size * size
        path = self.segments[number, group].path
        raise CorruptSegmentError(
            f"{path}: field {field.name!r}, env {env}, rows {first} to {first + size - 1} cannot "
            "be read: the block is rotten or missing; restore the file, or load a checkpoint"
        )
