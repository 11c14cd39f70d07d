"""Numba kernels that copy blocks as they are stored, to be decoded elsewhere, holding no GIL.

They return ``-(1 + row * num_envs + env)`` of the first row that could not be read, and else what
they say. The length of a block counts its CRC-32C; one that is in no shard yet is at address 0.
"""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import address, int64s_at, kernel, larger, pointer, smaller
from diskreplay.store.batch_kernels import note_faults, watch_faults
from diskreplay.store.native import crc32c_extend, load_acquire, load_i64, load_u32, memcpy, memset
from diskreplay.store.packing_kernels import encode_block
from diskreplay.store.read_kernels import add_read, fetch, segment_at
from diskreplay.store.segment_table import (
    BLOCK_ROWS,
    ENVS,
    PACKED,
    ROW_BYTES,
    SEGMENT_ROWS,
    STEP,
)

ENV, START, STOP = 0, 1, 2  # columns of spans
_LINE = 64
_EXPECTED = 1 << 13  # bytes of a block that are expected while another is copied


@kernel("int64[::1], int64[:, ::1], int64[::1], int64[::1]")
def find(table, spans, sources, lengths):
    """Where the blocks are that have the rows of some spans, one span behind the other, and their
    lengths, 0 of one that is in no shard yet. Returns 0."""
    envs, block_rows, segment_rows = table[ENVS], table[BLOCK_ROWS], table[SEGMENT_ROWS]
    at = 0
    for i in range(len(spans)):
        env, start, stop = spans[i, ENV], spans[i, START], spans[i, STOP]
        row = start - start % block_rows
        edge = load_acquire(table[PACKED] + 8 * env)
        while row < stop:
            sources[at] = lengths[at] = 0
            if row < edge:
                place = segment_at(pointer(table), env, row)
                base, index = table[place], table[place + 1]
                if base == 0:
                    return -(1 + larger(row, start) * envs + env)
                entry = index + table[STEP] * (row % segment_rows // block_rows)
                sources[at], lengths[at] = base + load_i64(entry), load_i64(entry + 8)
                if lengths[at] < 4:
                    return -(1 + larger(row, start) * envs + env)
            row += block_rows
            at += 1
    return 0


@kernel(
    "int64[::1], int64[:, ::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64[::1], "
    "int64[::1], int64[::1], uint8[::1]"
)
def copy(table, spans, sources, lengths, name, rows, scratch, advice, rusage, out):
    """What `find` found, one block behind the other, into `out`. Of a block that was in no shard
    the rows of the span are compressed by the codec `name`, zeros in the place of others; its
    length is entered. Returns how many bytes all are.

    `rows` has room for the rows of a block, `scratch` is that of `batch_kernels`, for one read;
    `advice` is what `batch_kernels.note_faults` has, and `rusage` room for what the system says.
    """
    envs, block_rows, row_bytes = table[ENVS], table[BLOCK_ROWS], table[ROW_BYTES]
    faults = watch_faults(advice, address(rusage))
    target, at, whole = address(out), 0, block_rows * row_bytes
    for i in range(len(spans)):
        env, start, stop = spans[i, ENV], spans[i, START], spans[i, STOP]
        row = start - start % block_rows
        while row < stop:
            source, length = sources[at], lengths[at]
            if at + 1 < len(sources):
                for line in range(0, smaller(lengths[at + 1], _EXPECTED), _LINE):
                    prefetch_line(sources[at + 1] + line)
            if source:
                # Here too, where the file is that a wrong one is of.
                if crc32c_extend(0, source, length - 4) != load_u32(source + length - 4):
                    return -(1 + larger(row, start) * envs + env)
                memcpy(target, source, length)
            else:
                low, high = larger(row, start), smaller(row + block_rows, stop)
                memset(address(rows), 0, whole)
                add_read(
                    int64s_at(address(scratch)), 0, env, low, high,
                    address(rows) + (low - row) * row_bytes,
                )  # fmt: skip
                failed = fetch(
                    pointer(table), int64s_at(address(scratch)), 1,
                    address(scratch) + 8 * len(scratch),
                )  # fmt: skip
                if failed:
                    return failed
                length = encode_block(1, whole, address(rows), target, address(name))
                if length < 0:
                    return -(1 + low * envs + env)
                lengths[at] = length
            target += length
            row += block_rows
            at += 1
    note_faults(advice, address(rusage), faults)
    return target - address(out)
