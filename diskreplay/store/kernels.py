"""Numba kernels that move rows between segments and arrays, holding no GIL.

The segment table of a field says what its rows are like and where they are: the figures that have
names below and then, for each env and slot, two numbers of the segment in that slot (of segment
``s`` the slot ``s % slots``), both 0 if there is none. Of a raw one they are the address of the
env's first row in it, and 0; of a packed one the address of the shard, and that of the env's first
entry in a copy of its index, which was checked.

Of a packed field the rows of env ``e`` from ``packed[e]`` on are in the tail. Its places are used
in turn: before one gets another row, the block of the row that is there was put into a shard, and
``packed[e]`` was raised past it. So what was copied from the tail holds if ``packed[e]`` has not
passed it afterwards, and nobody has to wait for anybody. A reader in another process goes by a
copy of these numbers, to which its copies of the indexes belong, and holds what it copied against
the live ones.

Kernels that read return 0, or ``-(1 + row * num_envs + env)`` of the first row that could not be
read. Their `scratch` is made by `Column.scratch`: for each thread room for reads and, of packed
fields, for one decoded block at its end.

Several threads read one batch in parts. `windows` and `take_parts` say in the memory of a `job`
what is to be read; they and all who call `help_read` with that job take the next part that nobody
has taken, until there is none, and they return when the last one is done. So nothing depends on
whether others come, or when: who comes late finds nothing to do, and looks at the job only.
"""

from typing import Any

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import (
    address,
    inner,
    int64,
    int64s,
    int64s_at,
    kernel,
    larger,
    part,
    pointer,
    smaller,
)
from diskreplay.store.native import (
    blosc_decode,
    crc32c_extend,
    fence,
    fetch_add,
    getrusage,
    load_acquire,
    load_i64,
    load_u32,
    lz4_decode,
    lz4_decode_partly,
    madvise,
    memcpy,
    memset,
    sched_yield,
    store_release,
)

SLOTS, SEGMENT_ROWS, ROW_BYTES, BLOCK_ROWS, ENVS = 0, 1, 2, 3, 4
STRIDE = 5  # bytes from a row of a raw segment to the next one of that env
STEP = 6  # bytes from the entry of a block in an index to that of the next block of that env
TAIL, TAIL_ROWS = 7, 8  # its address, and its rows of each env
PACKED, LIVE = 9, 10  # addresses of `packed`: of what is gone by, and of what is raised meanwhile
FIGURES = 11

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
# a packed segment, where the index has the block they begin in. Rows from `_SPLIT` on go to other
# memory, and so many before it (`_SHARED`) to both: there they stand in front of it.
_ENV, _START, _STOP, _TARGET, _SOURCE, _ENTRY, _SPLIT, _SECOND, _SHARED, READ = range(10)
READS = 4096  # that `take` does at a time
# A job: parts, taken, done, and of those taken how many by helpers (-1 taken while nobody may take
# any); threads that may read, and helpers that came; addresses and figures of what is to be read;
# and of each part what came of it.
_PARTS, TAKEN, _DONE, _FROM_BEHIND, _THREADS, _HELPERS = 0, 1, 2, 3, 4, 5
_TABLE, _PLANNED, _COUNT, _ROWS, _STACK, _HORIZON = 6, 7, 8, 9, 10, 11
_FIRST, _WIDTH, _NEXT, _SCRATCH, _WORDS = 12, 13, 14, 15, 16
_OF_IDS = (
    0  # a stack of no frames: rows are taken by their ids, `_WIDTH` of them for one of `_COUNT`
)
JOB = 17  # words, before those of the parts
_PATIENCE = 200  # times that a helper lets others run until the job begins


@inner
def _segment(table, env, row):
    """Where the table has the segment of a row: its address there, and its size behind that."""
    slots = table[SLOTS]
    return FIGURES + 2 * (env * slots + row // table[SEGMENT_ROWS] % slots)


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
        target = table[_segment(pointer(table), env, row)]
        target += row % table[SEGMENT_ROWS] * table[STRIDE]
        memcpy(target, address(source) + i * row_bytes, row_bytes)
    return 0


@inner
def _decode(source, size, low, high, row_bytes, block_rows, target, scratch):
    """Where rows low..high of one Blosc chunk are, decoded or as they were stored; -1 if it is no
    such chunk. They may go to `target`, if that is not 0. LZ4 is stopped after the last row that is
    wanted, if that pays."""
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
            end = high * row_bytes
            if stream < whole // _LONG_RUNS:
                if lz4_decode(source + _ONE_STREAM, scratch, stream, whole) != whole:
                    return -1
            elif low == 0 and target:
                got = lz4_decode_partly(source + _ONE_STREAM, target, stream, end, end)
                return target if got == end else -1
            elif lz4_decode_partly(source + _ONE_STREAM, scratch, stream, end, whole) < end:
                return -1
            return scratch + low * row_bytes
    if blosc_decode(source, scratch, whole, 1) != whole:
        return -1
    return scratch + low * row_bytes


@inner
def _copy(table, reads, read, scratch_end):
    """The rows of one of the `reads` to their memory, across segments and blocks."""
    segment_rows, row_bytes, stride = table[SEGMENT_ROWS], table[ROW_BYTES], table[STRIDE]
    block_rows, tail_rows = table[BLOCK_ROWS], table[TAIL_ROWS]
    env, row, stop = reads[read + _ENV], reads[read + _START], reads[read + _STOP]
    split = reads[read + _SPLIT]
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
        place = _segment(table, env, row)
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
                target = reads[read + _SECOND] + (row - split) * row_bytes
            elif row + rows <= split:
                target = reads[read + _TARGET] + (row - reads[read + _START]) * row_bytes
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
    split = reads[read + _SPLIT]
    before = smaller(larger(split - row, 0), rows)
    if before:
        target = reads[read + _TARGET] + (row - reads[read + _START]) * row_bytes
        _copy_rows(source, stride, before, row_bytes, target)
    if before < rows:
        target = reads[read + _SECOND] + (row + before - split) * row_bytes
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
def _fetch(table, reads, count, scratch_end):
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
        env, start = reads[read + _ENV], reads[read + _START]
        rows = reads[read + _STOP] - start
        place = _segment(table, env, start)
        base, index, at = table[place], table[place + 1], start % segment_rows
        source = entry = 0
        if block_rows:
            if base and start < load_acquire(table[PACKED] + 8 * env):
                source, entry = base, index + table[STEP] * (at // block_rows)
                prefetch_line(entry)
        elif base and at + rows <= segment_rows:
            source = base + at * stride
            largest = larger(largest, rows * row_bytes)
        reads[read + _SOURCE], reads[read + _ENTRY] = source, entry
    lead = smaller(_AHEAD // largest + 1, count)
    for i in range(-lead, count):
        coming = READ * (i + lead)
        if i + lead < count and reads[coming + _SOURCE] and not reads[coming + _ENTRY]:
            rows = reads[coming + _STOP] - reads[coming + _START]
            at = reads[coming + _SOURCE]
            if stride == row_bytes:
                stop = at + rows * row_bytes
                while at < stop:  # from a page's first line on the processor goes on by itself
                    prefetch_line(at)
                    at += _PAGE - at % _PAGE
            else:
                for _ in range(rows):
                    prefetch_line(at)
                    at += stride
        if i < 0:
            continue
        read = READ * i
        entry = reads[read + READ + _ENTRY] if i + 1 < count else 0
        if entry:
            at = reads[read + READ + _SOURCE] + load_i64(entry)
            for line in range(0, smaller(load_i64(entry + 8), _BLOCK_AHEAD), _LINE):
                prefetch_line(at + line)
        start, stop, split = reads[read + _START], reads[read + _STOP], reads[read + _SPLIT]
        source = reads[read + _SOURCE]
        if source and not reads[read + _ENTRY]:
            if split == stop:
                _copy_rows(source, stride, stop - start, row_bytes, reads[read + _TARGET])
            else:
                _deliver(reads, read, source, stride, start, stop - start, row_bytes)
        else:
            failed = _copy(table, reads, read, scratch_end)
            if failed:
                return failed * envs + envs - 1 - reads[read + _ENV]
        if split < stop:
            shared = reads[read + _SHARED] * row_bytes
            end = reads[read + _TARGET] + (split - start) * row_bytes
            memcpy(reads[read + _SECOND] - shared, end - shared, shared)
    return 0


@inner
def _add(reads, count, env, start, stop, target):
    """Add a read; returns how many there are."""
    read = READ * count
    reads[read + _ENV], reads[read + _START] = env, start
    reads[read + _STOP], reads[read + _TARGET] = stop, target
    reads[read + _SPLIT] = stop
    return count + 1


@part(int64, int64s, int64s, int64, int64, int64, int64, int64)
def _take(table, ids, start, end, out, scratch, words):
    """The rows of ``ids[start:end]`` to their places behind the address `out`."""
    envs, row_bytes = table[ENVS], table[ROW_BYTES]
    reads = int64s_at(scratch)
    count: Any = int64(0)  # a literal would have what it is given to compiled twice
    i, failed = start, 0
    while i < end and not failed:
        stop = i + 1
        target = out + i * row_bytes
        if ids[i] < 0:
            memset(target, 0, row_bytes)
        else:
            while stop < end and ids[stop] == ids[stop - 1] + envs:
                stop += 1
            row = ids[i] // envs
            count = _add(reads, count, ids[i] % envs, row, row + stop - i, target)
        i = stop
        if count == READS or i == end:
            failed = _fetch(table, reads, count, scratch + 8 * words)
            count = 0
    return failed


@kernel("int64[::1], int64[::1], uint8[::1], int64[::1]")
def take(table, ids, out, scratch):
    """The row of each id (``row * num_envs + env``) into ``out[i]``, zeros for negative ones.

    Consecutive rows are read in one go, so that a block is decoded once for all of them.
    """
    return _take(
        pointer(table), pointer(ids), 0, len(ids), address(out), address(scratch), len(scratch)
    )


@kernel("int64[::1], int64[:, ::1]")
def advise(table, plan):
    """Ask the system for the pages of all windows of a plan, without waiting for them. Pages that
    are at hand need no asking, which costs a system call a window."""
    segment_rows, block_rows = table[SEGMENT_ROWS], table[BLOCK_ROWS]
    stride, row_bytes = table[STRIDE], table[ROW_BYTES]
    for i in range(len(plan)):
        env = plan[i, ENV]
        row, stop = plan[i, ROW] - plan[i, BEFORE], plan[i, ROW] + plan[i, AHEAD] + 1
        if block_rows:  # those behind are in the tail
            stop = smaller(stop, load_acquire(table[PACKED] + 8 * env))
        while row < stop:
            at = row % segment_rows
            rows = smaller(stop - row, segment_rows - at)
            place = _segment(pointer(table), env, row)
            base, index = table[place], table[place + 1]
            if base != 0:
                low = base + at * stride
                high = low + (rows - 1) * stride + row_bytes
                if index != 0:  # blocks of many envs lie between those of this one
                    rows = smaller(rows, block_rows - at % block_rows)
                    entry = index + table[STEP] * (at // block_rows)
                    low = base + load_i64(entry)
                    high = low + load_i64(entry + 8)
                if base <= low < high:
                    low -= low % _PAGE
                    madvise(low, high - low, _WILLNEED)
            row += rows
    return 0


@inner
def _clear(target, places, row_bytes):
    """Zeros where a stack has no frames; returns what is behind them."""
    if places:
        memset(target, 0, places * row_bytes)
    return target + places * row_bytes


@inner
def _add_window(reads, count, plan, i, job, window):
    """Add the reads for both stacks of a planned transition into one window; returns how many there
    are."""
    stack, horizon = job[_STACK], job[_HORIZON]
    at, row_bytes = _PLAN * i, job[_ROWS]
    env, row, before = plan[at + ENV], plan[at + ROW], plan[at + BEFORE]
    ahead, next_before = plan[at + AHEAD], plan[at + BEFORE_NEXT]
    target = _clear(window, stack - 1 - before, row_bytes)
    # Two stacks that touch or overlap are one read.
    if next_before >= 0 and ahead == horizon and horizon <= stack:
        return _add(reads, count, env, row - before, row + ahead + 1, target)
    count = _add(reads, count, env, row - before, row + 1, target)
    target = _clear(window + horizon * row_bytes, stack - 1 - next_before, row_bytes)
    if next_before >= 0:
        count = _add(reads, count, env, row + ahead - next_before, row + ahead + 1, target)
    return count


@inner
def _add_stacks(reads, count, plan, i, job, first, second):
    """Add the reads for both stacks of a planned transition, each into memory of its own; returns
    how many there are."""
    stack, at, row_bytes = job[_STACK], _PLAN * i, job[_ROWS]
    env, row, before = plan[at + ENV], plan[at + ROW], plan[at + BEFORE]
    ahead, next_before = plan[at + AHEAD], plan[at + BEFORE_NEXT]
    target = _clear(first, stack - 1 - before, row_bytes)
    behind = _clear(second, stack - 1 - next_before, row_bytes)
    shared = next_before + 1 - ahead
    if next_before >= 0 and shared >= 0:  # two stacks that touch or overlap are one read
        read = READ * count
        count = _add(reads, count, env, row - before, row + ahead + 1, target)
        reads[read + _SPLIT], reads[read + _SHARED] = row + 1, shared
        reads[read + _SECOND] = behind + shared * row_bytes
        return count
    count = _add(reads, count, env, row - before, row + 1, target)
    if next_before >= 0:
        count = _add(reads, count, env, row + ahead - next_before, row + ahead + 1, behind)
    return count


@part(int64, int64s, int64, int64)
def _read_part(job, part, scratch):
    """Read one part of a job, with the scratch memory of one thread."""
    count, parts, row_bytes = job[_COUNT], job[_PARTS], job[_ROWS]
    start, end = part * count // parts, (part + 1) * count // parts
    if job[_STACK] == _OF_IDS:
        return _take(
            int64s_at(job[_TABLE]), int64s_at(job[_PLANNED]), start * job[_WIDTH],
            end * job[_WIDTH], job[_FIRST], scratch, job[_WORDS],
        )  # fmt: skip
    width, stack = job[_WIDTH] * row_bytes, job[_STACK] * row_bytes
    plan, reads, read = int64s_at(job[_PLANNED]), int64s_at(scratch), int64(0)
    for i in range(start, end):
        first = job[_FIRST] + i * width
        if job[_NEXT]:
            read = _add_stacks(reads, read, plan, i, job, first, job[_NEXT] + i * stack)
        else:
            read = _add_window(reads, read, plan, i, job, first)
    return _fetch(int64s_at(job[_TABLE]), reads, read, scratch + 8 * job[_WORDS])


@kernel("int64[::1]")
def help_read(job):
    """Read parts of a job that another thread has begun, or is about to, from the last one on: what
    that one's caches have of the memory for the first ones, this one would have to fetch."""
    for _ in range(_PATIENCE):
        if load_acquire(address(job) + 8 * TAKEN) >= 0:
            break
        sched_yield()
    else:
        return  # interrupted, or so slow that he reads alone
    thread = 1 + fetch_add(address(job) + 8 * _HELPERS, 1)
    if thread >= job[_THREADS]:
        return
    scratch = job[_SCRATCH] + 8 * job[_WORDS] * thread
    while fetch_add(address(job) + 8 * TAKEN, 1) < job[_PARTS]:
        part = job[_PARTS] - 1 - fetch_add(address(job) + 8 * _FROM_BEHIND, 1)
        job[JOB + part] = _read_part(pointer(job), part, scratch)
        fetch_add(address(job) + 8 * _DONE, 1)


@inner
def _run(job):
    """Read a job, all but the parts that others take; 0, or what came of the first that failed."""
    store_release(address(job) + 8 * TAKEN, 0)
    part = 0
    while fetch_add(address(job) + 8 * TAKEN, 1) < job[_PARTS]:
        job[JOB + part] = _read_part(pointer(job), part, job[_SCRATCH])
        fetch_add(address(job) + 8 * _DONE, 1)
        part += 1
    while load_acquire(address(job) + 8 * _DONE) < job[_PARTS]:
        sched_yield()  # others are about to finish the last parts
    for at in range(JOB, len(job)):
        if job[at]:
            return job[at]
    return 0


@kernel("int64[::1], int64[::1], int64, uint8[::1], int64[::1], int64, int64[::1]")
def take_parts(table, ids, width, out, scratch, threads, job):
    """As `take`, read in parts: no part ends amid `width` ids, those of a window. `scratch` and
    `job` as `windows` has them."""
    job[_PARTS], job[_THREADS] = len(job) - JOB, threads
    job[_TABLE], job[_PLANNED], job[_COUNT] = address(table), address(ids), len(ids) // width
    job[_ROWS], job[_STACK], job[_WIDTH] = table[ROW_BYTES], _OF_IDS, width
    job[_FIRST] = address(out)
    job[_SCRATCH], job[_WORDS] = address(scratch), len(scratch) // threads
    return _run(job)


@kernel("int64[:, ::1], int64")
def fit_windows(plan, horizon):
    """Whether both stacks of each transition, which overlap, fit into one window of ``stack +
    horizon`` rows: not where an episode ended before the horizon."""
    for i in range(len(plan)):
        if plan[i, BEFORE_NEXT] < 0 or plan[i, AHEAD] != horizon:
            return False
    return True


@kernel(
    "int64[::1], int64[:, ::1], int64, int64, int64[::1], int64[::1], uint8[::1], int64, "
    "uint8[::1], int64[::1], int64, int64[::1]"
)
def windows(
    table, plan, stack, horizon, advice, rusage, out, width, following, scratch, threads, job
):  # fmt: skip
    """Both stacks of each planned transition: into one window of ``stack + horizon`` rows, if
    `following` is empty and they fit; else the next stacks go there. Windows in `out`, or
    observation stacks, are `width` rows apart.

    In a window the observation stack ends at place ``stack - 1``, the next one at ``stack + horizon
    - 1``; places before the episode's start are zeros. `scratch` is for so many `threads`. There
    are as many parts as `job` has words for, which has -1 in place of the parts taken.

    ``advice`` holds for how many batches to call `advise` first, and for how many after the next
    major fault.
    """
    usage = address(rusage)
    watches = advice[0] == 0 and advice[1] > 0
    if watches:
        getrusage(_RUSAGE_THREAD, usage)
    faults = load_i64(usage + _MAJOR_FAULTS_AT)
    job[_PARTS], job[_THREADS] = len(job) - JOB, threads
    job[_TABLE], job[_PLANNED], job[_COUNT] = address(table), address(plan), len(plan)
    job[_ROWS], job[_STACK], job[_HORIZON] = table[ROW_BYTES], stack, horizon
    job[_FIRST], job[_WIDTH] = address(out), width
    job[_NEXT] = address(following) if len(following) else 0
    job[_SCRATCH], job[_WORDS] = address(scratch), len(scratch) // threads
    failed = _run(job)
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
    return 0
