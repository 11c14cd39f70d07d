"""One field's segments: where they are on disk and in memory, how rows get in and out."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.store import codec, files, numbers, private
from diskreplay.store.format import BLOCK_ROWS, Field, array_document
from diskreplay.store.gate import Gate
from diskreplay.store.mapping import Mapping

_LARGE = 1 << 20  # bytes
_WIDE = 1 << 10  # bytes of a row
_FIGURES, _READ = 6, 6  # numbers at the beginning of a table, and of a read: see `store.kernels`
_SEAL_KEY = re.compile(r"(\d{1,19})/(\d{1,19})", re.ASCII)
# Segments that may be full and not yet sealed, or left and not yet deleted. While a record is being
# written none can be deleted; fewer of those that take their full size on disk.
_SPARE_SLOTS, _SPARE_SLOTS_PACKED = 8, 16


@dataclasses.dataclass(frozen=True, slots=True)
class Seal:
    """What is known of a sealed file.

    Attributes
    ----------
    size : int
    crc32c : int
        Taken once; of a packed one that of `codec.checksum`.
    pieces : str
        Of a raw one `codec.packed_sums` of its pieces; empty where only the whole is known. They
        are of the same bytes, and so no part of what makes two seals equal.
    """

    size: int
    crc32c: int
    pieces: str = dataclasses.field(default="", compare=False)

    @property
    def entry(self) -> list:
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


class Column:
    """The segments of one field, of every env.

    Attributes
    ----------
    number : int
        The field's place in the list of the group's attributes; names its private files.
    field : Field
    table : ndarray of int64
        The segment table as `store.kernels` wants it: figures of the field, then address and size
        of the segment in each slot of each env; segment ``s`` sits in slot ``s % slots``. One
        array, replaced as a whole when it grows, so that a reader without the lock never mixes two
        sizes.
    sealed : ndarray of int64, shape (num_envs,)
        Segments below this number are sealed: their chunk file is complete and read-only, and a
        tail of that number is a leftover.
    seals : dict
        ``(segment, env)`` to `Seal`.
    """

    def __init__(
        self,
        root: Path,
        number: int,
        field: Field,
        num_envs: int,
        rows_per_env: int | None,
        gate: Gate,
    ) -> None:
        self._gate = gate
        self._is_packed = field.packed
        self._block_words = -(-BLOCK_ROWS * field.row_bytes // 8) if field.packed else 0
        self.root, self.number, self.field, self.num_envs = root, number, field, num_envs
        self._kept = rows_per_env
        self.directory = root / field.name
        self.tails = private.tails(root, number)
        slots = 16 if rows_per_env is None else -(-rows_per_env // field.segment_rows) + 1
        self.growing = rows_per_env is None
        self.sealed = np.zeros(num_envs, np.int64)
        self.seals: dict[tuple[int, int], Seal] = {}
        self._mapped: dict[tuple[int, int], Mapping] = {}
        # Of each env, no segment below this one is mapped.
        self._lowest = np.full(num_envs, np.iinfo(np.int64).max)
        self._spares: list[Mapping] = []
        self._spares_made = 0
        self.new_files: list[Path] = []  # opened segments whose names are not durable yet
        # Tails that came, counted by the adding thread, and that went, under `maintenance`.
        self._tails_made = self._tails_gone = 0
        self.strays: list[tuple[int, int]] = []  # files to be deleted after the next record
        self._spare_slots = _SPARE_SLOTS_PACKED if field.packed else _SPARE_SLOTS
        self._set_slots(slots + self._spare_slots)

    def _set_slots(self, slots: int) -> None:
        field = self.field
        blocks = field.blocks if field.packed else 1
        self.slots = slots
        figures = slots, field.segment_rows, field.row_bytes, BLOCK_ROWS, blocks, self.num_envs
        table = np.zeros(len(figures) + 2 * self.num_envs * slots, np.int64)
        table[: len(figures)] = figures
        for (segment, env), mapping in self._mapped.items():
            self._point(table, segment, env, mapping)
        self.table = table

    def chunk_path(self, segment: int, env: int) -> Path:
        """The Zarr chunk (or shard) of a segment."""
        return self.directory / self.field.chunk_key(segment, env)

    def tail_path(self, segment: int, env: int) -> Path:
        """The private raw file of a packed field's newest segments."""
        return private.tail(self.root, self.number, segment, env)

    def open_path(self, segment: int, env: int) -> Path:
        """Where the rows of a segment that is not sealed are written."""
        path = self.tail_path if self.field.packed else self.chunk_path
        return path(segment, env)

    # -- the segment table

    def _point(self, table: np.ndarray, segment: int, env: int, mapping: Mapping | None) -> None:
        is_shard = mapping is not None and self._is_shard(mapping)
        place = self._place(table, segment, env)
        table[place + 1] = mapping.size if is_shard else 0
        table[place] = mapping.address if mapping is not None else 0

    @staticmethod
    def _place(table: np.ndarray, segment: int, env: int) -> int:
        """Where a table has a segment."""
        slots = int(table[0])
        return _FIGURES + 2 * (env * slots + segment % slots)

    def _is_shard(self, mapping: Mapping) -> bool:
        return self.field.packed and mapping.path.parent != self.tails

    def _install(self, segment: int, env: int, mapping: Mapping) -> None:
        # The adding thread sets this for an env's first segment only, which nobody drops meanwhile:
        # else it might put back what the keeper has just raised.
        if segment < self._lowest[env]:
            self._lowest[env] = segment
        while self.growing and segment - self._lowest[env] >= self.slots:
            with self._gate:  # a seal that swaps a segment in is not lost in the old table
                self._set_slots(2 * self.slots)
        self._mapped[segment, env] = mapping
        self._point(self.table, segment, env, mapping)

    def has(self, segment: int, env: int) -> bool:
        """Whether a segment is mapped."""
        return (segment, env) in self._mapped

    def has_room(self, segment: int, env: int) -> bool:
        """Whether a new segment's slot is free; it is not while sealing lags far behind."""
        return self.growing or not self.table[self._place(self.table, segment, env)]

    def is_crowded(self, below: np.ndarray) -> bool:
        """Whether segments that have left, those below these ones of each env, take so many slots
        that they should be deleted soon."""
        return bool((below - self._lowest).max() >= self._spare_slots // 2)

    def left(self, below: np.ndarray) -> list[tuple[int, int]]:
        """``(segment, env)`` of mapped segments below these ones of each env, oldest first."""
        return sorted(
            (segment, env)
            for env in np.flatnonzero(self._lowest < below).tolist()
            for segment in range(int(self._lowest[env]), int(below[env]))
            if (segment, env) in self._mapped
        )

    def mapped(self) -> list[tuple[int, int]]:
        """``(segment, env)`` of all mapped segments, oldest first."""
        return sorted(self._mapped)

    def mapping(self, segment: int, env: int) -> Mapping:
        """The memory of one segment."""
        return self._mapped[segment, env]

    # -- writing

    def open_segment(self, segment: int, env: int) -> None:
        """Make a new segment that rows can be written to."""
        path = self.open_path(segment, env)
        files.make_dirs(path.parent)
        if self._spares:
            mapping = self._spares.pop()
            try:
                files.rename(mapping.path, path)
            except BaseException:
                self._spares.append(mapping)
                raise
            mapping.path = path
        else:
            mapping = Mapping.create(path, self.open_bytes)
            self._tails_made += 1
        if self._is_packed:
            mapping.zeros = set()
        self.new_files.append(path)
        self._install(segment, env, mapping)

    @property
    def lacks_tails(self) -> bool:
        """Whether another tail would be one too many: two an env are enough, one being written and
        one being packed, and to wait for one costs less than to make one."""
        return self.field.packed and not self._spares and self._tails >= 2 * self.num_envs

    @property
    def _tails(self) -> int:
        """Those there are: written to, being packed, or spare."""
        return self._tails_made - self._tails_gone

    @property
    def large(self) -> bool:
        """Whether open segments, of all envs together, are too large to be synced again and again
        while they are written to. Of narrow rows only a page or two are new each time.

        Never of a column whose segments are longer than what is kept: the rows that are durable, of
        which a record counts none more than are in its sealed segments, would fall behind the rows
        that are retained, and nothing could be deleted.
        """
        if self._kept is not None and self.field.segment_rows > self._kept:
            return False
        envs = self.num_envs if self.field.row_bytes >= _WIDE else 1
        return self.open_bytes * envs >= _LARGE

    @property
    def open_bytes(self) -> int:
        """Length of a file that rows are written to: tails are rounded up to pages."""
        if self.field.packed:
            return -(-self.field.segment_bytes // 4096) * 4096
        return self.field.segment_bytes

    def keep_spares(self, wanted: int) -> None:
        """Have that many files ready, so that `open_segment` is a rename."""
        while len(self._spares) < wanted:
            self._spares.append(Mapping.create(self._spare_path(), self.open_bytes))

    def _spare_path(self) -> Path:
        self._spares_made += 1
        return private.spare(self.root, self.number, self._spares_made)

    def retire_tail(self, tail: Mapping) -> None:
        """Take a sealed segment's tail out of its place."""
        path = self._spare_path()
        files.rename(tail.path, path)
        tail.path = path

    def rows(self, segment: int, env: int) -> np.ndarray:
        """A view of an unpacked segment, shape ``(segment_rows, *field.shape)``."""
        field = self.field
        flat = self._mapped[segment, env].array[: field.segment_bytes]
        return flat.view(field.dtype).reshape(field.segment_rows, *field.shape)

    def write(self, env: int, start: int, values: np.ndarray) -> None:
        """Write consecutive rows of one env from `start` on; their segments are open."""
        rows, row = self.field.segment_rows, start
        while row < start + len(values):
            segment, at = divmod(row, rows)
            part = values[row - start : row - start + rows - at]
            self.rows(segment, env)[at : at + len(part)] = part
            row += len(part)

    # -- sealing

    def full(self, count: np.ndarray) -> Iterator[tuple[int, int]]:
        """``(segment, env)`` of full segments that are not sealed, in the order to seal them."""
        stop = count // self.field.segment_rows
        for env in np.flatnonzero(self.sealed < stop).tolist():
            for segment in range(int(self.sealed[env]), int(stop[env])):
                yield segment, env

    def pack(self, segment: int, env: int) -> tuple[Path, Seal]:
        """Write a full segment's final bytes beside their place, for raw ones in place already."""
        mapping = self._mapped[segment, env]
        path = self.chunk_path(segment, env)
        if not self.field.packed:
            return path, Seal(mapping.size, *codec.raw_sums(self.field, mapping.array))
        rows = self.field.segment_rows
        shard = codec.encode(self.field, mapping.array, rows, zeros=mapping.zeros or ())
        beside = path.with_name(path.name + ".tmp")
        files.write(beside, [shard.data])
        return beside, Seal(len(shard), codec.checksum(self.field, shard))

    def write_partial(self, segment: int, env: int, used: int) -> Path:
        """Pack the first `used` rows of a tail beside its chunk, for plain readers."""
        path = self.chunk_path(segment, env)
        beside = path.with_name(path.name + ".tmp")
        files.write(beside, [codec.encode(self.field, self._mapped[segment, env].array, used).data])
        return beside

    def swap_in(self, segment: int, env: int, seal: Seal) -> Mapping | None:
        """Read a sealed segment from its chunk; returns a tail that is of no use any more.

        Call it with the gate held: a batch may be reading the tail.
        """
        old = self._mapped[segment, env]
        # First what may fail: a segment is sealed, and its tail idle, or neither.
        new = self._map_sealed(segment, env, own=True) if self.field.packed else None
        self.seals[segment, env] = seal
        self.sealed[env] = segment + 1
        if new is None:
            old.protect()
            old.expect_random_access()
            return None
        self._install(segment, env, new)
        return old

    def recycle(self, tail: Mapping) -> None:
        """Keep a retired tail as a spare, which costs less than a new file, unless there are more
        than are of use."""
        if self._tails <= 2 * self.num_envs:
            tail.blank = False
            if 2 * len(tail.zeros or ()) > self.field.segment_rows:
                self._wipe(tail)
            else:
                tail.prepare()
            self._spares.append(tail)
        else:
            files.remove(tail.path)
            self._tails_gone += 1

    def _wipe(self, tail: Mapping) -> None:
        """Zeros again, so that rows which are to be zeros need not be written: neither here nor,
        later on, to the disk."""
        rows = tail.array[: self.field.segment_bytes].reshape(self.field.segment_rows, -1)
        written = np.ones(len(rows), np.bool_)
        written[list(tail.zeros)] = False
        rows[written] = 0
        tail.blank = True

    def move(self, root: Path) -> None:
        """The store's directory is `root` now: its files have other paths. Cannot fail."""
        before, self.root = self.root, root
        self.directory = root / self.field.name
        self.tails = private.tails(root, self.number)
        for mapping in [*self._mapped.values(), *self._spares]:
            mapping.path = root / mapping.path.relative_to(before)
        self.new_files = [root / path.relative_to(before) for path in self.new_files]

    # -- opening and leaving

    def check_directories(self) -> None:
        """Refuse directories of segments that are links, and may lead out of the store."""
        real = os.path.realpath(self.root)
        for directory in (self.tails, self.directory):
            if os.path.realpath(directory) != os.path.join(real, directory.relative_to(self.root)):
                raise CorruptSegmentError(
                    f"{directory}: it is, or is in, a link to another directory; move the files "
                    "themselves there"
                )

    def _map_sealed(self, segment: int, env: int, *, own: bool = False) -> Mapping:
        field, path = self.field, self.chunk_path(segment, env)
        mapping = Mapping.open(path, size=None if field.packed else field.segment_bytes)
        if field.packed and not own:  # what was written a moment ago needs no check
            codec.check_index(field, mapping)
        mapping.expect_random_access()
        return mapping

    def adopt(self, segment: int, env: int, *, writable: bool) -> None:
        """Map a segment that is on disk: its tail where there is one, else its chunk."""
        if self.field.packed:
            tail = self.tail_path(segment, env)
            if tail.exists():
                mapping = Mapping.open(tail, size=self.open_bytes, writable=writable)
                self._tails_made += 1
            else:
                mapping = self._map_sealed(segment, env)
        elif writable:
            path = self.chunk_path(segment, env)
            mapping = Mapping.open(path, size=self.field.segment_bytes, writable=True)
        else:
            mapping = self._map_sealed(segment, env)
        self._install(segment, env, mapping)

    def adopt_sealed(self, segment: int, env: int) -> None:
        """Map a sealed segment's chunk."""
        self._install(segment, env, self._map_sealed(segment, env))

    def complete_seal(self, segment: int, env: int) -> None:
        """Find out the seal of a segment that a killed writer sealed after its last record."""
        if (segment, env) not in self.seals:
            mapping = self._mapped[segment, env]
            if self.field.packed:
                seal = Seal(mapping.size, codec.checksum(self.field, mapping.array))
            else:
                seal = Seal(mapping.size, *codec.raw_sums(self.field, mapping.array))
            self.seals[segment, env] = seal

    def drop(self, segment: int, env: int) -> None:
        """Unmap a segment. Call it with the gate held."""
        if self.field.packed and self.is_tail(segment, env):
            self._tails_gone += 1
        self._mapped.pop((segment, env))
        if segment == self._lowest[env]:
            self._lowest[env] += 1
        self.seals.pop((segment, env), None)
        self._point(self.table, segment, env, None)

    def remove_files(self, segment: int, env: int) -> None:
        """Delete a segment that was dropped."""
        files.remove(self.chunk_path(segment, env))
        if self.field.packed:
            files.remove(self.tail_path(segment, env))

    def close(self) -> None:
        """Unmap everything and remove the spares."""
        for key in list(self._mapped):
            self.drop(*key)
        for spare in self._spares:
            with contextlib.suppress(StorageError):  # the next opening removes it
                files.remove(spare.path)
        self._spares.clear()

    def abandon_spares(self) -> None:
        """Leave the spares to whoever removes the directory."""
        self._spares.clear()

    # -- reading

    def is_tail(self, segment: int, env: int) -> bool:
        """Whether a mapped segment's memory may be reused for another one."""
        return self._mapped[segment, env].path.parent == self.tails

    def scratch(self, reads: int) -> np.ndarray:
        """Memory that kernels want for so many reads: two a transition, one an id."""
        return np.empty(_READ * reads + self._block_words, np.int64)

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        """A copy of rows ``start..stop`` of one env, shape ``(stop - start, *field.shape)``."""
        field = self.field
        out = np.empty((max(stop - start, 0), *field.shape), field.dtype)
        row = start
        while row < stop:
            segment, at = divmod(row, field.segment_rows)
            rows = min(stop - row, field.segment_rows - at)
            mapping = self._mapped.get((segment, env))
            if mapping is None:
                raise CorruptSegmentError(
                    f"{self.chunk_path(segment, env)}: rows {row} to {row + rows - 1} are needed "
                    "and their segment is not there"
                )
            if self._is_shard(mapping):
                self._decode(env, row, row + rows, out[row - start :])
            else:
                out[row - start : row - start + rows] = self.rows(segment, env)[at : at + rows]
            row += rows
        return out

    def take(self, ids: np.ndarray, out: np.ndarray) -> None:
        """The row of each id (``row * num_envs + env``) into ``out``, zeros for negative ones.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
            Of rows whose segments are mapped.
        out : ndarray of uint8, shape (n * field.row_bytes,)
        """
        envs = self.num_envs
        if not self._is_packed and len(ids) > 1 and ids[1] - ids[0] == envs and ids[0] >= 0:
            if (ids[1:] - ids[:-1] == envs).all():  # one range, for which Numba is not loaded
                env, row = int(ids[0]) % envs, int(ids[0]) // envs
                out[:] = self.read(env, row, row + len(ids)).reshape(-1).view(np.uint8)
                return
        from diskreplay.store import kernels

        failed = kernels.take(self.table, ids, out, self.scratch(min(len(ids), kernels.READS)))
        if failed:
            self.complain(*divmod(-(1 + failed), self.num_envs))

    def _decode(self, env: int, start: int, stop: int, out: np.ndarray) -> None:
        ids = np.arange(start, stop) * self.num_envs + env
        self.take(ids, out.reshape(-1).view(np.uint8))

    def complain(self, row: int, env: int) -> None:
        """Raise the error for a row that a kernel could not read."""
        segment = row // self.field.segment_rows
        path = self.chunk_path(segment, env)
        block = row % self.field.segment_rows // BLOCK_ROWS
        first = segment * self.field.segment_rows + block * BLOCK_ROWS
        raise CorruptSegmentError(
            f"{path}: field {self.field.name!r}, env {env}, rows {first} to "
            f"{first + BLOCK_ROWS - 1} cannot be read: the block is rotten or missing; restore "
            "the file, or load a checkpoint"
        )

    # -- metadata

    def document(self, rows: int, *, closing: np.ndarray | None = None) -> dict:
        """The field's ``zarr.json``.

        `closing` are the rows of each env that will be there while the store is closed: with them,
        what has no seal gets checksums that hold until then. Costs reading the open segments.
        """
        seals = {f"{s}/{e}": seal.entry for (s, e), seal in sorted(self.seals.items())}
        attributes = {"sealed": self.sealed.tolist(), "seals": seals}
        if closing is not None and not self.field.packed:  # a packed one's shard has checksums
            attributes["open"] = self._open_sums(closing)
        return array_document(self.field, rows, self.num_envs, attributes)

    def _open_sums(self, count: np.ndarray) -> dict[str, list[int]]:
        sums = {}
        for segment, env in self.mapped():
            used = int(count[env]) - segment * self.field.segment_rows
            if segment >= self.sealed[env] and used > 0:
                rows = self._mapped[segment, env].array[: used * self.field.row_bytes]
                sums[f"{segment}/{env}"] = codec.piece_sums(self.field, rows)
        return sums

    def load_seals(self, document: dict) -> None:
        """Take over what a ``zarr.json`` says of sealed segments."""
        sealed, seals = parse_seals(self.field, document["attributes"]["diskreplay"], self.num_envs)
        self.sealed[:] = sealed
        self.seals.update(seals)


def parse_seals(
    field: Field, attributes: dict[str, Any], num_envs: int
) -> tuple[np.ndarray, dict[tuple[int, int], Seal]]:
    """``sealed`` and ``seals`` of a field's attributes, if they can be.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        They are damaged.
    """
    sealed = numbers.integers("sealed", attributes["sealed"], num_envs, 0, numbers.MOST_ROWS)
    seals = {}
    for key, (size, crc, *pieces) in attributes["seals"].items():
        found = _SEAL_KEY.fullmatch(key)
        if not found:
            raise ValueError(f"seal {key!r:.60} is damaged")
        segment, env = int(found[1]), int(found[2])
        if env >= num_envs or segment >= sealed[env]:
            raise ValueError(f"seal {key!r:.60} is of no sealed segment")
        if pieces and not _are_sums(field, pieces):
            raise ValueError(f"the checksums of the pieces of seal {key!r:.60} are damaged")
        seals[segment, env] = Seal.checked(f"seal {key!r:.60}", size, crc, *pieces)
    return sealed, seals


def _are_sums(field: Field, pieces: list) -> bool:
    """Whether this is what `Seal.pieces` says of a segment."""
    try:
        (text,) = pieces
        found = len(codec.unpacked_sums(text))
    except (TypeError, ValueError):
        return False
    return not field.packed and found == -(-field.segment_bytes // codec.piece_bytes(field))
