"""Numba kernels that compress rows and enter the blocks into a shard's index, holding no GIL."""

from diskreplay.jit import address, inner, kernel
from diskreplay.row_commit import store_release
from diskreplay.store.native import (
    blosc_decode,
    blosc_encode,
    crc32c_extend,
    load_u32,
    memcpy,
    memset,
    store_i64,
    store_u32,
)

_HEADER = 16  # of a Blosc chunk
ROOM = 20  # bytes more than its rows that a block takes at most: a header and a checksum


@inner
def encode_block(level, whole, source, target, name):
    """A block of `whole` bytes, compressed by the codec `name`, and its CRC-32C; returns how many
    bytes they are, or -1 if Blosc failed."""
    size = blosc_encode(level, 0, 1, whole, source, target, whole + 16, name, 0, 1)
    if size <= 0:
        return -1
    store_u32(target + size, crc32c_extend(0, target, size))
    return size + 4


@kernel("int64[::1], int64[::1], int64, uint8[::1], int64, uint8[::1], uint8[::1], int64[::1]")
def encode(sources, used, whole, name, level, scratch, out, lengths):
    """Blocks of `whole` bytes each, one behind the other, into `out`, and their lengths.

    ``sources[i]`` is the address of a block's rows and ``used[i]`` says how many of its bytes
    count; the others are zeros in the block. Each is followed by its CRC-32C, which is part of its
    length. Returns how many bytes they are, or -1 if Blosc failed.
    """
    at = address(out)
    for i in range(len(sources)):
        source = sources[i]
        if used[i] < whole:  # behind the last row a tail holds rows of another block
            memset(address(scratch) + used[i], 0, whole - used[i])
            memcpy(address(scratch), source, used[i])
            source = address(scratch)
        lengths[i] = encode_block(level, whole, source, at, address(name))
        if lengths[i] < 0:
            return -1
        at += lengths[i]
    return at - address(out)


@kernel("uint8[::1], int64[::1], int64[::1], int64, uint8[::1], uint8[::1]")
def decode(data, lengths, used, whole, scratch, out):
    """The opposite of `encode`: the bytes that count of each block, one behind the other, into
    `out`, which has room for them. Returns 0, or ``-(1 + block)`` of one that is damaged."""
    source, left, target = address(data), len(data), address(out)
    for i in range(len(lengths)):
        size = lengths[i] - 4
        if size < _HEADER or lengths[i] > left:
            return -(1 + i)
        fits = load_u32(source + 4) == whole and load_u32(source + 12) == size
        if not fits or crc32c_extend(0, source, size) != load_u32(source + size):
            return -(1 + i)
        room = target if used[i] == whole else address(scratch)
        if blosc_decode(source, room, whole, 1) != whole:
            return -(1 + i)
        if used[i] < whole:
            memcpy(target, room, used[i])
        source, left, target = source + lengths[i], left - lengths[i], target + used[i]
    return 0


@kernel("int64[::1], int64, int64[::1], int64, int64[::1], int64, int64[::1], int64[::1]")
def enter(index, file_index, places, offset, lengths, packed, envs, stops):
    """Enter blocks that lie one behind the other from `offset` on, and then say that the rows of
    ``envs[i]`` below ``stops[i]`` are in shards.

    ``places[i]`` is the number of a block's entry: in `index`, which kernels read, and in the file
    at the address `file_index`. `packed` is the address of the numbers to raise.
    """
    for i in range(len(places)):
        entry = 16 * places[i]
        store_i64(file_index + entry, offset)
        store_i64(file_index + entry + 8, lengths[i])
        store_i64(address(index) + entry, offset)
        store_i64(address(index) + entry + 8, lengths[i])
        offset += lengths[i]
    # Last: a thread that sees a number raised looks for the block in the index.
    for i in range(len(envs)):
        store_release(packed + 8 * envs[i], stops[i])
    return 0
