"""The Numba kernels that check the bytes of files, holding no GIL."""

from diskreplay.jit import address, int64, kernel, smaller
from diskreplay.store.native import crc32c_extend, load_u32

_HEADER = 16  # of a Blosc chunk


@kernel("uint8[::1], int64[::1], int64[::1], int64, boolean[::1], uint32[::1]")
def check_blocks(data, starts, lengths, whole, bad, sums):
    """Check blocks at these places of `data`, each with its CRC-32C behind it, which is noted.

    A block is bad if its checksum or the figures in its Blosc header do not fit: ``whole`` bytes
    when decoded, and as long as the index says.
    """
    for i in range(len(lengths)):
        at, length = address(data) + starts[i], lengths[i] - 4
        bad[i] = length < _HEADER
        if not bad[i]:
            sums[i] = load_u32(at + length)
            bad[i] = (
                crc32c_extend(0, at, length) != sums[i]
                or load_u32(at + 4) != whole
                or load_u32(at + 8) > whole
                or load_u32(at + 12) != length
            )
    return 0


@kernel("uint8[::1], int64, int64[::1], int64[::1], uint32[::1]")
def piece_sums(data, size, shift, shift_last, sums):
    """The CRC-32C of each piece of `size` bytes into `sums`; returns that of all the bytes.

    They are gone through once: the CRC-32C of two parts, one behind the other, is that of the first
    taken through `codec.behind` (`shift`, of the last piece `shift_last`), added bit by bit to that
    of the second.
    """
    at, whole = address(data), 0
    for number in range(len(sums)):
        start = number * size
        crc = int64(crc32c_extend(0, at + start, smaller(size, len(data) - start)))
        matrix = shift if number < len(sums) - 1 else shift_last
        moved = 0
        for column in range(32):
            moved ^= matrix[column] * (whole >> column & 1)
        sums[number] = crc
        whole = moved ^ crc
    return whole
