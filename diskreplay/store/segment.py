"""A segment: the rows of a group of envs in one file, from the first row to the seal."""

import contextlib
import dataclasses
import errno
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, DiskReplayError, StorageError
from diskreplay.store import codec, files, numbers
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.system_errors import explained


@dataclasses.dataclass(frozen=True, slots=True)
class Seal:
    """What is known of a file that does not change any more.

    Attributes
    ----------
    size : int
    crc32c : int
        Of a raw one that of its bytes, of a packed one `codec.checksum`.
    pieces : str
        Of a raw one `codec.packed_sums` of its pieces; empty where only the whole is known. They
        are of the same bytes, and so no part of what makes two seals equal.
    """

    size: int
    crc32c: int
    pieces: str = dataclasses.field(default="", compare=False)

    @property
    def entry(self) -> list[Any]:
        """As JSON, in a field's metadata."""
        return [self.size, self.crc32c, *([self.pieces] if self.pieces else [])]

    @classmethod
    def checked(cls, name: str, size: Any, crc: Any, pieces: str = "") -> "Seal":
        """One that comes from a file; a ``ValueError`` if nothing can have it."""
        return cls(
            numbers.integer(f"{name}: its length", size, 0, numbers.MOST_ROWS),
            numbers.integer(f"{name}: its checksum", crc, 0, 2**32 - 1),
            pieces,
        )


class Segment:
    """One segment of a field, mapped.

    It is open at first: its file gets rows. Once every env of the group has passed it, or the
    fastest one is far ahead, it is sealed: the file never changes again, and checkpoints share it.
    An env that comes to a sealed segment later goes on in a copy, which is open. A segment in which
    no env has a row that is kept is left, and its file goes.

    Attributes
    ----------
    number, group : int
        It holds the rows ``number * segment_rows`` up to ``(number + 1) * segment_rows`` of the
        envs ``group * env_group`` up to ``(group + 1) * env_group``.
    mapping : Mapping
    seal : Seal or None
        None while it is open.
    reopened_at : int
        How far the fastest env was when a sealed one was opened again; -1 if it never was.
    """

    _fd: int | None = None  # of the class: `__init__` may fail before

    def __init__(
        self, field: Field, number: int, group: int, mapping: Mapping, seal: Seal | None = None
    ) -> None:
        self.field, self.number, self.group = field, number, group
        self.mapping, self.seal = mapping, seal
        self.reopened_at = -1

    @property
    def path(self) -> Path:
        return self.mapping.path

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.group

    @property
    def envs(self) -> slice:
        """The envs whose rows it has; the last group may have fewer than the others."""
        return self.field.envs(self.group)

    @property
    def start(self) -> int:
        """The first row of each env."""
        return self.number * self.field.segment_rows

    @property
    def stop(self) -> int:
        """The first row behind it."""
        return self.start + self.field.segment_rows

    def used_of(self, count: np.ndarray) -> np.ndarray:
        """How many of the first ``count[e]`` rows of each of its envs it has."""
        return self.field.used(self.number, self.group, count)

    def addresses(self, places: np.ndarray) -> tuple[Any, Any]:
        """The two numbers of its entries in the segment table, of envs by their places in the
        group."""
        raise NotImplementedError

    def sum(self) -> Seal:
        """Its seal, if it does not change any more."""
        raise NotImplementedError

    @property
    def has_file(self) -> bool:
        """Whether its file is held open, to be written to."""
        return self._fd is not None

    def close_file(self) -> None:
        """The file never changes again. Cannot fail."""
        self.mapping.protect()
        self.mapping.expect_random_access()
        self.close()

    def close(self) -> None:
        """Let go of what is held besides the memory: the file that is written to."""
        if self._fd is not None:
            files.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()


class RawSegment(Segment):
    """Rows as they are in memory.

    Attributes
    ----------
    is_handed_over : bool
        The adding thread gives it up, so that it is sealed: it opens a copy before it writes to it
        again.
    is_aside : bool
        Its file is a copy, among the private ones, and has to be put in its place.
    """

    is_handed_over = is_aside = False

    @classmethod
    def open(
        cls, field: Field, number: int, group: int, path: Path, *, writable: bool
    ) -> "RawSegment":
        """Map a file that is there. To be written to it must be nobody else's: one that a
        checkpoint shares, or that was made read-only, is sealed."""
        if writable and _is_ours_alone(path):
            mapping = Mapping.open(path, size=field.segment_bytes, writable=True)
            return cls(field, number, group, mapping)
        mapping = Mapping.open(path, size=field.segment_bytes)
        mapping.expect_random_access()
        return cls(field, number, group, mapping, UNKNOWN)

    def addresses(self, places: np.ndarray) -> tuple[np.ndarray, int]:
        field = self.field
        apart = field.segment_rows if field.env_major else 1
        return self.mapping.address + places * (apart * field.row_bytes), 0

    def rows(self, place: int) -> np.ndarray:
        """A view of an env's rows, shape ``(segment_rows, *field.shape)``."""
        return self.values[:, place]

    @functools.cached_property
    def values(self) -> np.ndarray:
        """A view of all its rows, shape ``(segment_rows, env_group, *field.shape)``."""
        return self._by_row(self.mapping.array.view(self.field.dtype), self.field.shape)

    @functools.cached_property
    def every_row(self) -> np.ndarray:
        """A view of all its bytes, shape ``(segment_rows, env_group, row_bytes)``."""
        return self._by_row(self.mapping.array, (self.field.row_bytes,))

    def _by_row(self, flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        field = self.field
        if field.env_major:
            return flat.reshape(field.env_group, field.segment_rows, *shape).swapaxes(0, 1)
        return flat.reshape(field.segment_rows, field.env_group, *shape)

    def clear_behind(self, count: np.ndarray) -> None:
        """Zeros behind the rows that count: one that was being written when the process died, or
        when Ctrl-C came, was never added."""
        every = self.every_row
        for place, rows in enumerate(self.used_of(count).tolist()):
            behind = every[rows:, place]
            if behind.any():
                # No page that is zeros: where the disk is full it may have no room of its own.
                behind[behind.any(axis=1)] = 0

    def sum(self) -> Seal:
        """Its seal, if it does not change any more. Reads all of it."""
        return Seal(self.mapping.size, *codec.raw_sums(self.field, self.mapping.array))

    def open_file(self) -> None:
        """Have `write_moment` and `write_rows` go by the file, if it can be opened.

        To write into a file takes half as long as to write into its mapping, or less: each page of
        a mapping is found by itself, and once more after each time it was written to the disk.
        """
        with contextlib.suppress(StorageError):
            self._fd = files.open_to_write(self.path)

    def write_rows(self, envs: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """Write ``values[envs[i]]`` as row ``rows[i]`` of env ``envs[i]``, of a segment that has
        rows env by env."""
        field, at, places = self.field, rows - self.start, envs - self.envs.start
        if self._fd is None:
            self.values[at, places] = values[envs]
            return
        from diskreplay.store import file_kernels

        size, source = field.row_bytes, values.reshape(-1).view(np.uint8)
        offsets = (places * field.segment_rows + at) * size
        done = file_kernels.write_rows(self._fd, size, envs, offsets, source)
        # The kernel does not know why the system refused one: the same call says it.
        for env, offset in zip(envs[done:].tolist(), offsets[done:].tolist(), strict=True):
            files.write_at(self._fd, self.path, source[env * size : (env + 1) * size].data, offset)

    def write_moment(self, at: int, rows: np.ndarray) -> None:
        """Write the row of that place of each env, side by side; shape ``(envs, *field.shape)``."""
        if self._fd is None:
            self.values[at, : len(rows)] = rows
        else:
            data = rows.reshape(-1).view(np.uint8).data
            files.write_at(self._fd, self.path, data, at * self.field.stride)


class Shard(Segment):
    """Rows in compressed blocks, and an index that says where each is.

    While it is open, it is a private file that blocks are appended to, mapped as long as it may
    ever become. Nothing is read behind its end: the index in memory names what is there.

    Attributes
    ----------
    index : ndarray of int64, shape (blocks * env_group, 2)
        Offset and length of each block, see `codec.blank_index`. A copy of what the file has, which
        was checked once: memory of a file may leave the page cache, and come back otherwise.
    end : int
        Where the next block goes; of one that is in its place, where the file ends.
    """

    def __init__(
        self,
        field: Field,
        number: int,
        group: int,
        mapping: Mapping,
        index: np.ndarray,
        seal: Seal | None = None,
        *,
        fd: int | None = None,
    ) -> None:
        super().__init__(field, number, group, mapping, seal)
        self.index = index
        self._fd = fd
        self.end = codec.blocks_end(field, index) if seal is None else mapping.size

    @classmethod
    def create(cls, field: Field, number: int, group: int, path: Path) -> "Shard":
        """A new file without blocks."""
        index = codec.blank_index(field)
        files.write(path, [index.tobytes(), bytes(4)])
        return cls.open_to_append(field, number, group, path, index)

    @classmethod
    def open_to_append(
        cls, field: Field, number: int, group: int, path: Path, index: np.ndarray
    ) -> "Shard":
        """Go on with a private file, whose blocks are those of `index`."""
        mapping = Mapping.open(path, writable=True, most=field.shard_bytes)
        return cls(field, number, group, mapping, index, fd=files.open_to_write(path))

    @classmethod
    def open_whole(cls, field: Field, number: int, group: int, path: Path) -> "Shard":
        """Map a shard that is in its place, and never changes there."""
        mapping = Mapping.open(path)
        index = codec.whole_index(field, mapping)
        mapping.expect_random_access()
        return cls(field, number, group, mapping, index, UNKNOWN)

    @classmethod
    def open_to_follow(cls, field: Field, number: int, group: int, path: Path) -> "Shard":
        """Map a private file that another process appends to."""
        mapping = Mapping.open(path, most=field.shard_bytes)
        mapping.expect_random_access()
        shard = cls(field, number, group, mapping, codec.blank_index(field))
        if not shard.look():
            raise StorageError(errno.ENOENT, "the shard was sealed meanwhile", str(path))
        return shard

    def look(self) -> bool:
        """For a reader: take over what the writer has appended; False if the file is there no more.

        An entry that is just being written may be anything, and counts as none. The rows of such a
        block are not said to be here yet.
        """
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return False
        if size < self.field.index_bytes + 4:
            raise CorruptSegmentError(f"{self.path}: {size} bytes are too few for its index")
        index = self.mapping.array[: self.field.index_bytes].copy().view("<i8").reshape(-1, 2)
        index[codec.misplaced(self.field, index, size)] = codec.MISSING
        self.index[:] = index
        return True

    def addresses(self, places: np.ndarray) -> tuple[int, np.ndarray]:
        return self.mapping.address, self.index.ctypes.data + 16 * places

    def places_of(self, envs: Any, rows: Any) -> Any:
        """The places in the index of the blocks with these rows of these envs."""
        blocks = (rows - self.start) // self.field.block_rows
        return blocks * self.field.env_group + envs - self.envs.start

    def behind(self, packed: np.ndarray) -> np.ndarray:
        """Which blocks, by their places in the index, have rows from ``packed[e]`` on: those are in
        the tail, and other blocks come in their place."""
        size = self.field.env_group
        blocks, places = np.divmod(np.arange(self.field.blocks * size), size)
        # The last group may have fewer envs than places.
        envs = np.minimum(self.envs.start + places, len(packed) - 1)
        return self.start + (blocks + 1) * self.field.block_rows > packed[envs]

    def write(self, data: np.ndarray) -> None:
        """Append blocks, which no entry names yet."""
        if self.end + len(data) > self.mapping.size:
            raise DiskReplayError(f"{self.path}: blocks were appended twice")
        assert self._fd is not None
        files.write_at(self._fd, self.path, data.data, self.end)

    def enter(
        self, places: np.ndarray, lengths: np.ndarray, packed: int, envs: np.ndarray,
        stops: np.ndarray,
    ) -> None:  # fmt: skip
        """Name the blocks that `write` has appended, and say that the rows of `envs` below `stops`
        are in shards (`packed`: the address of these numbers). Cannot fail."""
        from diskreplay.store import packing_kernels

        # First: Ctrl-C may come behind the kernel, and the next blocks would overwrite these.
        offset, self.end = self.end, self.end + int(lengths.sum())
        packing_kernels.enter(
            self.index.reshape(-1), self.mapping.address, places, offset, lengths, packed, envs,
            stops,
        )  # fmt: skip

    def block(self, place: int) -> np.ndarray | None:
        """A copy of the rows of one block, shape ``(block_rows, *field.shape)``, or None if it is
        not there or rotten. For a few of them: `batch_kernels` read many."""
        from numcodecs import blosc

        field, (offset, length) = self.field, self.index[place].tolist()
        if offset == codec.MISSING or self.rotten(np.array([place]))[0]:
            return None
        data = blosc.decompress(self.mapping.array[offset : offset + length - 4].tobytes())
        return np.frombuffer(data, field.dtype).reshape(field.block_rows, *field.shape)

    def rotten(self, places: np.ndarray | None = None) -> np.ndarray:
        """Which of these blocks, all by default, are there and not what they were: by their
        checksums and the lengths in their headers."""
        places = np.arange(len(self.index)) if places is None else places
        bad, whole = np.zeros(len(places), np.bool_), self.field.block_bytes
        for i, (offset, length) in enumerate(self.index[places].tolist()):
            if offset != codec.MISSING:
                data = self.mapping.array[offset : offset + length]
                head = data[4:16].view("<u4").tolist() if length >= 20 else [0, 0, 0]
                crc = int(data[-4:].view("<u4")[0])
                bad[i] = (head[0], head[2]) != (whole, length - 4) or codec.crc32c(data[:-4]) != crc
        return bad

    def contents(self, index: np.ndarray, end: int, more: np.ndarray) -> list[Any]:
        """A whole shard, as pieces of a file: the blocks that are here before `end`, and `more`
        behind them, as far as `index` names them."""
        blocks = self.mapping.array[self.field.index_bytes + 4 : end]
        return [codec.index_bytes(index), blocks.data, more.data]

    def sum(self) -> Seal:
        """Its seal, if it does not change any more. Reads the checksums of its blocks."""
        return Seal(self.end, codec.checksum(self.mapping.array, self.index))

    def finish(self, index: np.ndarray, more: np.ndarray) -> None:
        """Make the file a whole shard, with `more` behind the blocks, and with this index. What a
        write that failed has left behind that goes. `became` has to follow when it is in its place;
        until then blocks may be appended as before."""
        assert self._fd is not None
        if len(more):
            self.write(more)
        if os.fstat(self._fd).st_size != self.end + len(more):
            files.truncate(self._fd, self.path, self.end + len(more))
        self.write_index(index)

    def became(self, index: np.ndarray, more: np.ndarray) -> None:
        """It is in its place as `finish` has made it. Cannot fail."""
        self.index[:] = index
        self.end += len(more)

    def write_index(self, index: np.ndarray) -> None:
        """Let the file have this index, and its checksum."""
        head = codec.index_bytes(index)
        self.mapping.array[: len(head)] = np.frombuffer(head, np.uint8)

    @property
    def used(self) -> np.ndarray | None:
        """Of one in its place that ends amid a block of some env: the rows of each env of the group
        in it, int64 of shape (env_group,)."""
        behind = self.mapping.array[codec.blocks_end(self.field, self.index) : self.end]
        return codec.used_rows(self.field, behind)

    def close_file(self) -> None:
        self.mapping.shrink(self.end)
        super().close_file()


UNKNOWN = Seal(-1, 0)  # of a file that is sealed, and whose checksum nobody has asked for yet


def _is_ours_alone(path: Path) -> bool:
    with explained(path, "cannot look at the segment"):
        found = os.stat(path, follow_symlinks=False)
    return found.st_nlink == 1 and bool(found.st_mode & 0o200)
