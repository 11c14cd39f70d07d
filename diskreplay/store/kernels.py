"""Numba kernels that move rows between segments and arrays, holding no GIL.

A segment table says where the rows of one field are: ``addresses[env, segment % slots]`` is the
memory of a segment, ``sizes`` is 0 for plain rows and the length of the shard for packed ones.
``layout`` is that field's `Column.layout`. Kernels return 0, or ``-(1 + row * num_envs + env)`` of
the first row that could not be read.
"""

import numpy as np

from diskreplay.caches import expect
from diskreplay.jit import kernel
from diskreplay.store.native import (
    blosc_decode,
    blosc_encode,
    crc32c_extend,
    getrusage,
    load_i64,
    load_u32,
    lz4_decode,
    lz4_decode_partly,
    madvise,
    memcpy,
    memset,
    store_u8,
)

_SLOTS, _SEGMENT_ROWS, _ROW_BYTES, _BLOCK_ROWS, _BLOCKS = 0, 1, 2, 3, 4

ENV, ROW, BEFORE, AHEAD, BEFORE_NEXT = 0, 1, 2, 3, 4  # columns of a plan

_HEADER = 16  # of a Blosc chunk; then the start of its one block, then the length of its stream
_ONE_STREAM = _HEADER + 8
_STORED, _LZ4, _SHUFFLES = 0x2, 1, 0x5
# A stream so much shorter than its rows is a few long runs. LZ4 repeats one that it has to stop in
# byte by byte, and is three times as fast when it need not stop.
_LONG_RUNS = 64
_WILLNEED, _RUSAGE_THREAD, _MAJOR_FAULTS_AT = 3, 1, 72
_MOST_BATCHES_ADVISED = 1024
_PAGE = 4096
_AHEAD = 1 << 16  # bytes that are expected before they are copied
_ENV, _START, _STOP, _TARGET = 0, 1, 2, 3  # columns of reads
_READS = 4096  # that `take` does at a time


@kernel
def scatter(addresses, layout, envs, rows, source):
    """Write ``source[envs[i]]`` as row ``rows[i]`` of env ``envs[i]``."""
    slots, segment_rows, row_bytes = layout[_SLOTS], layout[_SEGMENT_ROWS], layout[_ROW_BYTES]
    start = source.ctypes.data
    for i in range(len(envs)):
        env, row = envs[i], rows[i]
        segment = row // segment_rows
        target = addresses[env, segment % slots] + (row - segment * segment_rows) * row_bytes
        memcpy(target, start + env * row_bytes, row_bytes)
    return 0


@kernel
def _decode(source, size, low, high, row_bytes, block_rows, target, scratch):
    """Rows low..high of one Blosc chunk. LZ4 is stopped after the last row that is wanted, if that
    pays."""
    whole = block_rows * row_bytes
    wanted = (high - low) * row_bytes
    if size < _HEADER:
        return -1
    flags = (load_u32(source) >> 16) & 0xFF
    if load_u32(source + 4) != whole or load_u32(source + 12) != size:
        return -1
    if flags & _STORED:
        if size < _HEADER + whole:
            return -1
        memcpy(target, source + _HEADER + low * row_bytes, wanted)
        return 0
    if flags >> 5 == _LZ4 and not flags & _SHUFFLES and load_u32(source + 8) == whole:
        stream = load_u32(source + _HEADER + 4)
        if load_u32(source + _HEADER) == _HEADER + 4 and stream <= size - _ONE_STREAM:
            if stream == whole:  # did not compress
                memcpy(target, source + _ONE_STREAM + low * row_bytes, wanted)
                return 0
            end = high * row_bytes
            if stream < whole // _LONG_RUNS:
                if lz4_decode(source + _ONE_STREAM, scratch, stream, whole) != whole:
                    return -1
            elif low == 0:
                got = lz4_decode_partly(source + _ONE_STREAM, target, stream, end, end)
                return 0 if got == end else -1
            elif lz4_decode_partly(source + _ONE_STREAM, scratch, stream, end, whole) < end:
                return -1
            memcpy(target, scratch + low * row_bytes, wanted)
            return 0
    if blosc_decode(source, scratch, whole, 1) != whole:
        return -1
    memcpy(target, scratch + low * row_bytes, wanted)
    return 0


@kernel
def _locate(index, block, blocks, size):
    """Where a block is in its shard, and its length without the checksum; -1 if the index, which
    was whole when it was mapped, is not any more.

    Blocks lie one after the other. An entry that has rotted and names another block would pass that
    block's checksum, but not be where its neighbours end and begin.
    """
    entry = index + 16 * block
    offset, length = load_i64(entry), load_i64(entry + 8)
    if offset < 0 or length < 4 or offset > size - length:
        return 0, -1
    before = load_i64(entry - 16) + load_i64(entry - 8) if block else 0
    behind = load_i64(entry + 16) if block + 1 < blocks else -1
    if behind == -1:  # that block is not there, so this one is the last
        behind = size - 4 - 16 * blocks
    if before != offset or behind != offset + length:
        return 0, -1
    return offset, length - 4


@kernel
def _copy(addresses, sizes, layout, env, start, stop, target, scratch):
    """Rows start..stop of one env to the memory at `target`, across segments and blocks."""
    slots, segment_rows, row_bytes = layout[_SLOTS], layout[_SEGMENT_ROWS], layout[_ROW_BYTES]
    block_rows, blocks = layout[_BLOCK_ROWS], layout[_BLOCKS]
    row = start
    while row < stop:
        segment = row // segment_rows
        slot = segment % slots
        base = addresses[env, slot]
        if base == 0:
            return -(1 + row)
        at = row - segment * segment_rows
        rows = min(stop - row, segment_rows - at)
        size = sizes[env, slot]
        if size == 0:
            memcpy(target, base + at * row_bytes, rows * row_bytes)
        else:
            block = at // block_rows
            low = at - block * block_rows
            rows = min(rows, block_rows - low)
            offset, length = _locate(base + size - 4 - 16 * blocks, block, blocks, size)
            source = base + offset
            # Each time: memory may leave the page cache, and come back otherwise from a disk.
            if length < 0 or crc32c_extend(0, source, length) != load_u32(source + length):
                return -(1 + row)
            if _decode(source, length, low, low + rows, row_bytes, block_rows, target, scratch):
                return -(1 + row)
        row += rows
        target += rows * row_bytes
    return 0


@kernel
def read(addresses, sizes, layout, env, start, stop, out, scratch):
    """Consecutive rows of one env into `out`."""
    return _copy(addresses, sizes, layout, env, start, stop, out.ctypes.data, scratch.ctypes.data)


@kernel
def _expect(address, size):
    """Have the caches fetch the beginning of each page: from there to the page's end the processor
    fetches ahead by itself."""
    stop = address + size
    while address < stop:
        expect(address)
        address += _PAGE - address % _PAGE


@kernel
def _fetch(addresses, sizes, layout, reads, scratch):
    """Copy what ``reads`` lists: consecutive rows of one env each, and the memory they go to.

    Where each begins is found first, so that its memory can be on the way while others are copied.
    Plain rows of one segment are worth that; all else is found when its turn comes.
    """
    envs, count = addresses.shape[0], len(reads)
    slots, segment_rows, row_bytes = layout[_SLOTS], layout[_SEGMENT_ROWS], layout[_ROW_BYTES]
    sources = np.zeros(count, np.int64)
    largest = row_bytes
    for i in range(count):
        env, start, stop = reads[i, _ENV], reads[i, _START], reads[i, _STOP]
        segment = start // segment_rows
        at, slot = start - segment * segment_rows, segment % slots
        if addresses[env, slot] and not sizes[env, slot] and at + stop - start <= segment_rows:
            sources[i] = addresses[env, slot] + at * row_bytes
            largest = max(largest, (stop - start) * row_bytes)
    lead = min(_AHEAD // largest + 1, count)
    for i in range(-lead, count):
        if i + lead < count and sources[i + lead]:
            rows = reads[i + lead, _STOP] - reads[i + lead, _START]
            _expect(sources[i + lead], rows * row_bytes)
        if i < 0:
            continue
        env, start, stop = reads[i, _ENV], reads[i, _START], reads[i, _STOP]
        if sources[i]:
            memcpy(reads[i, _TARGET], sources[i], (stop - start) * row_bytes)
            continue
        failed = _copy(
            addresses, sizes, layout, env, start, stop, reads[i, _TARGET],
            scratch.ctypes.data,
        )  # fmt: skip
        if failed:
            return failed * envs + envs - 1 - env
    return 0


@kernel
def gather(addresses, sizes, layout, plan, out, scratch):
    """The row of each planned transition into ``out[i]``."""
    reads = np.empty((len(plan), 4), np.int64)
    for i in range(len(plan)):
        reads[i, _ENV], reads[i, _START] = plan[i, ENV], plan[i, ROW]
        reads[i, _STOP] = plan[i, ROW] + 1
        reads[i, _TARGET] = out.ctypes.data + i * layout[_ROW_BYTES]
    return _fetch(addresses, sizes, layout, reads, scratch)


@kernel
def take(addresses, sizes, layout, ids, out, scratch):
    """The row of each id (``row * num_envs + env``) into ``out[i]``, zeros for negative ones.

    Consecutive rows are read in one go, so that a block is decoded once for all of them.
    """
    envs, row_bytes = addresses.shape[0], layout[_ROW_BYTES]
    reads = np.empty((min(len(ids), _READS), 4), np.int64)
    count = i = 0
    while i < len(ids):
        stop = i + 1
        target = out.ctypes.data + i * row_bytes
        if ids[i] < 0:
            memset(target, 0, row_bytes)
        else:
            while stop < len(ids) and ids[stop] == ids[stop - 1] + envs:
                stop += 1
            row = ids[i] // envs
            reads[count, _ENV], reads[count, _TARGET] = ids[i] % envs, target
            reads[count, _START], reads[count, _STOP] = row, row + stop - i
            count += 1
        i = stop
        if count == _READS:
            failed = _fetch(addresses, sizes, layout, reads, scratch)
            if failed:
                return failed
            count = 0
    return _fetch(addresses, sizes, layout, reads[:count], scratch)


@kernel
def _advise(addresses, sizes, layout, env, start, stop):
    """Ask the kernel for the pages of one window, without waiting for them."""
    slots, segment_rows, row_bytes = layout[_SLOTS], layout[_SEGMENT_ROWS], layout[_ROW_BYTES]
    block_rows, blocks = layout[_BLOCK_ROWS], layout[_BLOCKS]
    row = start
    while row < stop:
        segment = row // segment_rows
        at = row - segment * segment_rows
        rows = min(stop - row, segment_rows - at)
        base, size = addresses[env, segment % slots], sizes[env, segment % slots]
        if base != 0:
            low, high = base + at * row_bytes, base + (at + rows) * row_bytes
            if size != 0:
                entry = base + size - 4 - 16 * blocks
                first, last = at // block_rows, (at + rows - 1) // block_rows
                low = base + load_i64(entry + 16 * first)
                high = base + load_i64(entry + 16 * last) + load_i64(entry + 16 * last + 8)
            if base <= low < high:
                low -= low % 4096
                madvise(low, high - low, _WILLNEED)
        row += rows


@kernel
def _read_stack(reads, count, env, row, before, stop, stack, row_bytes, target):
    """Add the read of the stack that ends at `row`, with what follows it up to `stop`; returns how
    many reads there are. Places before the episode's start are zeros; all if `before` is negative.
    """
    empty = stack - 1 - before
    if empty:
        memset(target, 0, empty * row_bytes)
    if before >= 0:
        reads[count, _ENV], reads[count, _START], reads[count, _STOP] = env, row - before, stop
        reads[count, _TARGET] = target + empty * row_bytes
        count += 1
    return count


@kernel
def _repeat_first(before, stack, row_bytes, target):
    """Put the first frame of a stack that was read into the places before the episode's start."""
    empty = stack - 1 - before
    if before >= 0:
        for place in range(empty):
            memcpy(target + place * row_bytes, target + empty * row_bytes, row_bytes)


@kernel
def windows(addresses, sizes, layout, plan, stack, horizon, repeat, advice, rusage, out, scratch):
    """Both stacks of each planned transition into one window of ``stack + horizon`` rows.

    The observation stack ends at place ``stack - 1``, the next one at ``stack + horizon - 1``;
    places before the episode's start are zeros or, if ``repeat``, its first frame. Where an episode
    ended before the horizon and the two stacks overlap, they do not fit into one window: those are
    counted, their next stacks are left out here, and `next_stacks` makes them.

    ``advice`` holds how many batches to ask the kernel for in advance, and how many after the
    next major fault: pages that are at hand need no asking, which costs a system call a window.
    """
    row_bytes = layout[_ROW_BYTES]
    places = stack + horizon
    usage = rusage.ctypes.data
    if advice[0] > 0:
        advice[0] -= 1
        for i in range(len(plan)):
            row = plan[i, ROW]
            _advise(
                addresses, sizes, layout,
                plan[i, ENV], row - plan[i, BEFORE], row + plan[i, AHEAD] + 1,
            )  # fmt: skip
    elif advice[1] > 0:
        getrusage(_RUSAGE_THREAD, usage)
    faults = load_i64(usage + _MAJOR_FAULTS_AT)
    reads = np.empty((2 * len(plan), 4), np.int64)
    count = apart = 0
    for i in range(len(plan)):
        env, row, before, ahead = plan[i, ENV], plan[i, ROW], plan[i, BEFORE], plan[i, AHEAD]
        next_before = plan[i, BEFORE_NEXT]
        window = out.ctypes.data + i * places * row_bytes
        # Two stacks that touch or overlap are one read.
        together = next_before >= 0 and ahead == horizon and horizon <= stack
        stop = row + ahead + 1 if together else row + 1
        count = _read_stack(reads, count, env, row, before, stop, stack, row_bytes, window)
        if together:
            continue
        if horizon < stack:
            apart += 1
        else:
            count = _read_stack(
                reads, count, env, row + ahead, next_before, row + ahead + 1, stack, row_bytes,
                window + horizon * row_bytes,
            )  # fmt: skip
    failed = _fetch(addresses, sizes, layout, reads[:count], scratch)
    if failed:
        return failed
    if repeat:
        for i in range(len(plan)):
            window = out.ctypes.data + i * places * row_bytes
            _repeat_first(plan[i, BEFORE], stack, row_bytes, window)
            if horizon >= stack:  # else the next stack has part of this padding, or comes later
                _repeat_first(plan[i, BEFORE_NEXT], stack, row_bytes, window + horizon * row_bytes)
    if advice[0] == 0 and advice[1] > 0:
        getrusage(_RUSAGE_THREAD, usage)
        if load_i64(usage + _MAJOR_FAULTS_AT) > faults:
            advice[0] = advice[1]
            advice[1] = min(2 * advice[1], _MOST_BATCHES_ADVISED)
        else:
            advice[1] = max(advice[1] // 2, 16)
    return apart


@kernel
def next_stacks(addresses, sizes, layout, plan, stack, horizon, repeat, window, out, scratch):
    """The next stacks of a batch in which some do not fit into their windows."""
    row_bytes = layout[_ROW_BYTES]
    stack_bytes = stack * row_bytes
    reads = np.empty((len(plan), 4), np.int64)
    count = 0
    for i in range(len(plan)):
        env, row, ahead = plan[i, ENV], plan[i, ROW], plan[i, AHEAD]
        target = out.ctypes.data + i * stack_bytes
        if ahead == horizon and plan[i, BEFORE_NEXT] >= 0:
            source = window.ctypes.data + (i * (stack + horizon) + horizon) * row_bytes
            memcpy(target, source, stack_bytes)
            continue
        count = _read_stack(
            reads, count, env, row + ahead, plan[i, BEFORE_NEXT], row + ahead + 1, stack, row_bytes,
            target,
        )  # fmt: skip
    failed = _fetch(addresses, sizes, layout, reads[:count], scratch)
    if repeat and not failed:
        for i in range(len(plan)):  # those that came from their windows are padded already
            target = out.ctypes.data + i * stack_bytes
            _repeat_first(plan[i, BEFORE_NEXT], stack, row_bytes, target)
    return failed


@kernel
def _store_integer(target, value, size):
    for i in range(size):
        store_u8(target + i, (value >> (8 * i)) & 0xFF)


@kernel
def encode(rows, used, row_bytes, block_rows, blocks, name, level, zeros, scratch, out):
    """A shard of the first `used` rows, of which each block has so many known `zeros`; returns its
    length, or -1 if Blosc failed.

    Blocks that hold no used row are marked missing; the rest of the last one is zeros.
    """
    whole = block_rows * row_bytes
    target = out.ctypes.data
    room = len(out)
    index = 0
    entries = target + room - 16 * blocks - 4  # moved down behind the blocks at the end
    blank = blank_size = 0  # where a block of zeros is, from the first on
    for block in range(blocks):
        entry = entries + 16 * block
        if block * block_rows >= used:
            memset(entry, 0xFF, 16)
            continue
        if blank_size and zeros[block] == block_rows:
            memcpy(target + index, target + blank, blank_size)
            _store_integer(entry, index, 8)
            _store_integer(entry + 8, blank_size, 8)
            index += blank_size
            continue
        source = rows.ctypes.data + block * whole
        here = (used - block * block_rows) * row_bytes
        if here < whole:  # behind the last row a recycled tail holds rows of another segment
            memset(scratch.ctypes.data, 0, whole)
            memcpy(scratch.ctypes.data, source, here)
            source = scratch.ctypes.data
        size = blosc_encode(
            level, 0, 1, whole, source, target + index, whole + 16, name.ctypes.data, 0, 1
        )
        if size <= 0:
            return -1
        _store_integer(target + index + size, crc32c_extend(0, target + index, size), 4)
        _store_integer(entry, index, 8)
        _store_integer(entry + 8, size + 4, 8)
        if zeros[block] == block_rows:
            blank, blank_size = index, size + 4
        index += size + 4
    length = 16 * blocks
    _store_integer(entries + length, crc32c_extend(0, entries, length), 4)
    memcpy(target + index, entries, length + 4)
    return index + length + 4
