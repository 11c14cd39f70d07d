"""The Numba kernels that check the bytes of files, holding no GIL."""

from diskreplay.jit import address, int64, kernel
from diskreplay.store.native import crc32c_extend, load_u32

_HEADER = 16  # of a Blosc chunk


@kernel
def check_blocks(crc, data, lengths, whole, bad):
    """Check blocks that lie one after the other in `data`, each followed by its CRC-32C.

    A block is bad if its checksum or the figures in its Blosc header do not fit: ``whole`` bytes
    when decoded, and as long as the index says. Returns the CRC-32C of what gave `crc`, followed by
    all these CRC-32Cs.
    """
    at = address(data)
    for i in range(len(lengths)):
        length = lengths[i] - 4
        bad[i] = (
            length < _HEADER
            or crc32c_extend(0, at, length) != load_u32(at + length)
            or load_u32(at + 4) != whole
            or load_u32(at + 8) > whole
            or load_u32(at + 12) != length
        )
        crc = int64(crc32c_extend(crc, at + length, 4))
        at += lengths[i]
    return crc
