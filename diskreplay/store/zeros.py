"""The files of a field that is younger than the store's rows: zeros for each row that is there."""

from pathlib import Path

import numpy as np

from diskreplay.store import codec, files
from diskreplay.store.catalog import segments_of
from diskreplay.store.field import Field
from diskreplay.store.format import array_document, write_documents
from diskreplay.store.paths import is_in_memory
from diskreplay.store.seals import seal_entries
from diskreplay.store.segment import Seal


def write(build: Path, field: Field, first: np.ndarray, count: np.ndarray) -> None:
    """Write a field as a store has it that was closed: its segments and its metadata.

    A raw segment is one hole, which takes no room on a disk; a packed one has the same compressed
    block again and again. Those that every env has passed are sealed.

    Parameters
    ----------
    build : Path
        The directory of the store.
    field : Field
        With its sizes.
    first, count : ndarray of int64, shape (num_envs,)
        The rows ``first[e]`` up to ``count[e]`` of each env `e` are there.
    """
    files.make_dirs(build / field.name)
    make = _shard if field.packed else _hole
    in_memory = is_in_memory(build)
    made: dict[bytes, tuple[bytes, Seal]] = {}  # by the rows of each env
    seals = {}
    for key, _envs in segments_of(field, first, count):
        used = field.used(*key, count)
        if used.tobytes() not in made:
            made = {used.tobytes(): make(field, used)}  # the same as of the segment before, mostly
        contents, seal = made[used.tobytes()]
        path = build / field.name / field.chunk_key(*key)
        if contents:
            files.write(path, [contents])
        elif in_memory:
            # A page of a hole gets memory there when it is read: SIGBUS where none is left.
            files.close(files.allocate(path, seal.size))
        else:
            files.write(path, [], length=seal.size)
        if (used == field.segment_rows).all():
            files.seal(path)
            seals[key] = seal
    document = array_document(field, int(count.max()), len(count), {"seals": seal_entries(seals)})
    write_documents(build, field, document)


def _hole(field: Field, _used: np.ndarray) -> tuple[bytes, Seal]:
    """That nothing of a raw segment is to be written, which is all zeros, and its seal."""
    size = field.segment_bytes
    return b"", Seal(size, *codec.raw_sums(field, np.zeros(size, np.uint8)))


def _shard(field: Field, used: np.ndarray) -> tuple[bytes, Seal]:
    """The shard of a segment with ``used[e]`` rows of the env at each place, and its seal."""
    rows = np.zeros(field.block_bytes, np.uint8)
    block, (length,) = codec.encode(
        field, np.array([rows.ctypes.data]), np.array([field.block_rows])
    )
    number, place = np.divmod(np.arange(field.blocks * field.env_group), field.env_group)
    rows_of = np.zeros(field.env_group, np.int64)  # the last group may have fewer envs
    rows_of[: len(used)] = used
    (there,) = np.nonzero(number * field.block_rows < rows_of[place])
    index = codec.blank_index(field)
    index[there, 0] = field.index_bytes + 4 + np.arange(len(there)) * length
    index[there, 1] = length
    whole = codec.index_bytes(index) + block.tobytes() * len(there)
    return whole, Seal(len(whole), codec.checksum(np.frombuffer(whole, np.uint8), index))
