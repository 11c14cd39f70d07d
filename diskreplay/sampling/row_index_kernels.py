"""Numba kernels of the row index, holding no GIL."""

from diskreplay.jit import (
    float32_bits,
    float64,
    float64s,
    inner,
    int32s,
    int32s_at,
    int64,
    int64s,
    int64s_at,
    kernel,
    larger,
    part,
    pointer,
    smaller,
    void,
)
from diskreplay.row_commit import commit
from diskreplay.sampling.rng_kernels import draw_uniform

# Flags of a row. `BEGINS`: it begins an episode though its step counts on from the row before;
# `CLOSES`: a final row behind the row that ended its episode.
TERMINATED, TRUNCATED, FINAL, SAMPLEABLE, BEGINS, CLOSES = 1, 2, 4, 8, 16, 32
ENDED = TERMINATED | TRUNCATED | CLOSES  # no row behind it, but a final one, is of its episode

# The figures of a row index: rows kept for each env, envs, stack size, horizon, and transitions
# kept for each env, 0 for as many as its rows have. Behind them two numbers for each env: the
# oldest row that counts as a transition kept, before which are only frames of its stack; and how
# many transitions there are from that row on.
ROWS, ENVS, STACK, HORIZON, TRANSITIONS, OLDEST, HELD = 0, 1, 2, 3, 4, 5, 6

# A place of the ring is four int32 side by side, so that looking at a row is one cache miss: its
# step, its flags, the bits of its float32 reward, and the number of its episode, by which rows of
# one env are told apart: it has no other meaning, and may come round. ``bounds[env]`` is the oldest
# retained row and the number of rows ever. Parts have both as flat memory.
STEP, FLAGS, REWARD, EPISODE, WIDTH = 0, 1, 2, 3, 4
FIRST, COUNT = 0, 1


@inner
def near(figures, place, rows):
    """The place of the row so many rows behind that in `place`, fewer than are kept, or before it:
    a division takes as long as a dozen additions."""
    place += rows * figures[ENVS]
    size = figures[ROWS] * figures[ENVS]
    return place - size if place >= size else place + size if place < 0 else place


@inner
def _stack_is_whole(ring, bounds, figures, env, row, place):
    before = smaller(int64(ring[WIDTH * place + STEP]), figures[STACK] - 1)
    if row - before < bounds[2 * env + FIRST]:
        return 0
    other = near(figures, place, -before)
    return 1 if ring[WIDTH * other + EPISODE] == ring[WIDTH * place + EPISODE] else 0


@part(int64, int32s, int64s, int64s, int64, int64)
def stack_is_whole(ring, bounds, figures, env, row):
    """Whether the frames of a retained row's stack are there, all of them of its episode."""
    place = row % figures[ROWS] * figures[ENVS] + env
    return _stack_is_whole(ring, bounds, figures, env, row, place)


@inner
def _steps_to_go(ring, bounds, figures, env, row, place, horizon):
    """Rows in the n-step window of a row that is a transition, 0 if there is nothing to bootstrap
    from: the episode has to terminate within the horizon, to come to a final row (it was truncated
    or cut, and its last observation is known), or to reach the horizon."""
    episode = ring[WIDTH * place + EPISODE]
    for ahead in range(1, horizon + 1):
        flags = ring[WIDTH * place + FLAGS]
        if flags & TERMINATED:
            return ahead
        if row + ahead >= bounds[2 * env + COUNT]:
            return 0
        place = near(figures, place, 1)
        if ring[WIDTH * place + EPISODE] != episode:
            return 0
        if ring[WIDTH * place + FLAGS] & FINAL:
            return ahead
        if flags & TRUNCATED:
            return 0
    return horizon


@part(int64, int32s, int64s, int64s, int64, int64, int64)
def _steps_ahead(ring, bounds, figures, env, row, place):
    """Rows in the n-step window of a row, 0 if the row cannot be sampled: it is a final row, its
    stack is not whole, or there is nothing to bootstrap from."""
    if ring[WIDTH * place + FLAGS] & FINAL:
        return 0
    if not _stack_is_whole(ring, bounds, figures, env, row, place):
        return 0
    return _steps_to_go(ring, bounds, figures, env, row, place, figures[HORIZON])


@inner
def _number(ring, bounds, figures, env, row, at):
    """Give a row the number of its episode, which the row before has or not: rows of one count on
    by one, and end with a terminated or a truncated row, or with the final row behind it."""
    place, before = WIDTH * at, WIDTH * near(figures, at, -1)
    if row <= bounds[2 * env + FIRST]:
        ring[place + EPISODE] = 0
        return
    ended, flags = ring[before + FLAGS] & ENDED, ring[place + FLAGS]
    follows = ring[place + STEP] == ring[before + STEP] + 1 and not flags & BEGINS
    if ended and (ended & CLOSES or not flags & FINAL):
        follows = False
    if follows and ended:
        ring[place + FLAGS] |= CLOSES
    ring[place + EPISODE] = ring[before + EPISODE] + (0 if follows else 1)


@inner
def _spared(ring, bounds, figures, env):
    """The first row that an env keeps for its newest transitions and their stacks: once there are
    more of them than are kept, the oldest one stops counting."""
    oldest, place = figures[OLDEST + 2 * env], int64(0)
    if figures[TRANSITIONS] == 0 or figures[HELD + 2 * env] <= figures[TRANSITIONS]:
        return bounds[2 * env + FIRST]
    while True:
        place = oldest % figures[ROWS] * figures[ENVS] + env
        if not ring[WIDTH * place + FLAGS] & FINAL:
            if figures[HELD + 2 * env] <= figures[TRANSITIONS]:
                break
            figures[HELD + 2 * env] -= 1
        oldest += 1
    figures[OLDEST + 2 * env] = oldest
    # Of its episode, whatever its step says: what is kept must not depend on what was before.
    episode, first = ring[WIDTH * place + EPISODE], oldest
    furthest = oldest - smaller(int64(ring[WIDTH * place + STEP]), figures[STACK] - 1)
    while first > larger(furthest, bounds[2 * env + FIRST]):
        place = near(figures, place, -1)
        if ring[WIDTH * place + EPISODE] != episode:
            break
        first -= 1
    return first


@inner
def _evict(ring, bounds, figures, env, first, changed):
    """Let go of an env's rows before `first`, and list the places in `changed` that cannot be
    sampled any more."""
    start = bounds[2 * env + FIRST]
    place = start % figures[ROWS] * figures[ENVS] + env
    for row in range(start, smaller(first + figures[STACK] - 1, bounds[2 * env + COUNT])):
        flags = ring[WIDTH * place + FLAGS]
        before = smaller(int64(ring[WIDTH * place + STEP]), figures[STACK] - 1)
        if flags & SAMPLEABLE and row - before < first:
            ring[WIDTH * place + FLAGS] = flags & ~SAMPLEABLE
            changed[0] += 1
            changed[changed[0]] = place
        if row < first and row == figures[OLDEST + 2 * env]:
            figures[OLDEST + 2 * env] += 1
            if not flags & FINAL:
                figures[HELD + 2 * env] -= 1
        place = near(figures, place, 1)
    bounds[2 * env + FIRST] = first


@part(void, int32s, int64s, int64s, int64, int64, int64, int64, int64s, int64)
def append(ring, bounds, figures, env, step, flags, reward, changed, room):
    """One row, its reward as float32 bits; see `index_append`."""
    first, row = bounds[2 * env + FIRST], bounds[2 * env + COUNT]
    at = row % figures[ROWS] * figures[ENVS] + env
    if row - first >= figures[ROWS]:
        _evict(ring, bounds, figures, env, row - figures[ROWS] + 1, changed)
    ring[WIDTH * at + STEP] = step
    ring[WIDTH * at + FLAGS] = flags
    ring[WIDTH * at + REWARD] = reward
    _number(ring, bounds, figures, env, row, at)
    bounds[2 * env + COUNT] = row + 1
    if not flags & FINAL:
        figures[HELD + 2 * env] += 1
        first = _spared(ring, bounds, figures, env)
        if first > bounds[2 * env + FIRST]:
            _evict(ring, bounds, figures, env, first, changed)
    first = bounds[2 * env + FIRST]
    for other in range(larger(first, row - figures[HORIZON]), row + 1):
        place = near(figures, at, other - row)
        if not ring[WIDTH * place + FLAGS] & SAMPLEABLE:
            if _steps_ahead(ring, bounds, figures, env, other, place):
                ring[WIDTH * place + FLAGS] |= SAMPLEABLE
                changed[room] += 1
                changed[room + changed[room]] = place


@kernel(
    "int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], int32[::1], uint8[::1], int32[::1], "
    "int64[:, ::1]"
)
def index_append(ring, bounds, figures, envs, steps, flags, rewards, changed):
    """Add rows in order: env, step, flags and float32 bits of the reward of each.

    Lists the places that stopped being sampleable in ``changed[0]``, those that began (and still
    are) in ``changed[1]``, each list behind its length, and returns how many of each, and how many
    more can be sampled now.
    """
    changed[0, 0] = changed[1, 0] = 0
    for i in range(len(envs)):
        append(
            pointer(ring), pointer(bounds), pointer(figures), envs[i], steps[i], flags[i],
            rewards[i], pointer(changed), changed.shape[1],
        )  # fmt: skip
    # A row can begin and stop within one call, when the capacity is that of one window.
    gone, came, kept = changed[0, 0], changed[1, 0], 0
    for i in range(1, came + 1):
        if ring[changed[1, i], FLAGS] & SAMPLEABLE:
            kept += 1
            changed[1, kept] = changed[1, i]
    return gone, kept, came - gone


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64, int64, int64[::1]")
def index_evict(ring, bounds, figures, env, first, places):
    """Let go of an env's rows before `first`; returns how many rows cannot be sampled any more,
    and lists their places behind the first one."""
    places[0] = 0
    _evict(pointer(ring), pointer(bounds), pointer(figures), env, first, pointer(places))
    return places[0]


# What `RowIndex.table` has: addresses of the index's arrays, and how long one list of what has
# changed is; then those of a sum tree's arrays and how long two of them are, see
# `PrioritizedSampler`. One array is handed to a kernel in a fraction of the time of seven.
RING, BOUNDS, FIGURES, ENDS_AT, CHANGED, ROOM, NODES, LEAST, LEASTS, STARTS, LEVELS = range(11)


@part(int64, int64s, int64, int64, int64, float64)
def append_one(table, columns, step, flags, reward):
    """`index_append` for one row of the only env; returns how many more can be sampled. If
    `columns` is not 0, the address of `RowWriter.columns`, the row is committed first."""
    changed, room, bits = int64s_at(table[CHANGED]), table[ROOM], float32_bits(reward)
    changed[0] = changed[room] = 0
    if columns:
        commit(int64s_at(columns), step, flags & TERMINATED, (flags & TRUNCATED) >> 1, bits)
    append(
        int32s_at(table[RING]), int64s_at(table[BOUNDS]), int64s_at(table[FIGURES]), 0, step,
        flags, bits, changed, room,
    )  # fmt: skip
    return changed[room] - changed[0]


@kernel("int64[::1], int64, int64, int64, float64")
def index_append_one(table, columns, step, flags, reward):
    """`append_one`, where nobody asks what changed."""
    return append_one(pointer(table), columns, step, flags, reward)


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64")
def index_validate(ring, bounds, figures, most):
    """Number the episodes of the retained rows, `most` of an env, and mark every row that can be
    sampled; returns how many. Row by row, as they lie in the ring: an env's are far apart."""
    envs, horizon, total = figures[ENVS], figures[HORIZON], 0
    for env in range(envs if figures[TRANSITIONS] else 0):
        held = 0
        for row in range(bounds[env, FIRST], bounds[env, COUNT]):
            place = row % figures[ROWS] * envs + env
            _number(pointer(ring), pointer(bounds), pointer(figures), env, row, place)
            held += 1 if not ring[place, FLAGS] & FINAL else 0
        figures[OLDEST + 2 * env], figures[HELD + 2 * env] = bounds[env, FIRST], held
        bounds[env, FIRST] = _spared(pointer(ring), pointer(bounds), pointer(figures), env)
    for at in range(most + horizon):
        for env in range(envs):
            row = bounds[env, FIRST] + at
            if row < bounds[env, COUNT]:
                place = row % figures[ROWS] * envs + env
                _number(pointer(ring), pointer(bounds), pointer(figures), env, row, place)
            row -= horizon  # all that its window may have is numbered
            if bounds[env, FIRST] <= row < bounds[env, COUNT]:
                place = row % figures[ROWS] * envs + env
                if _steps_ahead(pointer(ring), pointer(bounds), pointer(figures), env, row, place):
                    ring[place, FLAGS] |= SAMPLEABLE
                    total += 1
    return total


@kernel(
    "int32[:, ::1], float32[:, ::1], int64[:, ::1], int64[::1], float64[::1], int64[::1], "
    "int64[:, ::1], float32[::1], float32[::1], boolean[::1], boolean[::1], int32[::1]"
)
def index_plan(
    ring, rewards, bounds, figures, powers, ids,
    plan, returns, discount, terminated, truncated, steps,
):  # fmt: skip
    """What to read for each id, and its n-step return; the position of the first bad id, or -1.

    ``rewards`` is the ring seen as float32.
    """
    rows, envs, stack = figures[ROWS], figures[ENVS], figures[STACK]
    size = rows * envs
    # Apart from the rest, so that the cache misses of all ids are under way together.
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        if row < bounds[env, FIRST] or row >= bounds[env, COUNT]:
            return i
        if not ring[ids[i] % size, FLAGS] & SAMPLEABLE:
            return i
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        place = ids[i] % size
        ahead = _steps_ahead(pointer(ring), pointer(bounds), pointer(figures), env, row, place)
        start = int64(ring[place, STEP])
        total = 0.0
        last = place
        for k in range(ahead):
            last = ((row + k) * envs + env) % size
            total += powers[k] * rewards[last, REWARD]
        ended = ring[last, FLAGS] & TERMINATED != 0
        before_next = smaller(start + ahead, stack - 1)
        if ended:
            following = ((row + ahead) * envs + env) % size
            if (
                row + ahead >= bounds[env, COUNT]
                or ring[following, EPISODE] != ring[place, EPISODE]
                or not ring[following, FLAGS] & FINAL
            ):
                before_next = -1
        plan[i, 0] = env
        plan[i, 1] = row
        plan[i, 2] = smaller(start, stack - 1)
        plan[i, 3] = ahead
        plan[i, 4] = before_next
        returns[i] = total
        discount[i] = 0.0 if ended else powers[ahead]
        terminated[i] = ended
        truncated[i] = ring[last, FLAGS] & TRUNCATED != 0
        steps[i] = ahead
    return -1


@part(void, int64s, int64s, int64s, float64s, int64s, int64)
def pick_retained(bounds, figures, ends, uniform, ids, count):
    """Ids of retained rows, one of all envs for each number of ``[0, 1)``. `ends` is for how many
    rows all envs up to and including each have: O(envs + count log envs)."""
    envs, retained = figures[ENVS], int64(0)
    for env in range(envs):
        retained += bounds[2 * env + COUNT] - bounds[2 * env + FIRST]
        ends[env] = retained
    for i in range(count):
        at = int64(uniform[i] * retained)
        low, high = int64(0), envs - 1  # the first env of which `ends` is more than `at`
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > at:
                high = middle
            else:
                low = middle + 1
        # Counted from the end of its rows, which are those before `ends`.
        ids[i] = (bounds[2 * low + COUNT] - (ends[low] - at)) * envs + low


@kernel(
    "int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], float64[::1], int64, int64"
)
def index_draw(ring, bounds, figures, ends, ids, uniform, known, generator):
    """Ids of sampleable rows for as many numbers of ``[0, 1)``, as `draw_uniform` takes them, as
    hit one; returns how many.

    Each number picks one retained row of all envs; rows that cannot be sampled are passed over,
    so the rest are drawn evenly. `ends` is for a number for each env.
    """
    draw_uniform(uniform, known, generator)
    size, count = figures[ROWS] * figures[ENVS], len(uniform)
    pick_retained(
        pointer(bounds), pointer(figures), pointer(ends), pointer(uniform), pointer(ids), count
    )
    found = 0
    for i in range(count):
        if ring[ids[i] % size, FLAGS] & SAMPLEABLE:
            ids[found] = ids[i]
            found += 1
    return found
