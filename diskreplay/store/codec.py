"""Packed segments: Zarr shards of small Blosc blocks, each with its CRC-32C, the index first."""

import base64
import ctypes
import functools
from collections.abc import Sequence

import numpy as np
from google_crc32c import _crc32c

from diskreplay.errors import CorruptSegmentError, StoreError
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping

_PIECES, _LEAST_PIECE = 256, 4096  # of a raw segment; bytes
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
_ALL_BITS = (1 << 32) - 1
_FEW_ZEROS = 1 << 18  # about as many take as long one by one as by matrices

# As C has them.
NAMES = {name: np.frombuffer(bytearray(f"{name}\0".encode()), np.uint8) for name in ("lz4", "zstd")}
MISSING = -1  # offset and length of a block that is not there, as int64

_extend = ctypes.CDLL(_crc32c.__file__).crc32c_extend
_extend.restype = ctypes.c_uint32
_extend.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]


def crc32c(data: np.ndarray | bytes, *, start: int = 0, zeros: int = 0) -> int:
    """The CRC-32C (Castagnoli) of some bytes and `zeros` more, as Zarr's ``crc32c`` codec has it,
    where `start` is that of what comes before.

    The C function of google-crc32c: its Python one takes copies only, and holds the GIL.
    """
    flat = np.frombuffer(data, np.uint8)
    crc = int(_extend(start, flat.ctypes.data, len(flat)))
    if zeros > _FEW_ZEROS:
        return _past_zeros(crc, zeros)
    if zeros > 0:
        part = np.zeros(zeros, np.uint8)
        crc = int(_extend(crc, part.ctypes.data, zeros))
    return crc


def _past_zeros(crc: int, zeros: int) -> int:
    """The CRC-32C `crc` goes on to over so many zeros, in steps of powers of two: a file may be
    said to have any number of them. All bits are turned before and after, as a CRC-32C has it."""
    register, bits = crc ^ _ALL_BITS, 8 * zeros
    for power in range(bits.bit_length()):
        if bits >> power & 1:
            register = _times(_past_bits(power), register)
    return register ^ _ALL_BITS


def piece_bytes(field: Field) -> int:
    """How many bytes of a raw segment have a checksum together: so few that rot costs few rows, and
    so many that the checksums of a segment are a few hundred at most."""
    return max(_LEAST_PIECE, -(-field.segment_bytes // _PIECES))


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
    result, bits = [1 << bit for bit in range(32)], 8 * length
    for power in range(bits.bit_length()):
        if bits >> power & 1:
            result = [_times(_past_bits(power), column) for column in result]
    return np.array(result, np.int64)


@functools.cache
def _past_bits(power: int) -> list[int]:
    """As `behind`, of ``2**power`` bits."""
    if not power:
        return [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    half = _past_bits(power - 1)
    return [_times(half, column) for column in half]


def _times(matrix: Sequence[int], bits: int) -> int:
    product = 0
    for column in matrix:
        product ^= column * (bits & 1)
        bits >>= 1
    return product


def packed_sums(pieces: Sequence[int] | np.ndarray) -> str:
    """CRC-32Cs as text: base64 of 4 bytes each."""
    return base64.b64encode(np.asarray(pieces, "<u4").tobytes()).decode()


def unpacked_sums(text: str) -> np.ndarray:
    """The opposite of `packed_sums`, or a ValueError."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4")


def encode(field: Field, sources: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of rows, compressed, one behind the other.

    Parameters
    ----------
    sources : ndarray of int64, shape (blocks,)
        Where the rows of each block are in memory.
    used : ndarray of int64, shape (blocks,)
        Rows that count, the others are zeros.

    Returns
    -------
    data : ndarray of uint8
        The blocks, each with its CRC-32C behind it.
    lengths : ndarray of int64, shape (blocks,)
        Their lengths, with the CRC-32C.

    Notes
    -----
    One kernel call without the GIL: a Python loop would fight the adding thread for it, block by
    block.
    """
    from diskreplay.store import packing_kernels

    whole = field.block_bytes
    lengths = np.empty(len(sources), np.int64)
    out = np.empty(most_bytes(field, len(sources)), np.uint8)
    size = packing_kernels.encode(
        sources, used * field.row_bytes, whole, NAMES[field.compressor], field.level,
        np.empty(whole, np.uint8), out, lengths,
    )  # fmt: skip
    if size < 0:
        raise StoreError(f"field {field.name!r}: C-Blosc cannot compress with {field.compressor}")
    return out[:size], lengths


def most_bytes(field: Field, blocks: int) -> int:
    """So many compressed blocks have no more bytes, with their CRC-32C."""
    from diskreplay.store import packing_kernels

    return blocks * (field.block_bytes + packing_kernels.ROOM)


def decode(
    field: Field, data: np.ndarray, lengths: np.ndarray, used: np.ndarray, out: np.ndarray
) -> None:
    """The opposite of `encode`: the rows that count, one behind the other, into `out`, which has as
    many.

    Raises
    ------
    CorruptSegmentError
        A block does not match its checksum, or is no such block.
    """
    from diskreplay.store import packing_kernels

    assert used.sum() == len(out)
    assert used.min(initial=0) >= 0
    assert used.max(initial=0) <= field.block_rows
    failed = packing_kernels.decode(
        data, lengths, used * field.row_bytes, field.block_bytes,
        np.empty(field.block_bytes, np.uint8), out.reshape(-1).view(np.uint8),
    )  # fmt: skip
    if failed:
        raise CorruptSegmentError(
            f"field {field.name!r}: block {-failed - 1} of {len(lengths)} does not match its "
            "checksum, or is none"
        )


def load_kernels(field: Field) -> None:
    """Have the kernels of packing ready. It takes ten milliseconds and more, which the first `add`
    has, since it loads others, and no later one."""
    from diskreplay.store import packing_kernels

    nothing = np.empty(0, np.int64)
    encode(field, nothing, nothing)
    packing_kernels.enter(nothing, 0, nothing, 0, nothing, 0, nothing, nothing)


def blank_index(field: Field) -> np.ndarray:
    """The index of a shard without blocks: for each, offset and length, int64 of shape
    (blocks * env_group, 2). That of block `b` of the `e`-th env of the group is at
    ``b * env_group + e``."""
    return np.full((field.blocks * field.env_group, 2), MISSING, np.int64)


def enter(index: np.ndarray, places: np.ndarray, start: int, lengths: np.ndarray) -> None:
    """Name blocks of these lengths, one behind the other from `start` on, in an index."""
    index[places, 0] = start + np.cumsum(lengths) - lengths
    index[places, 1] = lengths


def index_bytes(index: np.ndarray) -> bytes:
    """An index as it is at the beginning of a shard, with its CRC-32C."""
    return index.tobytes() + int(crc32c(index.reshape(-1).view(np.uint8))).to_bytes(4, "little")


def used_bytes(field: Field, used: np.ndarray) -> bytes:
    """What stands behind the blocks of a shard in its place that ends amid a block of some env: how
    many rows of each env of the group it has, and their CRC-32C; else nothing.

    Such a block has zeros behind its rows, and a later file may have more rows of it. So a file
    says itself for which rows it stands: metadata would say so later, and of a file with the same
    bytes too.
    """
    if not (used % field.block_rows).any():
        return b""
    rows = np.zeros(field.env_group, "<u4")
    rows[: len(used)] = used
    return rows.tobytes() + crc32c(rows.view(np.uint8)).to_bytes(4, "little")


def used_rows(field: Field, behind: np.ndarray) -> np.ndarray | None:
    """The rows of each env that the bytes `behind` the blocks of a shard say it has, int64 of shape
    (env_group,); None if they say nothing."""
    if len(behind) != 4 * field.env_group + 4:
        return None
    rows = behind.copy().view("<u4")
    if crc32c(behind[:-4]) != int(rows[-1]) or rows[:-1].max(initial=0) > field.segment_rows:
        return None
    return rows[:-1].astype(np.int64)


def blocks_end(field: Field, index: np.ndarray) -> int:
    """Where the last block ends that an index names."""
    there = index[index[:, 0] != MISSING]
    return int(there.sum(axis=1).max(initial=field.index_bytes + 4))


def checksum(shard: np.ndarray, index: np.ndarray) -> int:
    """The CRC-32C of the blocks' own CRC-32Cs, in the order of the index.

    Not of the whole file: bytes that are followed by their CRC-32C all leave the same remainder,
    so that of a row of them depends on nothing but their lengths.
    """
    ends = index[index[:, 0] != MISSING].sum(axis=1)
    return crc32c(np.ascontiguousarray(shard[ends[:, None] + np.arange(-4, 0)]))


def named_only(field: Field, shard: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A shard and its index without bytes that no entry names: of blocks that were not full when it
    was sealed, and have come again with more rows."""
    where = np.flatnonzero(index[:, 0] != MISSING)
    lengths, head = index[where, 1], field.index_bytes + 4
    if head + int(lengths.sum()) == len(shard):
        return shard, index
    blocks = [shard[at : at + size] for at, size in index[where].tolist()]
    index = index.copy()
    enter(index, where, head, lengths)
    return np.concatenate([np.frombuffer(index_bytes(index), np.uint8), *blocks]), index


def whole_index(field: Field, shard: Mapping) -> np.ndarray:
    """A copy of the index of a shard that is whole, if it is neither cut nor rotten; the blocks are
    checked when they are read."""
    size = field.index_bytes
    if shard.size < size + 4:
        blocks = field.blocks * field.env_group
        wrong = f"{shard.size} bytes are too few for the index of {blocks} blocks"
    else:
        head = shard.array[: size + 4].copy()
        index: np.ndarray = head[:size].view("<i8").reshape(-1, 2)
        if crc32c(head[:size]) != int(head[size:].view("<u4")[0]):
            wrong = "the checksum of the shard index does not match"
        elif misplaced(field, index, shard.size).any():
            wrong = "a block of the shard lies outside the file"
        else:
            return index
    raise CorruptSegmentError(f"{shard.path}: {wrong}; restore the file, or load a checkpoint")


def misplaced(field: Field, index: np.ndarray, size: int) -> np.ndarray:
    """Which blocks of an index are said to lie where no block can be in a file of `size` bytes;
    bool of shape (blocks,)."""
    offset, length = index[:, 0], index[:, 1]
    there = (offset != MISSING) | (length != MISSING)
    low = field.index_bytes + 4
    return there & (
        (offset < low) | (length < 4) | (length > size - low) | (offset > size - length)
    )
