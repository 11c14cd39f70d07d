"""Numba kernels that write to open files, holding no GIL."""

from diskreplay.jit import address, kernel
from diskreplay.store.native import pwrite


@kernel("int64, int64, int64[::1], int64[::1], uint8[::1]")
def write_rows(fd, row_bytes, envs, offsets, source):
    """Write ``source[envs[i]]`` at ``offsets[i]`` of a file, one after the other.

    Returns
    -------
    int
        How many were written: all, or those before one that the system refused.
    """
    for i in range(len(envs)):
        if pwrite(fd, address(source) + envs[i] * row_bytes, row_bytes, offsets[i]) != row_bytes:
            return i
    return len(envs)
