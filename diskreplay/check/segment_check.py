"""One segment's file, read from end to end and held against everything known of it.

Which rows are meant is said by arrays of bool of shape (segment_rows, env_group).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.plain_file import PIECE, bytes_of, pieces, plain_file, read_at
from diskreplay.store.segment import Seal

_HEADER = 16  # of a Blosc chunk; its length is in the last four bytes
_MORE = 20  # bytes more than its rows that a block takes at most


@dataclass
class Checked:
    """What was found in one file.

    Attributes
    ----------
    seal : Seal
        Length and checksum of the whole file.
    lost : ndarray of bool, shape (segment_rows, env_group)
        Rows whose bytes cannot be relied on.
    faults : list of (str, str)
        Kind and meaning of each thing that is wrong.
    index : ndarray of int64, shape (blocks * env_group, 2)
        Of a shard: offset and length of the blocks that are there and whole. Else empty.
    end : int
        Of a shard: how long it is by its index; -1 if that names bytes behind the file's end.
    is_foreign : bool
        Whether it is whole, and another segment's.
    used : ndarray of int64, shape (env_group,), or None
        Of a shard that says so: how many rows of each env it has.
    """

    seal: Seal
    lost: np.ndarray
    faults: list[tuple[str, str]] = field(default_factory=list)
    index: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    end: int = 0
    is_foreign: bool = False
    used: np.ndarray | None = None

    @property
    def has(self) -> np.ndarray:
        """Which rows a shard can have by what it says itself, shape (segment_rows, env_group)."""
        if self.used is None:
            return np.ones_like(self.lost)
        return np.arange(len(self.lost))[:, None] < self.used

    @property
    def blocks(self) -> int:
        """Blocks that are whole."""
        return int(np.count_nonzero(self.index[:, 0] != codec.MISSING))

    def lose(self, kind: str, meaning: str, rows: slice | np.ndarray = slice(None)) -> None:
        """Note a fault and the rows it costs."""
        self.faults.append((kind, meaning))
        self.lost[rows] = True


def nothing(of: Field) -> np.ndarray:
    """None of the rows."""
    return np.zeros((of.segment_rows, of.env_group), np.bool_)


# -- raw segments


def in_order(of: Field, rows: np.ndarray) -> np.ndarray:
    """An array of shape (segment_rows, env_group, ...) in the order in which a raw segment's file
    has the rows, its first two axes one: a view where it can be."""
    ordered = rows.swapaxes(0, 1) if of.env_major else rows
    return ordered.reshape(-1, *rows.shape[2:])


def from_order(of: Field, rows: np.ndarray) -> np.ndarray:
    """The opposite of `in_order`."""
    if of.env_major:
        return rows.reshape(of.env_group, of.segment_rows, *rows.shape[1:]).swapaxes(0, 1)
    return rows.reshape(of.segment_rows, of.env_group, *rows.shape[1:])


def check_raw(of: Field, path: Path, counted: np.ndarray) -> Checked:
    """A raw segment of which these rows count. Bytes that are missing at its end are taken for
    zeros, which unused places are: checksums say whether they were."""
    flat, odd = in_order(of, counted), np.zeros(of.segment_rows * of.env_group, np.bool_)
    with plain_file(path) as (fd, size):
        checked = Checked(Seal(size, 0), nothing(of))
        if size != of.segment_bytes:
            meaning = f"{size} bytes found, {of.segment_bytes} expected"
            checked.faults.append(("length", meaning))
        # What is behind is no row, and may be a hole of gigabytes.
        read, step = min(size, of.segment_bytes), codec.piece_bytes(of)
        crc, at, sums = 0, 0, [0] * -(-of.segment_bytes // step)
        for piece in itertools.chain(pieces(fd, read), _zeros(of.segment_bytes - read)):
            crc, start = codec.crc32c(piece, start=crc), 0
            while start < len(piece):  # what is read at once and what has a checksum differ
                number, done = divmod(at + start, step)
                part = piece[start : start + step - done]
                sums[number] = codec.crc32c(part, start=sums[number])
                start += len(part)
            if of.dtype == np.bool_:
                odd[(at + np.flatnonzero(piece > 1)) // of.row_bytes] = True
            at += len(piece)
        checked.seal = Seal(size, crc, codec.packed_sums(sums))
        if (odd & flat).any():
            checked.lose("rows", "a bool that is neither 0 nor 1", from_order(of, odd & flat))
    return checked


def _zeros(size: int) -> Iterator[np.ndarray]:
    """So many bytes."""
    for start in range(0, size, PIECE):
        yield np.zeros(min(PIECE, size - start), np.uint8)


def rows_behind(of: Field, size: int) -> np.ndarray:
    """The rows of a raw segment that are not whole in a file of so many bytes."""
    rows = np.arange(of.segment_rows * of.env_group) >= size // of.row_bytes
    return from_order(of, rows)


def rows_of_pieces(of: Field, wrong: np.ndarray) -> np.ndarray:
    """The rows that lie in these pieces of a raw segment, in part or in full.

    Parameters
    ----------
    wrong : ndarray of bool
        For each piece.
    """
    size, rows = codec.piece_bytes(of), np.zeros(of.segment_rows * of.env_group, np.bool_)
    for piece in np.flatnonzero(wrong).tolist():
        rows[piece * size // of.row_bytes : -(-(piece + 1) * size // of.row_bytes)] = True
    return from_order(of, rows)


def wrong_pieces(found: Seal, known: Seal) -> np.ndarray:
    """Which pieces of a raw segment are not what is known of them; bool, for each piece."""
    return codec.unpacked_sums(found.pieces) != codec.unpacked_sums(known.pieces)


def pieces_of_rows(of: Field, rows: np.ndarray) -> np.ndarray:
    """The pieces of a raw segment that hold any byte of these rows; bool, for each piece."""
    size, chosen = codec.piece_bytes(of), np.flatnonzero(in_order(of, rows))
    changes = np.zeros(-(-of.segment_bytes // size) + 1, np.int64)
    np.add.at(changes, chosen * of.row_bytes // size, 1)
    np.add.at(changes, ((chosen + 1) * of.row_bytes - 1) // size + 1, -1)
    return np.cumsum(changes)[:-1] > 0


def raw_rows(of: Field, path: Path) -> np.ndarray:
    """The rows of a raw segment as far as its file goes, uint8 of shape (segment_rows, env_group,
    row_bytes)."""
    data = np.zeros(of.segment_bytes, np.uint8)
    with plain_file(path) as (fd, size):
        read_at(fd, 0, data[:size])
    return from_order(of, data.reshape(-1, of.row_bytes))


def copy_tail(
    of: Field, path: Path, wanted: np.ndarray, start: int, envs: slice, places: int, out: np.ndarray
) -> None:
    """Copy the wanted rows of a segment, whose first is `start`, from the tail, which has so many
    `places` for each env.

    Parameters
    ----------
    wanted : ndarray of bool, shape (segment_rows, env_group)
    envs : slice
        Of the group.
    out : ndarray of uint8, shape (segment_rows, env_group, row_bytes)
    """
    low, size = envs.start * places * of.row_bytes, (envs.stop - envs.start) * places * of.row_bytes
    data = np.empty(size, np.uint8)
    with plain_file(path) as (fd, _size):
        read_at(fd, low, data)
    row, env = np.nonzero(wanted)
    kept = data.reshape(-1, places, of.row_bytes)
    out[row, env] = kept[env, (start + row) % places]


# -- packed segments


def rows_of_blocks(of: Field, blocks: np.ndarray) -> np.ndarray:
    """The rows of these blocks: bool, one for each entry of a shard's index."""
    return np.repeat(blocks.reshape(of.blocks, of.env_group), of.block_rows, axis=0)


def blocks_of_rows(of: Field, rows: np.ndarray) -> np.ndarray:
    """The blocks that have any of these rows: bool, one for each entry of a shard's index."""
    return rows.reshape(of.blocks, of.block_rows, of.env_group).any(axis=1).reshape(-1)


def check_shard(of: Field, path: Path, wanted: np.ndarray, *, is_open: bool = False) -> Checked:
    """A shard that is expected to have these rows.

    Of one that `is_open` no other blocks are looked at, which may be half entered, and its index
    has no checksum yet.
    """
    needed = blocks_of_rows(of, wanted)
    with plain_file(path) as (fd, size):
        checked = Checked(Seal(size, 0), nothing(of), index=codec.blank_index(of))
        head = of.index_bytes + 4
        if size < head and is_open and not needed.any():
            return checked  # its writer was killed before there was an index
        if size < head:
            blocks = of.blocks * of.env_group
            checked.lose("length", f"{size} bytes are too few for the index of {blocks} blocks")
            return checked
        data = np.empty(head, np.uint8)
        read_at(fd, 0, data)
        index = data[:-4].copy().view("<i8").reshape(-1, 2)
        if is_open:
            index[~needed] = codec.MISSING
        elif codec.crc32c(data[:-4]) != int(data[-4:].view("<u4")[0]):
            checked.lose("index", "the checksum of the shard's index does not match")
            return checked
        there = (index != codec.MISSING).any(axis=1)
        bad = codec.misplaced(of, index, size)
        bad |= there & (index[:, 1] > of.block_bytes + _MORE)
        found = there & ~bad
        starts = np.sort(index[found, 0])
        ends = np.sort(index[found].sum(axis=1))
        if (starts[1:] < ends[:-1]).any():
            checked.lose("index", "blocks that the shard's index names overlap")
            return checked
        rotten, sums = _check_blocks(of, fd, index, np.flatnonzero(found))
        bad |= rotten
        for what, where in (("rotten", bad), ("missing", needed & ~there)):
            if where.any():
                blocks = int(np.count_nonzero(where))
                is_ = "is" if blocks == 1 else "are"
                checked.lose(
                    "block", f"{blocks} of its blocks {is_} {what}", rows_of_blocks(of, where)
                )
        checked.index[there & ~bad] = index[there & ~bad]
        end = int(ends.max(initial=head))
        has_gap = end - head != (ends - starts).sum()
        if not is_open:
            behind = np.empty(min(size - end, 4 * of.env_group + 5), np.uint8)
            read_at(fd, end, behind)
            checked.used = codec.used_rows(of, behind)
            end += 0 if checked.used is None else len(behind)
        checked.end = -1 if (bad & ~rotten).any() else end
        if not is_open and not bad.any() and (end != size or has_gap):
            checked.faults.append(("length", "it has bytes that its index does not name"))
        checked.seal = Seal(size, codec.crc32c(sums[there].view(np.uint8)))
    return checked


def _check_blocks(
    of: Field, fd: int, index: np.ndarray, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which of some blocks are bad, and the CRC-32C behind each: for all entries of the index."""
    from diskreplay.store.checking_kernels import check_blocks

    bad, sums = np.zeros(len(index), np.bool_), np.zeros(len(index), "<u4")
    which = which[np.argsort(index[which, 0])]
    starts, ends = index[which, 0], index[which].sum(axis=1)
    first = 0
    while first < len(which):
        begin = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + PIECE, side="right")))
        data = np.empty(int(ends[last - 1]) - begin, np.uint8)
        read_at(fd, begin, data)
        some = which[first:last]
        wrong, found = np.zeros(len(some), np.bool_), np.zeros(len(some), np.uint32)
        check_blocks(data, starts[first:last] - begin, index[some, 1], of.block_bytes, wrong, found)
        bad[some], sums[some] = wrong, found
        first = last
    return bad, sums


def salvaged(of: Field, path: Path, counted: np.ndarray, seal: Seal | None) -> np.ndarray | None:
    """What the index of a shard was that is rotten, as far as that can be told; else None.

    Which block is which says the index alone. An entry of it that names a whole block to the byte,
    and one that no other entry names, is right. If one entry and one whole block are left, they
    belong together. Of a single env the blocks lie in the order of their rows: that is believed if
    it gives the recorded `seal`. With one, nothing is believed that is whole and does not fit it.
    """
    from diskreplay.store.checking_kernels import check_blocks

    data, head = bytes_of(path, of.shard_bytes), of.index_bytes + 4  # it may have grown by a hole
    if len(data) < head:
        return None
    index = data[: of.index_bytes].copy().view("<i8").reshape(-1, 2)
    _offsets, which, times = np.unique(index[:, 0], return_inverse=True, return_counts=True)
    named = ~codec.misplaced(of, index, len(data)) & (index[:, 0] != codec.MISSING)
    named &= (times[which] == 1) & (index[:, 1] <= of.block_bytes + _MORE)
    some = np.flatnonzero(named)
    wrong, sums = np.zeros(len(some), np.bool_), np.zeros(len(some), np.uint32)
    check_blocks(data, index[some, 0].copy(), index[some, 1].copy(), of.block_bytes, wrong, sums)
    some = some[~wrong]
    guess = codec.blank_index(of)
    guess[some] = index[some]
    lacking = blocks_of_rows(of, counted)
    lacking[some] = False
    left = _between(of, data, index[some])
    entries, is_whole = np.flatnonzero(lacking), len(left) == lacking.sum()
    if is_whole and (len(entries) < 2 or (of.env_group == 1 and seal is not None)):
        guess[entries] = left
        if seal is not None and Seal(len(data), codec.checksum(data, guess)) != seal:
            return None
    return guess


def _between(of: Field, data: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Offset and length of the whole blocks that lie between those known, by their own headers."""
    known = known[np.argsort(known[:, 0])]
    starts = [of.index_bytes + 4, *known.sum(axis=1).tolist()]
    found = []
    for at, stop in zip(starts, [*known[:, 0].tolist(), len(data)], strict=True):
        while at + _MORE <= stop:
            decoded, length = (int(data[at + i : at + i + 4].view("<u4")[0]) for i in (4, 12))
            end = at + length
            if decoded != of.block_bytes or length < _HEADER or end + 4 > stop:
                break
            if codec.crc32c(data[at:end]) != int(data[end : end + 4].view("<u4")[0]):
                break
            found.append((at, length + 4))
            at = end + 4
    return np.array(found, np.int64).reshape(-1, 2)


def read_blocks(of: Field, path: Path, index: np.ndarray, rows: np.ndarray) -> None:
    """Decode the blocks that `index` names into `rows`, uint8 of shape (segment_rows, env_group,
    row_bytes)."""
    from numcodecs import blosc

    with plain_file(path) as (fd, _size):
        for entry in np.flatnonzero(index[:, 0] != codec.MISSING).tolist():
            (offset, length), (block, env) = index[entry].tolist(), divmod(entry, of.env_group)
            data = np.empty(length - 4, np.uint8)
            read_at(fd, offset, data)
            decoded = np.frombuffer(blosc.decompress(data.tobytes()), np.uint8)
            start = block * of.block_rows
            rows[start : start + of.block_rows, env] = decoded.reshape(of.block_rows, -1)


def encoded(of: Field, rows: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, Seal]:
    """The bytes and the seal of a segment's file: of a shard with the first ``used[e]`` rows of
    each env, of a raw one with all rows.

    Parameters
    ----------
    rows : ndarray of uint8, shape (segment_rows, env_group, row_bytes)
    """
    if not of.packed:
        data = np.ascontiguousarray(in_order(of, rows)).reshape(-1)
        return data, Seal(len(data), *codec.raw_sums(of, data))
    by_env = np.ascontiguousarray(rows.swapaxes(0, 1))
    block, env = np.divmod(np.arange(of.blocks * of.env_group), of.env_group)
    counts = np.minimum(used[env] - block * of.block_rows, of.block_rows)
    which = np.flatnonzero(counts > 0)
    places = env[which] * of.segment_rows + block[which] * of.block_rows
    sources = by_env.ctypes.data + places * of.row_bytes
    data, lengths = codec.encode(of, sources, counts[which])
    behind = np.frombuffer(codec.used_bytes(of, used), np.uint8)
    index = codec.blank_index(of)
    index[which, 1] = lengths
    index[which, 0] = of.index_bytes + 4 + np.cumsum(lengths) - lengths
    head = np.frombuffer(codec.index_bytes(index), np.uint8)
    whole = np.concatenate([head, data, behind])
    return whole, Seal(len(whole), codec.checksum(whole, index))
