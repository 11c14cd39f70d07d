"""Numba kernels of the sum tree and of the row index, holding no GIL."""

import numpy as np

from diskreplay.caches import expect
from diskreplay.jit import kernel

FANOUT = 64
_TWO_LINES = 16  # doubles in two lines of the caches, which processors fetch together
LARGEST_LEAF = 1e300  # so that no sum of leaves overflows

TERMINATED, TRUNCATED, FINAL, SAMPLEABLE = 1, 2, 4, 8

# The figures of a row index: rows kept for each env, envs, stack size, horizon.
ROWS, ENVS, STACK, HORIZON = 0, 1, 2, 3

# A place of the ring is three int32 side by side, so that looking at a row is one cache miss: its
# step, its flags, and the bits of its float32 reward. ``bounds[env]`` is the oldest retained row
# and the number of rows ever.
STEP, FLAGS, REWARD = 0, 1, 2
FIRST, COUNT = 0, 1


# -- the sum tree: nodes of all levels in one array, leaves first; starts[k] is where level k begins


@kernel
def _sum(nodes, low, high):
    """The sum of nodes[low:high], always in the same order.

    Four partial sums let the processor add while it waits for the last addition.
    """
    a = b = c = d = 0.0
    i = low
    while i + 4 <= high:
        a += nodes[i]
        b += nodes[i + 1]
        c += nodes[i + 2]
        d += nodes[i + 3]
        i += 4
    while i < high:
        a += nodes[i]
        i += 1
    return (a + b) + (c + d)


@kernel
def least_of(values, low, high):
    """The smallest positive of values[low:high], infinity if there is none."""
    least = np.inf
    for i in range(low, high):
        value = values[i]
        if 0.0 < value < least:
            least = value
    return least


@kernel
def _recompute(nodes, least, starts, level, parent):
    below, here = starts[level - 1], starts[level]
    low = below + parent * FANOUT
    high = min(low + FANOUT, here)
    nodes[here + parent] = _sum(nodes, low, high)
    if len(least) == 0:  # minima are not kept: they take longer than the sums
        return
    # `least` has no leaves of its own: on the first level it is taken from the nodes.
    shift = starts[1]
    if level == 1:
        least[here - shift + parent] = least_of(nodes, low, high)
    else:
        least[here - shift + parent] = least_of(least, low - shift, high - shift)


@kernel
def tree_set(nodes, least, starts, indices, values):
    """Set leaves (the last of duplicates wins), then recompute every parent from its children."""
    for i in range(len(indices)):
        nodes[indices[i]] = values[i]
    _refresh(nodes, least, starts, indices)


@kernel
def tree_fill(nodes, least, starts, indices, value):
    """Set leaves to one value."""
    for i in range(len(indices)):
        nodes[indices[i]] = value
    _refresh(nodes, least, starts, indices)


@kernel
def _refresh(nodes, least, starts, indices):
    shrink = FANOUT
    for level in range(1, len(starts) - 1):
        last = -1
        for i in range(len(indices)):
            parent = indices[i] // shrink
            if parent != last:  # neighbours share parents: do each run once
                _recompute(nodes, least, starts, level, parent)
                last = parent
        shrink *= FANOUT


@kernel
def tree_rebuild(nodes, least, starts):
    """Recompute all parents."""
    for level in range(1, len(starts) - 1):
        for parent in range(starts[level + 1] - starts[level]):
            _recompute(nodes, least, starts, level, parent)


@kernel
def _child(nodes, low, high, mass):
    """The node of nodes[low:high] in whose share of their sum `mass` falls, never one of zero; and
    what is left of the mass there."""
    child = low
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
    if child == high:  # rounding carried the mass past the end: the last positive one takes it
        child -= 1
        while not nodes[child] > 0.0:
            child -= 1
        mass = np.nextafter(nodes[child], 0.0)
    return child, mass


@kernel
def tree_find(nodes, starts, masses, out):
    """The leaf for each mass in ``[0, total)``.

    Level by level for all of them, so that their cache misses are under way together.
    """
    left = masses.copy()
    out[:] = 0
    for level in range(len(starts) - 3, -1, -1):
        here, end = starts[level], starts[level + 1]
        for i in range(len(masses)):
            low = here + out[i] * FANOUT
            for k in range(low, min(low + FANOUT, end), _TWO_LINES):
                expect(nodes.ctypes.data + 8 * k)
        for i in range(len(masses)):
            low = here + out[i] * FANOUT
            child, left[i] = _child(nodes, low, min(low + FANOUT, end), left[i])
            out[i] = child - here


@kernel
def tree_update(nodes, least, starts, ring, bounds, figures, ids, priorities, alpha):
    """Set the leaves of sampleable rows to ``priority ** alpha``.

    Returns what is wrong (0: nothing, 1: a priority, 2: an id), where, and for 0 how many rows
    were ignored and the largest priority that was not. Looks at everything before it sets anything.
    """
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(len(ids)):
        if not 0.0 <= priorities[i] < np.inf or leaf_of(priorities[i], alpha) > LARGEST_LEAF:
            return 1, i, 0.0
        if ids[i] < 0 or ids[i] // envs >= bounds[ids[i] % envs, COUNT]:
            return 2, i, 0.0
    places = np.empty(len(ids), np.int64)
    taken = 0
    largest = 0.0
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        place = ids[i] % (rows * envs)
        if row >= bounds[env, FIRST] and ring[place, FLAGS] & SAMPLEABLE:
            nodes[place] = leaf_of(priorities[i], alpha)
            places[taken] = place
            taken += 1
            largest = max(largest, priorities[i])
    _refresh(nodes, least, starts, places[:taken])
    return 0, len(ids) - taken, largest


@kernel
def leaf_of(priority, alpha):
    """``priority ** alpha``, and 0 for a priority of 0 also when alpha is 0."""
    return priority**alpha if priority > 0.0 else 0.0


@kernel
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
    least = np.inf
    masses = np.empty(size)
    for i in range(size):
        masses[i] = (i + uniform[i]) / size * total
    tree_find(nodes, starts, masses, ids)
    for i in range(size):
        leaf = ids[i]
        env = leaf % envs
        last = bounds[env, COUNT] - 1
        # The newest row of that env that sits in this place of the ring.
        ids[i] = (last - (last - leaf // envs) % rows) * envs + env
        probability[i] = nodes[leaf] / total
        least = min(least, probability[i])
    if whole > 0.0:
        least = whole
    most = (scale * least) ** -beta
    for i in range(size):
        weight[i] = (scale * probability[i]) ** -beta / most


@kernel
def leaves_out(leaves, ring, bounds, figures, start, out):
    """The leaf of each retained row, by row and env; NaN for rows that cannot be sampled."""
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(out.shape[0]):
        for env in range(envs):
            row = start + i
            place = (row * envs + env) % (rows * envs)
            there = bounds[env, FIRST] <= row < bounds[env, COUNT]
            there = there and ring[place, FLAGS] & SAMPLEABLE
            out[i, env] = leaves[place] if there else np.nan


@kernel
def leaves_in(leaves, ring, bounds, figures, start, saved, largest):
    """The opposite; sampleable rows without a leaf get `largest`, all others 0."""
    rows, envs = figures[ROWS], figures[ENVS]
    leaves[:] = 0.0
    for env in range(envs):
        for row in range(bounds[env, FIRST], bounds[env, COUNT]):
            place = (row * envs + env) % (rows * envs)
            if ring[place, FLAGS] & SAMPLEABLE:
                leaf = np.nan
                if 0 <= row - start < saved.shape[0]:
                    leaf = saved[row - start, env]
                leaves[place] = largest if np.isnan(leaf) else leaf


# -- the row index


@kernel
def _steps_ahead(ring, bounds, figures, env, row):
    """Rows in the n-step window of a row, 0 if the row cannot be sampled.

    A row is a transition if its stack is retained and, going on from it, the episode terminates
    within the horizon, is truncated with a final row, or reaches the horizon. Rows of one episode
    count on by one; where they do not, the episode was cut.
    """
    rows, envs, stack, horizon = figures[ROWS], figures[ENVS], figures[STACK], figures[HORIZON]
    size = rows * envs
    place = (row * envs + env) % size
    start = ring[place, STEP]
    if ring[place, FLAGS] & FINAL or row - min(start, stack - 1) < bounds[env, FIRST]:
        return 0
    for ahead in range(1, horizon + 1):
        flags = ring[place, FLAGS]
        if flags & TERMINATED:
            return ahead
        following = row + ahead
        if following >= bounds[env, COUNT]:
            return 0
        place = (following * envs + env) % size
        if ring[place, STEP] != start + ahead:
            return 0
        if flags & TRUNCATED:
            return ahead if ring[place, FLAGS] & FINAL else 0
    return horizon


@kernel
def _append(ring, bounds, figures, env, step, flags, reward, changed, gone, came):
    """One row, its reward as float32 bits; see `index_append`."""
    rows, num_envs = figures[ROWS], figures[ENVS]
    stack, horizon = figures[STACK], figures[HORIZON]
    size = rows * num_envs
    row = bounds[env, COUNT]
    while row - bounds[env, FIRST] >= rows:
        oldest = bounds[env, FIRST]
        bounds[env, FIRST] = oldest + 1
        for other in range(oldest, min(oldest + stack, row)):
            place = (other * num_envs + env) % size
            if ring[place, FLAGS] & SAMPLEABLE:
                if other - min(ring[place, STEP], stack - 1) <= oldest:
                    ring[place, FLAGS] &= ~SAMPLEABLE
                    changed[0, gone] = place
                    gone += 1
    place = (row * num_envs + env) % size
    ring[place, STEP] = step
    ring[place, FLAGS] = flags
    ring[place, REWARD] = reward
    bounds[env, COUNT] = row + 1
    for other in range(max(bounds[env, FIRST], row - horizon), row + 1):
        place = (other * num_envs + env) % size
        if not ring[place, FLAGS] & SAMPLEABLE:
            if _steps_ahead(ring, bounds, figures, env, other):
                ring[place, FLAGS] |= SAMPLEABLE
                changed[1, came] = place
                came += 1
    return gone, came


@kernel
def index_append(ring, bounds, figures, added, rewards, changed):
    """Add rows in order: ``added`` holds env, step and flags of each, ``rewards`` float32 bits.

    Lists the places that stopped being sampleable in ``changed[0]``, those that began (and still
    are) in ``changed[1]``, and returns how many of each, and how many more can be sampled now.
    """
    gone = came = 0
    for i in range(len(added)):
        gone, came = _append(
            ring, bounds, figures, added[i, 0], added[i, 1], added[i, 2], rewards[i], changed,
            gone, came,
        )  # fmt: skip
    # A row can begin and stop within one call, when the capacity is that of one window.
    kept = 0
    for i in range(came):
        if ring[changed[1, i], FLAGS] & SAMPLEABLE:
            changed[1, kept] = changed[1, i]
            kept += 1
    return gone, kept, came - gone


@kernel
def index_append_one(ring, bounds, figures, changed, step, flags, reward):
    """`index_append` for one row of the only env; returns the same."""
    bits = np.float32(reward).view(np.int32)
    gone, came = _append(ring, bounds, figures, 0, step, flags, bits, changed, 0, 0)
    return gone, came, came - gone


@kernel
def append_one(ring, bounds, figures, changed, nodes, least, starts, step, flags, reward, leaf):
    """`index_append_one` and the tree's share in one call: what stopped being sampleable has the
    leaf 0 then, what began `leaf`. Returns how many more can be sampled."""
    gone, came, more = index_append_one(ring, bounds, figures, changed, step, flags, reward)
    tree_fill(nodes, least, starts, changed[0, :gone], 0.0)
    tree_fill(nodes, least, starts, changed[1, :came], leaf)
    return more


@kernel
def index_validate(ring, bounds, figures):
    """Mark every retained row that can be sampled; returns how many."""
    rows, envs = figures[ROWS], figures[ENVS]
    total = 0
    for env in range(envs):
        for row in range(bounds[env, FIRST], bounds[env, COUNT]):
            place = (row * envs + env) % (rows * envs)
            ring[place, FLAGS] &= ~SAMPLEABLE
            if _steps_ahead(ring, bounds, figures, env, row):
                ring[place, FLAGS] |= SAMPLEABLE
                total += 1
    return total


@kernel
def index_load(ring, figures, env, start, steps, flags, rewards):
    """Put consecutive rows of one env in their places, without looking at them."""
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(len(steps)):
        place = ((start + i) * envs + env) % (rows * envs)
        ring[place, STEP] = steps[i]
        ring[place, FLAGS] = flags[i]
        ring[place, REWARD] = rewards[i]


@kernel
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
        ahead = _steps_ahead(ring, bounds, figures, env, row)
        start = ring[place, STEP]
        total = 0.0
        last = place
        for k in range(ahead):
            last = ((row + k) * envs + env) % size
            total += powers[k] * rewards[last, REWARD]
        ended = ring[last, FLAGS] & TERMINATED != 0
        before_next = min(start + ahead, stack - 1)
        if ended:
            following = ((row + ahead) * envs + env) % size
            if (
                row + ahead >= bounds[env, COUNT]
                or ring[following, STEP] != start + ahead
                or not ring[following, FLAGS] & FINAL
            ):
                before_next = -1
        plan[i, 0] = env
        plan[i, 1] = row
        plan[i, 2] = min(start, stack - 1)
        plan[i, 3] = ahead
        plan[i, 4] = before_next
        returns[i] = total
        discount[i] = 0.0 if ended else powers[ahead]
        terminated[i] = ended
        truncated[i] = ring[last, FLAGS] & TRUNCATED != 0
        steps[i] = ahead
    return -1


@kernel
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


@kernel
def index_list(ring, bounds, figures):
    """All sampleable ids, env by env, oldest first."""
    rows, envs = figures[ROWS], figures[ENVS]
    size = rows * envs
    ids = np.empty(size, np.int64)
    total = 0
    for env in range(envs):
        for row in range(bounds[env, FIRST], bounds[env, COUNT]):
            if ring[(row * envs + env) % size, FLAGS] & SAMPLEABLE:
                ids[total] = row * envs + env
                total += 1
    return ids[:total].copy()
