"""Numba kernels that write rows to segments, holding no GIL. See `segment_table`."""

from diskreplay.jit import address, kernel, pointer
from diskreplay.store.native import memcpy
from diskreplay.store.read_kernels import segment_at
from diskreplay.store.segment_table import (
    ENVS,
    FIGURES,
    ROW_BYTES,
    SEGMENT_ROWS,
    SLOTS,
    STRIDE,
    TAIL,
    TAIL_ROWS,
)


@kernel("int64[::1], int64[::1], int64[::1], uint8[::1]")
def scatter(table, envs, rows, source):
    """Write ``source[envs[i]]`` as row ``rows[i]`` of env ``envs[i]``."""
    row_bytes, tail, tail_rows = table[ROW_BYTES], table[TAIL], table[TAIL_ROWS]
    slots, segment_rows, stride = table[SLOTS], table[SEGMENT_ROWS], table[STRIDE]
    last, slot, at = -1, 0, 0
    for i in range(len(envs)):
        if rows[i] != last:  # a division takes longer than all else that is done for a short row
            last = rows[i]
            slot = last // segment_rows % slots
            at = last % (tail_rows if tail_rows else segment_rows)
        if tail_rows:
            target = tail + (envs[i] * tail_rows + at) * row_bytes
        else:
            target = table[FIGURES + 2 * (envs[i] * slots + slot)] + at * stride
        memcpy(target, address(source) + envs[i] * row_bytes, row_bytes)
    return 0


@kernel("int64[::1], int64[::1], uint8[::1]")
def put(table, ids, source):
    """Write ``source[i]`` over the row of ``ids[i]`` in raw segments."""
    envs, row_bytes = table[ENVS], table[ROW_BYTES]
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        target = table[segment_at(pointer(table), env, row)]
        target += row % table[SEGMENT_ROWS] * table[STRIDE]
        memcpy(target, address(source) + i * row_bytes, row_bytes)
    return 0
