"""Numba kernels of the sum tree and of the row index, holding no GIL."""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import (
    address,
    float32_bits,
    float64s,
    inner,
    int32s,
    int64,
    int64s,
    kernel,
    larger,
    part,
    pointer,
    smaller,
    void,
)

FANOUT = 64
_TWO_LINES = 16  # doubles in two lines of the caches, which processors fetch together
# So that the sum of 2**36 leaves, the most that a buffer has, is finite; and so that the power of a
# positive priority is one too: what is not 0 can be drawn.
LARGEST_LEAF, LEAST_LEAF = 1e297, 1e-297
_INFINITY = float("inf")
_BELOW_ONE = 1.0 - 2.0**-53  # times a number: the largest number below it

# Flags of a row. `BEGINS`: it begins an episode though its step counts on from the row before;
# `CLOSES`: a final row behind the row that ended its episode.
TERMINATED, TRUNCATED, FINAL, SAMPLEABLE, BEGINS, CLOSES = 1, 2, 4, 8, 16, 32
ENDED = TERMINATED | TRUNCATED | CLOSES  # no row behind it, but a final one, is of its episode

# The figures of a row index: rows kept for each env, envs, stack size, horizon.
ROWS, ENVS, STACK, HORIZON = 0, 1, 2, 3

# A place of the ring is four int32 side by side, so that looking at a row is one cache miss: its
# step, its flags, the bits of its float32 reward, and the number of its episode, by which rows of
# one env are told apart: it has no other meaning, and may come round. ``bounds[env]`` is the oldest
# retained row and the number of rows ever. Parts have both as flat memory.
STEP, FLAGS, REWARD, EPISODE, WIDTH = 0, 1, 2, 3, 4
FIRST, COUNT = 0, 1


# -- the sum tree: nodes of all levels in one array, leaves first; starts[k] is where level k begins


@part(void, float64s, float64s, int64, int64s, int64, int64s, int64, int64)
def refresh_parents(nodes, least, keeps_least, starts, levels, leaves, low, high):
    """Recompute every node above leaves[low:high] from its children.

    A sum is always taken in the same order. Four partial sums let the processor add while it waits
    for the last addition.
    """
    shrink = FANOUT
    for level in range(1, levels):
        below, here = starts[level - 1], starts[level]
        last = -1
        for i in range(low, high):
            parent = leaves[i] // shrink
            if parent == last:  # neighbours share parents: do each run once
                continue
            last = parent
            first = below + parent * FANOUT
            stop = smaller(first + FANOUT, here)
            a = b = c = d = 0.0
            child = first
            while child + 4 <= stop:
                a += nodes[child]
                b += nodes[child + 1]
                c += nodes[child + 2]
                d += nodes[child + 3]
                child += 4
            while child < stop:
                a += nodes[child]
                child += 1
            nodes[here + parent] = (a + b) + (c + d)
            if keeps_least:  # it takes longer than the sums
                # `least` has no leaves of its own: on the first level it is taken from the nodes.
                shift = starts[1]
                smallest = _INFINITY
                for child in range(first, stop):
                    value = nodes[child] if level == 1 else least[child - shift]
                    if 0.0 < value < smallest:
                        smallest = value
                least[here - shift + parent] = smallest
        shrink *= FANOUT


@kernel("float64[::1], float64[::1], int64[::1], int64[::1], float64[::1]")
def tree_set(nodes, least, starts, leaves, values):
    """Set leaves (the last of duplicates wins), then recompute all that is above them.

    One value is that of all these leaves; without any they stay what they are.
    """
    step = 1 if len(values) > 1 else 0
    if len(values):
        for i in range(len(leaves)):
            nodes[leaves[i]] = values[i * step]
    refresh_parents(
        pointer(nodes), pointer(least), len(least), pointer(starts), len(starts) - 1,
        pointer(leaves), 0, len(leaves),
    )  # fmt: skip


@part(void, float64s, int64s, int64, float64s, int64s, int64)
def find_leaves(nodes, starts, levels, masses, out, count):
    """The leaf for each mass in ``[0, total)``, never one of zero; the masses are used up.

    Level by level for all of them, so that their cache misses are under way together.
    """
    for i in range(count):
        out[i] = 0
    for level in range(levels - 2, -1, -1):
        here, end = starts[level], starts[level + 1]
        for i in range(count):
            low = here + out[i] * FANOUT
            for k in range(low, smaller(low + FANOUT, end), _TWO_LINES):
                prefetch_line(address(nodes) + 8 * k)
        for i in range(count):
            child = here + out[i] * FANOUT
            high = smaller(child + FANOUT, end)
            mass = masses[i]
            # Four at a time: one subtraction that waits for the one before, in place of four.
            while child + 4 <= high:
                four = (nodes[child] + nodes[child + 1]) + (nodes[child + 2] + nodes[child + 3])
                if mass < four:
                    break
                mass -= four
                child += 4
            while child < high and mass >= nodes[child]:
                mass -= nodes[child]
                child += 1
            if child == high:  # rounding carried the mass past the end: the last positive takes it
                child -= 1
                while not nodes[child] > 0.0:
                    child -= 1
                mass = nodes[child] * _BELOW_ONE
            masses[i] = mass
            out[i] = child - here


@kernel("float64[::1], int64[::1], float64[::1], int64[::1]")
def tree_find(nodes, starts, masses, out):
    """The leaf for each mass in ``[0, total)``, never one of zero; the masses are used up."""
    find_leaves(
        pointer(nodes), pointer(starts), len(starts) - 1, pointer(masses), pointer(out), len(masses)
    )


@kernel(
    "float64[::1], float64[::1], int64[::1], int32[:, ::1], int64[:, ::1], int64[::1], "
    "int64[::1], float64[::1], float64, int64[::1]"
)
def tree_update(nodes, least, starts, ring, bounds, figures, ids, priorities, alpha, places):
    """Set the leaves of sampleable rows to ``priority ** alpha``; `places` is for their places.

    Returns what is wrong (0: nothing, 1: a priority, 2: an id), where, and for 0 how many rows
    were ignored and the largest priority that was not. Looks at everything before it sets anything.
    """
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(len(ids)):
        if not 0.0 <= priorities[i] < _INFINITY or _leaf_of(priorities[i], alpha) > LARGEST_LEAF:
            return 1, i, 0.0
        if ids[i] < 0 or ids[i] // envs >= bounds[ids[i] % envs, COUNT]:
            return 2, i, 0.0
    taken = 0
    largest = 0.0
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        place = ids[i] % (rows * envs)
        if row >= bounds[env, FIRST] and ring[place, FLAGS] & SAMPLEABLE:
            nodes[place] = _leaf_of(priorities[i], alpha)
            places[taken] = place
            taken += 1
            if priorities[i] > largest:
                largest = priorities[i]
    refresh_parents(
        pointer(nodes), pointer(least), len(least), pointer(starts), len(starts) - 1,
        pointer(places), 0, taken,
    )  # fmt: skip
    return 0, len(ids) - taken, largest


@inner
def _leaf_of(priority, alpha):
    """``priority ** alpha``, at least `LEAST_LEAF`; 0 for a priority of 0, also when alpha is 0."""
    return max(priority**alpha, LEAST_LEAF) if priority > 0.0 else 0.0


@kernel("float64, float64")
def leaf_of(priority, alpha):
    """The same, always the same bits for the same numbers."""
    return _leaf_of(priority, alpha)


@kernel(
    "float64[::1], int64[::1], float64[::1], float64, float64, float64, int64[:, ::1], "
    "int64[::1], int64[::1], float64[::1], float32[::1]"
)
def tree_draw(
    nodes, starts, uniform, scale, beta, whole, bounds, figures, ids, probability, weight
):
    """A stratified draw: ids, probabilities and importance weights of ``len(uniform)`` rows.

    ``scale`` is the number of rows that can be sampled; ``whole`` the smallest probability to
    normalise the weights by, or 0 to normalise by the batch's largest weight.
    """
    size = len(uniform)
    rows, envs = figures[ROWS], figures[ENVS]
    total = nodes[starts[len(starts) - 2]]
    for i in range(size):  # the masses, until there are probabilities
        probability[i] = (i + uniform[i]) / size * total
    find_leaves(
        pointer(nodes), pointer(starts), len(starts) - 1, pointer(probability), pointer(ids), size
    )
    least = _INFINITY
    for i in range(size):
        leaf = ids[i]
        env = leaf % envs
        last = bounds[env, COUNT] - 1
        # The newest row of that env that sits in this place of the ring.
        ids[i] = (last - (last - leaf // envs) % rows) * envs + env
        probability[i] = nodes[leaf] / total
        if probability[i] < least:
            least = probability[i]
    if whole > 0.0:
        least = whole
    most = (scale * least) ** -beta
    for i in range(size):
        weight[i] = (scale * probability[i]) ** -beta / most


# -- the row index


@part(int64, int32s, int64s, int64s, int64, int64)
def stack_is_whole(ring, bounds, figures, env, row):
    """Whether the frames of a retained row's stack are there, all of them of its episode."""
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    place = WIDTH * ((row * envs + env) % size)
    oldest = row - smaller(int64(ring[place + STEP]), figures[STACK] - 1)
    if oldest < bounds[2 * env + FIRST]:
        return 0
    other = WIDTH * ((oldest * envs + env) % size)
    return 1 if ring[other + EPISODE] == ring[place + EPISODE] else 0


@part(int64, int32s, int64s, int64s, int64, int64, int64)
def steps_ahead(ring, bounds, figures, env, row, horizon):
    """Rows in the n-step window of a row that is a transition, 0 if there is nothing to bootstrap
    from: the episode has to terminate within the horizon, to come to a final row (it was truncated
    or cut, and its last observation is known), or to reach the horizon."""
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    place = WIDTH * ((row * envs + env) % size)
    episode = ring[place + EPISODE]
    for ahead in range(1, horizon + 1):
        flags = ring[place + FLAGS]
        if flags & TERMINATED:
            return ahead
        following = row + ahead
        if following >= bounds[2 * env + COUNT]:
            return 0
        place = WIDTH * ((following * envs + env) % size)
        if ring[place + EPISODE] != episode:
            return 0
        if ring[place + FLAGS] & FINAL:
            return ahead
        if flags & TRUNCATED:
            return 0
    return horizon


@part(int64, int32s, int64s, int64s, int64, int64)
def _steps_ahead(ring, bounds, figures, env, row):
    """Rows in the n-step window of a row, 0 if the row cannot be sampled: it is a final row, its
    stack is not whole, or there is nothing to bootstrap from."""
    place = WIDTH * ((row * figures[ENVS] + env) % (figures[ROWS] * figures[ENVS]))
    if ring[place + FLAGS] & FINAL or not stack_is_whole(ring, bounds, figures, env, row):
        return 0
    return steps_ahead(ring, bounds, figures, env, row, figures[HORIZON])


@part(void, int32s, int64s, int64s, int64, int64)
def _number(ring, bounds, figures, env, row):
    """Give a row the number of its episode, which the row before has or not: rows of one count on
    by one, and end with a terminated or a truncated row, or with the final row behind it."""
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    place = WIDTH * ((row * envs + env) % size)
    if row <= bounds[2 * env + FIRST]:
        ring[place + EPISODE] = 0
        return
    before = WIDTH * (((row - 1) * envs + env) % size)
    ended, flags = ring[before + FLAGS] & ENDED, ring[place + FLAGS]
    follows = ring[place + STEP] == ring[before + STEP] + 1 and not flags & BEGINS
    if ended and (ended & CLOSES or not flags & FINAL):
        follows = False
    if follows and ended:
        ring[place + FLAGS] |= CLOSES
    ring[place + EPISODE] = ring[before + EPISODE] + (0 if follows else 1)


@part(
    void, int32s, int64s, int64s, int64, int64, int64, int64, int64s, int64
)  # fmt: skip
def _append(ring, bounds, figures, env, step, flags, reward, changed, room):
    """One row, its reward as float32 bits; see `index_append`."""
    rows, num_envs = figures[ROWS], figures[ENVS]
    stack, horizon = figures[STACK], figures[HORIZON]
    size = rows * num_envs
    first, row = bounds[2 * env + FIRST], bounds[2 * env + COUNT]
    while row - first >= rows:
        oldest = first
        first += 1
        bounds[2 * env + FIRST] = first
        for other in range(oldest, smaller(oldest + stack, row)):
            place = (other * num_envs + env) % size
            if ring[WIDTH * place + FLAGS] & SAMPLEABLE:
                if other - smaller(int64(ring[WIDTH * place + STEP]), stack - 1) <= oldest:
                    ring[WIDTH * place + FLAGS] &= ~SAMPLEABLE
                    changed[0] += 1
                    changed[changed[0]] = place
    place = WIDTH * ((row * num_envs + env) % size)
    ring[place + STEP] = step
    ring[place + FLAGS] = flags
    ring[place + REWARD] = reward
    _number(ring, bounds, figures, env, row)
    bounds[2 * env + COUNT] = row + 1
    for other in range(larger(first, row - horizon), row + 1):
        place = (other * num_envs + env) % size
        if not ring[WIDTH * place + FLAGS] & SAMPLEABLE:
            if _steps_ahead(ring, bounds, figures, env, other):
                ring[WIDTH * place + FLAGS] |= SAMPLEABLE
                changed[room] += 1
                changed[room + changed[room]] = place


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int32[::1], int64[:, ::1]")
def index_append(ring, bounds, figures, added, rewards, changed):
    """Add rows in order: ``added`` holds env, step and flags of each, ``rewards`` float32 bits.

    Lists the places that stopped being sampleable in ``changed[0]``, those that began (and still
    are) in ``changed[1]``, each list behind its length, and returns how many of each, and how many
    more can be sampled now.
    """
    changed[0, 0] = changed[1, 0] = 0
    for i in range(len(added)):
        _append(
            pointer(ring), pointer(bounds), pointer(figures), added[i, 0], added[i, 1],
            added[i, 2], rewards[i], pointer(changed), changed.shape[1],
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
    and lists their places."""
    size = figures[ROWS] * figures[ENVS]
    gone = 0
    for row in range(bounds[env, FIRST], smaller(first + figures[STACK] - 1, bounds[env, COUNT])):
        place = (row * figures[ENVS] + env) % size
        before = smaller(int64(ring[place, STEP]), figures[STACK] - 1)
        if ring[place, FLAGS] & SAMPLEABLE and row - before < first:
            ring[place, FLAGS] &= ~SAMPLEABLE
            places[gone] = place
            gone += 1
    bounds[env, FIRST] = first
    return gone


@inner
def _append_one(ring, bounds, figures, changed, step, flags, reward):
    changed[0, 0] = changed[1, 0] = 0
    _append(
        pointer(ring), pointer(bounds), pointer(figures), 0, step, flags, float32_bits(reward),
        pointer(changed), changed.shape[1],
    )  # fmt: skip


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64, int64, float64")
def index_append_one(ring, bounds, figures, changed, step, flags, reward):
    """`index_append` for one row of the only env; returns how many more can be sampled."""
    _append_one(ring, bounds, figures, changed, step, flags, reward)
    return changed[1, 0] - changed[0, 0]


@kernel(
    "int32[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], float64[::1], float64[::1], "
    "int64[::1], int64, int64, float64, float64"
)
def append_one(ring, bounds, figures, changed, nodes, least, starts, step, flags, reward, leaf):
    """`index_append_one` and the tree's share in one call: what stopped being sampleable has the
    leaf 0 then, what began `leaf`."""
    _append_one(ring, bounds, figures, changed, step, flags, reward)
    for began in range(2):
        count = changed[began, 0]
        for i in range(1, count + 1):
            nodes[changed[began, i]] = leaf if began else 0.0
        low = began * changed.shape[1] + 1
        refresh_parents(
            pointer(nodes), pointer(least), len(least), pointer(starts), len(starts) - 1,
            pointer(changed), low, low + count,
        )  # fmt: skip
    return changed[1, 0] - changed[0, 0]


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64")
def index_validate(ring, bounds, figures, most):
    """Number the episodes of the retained rows, `most` of an env, and mark every row that can be
    sampled; returns how many. Row by row, as they lie in the ring: an env's are far apart."""
    envs, horizon, total = figures[ENVS], figures[HORIZON], 0
    for at in range(most + horizon):
        for env in range(envs):
            row = bounds[env, FIRST] + at
            if row < bounds[env, COUNT]:
                _number(pointer(ring), pointer(bounds), pointer(figures), env, row)
            row -= horizon  # all that its window may have is numbered
            if bounds[env, FIRST] <= row < bounds[env, COUNT]:
                if _steps_ahead(pointer(ring), pointer(bounds), pointer(figures), env, row):
                    ring[(row * envs + env) % len(ring), FLAGS] |= SAMPLEABLE
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
        ahead = _steps_ahead(pointer(ring), pointer(bounds), pointer(figures), env, row)
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


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], float64[::1], int64[::1]")
def index_draw(ring, bounds, figures, uniform, ids):
    """Ids of sampleable rows for as many numbers of ``[0, 1)`` as hit one; returns how many.

    Each number picks one retained row of all envs; rows that cannot be sampled are passed over,
    so the rest are drawn evenly.
    """
    rows, envs = figures[ROWS], figures[ENVS]
    size = rows * envs
    retained = 0
    for env in range(envs):
        retained += bounds[env, COUNT] - bounds[env, FIRST]
    found = 0
    for i in range(len(uniform)):
        at = int(uniform[i] * retained)
        env = 0
        while at >= bounds[env, COUNT] - bounds[env, FIRST]:
            at -= bounds[env, COUNT] - bounds[env, FIRST]
            env += 1
        id_ = (bounds[env, FIRST] + at) * envs + env
        if ring[id_ % size, FLAGS] & SAMPLEABLE:
            ids[found] = id_
            found += 1
    return found
