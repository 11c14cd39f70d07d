"""One segment's file, read from end to end and held against everything known of it.

Files are read, not mapped: a bad sector is then an error to report and no signal that ends the
process.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from diskreplay.errors import StoreError
from diskreplay.store import codec
from diskreplay.store.column import Seal
from diskreplay.store.format import BLOCK_ROWS, Field

_PIECE = 1 << 20  # bytes read at once: they stay in a cache until they are checked
_PAGE = 4096
_MISSING = 2**64 - 1
_HEADER = 16  # of a Blosc chunk; its length stands in the last four bytes


class Unreadable(StoreError):
    """A file that is missing, no plain file, or that the disk does not give."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass
class Checked:
    """What was found in one file.

    Attributes
    ----------
    seal : Seal
        Length and CRC-32C of the whole file.
    faults : list of (str, str)
        Kind and meaning of each thing that is wrong.
    lost : ndarray of bool, shape (segment_rows,)
        Rows whose bytes cannot be relied on.
    blocks : int
        Blocks checked.
    """

    seal: Seal
    lost: np.ndarray
    faults: list[tuple[str, str]] = field(default_factory=list)
    blocks: int = 0

    def lose(self, kind: str, meaning: str, rows: slice | np.ndarray = slice(None)) -> None:
        """Note a fault and the rows it costs."""
        self.faults.append((kind, meaning))
        self.lost[rows] = True


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[tuple[int, int]]:
    """Descriptor and length of a regular file, or `Unreadable`. Links and devices are refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreadable("missing", "the file is missing") from error
    except OSError as error:
        raise Unreadable("unreadable", f"the file cannot be opened ({error.strerror})") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("unreadable", "no plain file")
        yield fd, found.st_size
    except OSError as error:
        raise Unreadable("unreadable", f"the file cannot be read ({error.strerror})") from error
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, out: np.ndarray) -> None:
    """Fill `out`, an array of bytes, from a file."""
    done = 0
    while done < len(out):
        got = os.preadv(fd, [memoryview(out)[done:]], offset + done)
        if not got:
            raise Unreadable("length", "the file was cut while it was read")
        done += got


def pieces(fd: int, size: int) -> Iterator[np.ndarray]:
    """The bytes of a file, some mebibytes at a time, in memory that is used again."""
    buffer = np.empty(min(size, _PIECE), np.uint8)
    for offset in range(0, size, _PIECE):
        piece = buffer[: min(_PIECE, size - offset)]
        read_at(fd, offset, piece)
        yield piece


def checksum(path: Path) -> Seal:
    """Length and CRC-32C of a file, or `Unreadable`."""
    with plain_file(path) as (fd, size):
        crc = 0
        for piece in pieces(fd, size):
            crc = codec.crc32c(piece, start=crc)
        return Seal(size, crc)


# -- raw segments


def check_raw(field: Field, path: Path, used: int, *, still: bool) -> Checked:
    """A raw segment of which `used` rows count; if `still`, zeros are expected behind them."""
    with plain_file(path) as (fd, size):
        checked = Checked(Seal(size, 0), np.zeros(field.segment_rows, np.bool_))
        if size != field.segment_bytes:
            checked.lose("length", f"{size} bytes found, {field.segment_bytes} expected")
        crc, at, end = 0, 0, used * field.row_bytes
        behind, step = False, codec.piece_bytes(field)
        sums = [0] * -(-size // step)
        for piece in pieces(fd, size):
            crc = codec.crc32c(piece, start=crc)
            start = 0
            while start < len(piece):  # what is read at once and what has a checksum differ
                number, done = divmod(at + start, step)
                part = piece[start : start + step - done]
                sums[number] = codec.crc32c(part, start=sums[number])
                start += len(part)
            if field.dtype == np.bool_:
                odd = at + np.flatnonzero(piece[: max(0, end - at)] > 1)
                if len(odd):
                    checked.lose("rows", "a bool that is neither 0 nor 1", odd // field.row_bytes)
            behind = behind or (still and at + len(piece) > end and piece[max(0, end - at) :].any())
            at += len(piece)
        if behind:
            checked.faults.append(("rows", "bytes behind the last row are not zero"))
        checked.seal = Seal(size, crc, codec.packed_sums(sums))
    return checked


def rows_of_pieces(field: Field, wrong: np.ndarray) -> np.ndarray:
    """The rows that lie in these pieces of a raw segment, in part or in full.

    Parameters
    ----------
    wrong : ndarray of bool
        For each piece.

    Returns
    -------
    ndarray of bool, shape (segment_rows,)
    """
    size, rows = codec.piece_bytes(field), np.zeros(field.segment_rows, np.bool_)
    for piece in np.flatnonzero(wrong).tolist():
        rows[piece * size // field.row_bytes : -(-(piece + 1) * size // field.row_bytes)] = True
    return rows


def pieces_of_rows(field: Field, rows: np.ndarray) -> np.ndarray:
    """The pieces of a raw segment that hold any byte of these rows.

    Parameters
    ----------
    rows : ndarray of bool, shape (segment_rows,)

    Returns
    -------
    ndarray of bool
        For each piece.
    """
    size, chosen = codec.piece_bytes(field), np.flatnonzero(rows)
    changes = np.zeros(-(-field.segment_bytes // size) + 1, np.int64)
    np.add.at(changes, chosen * field.row_bytes // size, 1)
    np.add.at(changes, ((chosen + 1) * field.row_bytes - 1) // size + 1, -1)
    return np.cumsum(changes)[:-1] > 0


def hold_against_sums(
    field: Field, path: Path, used: int, sums: list[int], checked: Checked
) -> None:
    """Hold the rows of an open raw segment against the checksums that closing the store left."""
    found = codec.piece_sums(field, bytes_of(path, used * field.row_bytes))
    lost = rows_of_pieces(field, np.array(found) != np.array(sums))
    lost[used:] = False
    if (lost & ~checked.lost).any():
        checked.lose("checksum", "its rows are not those that closing the store recorded", lost)


def check_tail(field: Field, path: Path) -> Checked:
    """A tail: only its length is known."""
    expected = -(-field.segment_bytes // _PAGE) * _PAGE
    with plain_file(path) as (_fd, size):
        checked = Checked(Seal(size, 0), np.zeros(field.segment_rows, np.bool_))
        if size != expected:
            checked.lose("length", f"{size} bytes found, {expected} expected")
    return checked


def compare(field: Field, path: Path, rows: np.ndarray) -> Checked:
    """Hold a tail against its first rows, as its shard has them."""
    kept = bytes_of(path, rows.nbytes).reshape(len(rows), -1)
    checked = Checked(Seal(rows.nbytes, 0), np.zeros(field.segment_rows, np.bool_))
    differs = (kept != rows.reshape(len(rows), -1).view(np.uint8)).any(axis=1)
    if differs.any():
        what = "it is not what its shard, whose checksums match, has"
        checked.lose("checksum", what, np.flatnonzero(differs))
    return checked


# -- packed segments


def check_packed(field: Field, path: Path, used: int) -> Checked:
    """A shard of which the blocks of the first `used` rows are expected."""
    with plain_file(path) as (fd, size):
        checked = Checked(Seal(size, 0), np.zeros(field.segment_rows, np.bool_))
        crc = 0
        found = locate(field, fd, size)
        if isinstance(found, str):
            kind = "length" if size < 16 * field.blocks + 4 else "index"
            checked.lose(kind, found)
        else:
            crc, bad = _check_blocks(field, fd, found)
            checked.blocks = int(np.count_nonzero(found))
            missing = found == 0
            missing[-(-used // BLOCK_ROWS) :] = False
            for what, where in (("rotten", bad), ("missing", missing)):
                if where.any():
                    rows = np.repeat(where, BLOCK_ROWS)
                    blocks = int(where.sum())
                    is_ = "is" if blocks == 1 else "are"
                    checked.lose("block", f"{blocks} of its blocks {is_} {what}", rows)
        checked.seal = Seal(size, crc)
    return checked


def locate(field: Field, fd: int, size: int) -> np.ndarray | str:
    """The length of each block, 0 for one that is not there; or what is wrong with the index."""
    length = 16 * field.blocks
    if size < length + 4:
        return f"{size} bytes are too few for the index of {field.blocks} blocks"
    tail = np.empty(length + 4, np.uint8)
    read_at(fd, size - length - 4, tail)
    if codec.crc32c(tail[:length]) != int(tail[length:].view("<u4")[0]):
        return "the checksum of the shard's index does not match"
    entries = tail[:length].view("<u8").reshape(-1, 2)
    here = entries[:, 0] != _MISSING
    most = np.uint64(size)
    if (entries[here] > most).any() or (entries[here, 1] < 4).any():
        return "the shard's index names bytes outside the file"
    lengths = np.where(here, entries[:, 1], 0).astype(np.int64)
    ends = np.cumsum(lengths)
    if (ends - lengths != entries[:, 0])[here].any() or ends[-1] != size - length - 4:
        return "the blocks that the shard's index names do not lie one after the other"
    return lengths


def _check_blocks(field: Field, fd: int, lengths: np.ndarray) -> tuple[int, np.ndarray]:
    """The CRC-32C of all blocks' CRC-32Cs, and which of them are bad (missing ones are not)."""
    from diskreplay.store.checking_kernels import check_blocks

    bad = np.zeros(len(lengths), np.bool_)
    here = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[here])
    crc, first, offset = 0, 0, 0
    buffer = np.empty(0, np.uint8)
    while first < len(here):
        last = max(first + 1, int(np.searchsorted(ends, offset + _PIECE, side="right")))
        size = int(ends[last - 1]) - offset
        if size > len(buffer):
            buffer = np.empty(max(size, min(_PIECE, int(ends[-1]))), np.uint8)
        data, some = buffer[:size], here[first:last]
        read_at(fd, offset, data)
        wrong = np.zeros(len(some), np.bool_)
        crc = check_blocks(crc, data, lengths[some], BLOCK_ROWS * field.row_bytes, wrong)
        bad[some] = wrong
        first, offset = last, offset + size
    return crc, bad


def scan(field: Field, data: np.ndarray) -> np.ndarray:
    """The lengths of a shard's blocks by their own headers, as far as these and their checksums
    lead: for a shard whose index is rotten. Zeros for those that were not found.
    """
    lengths = np.zeros(field.blocks, np.int64)
    whole, at = BLOCK_ROWS * field.row_bytes, 0
    for block in range(field.blocks):
        if at + _HEADER > len(data):
            break
        decoded, length = (int(data[at + i : at + i + 4].view("<u4")[0]) for i in (4, 12))
        end = at + length
        if decoded != whole or length < _HEADER or end + 4 > len(data):
            break
        if codec.crc32c(data[at:end]) != int(data[end : end + 4].view("<u4")[0]):
            break
        lengths[block] = length + 4
        at = end + 4
    return lengths


def rows_of_shard(field: Field, shard: np.ndarray) -> np.ndarray:
    """The rows of a shard whose index is right, and zeros for blocks that are not there.

    Returns
    -------
    ndarray of uint8, shape (segment_rows, row_bytes)
    """
    from numcodecs import blosc

    rows = np.zeros((field.segment_rows, field.row_bytes), np.uint8)
    index = shard[len(shard) - 16 * field.blocks - 4 : -4].copy().view("<u8").reshape(-1, 2)
    for block, (offset, length) in enumerate(index.tolist()):
        if offset != _MISSING:
            data = blosc.decompress(shard[offset : offset + length - 4].tobytes())
            rows[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS] = np.frombuffer(
                data, np.uint8
            ).reshape(BLOCK_ROWS, -1)
    return rows


def bytes_of(path: Path, size: int | None = None) -> np.ndarray:
    """The first bytes of a file, all of them by default."""
    with plain_file(path) as (fd, found):
        data = np.empty(found if size is None else size, np.uint8)
        read_at(fd, 0, data)
    return data


def mended(field: Field, path: Path, used: int) -> tuple[np.ndarray, np.ndarray]:
    """A shard with zeros in the place of blocks that are rotten or missing, and the rows lost."""
    from diskreplay.store.checking_kernels import check_blocks

    data = bytes_of(path)
    with plain_file(path) as (fd, size):
        lengths = locate(field, fd, size)
    if isinstance(lengths, str):
        lengths = scan(field, data)
    bad = np.zeros(field.blocks, np.bool_)
    check_blocks(0, data, lengths, BLOCK_ROWS * field.row_bytes, bad)
    filled = -(-used // BLOCK_ROWS)
    block = replace(field, segment_rows=BLOCK_ROWS)
    zeros = codec.encode(block, np.zeros(block.segment_bytes, np.uint8), BLOCK_ROWS)[:-20]
    starts = np.cumsum(lengths) - lengths
    parts, entries = [], np.full((field.blocks, 2), 2**64 - 1, "<u8")
    at = 0
    for number in range(filled):
        start, length = int(starts[number]), int(lengths[number])
        part = zeros if bad[number] else data[start : start + length]
        parts.append(part)
        entries[number] = at, len(part)
        at += len(part)
    index = entries.reshape(-1).view(np.uint8)
    crc = np.array([codec.crc32c(index)], "<u4").view(np.uint8)
    lost = np.repeat(bad, BLOCK_ROWS)
    lost[filled * BLOCK_ROWS :] = False
    return np.concatenate([*parts, index, crc]), lost
