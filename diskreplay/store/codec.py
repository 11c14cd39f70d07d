"""Packed segments: Zarr shards of small Blosc blocks, each with its CRC-32C, index at the end."""

import base64
import ctypes
import functools
from collections.abc import Collection, Sequence

import numpy as np
from google_crc32c import _crc32c

from diskreplay.errors import CorruptSegmentError, StoreError
from diskreplay.store.format import BLOCK_ROWS, Field
from diskreplay.store.mapping import Mapping

_PIECES, _LEAST_PIECE = 256, 4096  # of a raw segment; bytes
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed

_MISSING = np.uint64(2**64 - 1)

_extend = ctypes.CDLL(_crc32c.__file__).crc32c_extend
_extend.restype = ctypes.c_uint32
_extend.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]


def crc32c(data: np.ndarray | bytes, *, start: int = 0, zeros: int = 0) -> int:
    """The CRC-32C (Castagnoli) of some bytes and `zeros` more, as Zarr's ``crc32c`` codec has it,
    where `start` is that of what comes before.

    The C function of google-crc32c: its Python one takes copies only, and holds the GIL.
    """
    flat = np.frombuffer(data, np.uint8)
    crc = _extend(start, flat.ctypes.data, len(flat))
    while zeros > 0:
        part = np.zeros(min(zeros, 1 << 20), np.uint8)
        crc = _extend(crc, part.ctypes.data, len(part))
        zeros -= len(part)
    return crc


def piece_bytes(field: Field) -> int:
    """How many bytes of a raw segment have a checksum together: so few that rot costs few rows, and
    so many that the checksums of a segment are a few hundred at most."""
    return max(_LEAST_PIECE, -(-field.segment_bytes // _PIECES))


def piece_sums(field: Field, rows: np.ndarray) -> list[int]:
    """The CRC-32C of each piece of a raw segment's first rows, given as bytes."""
    size = piece_bytes(field)
    return [crc32c(rows[start : start + size]) for start in range(0, len(rows), size)]


def raw_sums(field: Field, segment: np.ndarray) -> tuple[int, str]:
    """The CRC-32C of a raw segment's bytes, and `packed_sums` of its pieces.

    One kernel call without the GIL, as `encode`.
    """
    from diskreplay.store import checking_kernels

    size = piece_bytes(field)
    sums = np.empty(-(-len(segment) // size), np.uint32)
    last = behind(len(segment) - (len(sums) - 1) * size)
    crc = checking_kernels.piece_sums(segment, size, behind(size), last, sums)
    return int(crc), packed_sums(sums)


@functools.cache
def behind(length: int) -> np.ndarray:
    """The matrix over GF(2), by its columns, that takes the CRC-32C of some bytes past `length`
    further ones: added bit by bit to the CRC-32C of these it is that of all."""

    def times(matrix: Sequence[int], bits: int) -> int:
        product = 0
        for column in matrix:
            product ^= column * (bits & 1)
            bits >>= 1
        return product

    result = [1 << bit for bit in range(32)]
    power = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # of one bit, then of 2, 4, ...
    bits = 8 * length
    while bits:
        if bits & 1:
            result = [times(power, column) for column in result]
        power = [times(power, column) for column in power]
        bits >>= 1
    return np.array(result, np.int64)


def packed_sums(pieces: Sequence[int] | np.ndarray) -> str:
    """CRC-32Cs as text: base64 of 4 bytes each."""
    return base64.b64encode(np.asarray(pieces, "<u4").tobytes()).decode()


def unpacked_sums(text: str) -> np.ndarray:
    """The opposite of `packed_sums`, or a ValueError."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4")


def encode(field: Field, rows: np.ndarray, used: int, *, zeros: Collection[int] = ()) -> np.ndarray:
    """The shard that holds the first `used` rows of a tail.

    Parameters
    ----------
    rows : ndarray of uint8
        The tail's memory, at least ``field.segment_bytes`` long.
    used : int
        Rows that count; blocks behind them are left out, zeros fill the last one.
    zeros : collection of int
        Rows that are known to be zeros: a block of them is not read.

    Returns
    -------
    ndarray of uint8
        The file's bytes.

    Notes
    -----
    One kernel call without the GIL: a Python loop would fight the adding thread for it, block by
    block.
    """
    from diskreplay.store import kernels

    block = BLOCK_ROWS * field.row_bytes
    index = 16 * field.blocks + 4
    filled = -(-used // BLOCK_ROWS)
    out = np.empty(filled * (block + 20) + 2 * index, np.uint8)
    name = np.frombuffer(bytearray(field.compressor.encode() + b"\0"), np.uint8)
    scratch = np.empty(block, np.uint8)
    known = np.bincount(np.array(list(zeros), np.int64) // BLOCK_ROWS, minlength=field.blocks)
    length = kernels.encode(
        rows, used, field.row_bytes, BLOCK_ROWS, field.blocks, name, field.level, known, scratch,
        out,
    )  # fmt: skip
    if length < 0:
        raise StoreError(f"field {field.name!r}: C-Blosc cannot compress with {field.compressor}")
    return out[:length]


def checksum(field: Field, shard: np.ndarray) -> int:
    """The CRC-32C of the blocks' own CRC-32Cs, in their order.

    Not of the whole file: bytes that are followed by their CRC-32C all leave the same remainder,
    so that of a row of them depends on nothing but their lengths.
    """
    index = shard[len(shard) - 16 * field.blocks - 4 : -4].tobytes()
    entries = np.frombuffer(index, "<u8").reshape(-1, 2)
    ends = entries[entries[:, 0] != _MISSING].sum(axis=1).astype(np.int64)
    return crc32c(np.ascontiguousarray(shard[ends[:, None] + np.arange(-4, 0)]))


def check_index(field: Field, shard: Mapping) -> None:
    """Refuse a shard whose index is cut or rotten; its blocks are checked when they are read."""
    index = 16 * field.blocks
    if shard.size < index + 4:
        raise CorruptSegmentError(
            f"{shard.path}: {shard.size} bytes are too few for the index of {field.blocks} blocks"
        )
    tail = shard.array[shard.size - index - 4 :]
    if crc32c(tail[:index]) != int(tail[index:].view("<u4")[0]):
        raise CorruptSegmentError(
            f"{shard.path}: the checksum of the shard index does not match; restore the file, or "
            "load a checkpoint"
        )
    entries = tail[:index].view("<u8").reshape(-1, 2)
    here = entries[entries[:, 0] != _MISSING]
    limit = np.uint64(shard.size - index - 4)
    if len(here) and (here.max() > limit or (here[:, 0] + here[:, 1]).max() > limit):
        raise CorruptSegmentError(f"{shard.path}: a block of the shard lies outside the file")
