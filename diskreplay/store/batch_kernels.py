"""Numba kernels that read rows and windows of a batch, in one thread or in several, holding no GIL.

They return 0, or ``-(1 + row * num_envs + env)`` of the first row that could not be read. Their
`scratch` is made by `Column.scratch`: for each thread room for reads and, of packed fields, for one
decoded block at its end. What a table and a job are say `segment_table` and `read_job`.
"""

from typing import Any

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
from diskreplay.row_commit import store_release
from diskreplay.store.native import (
    fetch_add,
    getrusage,
    load_acquire,
    load_i64,
    madvise,
    memset,
    sched_yield,
)
from diskreplay.store.read_job import (
    COUNT,
    DONE,
    FIRST,
    FROM_BEHIND,
    HELPERS,
    HORIZON,
    JOB,
    NEXT,
    OF_IDS,
    PARTS,
    PLANNED,
    READ,
    READS,
    ROWS,
    SCRATCH,
    SECOND,
    SHARED,
    SPLIT,
    STACK,
    TABLE,
    TAKEN,
    THREADS,
    WIDTH,
    WORDS,
)
from diskreplay.store.read_kernels import PAGE, add_read, fetch, segment_at
from diskreplay.store.segment_table import (
    BLOCK_ROWS,
    ENVS,
    PACKED,
    ROW_BYTES,
    SEGMENT_ROWS,
    STEP,
    STRIDE,
)

ENV, ROW, BEFORE, AHEAD, BEFORE_NEXT = 0, 1, 2, 3, 4  # columns of a plan
_PLAN = 5  # columns

_WILLNEED, _RUSAGE_THREAD, _MAJOR_FAULTS_AT = 3, 1, 72
_MOST_BATCHES_ADVISED = 1024
_PATIENCE = 200  # times that a helper lets others run until the job begins


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
            env, row = int64(0), ids[i]
            if envs > 1:  # a division takes as long as copying a short row
                env, row = row % envs, row // envs
            count = add_read(reads, count, env, row, row + stop - i, target)
        i = stop
        if count == READS or i == end:
            failed = fetch(table, reads, count, scratch + 8 * words)
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


@kernel("int64[::1], int64[:, ::1], uint8[::1], int64[::1]")
def take_both(table, windows, out, scratch):
    """Of each window of ids (``row * num_envs + env``) the rows of all but the last into
    ``out[0, i]``, and of all but the first into ``out[1, i]``; zeros for negative ones.

    What both get is read once: `reads` that say so, see `read_job`.
    """
    envs, row_bytes = table[ENVS], table[ROW_BYTES]
    count, width = windows.shape
    stack = width - 1
    reads, read, end = int64s_at(address(scratch)), int64(0), address(scratch) + 8 * len(scratch)
    for i in range(count):
        first = address(out) + i * stack * row_bytes
        second = first + (count * stack - 1) * row_bytes  # a row further, so that places agree
        at = 0
        while at < width:
            stop, row = at + 1, windows[i, at]
            if row < 0:
                if at < stack:
                    memset(first + at * row_bytes, 0, row_bytes)
                if at:
                    memset(second + at * row_bytes, 0, row_bytes)
                at = stop
                continue
            while stop < width and windows[i, stop] == windows[i, stop - 1] + envs:
                stop += 1
            env = int64(0)
            if envs > 1:  # a division takes as long as copying a short row
                env, row = row % envs, row // envs
            split = smaller(stop, stack)  # places from here on are those of the second only
            new = READ * read
            read = add_read(reads, read, env, row, row + stop - at, first + at * row_bytes)
            reads[new + SPLIT], reads[new + SECOND] = row + split - at, second + split * row_bytes
            reads[new + SHARED] = larger(split - larger(at, 1), 0)
            at = stop
            if read == READS:
                failed = fetch(pointer(table), reads, read, end)
                if failed:
                    return failed
                read = int64(0)
    return fetch(pointer(table), reads, read, end)


@kernel("int64[::1], int64[:, ::1]")
def advise(table, plan):
    """Ask the system for the pages of all windows of a plan, without waiting for them. Pages that
    are at hand need no asking, which costs a system call a window."""
    segment_rows, block_rows = table[SEGMENT_ROWS], table[BLOCK_ROWS]
    stride, row_bytes = table[STRIDE], table[ROW_BYTES]
    for i in range(len(plan)):
        env = plan[i, ENV]
        ahead = plan[i, AHEAD] if plan[i, BEFORE_NEXT] >= 0 else 0
        row, stop = plan[i, ROW] - plan[i, BEFORE], plan[i, ROW] + ahead + 1
        if block_rows:  # those behind are in the tail
            stop = smaller(stop, load_acquire(table[PACKED] + 8 * env))
        while row < stop:
            at = row % segment_rows
            rows = smaller(stop - row, segment_rows - at)
            place = segment_at(pointer(table), env, row)
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
                    low -= low % PAGE
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
    stack, horizon = job[STACK], job[HORIZON]
    at, row_bytes = _PLAN * i, job[ROWS]
    env, row, before = plan[at + ENV], plan[at + ROW], plan[at + BEFORE]
    ahead, next_before = plan[at + AHEAD], plan[at + BEFORE_NEXT]
    target = _clear(window, stack - 1 - before, row_bytes)
    # Two stacks that touch or overlap are one read.
    if next_before >= 0 and ahead == horizon and horizon <= stack:
        return add_read(reads, count, env, row - before, row + ahead + 1, target)
    count = add_read(reads, count, env, row - before, row + 1, target)
    target = _clear(window + horizon * row_bytes, stack - 1 - next_before, row_bytes)
    if next_before >= 0:
        count = add_read(reads, count, env, row + ahead - next_before, row + ahead + 1, target)
    return count


@inner
def _add_stacks(reads, count, plan, i, job, first, second):
    """Add the reads for both stacks of a planned transition, each into memory of its own; returns
    how many there are."""
    stack, at, row_bytes = job[STACK], _PLAN * i, job[ROWS]
    env, row, before = plan[at + ENV], plan[at + ROW], plan[at + BEFORE]
    ahead, next_before = plan[at + AHEAD], plan[at + BEFORE_NEXT]
    target = _clear(first, stack - 1 - before, row_bytes)
    behind = _clear(second, stack - 1 - next_before, row_bytes)
    shared = next_before + 1 - ahead
    if next_before >= 0 and shared >= 0:  # two stacks that touch or overlap are one read
        read = READ * count
        count = add_read(reads, count, env, row - before, row + ahead + 1, target)
        reads[read + SPLIT], reads[read + SHARED] = row + 1, shared
        reads[read + SECOND] = behind + shared * row_bytes
        return count
    count = add_read(reads, count, env, row - before, row + 1, target)
    if next_before >= 0:
        count = add_read(reads, count, env, row + ahead - next_before, row + ahead + 1, behind)
    return count


@part(int64, int64s, int64, int64)
def _read_part(job, part, scratch):
    """Read one part of a job, with the scratch memory of one thread."""
    count, parts, row_bytes = job[COUNT], job[PARTS], job[ROWS]
    start, end = part * count // parts, (part + 1) * count // parts
    if job[STACK] == OF_IDS:
        return _take(
            int64s_at(job[TABLE]), int64s_at(job[PLANNED]), start * job[WIDTH],
            end * job[WIDTH], job[FIRST], scratch, job[WORDS],
        )  # fmt: skip
    width, stack = job[WIDTH] * row_bytes, job[STACK] * row_bytes
    plan, reads, read = int64s_at(job[PLANNED]), int64s_at(scratch), int64(0)
    for i in range(start, end):
        first = job[FIRST] + i * width
        if job[NEXT]:
            read = _add_stacks(reads, read, plan, i, job, first, job[NEXT] + i * stack)
        else:
            read = _add_window(reads, read, plan, i, job, first)
    return fetch(int64s_at(job[TABLE]), reads, read, scratch + 8 * job[WORDS])


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
    thread = 1 + fetch_add(address(job) + 8 * HELPERS, 1)
    if thread >= job[THREADS]:
        return
    scratch = job[SCRATCH] + 8 * job[WORDS] * thread
    while fetch_add(address(job) + 8 * TAKEN, 1) < job[PARTS]:
        part = job[PARTS] - 1 - fetch_add(address(job) + 8 * FROM_BEHIND, 1)
        job[JOB + part] = _read_part(pointer(job), part, scratch)
        fetch_add(address(job) + 8 * DONE, 1)


@inner
def _run(job):
    """Read a job, all but the parts that others take; 0, or what came of the first that failed."""
    store_release(address(job) + 8 * TAKEN, 0)
    part = 0
    while fetch_add(address(job) + 8 * TAKEN, 1) < job[PARTS]:
        job[JOB + part] = _read_part(pointer(job), part, job[SCRATCH])
        fetch_add(address(job) + 8 * DONE, 1)
        part += 1
    while load_acquire(address(job) + 8 * DONE) < job[PARTS]:
        sched_yield()  # others are about to finish the last parts
    for at in range(JOB, len(job)):
        if job[at]:
            return job[at]
    return 0


@kernel("int64[::1], int64[::1], int64, uint8[::1], int64[::1], int64, int64[::1]")
def take_parts(table, ids, width, out, scratch, threads, job):
    """As `take`, read in parts: no part ends amid `width` ids, those of a window. `scratch` and
    `job` as `windows` has them."""
    job[PARTS], job[THREADS] = len(job) - JOB, threads
    job[TABLE], job[PLANNED], job[COUNT] = address(table), address(ids), len(ids) // width
    job[ROWS], job[STACK], job[WIDTH] = table[ROW_BYTES], OF_IDS, width
    job[FIRST] = address(out)
    job[SCRATCH], job[WORDS] = address(scratch), len(scratch) // threads
    return _run(job)


@kernel("int64[:, ::1], int64")
def fit_windows(plan, horizon):
    """Whether both stacks of each transition, which overlap, fit into one window of ``stack +
    horizon`` rows: not where an episode ended before the horizon."""
    for i in range(len(plan)):
        if plan[i, BEFORE_NEXT] < 0 or plan[i, AHEAD] != horizon:
            return False
    return True


@inner
def watch_faults(advice, usage):
    """Before some reads: how many major faults this thread had, or -1 where it is not to be
    known."""
    if advice[0] > 0 or advice[1] == 0:
        return -1
    getrusage(_RUSAGE_THREAD, usage)
    return load_i64(usage + _MAJOR_FAULTS_AT)


@inner
def note_faults(advice, usage, faults):
    """After these reads: for how many batches `advise` is to be called first, and for how many
    after the next major fault."""
    if faults < 0:
        advice[0] = larger(advice[0] - 1, 0)
    else:
        getrusage(_RUSAGE_THREAD, usage)
        if load_i64(usage + _MAJOR_FAULTS_AT) > faults:
            advice[0] = advice[1]
            advice[1] = smaller(2 * advice[1], _MOST_BATCHES_ADVISED)
        else:
            advice[1] = larger(advice[1] // 2, 16)


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

    `advice` is what `note_faults` has.
    """
    faults = watch_faults(advice, address(rusage))
    job[PARTS], job[THREADS] = len(job) - JOB, threads
    job[TABLE], job[PLANNED], job[COUNT] = address(table), address(plan), len(plan)
    job[ROWS], job[STACK], job[HORIZON] = table[ROW_BYTES], stack, horizon
    job[FIRST], job[WIDTH] = address(out), width
    job[NEXT] = address(following) if len(following) else 0
    job[SCRATCH], job[WORDS] = address(scratch), len(scratch) // threads
    failed = _run(job)
    if failed:
        return failed
    note_faults(advice, address(rusage), faults)
    return 0
