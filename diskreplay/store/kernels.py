"""Numba kernels that move rows between segments and arrays, holding no GIL.

The segment table of a field says what its rows are like and where they are: the figures that have
names below and then, for each env and slot, the address of the segment in that slot (of segment
``s`` the slot ``s % slots``), 0 if there is none, and its size: 0 for plain rows, the length of the
shard for packed ones.

Kernels that read return 0, or ``-(1 + row * num_envs + env)`` of the first row that could not be
read. Their `scratch` is made by `Column.scratch`: room for reads and, of packed fields, for one
decoded block at its end.
"""

from diskreplay.caches import expect
from diskreplay.jit import (
    address,
    inner,
    int64,
    int64s,
    kernel,
    larger,
    part,
    pointer,
    smaller,
)
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
    store_i64,
    store_u32,
)

SLOTS, SEGMENT_ROWS, ROW_BYTES, BLOCK_ROWS, BLOCKS, ENVS, FIGURES = 0, 1, 2, 3, 4, 5, 6

ENV, ROW, BEFORE, AHEAD, BEFORE_NEXT = 0, 1, 2, 3, 4  # columns of a plan
_PLAN = 5  # columns

_HEADER = 16  # of a Blosc chunk; then the start of its one block, then the length of its stream
_ONE_STREAM = _HEADER + 8
_STORED, _LZ4, _SHUFFLES = 0x2, 1, 0x5
# A stream so much shorter than its rows is a few long runs. LZ4 repeats one that it has to stop in
# byte by byte, and is three times as fast when it need not stop.
_LONG_RUNS = 64
_WILLNEED, _RUSAGE_THREAD, _MAJOR_FAULTS_AT = 3, 1, 72
_MOST_BATCHES_ADVISED = 1024
_PAGE, _LINE = 4096, 64
_AHEAD = 1 << 16  # bytes that are expected before they are copied
_BLOCK_AHEAD = 1 << 13  # bytes of a block that are expected while another is decoded
# A read: rows start..stop of an env, the memory they go to and, once found, where they begin or, of
# a packed segment, where the index has the block they begin in.
_ENV, _START, _STOP, _TARGET, _SOURCE, _ENTRY, READ = 0, 1, 2, 3, 4, 5, 6
READS = 4096  # that `take` does at a time


@inner
def _segment(table, env, row):
    """Where the table has the segment of a row: its address there, and its size behind that."""
    slots = table[SLOTS]
    return FIGURES + 2 * (env * slots + row // table[SEGMENT_ROWS] % slots)


@kernel("int64[::1], int64[::1], int64[::1], uint8[::1]")
def scatter(table, envs, rows, source):
    """Write ``source[envs[i]]`` as row ``rows[i]`` of env ``envs[i]``."""
    row_bytes = table[ROW_BYTES]
    for i in range(len(envs)):
        at = rows[i] % table[SEGMENT_ROWS] * row_bytes
        target = table[_segment(pointer(table), envs[i], rows[i])] + at
        memcpy(target, address(source) + envs[i] * row_bytes, row_bytes)
    return 0


@inner
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


@inner
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


@inner
def _copy(table, env, start, stop, target, scratch_end):
    """Rows start..stop of one env to the memory at `target`, across segments and blocks."""
    segment_rows, row_bytes = table[SEGMENT_ROWS], table[ROW_BYTES]
    block_rows, blocks = table[BLOCK_ROWS], table[BLOCKS]
    row = start
    while row < stop:
        place = _segment(table, env, row)
        base, size = table[place], table[place + 1]
        if base == 0:
            return -(1 + row)
        at = row % segment_rows
        rows = smaller(stop - row, segment_rows - at)
        if size == 0:
            memcpy(target, base + at * row_bytes, rows * row_bytes)
        else:
            block = at // block_rows
            low = at - block * block_rows
            rows = smaller(rows, block_rows - low)
            offset, length = _locate(base + size - 4 - 16 * blocks, block, blocks, size)
            source = base + offset
            # Each time: memory may leave the page cache, and come back otherwise from a disk.
            if length < 0 or crc32c_extend(0, source, length) != load_u32(source + length):
                return -(1 + row)
            room = scratch_end - block_rows * row_bytes
            if _decode(source, length, low, low + rows, row_bytes, block_rows, target, room):
                return -(1 + row)
        row += rows
        target += rows * row_bytes
    return 0


@part(int64, int64s, int64s, int64, int64)
def _fetch(table, reads, count, scratch_end):
    """Copy what `reads` lists.

    Where each begins is found first, so that its memory can be on the way while others are copied:
    plain rows of one segment; of packed ones the index, and then the first block. All else is found
    when its turn comes.
    """
    envs, segment_rows, row_bytes = table[ENVS], table[SEGMENT_ROWS], table[ROW_BYTES]
    largest = row_bytes
    for i in range(count):
        read = READ * i
        start, rows = reads[read + _START], reads[read + _STOP] - reads[read + _START]
        place = _segment(table, reads[read + _ENV], start)
        base, size, at = table[place], table[place + 1], start % segment_rows
        source = entry = 0
        if base and size:
            entry = base + size - 4 - 16 * (table[BLOCKS] - at // table[BLOCK_ROWS])
            expect(entry)
            source = base
        elif base and at + rows <= segment_rows:
            source = base + at * row_bytes
            largest = larger(largest, rows * row_bytes)
        reads[read + _SOURCE], reads[read + _ENTRY] = source, entry
    lead = smaller(_AHEAD // largest + 1, count)
    for i in range(-lead, count):
        coming = READ * (i + lead)
        if i + lead < count and reads[coming + _SOURCE] and not reads[coming + _ENTRY]:
            rows = reads[coming + _STOP] - reads[coming + _START]
            at = reads[coming + _SOURCE]
            stop = at + rows * row_bytes
            while at < stop:  # from a page's first line on the processor fetches ahead by itself
                expect(at)
                at += _PAGE - at % _PAGE
        if i < 0:
            continue
        read = READ * i
        entry = reads[read + READ + _ENTRY] if i + 1 < count else 0
        if entry:  # of an index that has rotted too: any address may be expected
            at = reads[read + READ + _SOURCE] + load_i64(entry)
            for line in range(0, smaller(load_i64(entry + 8), _BLOCK_AHEAD), _LINE):
                expect(at + line)
        env, start, stop = reads[read + _ENV], reads[read + _START], reads[read + _STOP]
        if reads[read + _SOURCE] and not reads[read + _ENTRY]:
            memcpy(reads[read + _TARGET], reads[read + _SOURCE], (stop - start) * row_bytes)
            continue
        failed = _copy(table, env, start, stop, reads[read + _TARGET], scratch_end)
        if failed:
            return failed * envs + envs - 1 - env
    return 0


@inner
def _add(reads, count, env, start, stop, target):
    """Add a read; returns how many there are."""
    read = READ * count
    reads[read + _ENV], reads[read + _START] = env, start
    reads[read + _STOP], reads[read + _TARGET] = stop, target
    return count + 1


@kernel("int64[::1], int64[::1], uint8[::1], int64[::1]")
def take(table, ids, out, scratch):
    """The row of each id (``row * num_envs + env``) into ``out[i]``, zeros for negative ones.

    Consecutive rows are read in one go, so that a block is decoded once for all of them.
    """
    envs, row_bytes = table[ENVS], table[ROW_BYTES]
    reads = pointer(scratch)
    count, i, failed = int64(0), 0, 0  # a literal would have what it is given to compiled twice
    while i < len(ids) and not failed:
        stop = i + 1
        target = address(out) + i * row_bytes
        if ids[i] < 0:
            memset(target, 0, row_bytes)
        else:
            while stop < len(ids) and ids[stop] == ids[stop - 1] + envs:
                stop += 1
            row = ids[i] // envs
            count = _add(reads, count, ids[i] % envs, row, row + stop - i, target)
        i = stop
        if count == READS or i == len(ids):
            failed = _fetch(pointer(table), reads, count, address(scratch) + 8 * len(scratch))
            count = 0
    return failed


@kernel("int64[::1], int64[:, ::1]")
def advise(table, plan):
    """Ask the system for the pages of all windows of a plan, without waiting for them. Pages that
    are at hand need no asking, which costs a system call a window."""
    segment_rows, row_bytes = table[SEGMENT_ROWS], table[ROW_BYTES]
    block_rows, blocks = table[BLOCK_ROWS], table[BLOCKS]
    for i in range(len(plan)):
        row, stop = plan[i, ROW] - plan[i, BEFORE], plan[i, ROW] + plan[i, AHEAD] + 1
        while row < stop:
            at = row % segment_rows
            rows = smaller(stop - row, segment_rows - at)
            place = _segment(pointer(table), plan[i, ENV], row)
            base, size = table[place], table[place + 1]
            if base != 0:
                low, high = base + at * row_bytes, base + (at + rows) * row_bytes
                if size != 0:
                    entry = base + size - 4 - 16 * blocks
                    first, last = at // block_rows, (at + rows - 1) // block_rows
                    low = base + load_i64(entry + 16 * first)
                    high = base + load_i64(entry + 16 * last) + load_i64(entry + 16 * last + 8)
                if base <= low < high:
                    low -= low % _PAGE
                    madvise(low, high - low, _WILLNEED)
            row += rows
    return 0


@inner
def _read_stack(reads, count, env, row, before, stop, stack, row_bytes, target):
    """Add the read of the stack that ends at `row`, with what follows it up to `stop`; returns how
    many reads there are. Places before the episode's start are zeros; all if `before` is negative.
    """
    empty = stack - 1 - before
    if empty:
        memset(target, 0, empty * row_bytes)
    if before >= 0:
        count = _add(reads, count, env, row - before, stop, target + empty * row_bytes)
    return count


@kernel("int64[::1], int64[:, ::1], int64, int64, int64[::1], int64[::1], uint8[::1], int64[::1]")
def windows(table, plan, stack, horizon, advice, rusage, out, scratch):
    """Both stacks of each planned transition into one window of ``stack + horizon`` rows.

    The observation stack ends at place ``stack - 1``, the next one at ``stack + horizon - 1``;
    places before the episode's start are zeros. Where an episode ended before the horizon and the
    two stacks overlap, they do not fit into one window: those are counted, their next stacks are
    left out here, and `next_stacks` makes them.

    ``advice`` holds for how many batches to call `advise` first, and for how many after the next
    major fault.
    """
    row_bytes = table[ROW_BYTES]
    window_bytes = (stack + horizon) * row_bytes
    usage = address(rusage)
    watches = advice[0] == 0 and advice[1] > 0
    if watches:
        getrusage(_RUSAGE_THREAD, usage)
    faults = load_i64(usage + _MAJOR_FAULTS_AT)
    reads = pointer(scratch)
    count, apart = int64(0), 0
    window = address(out)
    for i in range(len(plan)):
        env, row, before, ahead = plan[i, ENV], plan[i, ROW], plan[i, BEFORE], plan[i, AHEAD]
        next_before = plan[i, BEFORE_NEXT]
        # Two stacks that touch or overlap are one read.
        together = next_before >= 0 and ahead == horizon and horizon <= stack
        stop = row + ahead + 1 if together else row + 1
        count = _read_stack(reads, count, env, row, before, stop, stack, row_bytes, window)
        if not together and horizon < stack:
            apart += 1
        elif not together:
            count = _read_stack(
                reads, count, env, row + ahead, next_before, row + ahead + 1, stack, row_bytes,
                window + horizon * row_bytes,
            )  # fmt: skip
        window += window_bytes
    failed = _fetch(pointer(table), reads, count, address(scratch) + 8 * len(scratch))
    if failed:
        return failed
    if watches:
        getrusage(_RUSAGE_THREAD, usage)
        if load_i64(usage + _MAJOR_FAULTS_AT) > faults:
            advice[0] = advice[1]
            advice[1] = smaller(2 * advice[1], _MOST_BATCHES_ADVISED)
        else:
            advice[1] = larger(advice[1] // 2, 16)
    elif advice[0] > 0:
        advice[0] -= 1
    return apart


@kernel("int64[::1], int64[:, ::1], int64, int64, uint8[::1], uint8[::1], int64[::1]")
def next_stacks(table, plan, stack, horizon, window, out, scratch):
    """The next stacks of a batch in which some do not fit into their windows."""
    row_bytes = table[ROW_BYTES]
    stack_bytes = stack * row_bytes
    reads = pointer(scratch)
    count = int64(0)
    for i in range(len(plan)):
        env, row, ahead = plan[i, ENV], plan[i, ROW], plan[i, AHEAD]
        target = address(out) + i * stack_bytes
        if ahead == horizon and plan[i, BEFORE_NEXT] >= 0:
            source = address(window) + (i * (stack + horizon) + horizon) * row_bytes
            memcpy(target, source, stack_bytes)
            continue
        count = _read_stack(
            reads, count, env, row + ahead, plan[i, BEFORE_NEXT], row + ahead + 1, stack, row_bytes,
            target,
        )  # fmt: skip
    return _fetch(pointer(table), reads, count, address(scratch) + 8 * len(scratch))


@kernel(
    "uint8[::1], int64, int64, int64, int64, uint8[::1], int64, int64[::1], uint8[::1], uint8[::1]"
)
def encode(rows, used, row_bytes, block_rows, blocks, name, level, zeros, scratch, out):
    """A shard of the first `used` rows, of which each block has so many known `zeros`; returns its
    length, or -1 if Blosc failed.

    Blocks that hold no used row are marked missing; the rest of the last one is zeros.
    """
    whole = block_rows * row_bytes
    target = address(out)
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
            store_i64(entry, index)
            store_i64(entry + 8, blank_size)
            index += blank_size
            continue
        source = address(rows) + block * whole
        here = (used - block * block_rows) * row_bytes
        if here < whole:  # behind the last row a recycled tail holds rows of another segment
            memset(address(scratch), 0, whole)
            memcpy(address(scratch), source, here)
            source = address(scratch)
        size = blosc_encode(
            level, 0, 1, whole, source, target + index, whole + 16, address(name), 0, 1
        )
        if size <= 0:
            return -1
        store_u32(target + index + size, crc32c_extend(0, target + index, size))
        store_i64(entry, index)
        store_i64(entry + 8, size + 4)
        if zeros[block] == block_rows:
            blank, blank_size = index, size + 4
        index += size + 4
    length = 16 * blocks
    store_u32(entries + length, crc32c_extend(0, entries, length))
    memcpy(target + index, entries, length + 4)
    return index + length + 4
