"""What Numba kernels call to copy rows out of segments and tails, holding no GIL.

Each returns 0, or a negative number that says which row could not be read: ``-(1 + row)``, from
`fetch` on ``-(1 + row * num_envs + env)``.
"""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import inner, int64, int64s, larger, part, smaller
from diskreplay.store.lz4_kernels import lz4_decode
from diskreplay.store.native import (
    blosc_decode,
    crc32c_extend,
    fence,
    load_acquire,
    load_i64,
    load_u32,
    memcpy,
)
from diskreplay.store.read_job import (
    ENTRY,
    ENV,
    READ,
    SECOND,
    SHARED,
    SOURCE,
    SPLIT,
    START,
    STOP,
    TARGET,
)
from diskreplay.store.segment_table import (
    BLOCK_ROWS,
    ENVS,
    FIGURES,
    LIVE,
    PACKED,
    ROW_BYTES,
    SEGMENT_ROWS,
    SLOTS,
    STEP,
    STRIDE,
    TAIL,
    TAIL_ROWS,
)

_HEADER = 16  # of a Blosc chunk; then the start of its one block, then the length of its stream
_ONE_STREAM = _HEADER + 8
_STORED, _LZ4, _SHUFFLES = 0x2, 1, 0x5
_LINE = 64
PAGE = 4096
_AHEAD = 1 << 16  # bytes that are expected before they are copied
_SHORT, _SHORT_AHEAD = 1 << 11, 1 << 13  # a read of which all lines are expected
_BLOCK_AHEAD = 1 << 13  # bytes of a block that are expected while another is decoded


@inner
def segment_at(table, env, row):
    """Where the table has the segment of a row: its address there, and its size behind that."""
    slots, number = table[SLOTS], row // table[SEGMENT_ROWS]
    if number >= slots:  # a division takes as long as copying a short row
        number %= slots
    return FIGURES + 2 * (env * slots + number)


@inner
def _decode(source, size, low, high, row_bytes, block_rows, target, scratch):
    """Where rows low..high of one Blosc chunk are, decoded or as they were stored; -1 if it is no
    such chunk. They may go to `target`, if that is not 0. LZ4 is stopped after the last row that is
    wanted."""
    whole = block_rows * row_bytes
    if size < _HEADER:
        return -1
    flags = (load_u32(source) >> 16) & 0xFF
    if load_u32(source + 4) != whole or load_u32(source + 12) != size:
        return -1
    if flags & _STORED:
        if size < _HEADER + whole:
            return -1
        return source + _HEADER + low * row_bytes
    if flags >> 5 == _LZ4 and not flags & _SHUFFLES and load_u32(source + 8) == whole:
        stream = load_u32(source + _HEADER + 4)
        if load_u32(source + _HEADER) == _HEADER + 4 and stream <= size - _ONE_STREAM:
            if stream == whole:  # did not compress
                return source + _ONE_STREAM + low * row_bytes
            room = target if low == 0 and target else scratch
            wanted = high * row_bytes
            if lz4_decode(source + _ONE_STREAM, stream, room, wanted, whole) < 0:
                return -1
            return room + low * row_bytes
    if blosc_decode(source, scratch, whole, 1) != whole:
        return -1
    return scratch + low * row_bytes


@inner
def _copy(table, reads, read, scratch_end):
    """The rows of one of the `reads` to their memory, across segments and blocks."""
    segment_rows, row_bytes, stride = table[SEGMENT_ROWS], table[ROW_BYTES], table[STRIDE]
    block_rows, tail_rows = table[BLOCK_ROWS], table[TAIL_ROWS]
    env, row, stop = reads[read + ENV], reads[read + START], reads[read + STOP]
    split = reads[read + SPLIT]
    packed, live = table[PACKED] + 8 * env, table[LIVE] + 8 * env
    while row < stop:
        edge = load_acquire(packed) if block_rows else stop
        if row >= edge:
            place = row % tail_rows if tail_rows else 0
            rows = smaller(stop - row, tail_rows - place)
            if rows <= 0:
                return -(1 + row)
            source = table[TAIL] + (env * tail_rows + place) * row_bytes
            _deliver(reads, read, source, row_bytes, row, rows, row_bytes)
            fence()
            if load_acquire(live) > row:
                if packed == live:
                    continue  # it is in a shard by now
                return -(1 + row)  # which this reader has not seen yet
            row += rows
            continue
        place = segment_at(table, env, row)
        base, index = table[place], table[place + 1]
        if base == 0:
            return -(1 + row)
        at = row % segment_rows
        rows = smaller(smaller(stop, edge) - row, segment_rows - at)
        if index == 0:
            _deliver(reads, read, base + at * stride, stride, row, rows, row_bytes)
        else:
            block = at // block_rows
            low = at - block * block_rows
            rows = smaller(rows, block_rows - low)
            entry = index + table[STEP] * block
            source, length = base + load_i64(entry), load_i64(entry + 8) - 4
            # Each time: memory may leave the page cache, and come back otherwise from a disk.
            if length < 0 or crc32c_extend(0, source, length) != load_u32(source + length):
                return -(1 + row)
            room = scratch_end - block_rows * row_bytes
            target = 0
            if row >= split:
                target = reads[read + SECOND] + (row - split) * row_bytes
            elif row + rows <= split:
                target = reads[read + TARGET] + (row - reads[read + START]) * row_bytes
            found = _decode(source, length, low, low + rows, row_bytes, block_rows, target, room)
            if found == -1:
                return -(1 + row)
            if found != target:
                _deliver(reads, read, found, row_bytes, row, rows, row_bytes)
        row += rows
    return 0


@inner
def _deliver(reads, read, source, stride, row, rows, row_bytes):
    """So many rows from `row` on, each `stride` bytes behind the one before, to their memory."""
    split = reads[read + SPLIT]
    before = smaller(larger(split - row, 0), rows)
    if before:
        target = reads[read + TARGET] + (row - reads[read + START]) * row_bytes
        _copy_rows(source, stride, before, row_bytes, target)
    if before < rows:
        target = reads[read + SECOND] + (row + before - split) * row_bytes
        _copy_rows(source + before * stride, stride, rows - before, row_bytes, target)


@inner
def _copy_rows(source, stride, rows, row_bytes, target):
    """So many rows, each `stride` bytes behind the one before."""
    if stride == row_bytes:
        memcpy(target, source, rows * row_bytes)
    else:
        for i in range(rows):
            memcpy(target + i * row_bytes, source + i * stride, row_bytes)
    return 0


@part(int64, int64s, int64s, int64, int64)
def fetch(table, reads, count, scratch_end):
    """Copy what `reads` lists.

    Where each begins is found first, so that its memory can be on the way while others are copied:
    plain rows of one segment; of packed ones the entry in the index, and then the first block. All
    else is found when its turn comes.
    """
    envs, segment_rows, row_bytes = table[ENVS], table[SEGMENT_ROWS], table[ROW_BYTES]
    stride, block_rows = table[STRIDE], table[BLOCK_ROWS]
    largest = row_bytes
    for i in range(count):
        read = READ * i
        env, start = reads[read + ENV], reads[read + START]
        rows = reads[read + STOP] - start
        place = segment_at(table, env, start)
        base, index, at = table[place], table[place + 1], start % segment_rows
        source = entry = 0
        if block_rows:
            if base and start < load_acquire(table[PACKED] + 8 * env):
                source, entry = base, index + table[STEP] * (at // block_rows)
                prefetch_line(entry)
        elif base and at + rows <= segment_rows:
            source = base + at * stride
            largest = larger(largest, rows * row_bytes)
        reads[read + SOURCE], reads[read + ENTRY] = source, entry
    lead = smaller((_AHEAD if largest > _SHORT else _SHORT_AHEAD) // largest + 1, count)
    for i in range(-lead, count):
        coming = READ * (i + lead)
        if i + lead < count and reads[coming + SOURCE] and not reads[coming + ENTRY]:
            rows = reads[coming + STOP] - reads[coming + START]
            at = reads[coming + SOURCE]
            if rows * row_bytes <= _SHORT and stride == row_bytes:
                for line in range(at - at % _LINE, at + rows * row_bytes, _LINE):
                    prefetch_line(line)
            elif stride == row_bytes:
                stop = at + rows * row_bytes
                while at < stop:  # from a page's first line on the processor goes on by itself
                    prefetch_line(at)
                    at += PAGE - at % PAGE
            else:
                for _ in range(rows):
                    prefetch_line(at)
                    at += stride
        if i < 0:
            continue
        read = READ * i
        entry = reads[read + READ + ENTRY] if i + 1 < count else 0
        if entry:
            at = reads[read + READ + SOURCE] + load_i64(entry)
            for line in range(0, smaller(load_i64(entry + 8), _BLOCK_AHEAD), _LINE):
                prefetch_line(at + line)
        start, stop, split = reads[read + START], reads[read + STOP], reads[read + SPLIT]
        source = reads[read + SOURCE]
        if source and not reads[read + ENTRY]:
            if split == stop:
                _copy_rows(source, stride, stop - start, row_bytes, reads[read + TARGET])
            else:
                _deliver(reads, read, source, stride, start, stop - start, row_bytes)
        else:
            failed = _copy(table, reads, read, scratch_end)
            if failed:
                return failed * envs + envs - 1 - reads[read + ENV]
        shared = reads[read + SHARED] * row_bytes
        if shared:
            end = reads[read + TARGET] + (split - start) * row_bytes
            memcpy(reads[read + SECOND] - shared, end - shared, shared)
    return 0


@inner
def add_read(reads, count, env, start, stop, target):
    """Add a read; returns how many there are."""
    read = READ * count
    reads[read + ENV], reads[read + START] = env, start
    reads[read + STOP], reads[read + TARGET] = stop, target
    reads[read + SPLIT], reads[read + SHARED] = stop, 0
    return count + 1
