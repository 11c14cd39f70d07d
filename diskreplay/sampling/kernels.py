"""Numba kernels of the sum tree and of the row index, holding no GIL."""

import numpy as np
from numba import njit

FANOUT = 64

TERMINATED, TRUNCATED, FINAL, SAMPLEABLE = 1, 2, 4, 8

# The figures of a row index: rows kept for each env, envs, stack size, horizon.
ROWS, ENVS, STACK, HORIZON = 0, 1, 2, 3


# -- the sum tree: nodes of all levels in one array, leaves first; starts[k] is where level k begins


@njit(nogil=True, cache=True)
def _sum(nodes, low, high):  # noqa: ANN001, ANN202
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


@njit(nogil=True, cache=True)
def _least(values, low, high):  # noqa: ANN001, ANN202
    """The smallest positive of values[low:high], infinity if there is none."""
    least = np.inf
    for i in range(low, high):
        value = values[i]
        if 0.0 < value < least:
            least = value
    return least


@njit(nogil=True, cache=True)
def _recompute(nodes, least, starts, level, parent):  # noqa: ANN001, ANN202
    below, here = starts[level - 1], starts[level]
    low = below + parent * FANOUT
    high = min(low + FANOUT, here)
    nodes[here + parent] = _sum(nodes, low, high)
    # `least` has no leaves of its own: on the first level it is taken from the nodes.
    shift = starts[1]
    if level == 1:
        least[here - shift + parent] = _least(nodes, low, high)
    else:
        least[here - shift + parent] = _least(least, low - shift, high - shift)


@njit(nogil=True, cache=True)
def tree_set(nodes, least, starts, indices, values):  # noqa: ANN001, ANN201
    """Set leaves (the last of duplicates wins), then recompute every parent from its children."""
    for i in range(len(indices)):
        nodes[indices[i]] = values[i]
    _refresh(nodes, least, starts, indices)


@njit(nogil=True, cache=True)
def tree_fill(nodes, least, starts, indices, value):  # noqa: ANN001, ANN201
    """Set leaves to one value."""
    for i in range(len(indices)):
        nodes[indices[i]] = value
    _refresh(nodes, least, starts, indices)


@njit(nogil=True, cache=True)
def _refresh(nodes, least, starts, indices):  # noqa: ANN001, ANN202
    shrink = FANOUT
    for level in range(1, len(starts) - 1):
        last = -1
        for i in range(len(indices)):
            parent = indices[i] // shrink
            if parent != last:  # neighbours share parents: do each run once
                _recompute(nodes, least, starts, level, parent)
                last = parent
        shrink *= FANOUT


@njit(nogil=True, cache=True)
def tree_rebuild(nodes, least, starts):  # noqa: ANN001, ANN201
    """Recompute all parents."""
    for level in range(1, len(starts) - 1):
        for parent in range(starts[level + 1] - starts[level]):
            _recompute(nodes, least, starts, level, parent)


@njit(nogil=True, cache=True)
def _find(nodes, starts, mass):  # noqa: ANN001, ANN202
    """The leaf in whose share of the total `mass` falls; never one of zero."""
    index = 0
    for level in range(len(starts) - 3, -1, -1):
        low = starts[level] + index * FANOUT
        high = min(low + FANOUT, starts[level + 1])
        chosen = -1
        for child in range(low, high):
            value = nodes[child]
            if value > 0.0:
                chosen = child
                if mass < value:
                    break
                mass -= value
        # Rounding can carry the mass past the last child: the last positive one takes it.
        if mass >= nodes[chosen]:
            mass = np.nextafter(nodes[chosen], 0.0)
        index = chosen - starts[level]
    return index


@njit(nogil=True, cache=True)
def tree_find(nodes, starts, masses, out):  # noqa: ANN001, ANN201
    """The leaf for each mass in ``[0, total)``."""
    for i in range(len(masses)):
        out[i] = _find(nodes, starts, masses[i])


@njit(nogil=True, cache=True)
def tree_update(  # noqa: ANN201
    nodes, least, starts, flags, count, first, figures, ids, priorities, alpha  # noqa: ANN001
):
    """Set the leaves of sampleable rows to ``priority ** alpha``.

    Returns what is wrong (0: nothing, 1: a priority, 2: an id), where, and for 0 how many rows
    were ignored and the largest priority that was not. Looks at everything before it sets anything.
    """
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(len(ids)):
        if not 0.0 <= priorities[i] < np.inf:
            return 1, i, 0.0
        if ids[i] < 0 or ids[i] // envs >= count[ids[i] % envs]:
            return 2, i, 0.0
    places = np.empty(len(ids), np.int64)
    taken = 0
    largest = 0.0
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        place = ids[i] % (rows * envs)
        if row >= first[env] and flags[place] & SAMPLEABLE:
            nodes[place] = leaf_of(priorities[i], alpha)
            places[taken] = place
            taken += 1
            largest = max(largest, priorities[i])
    _refresh(nodes, least, starts, places[:taken])
    return 0, len(ids) - taken, largest


@njit(nogil=True, cache=True)
def leaf_of(priority, alpha):  # noqa: ANN001, ANN201
    """``priority ** alpha``, and 0 for a priority of 0 also when alpha is 0."""
    return priority**alpha if priority > 0.0 else 0.0


@njit(nogil=True, cache=True)
def tree_draw(  # noqa: ANN201
    nodes, starts, uniform, scale, beta, whole, count, envs, rows, ids, probability, weight  # noqa: ANN001
):
    """A stratified draw: ids, probabilities and importance weights of ``len(uniform)`` rows.

    ``scale`` is the number of rows that can be sampled; ``whole`` the smallest probability to
    normalise the weights by, or 0 to normalise by the batch's largest weight.
    """
    size = len(uniform)
    total = nodes[starts[len(starts) - 2]]
    least = np.inf
    for i in range(size):
        leaf = _find(nodes, starts, (i + uniform[i]) / size * total)
        env = leaf % envs
        last = count[env] - 1
        # The newest row of that env that sits in this place of the ring.
        ids[i] = (last - (last - leaf // envs) % rows) * envs + env
        probability[i] = nodes[leaf] / total
        least = min(least, probability[i])
    if whole > 0.0:
        least = whole
    most = (scale * least) ** -beta
    for i in range(size):
        weight[i] = (scale * probability[i]) ** -beta / most


@njit(nogil=True, cache=True)
def leaves_out(leaves, flags, count, first, figures, start, out):  # noqa: ANN001, ANN201
    """The leaf of each retained row, by row and env; NaN for rows that cannot be sampled."""
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(out.shape[0]):
        for env in range(envs):
            row = start + i
            place = (row * envs + env) % (rows * envs)
            there = first[env] <= row < count[env] and flags[place] & SAMPLEABLE
            out[i, env] = leaves[place] if there else np.nan


@njit(nogil=True, cache=True)
def leaves_in(leaves, flags, count, first, figures, start, saved, largest):  # noqa: ANN001, ANN201
    """The opposite; sampleable rows without a leaf get `largest`, all others 0."""
    rows, envs = figures[ROWS], figures[ENVS]
    leaves[:] = 0.0
    for env in range(envs):
        for row in range(first[env], count[env]):
            place = (row * envs + env) % (rows * envs)
            if flags[place] & SAMPLEABLE:
                leaf = np.nan
                if 0 <= row - start < saved.shape[0]:
                    leaf = saved[row - start, env]
                leaves[place] = largest if np.isnan(leaf) else leaf


# -- the row index


@njit(nogil=True, cache=True)
def _steps_ahead(step, flags, count, first, figures, env, row):  # noqa: ANN001, ANN202
    """Rows in the n-step window of a row, 0 if the row cannot be sampled.

    A row is a transition if its stack is retained and, going on from it, the episode terminates
    within the horizon, is truncated with a final row, or reaches the horizon. Rows of one episode
    count on by one; where they do not, the episode was cut.
    """
    rows, envs, stack, horizon = figures[ROWS], figures[ENVS], figures[STACK], figures[HORIZON]
    size = rows * envs
    place = (row * envs + env) % size
    start = step[place]
    if flags[place] & FINAL or row - min(start, stack - 1) < first[env]:
        return 0
    for ahead in range(1, horizon + 1):
        if flags[place] & TERMINATED:
            return ahead
        following = row + ahead
        if following >= count[env]:
            return 0
        truncated = flags[place] & TRUNCATED
        place = (following * envs + env) % size
        if step[place] != start + ahead:
            return 0
        if truncated:
            return ahead if flags[place] & FINAL else 0
    return horizon


@njit(nogil=True, cache=True)
def index_append(  # noqa: ANN201
    step, flags, reward, count, first, figures, envs, steps, marks, rewards, left, entered  # noqa: ANN001
):
    """Add rows in order; list the places that stopped, and that began, being sampleable."""
    rows, num_envs, stack, horizon = (
        figures[ROWS], figures[ENVS], figures[STACK], figures[HORIZON],
    )  # fmt: skip
    size = rows * num_envs
    gone = came = 0
    for i in range(len(envs)):
        env = envs[i]
        row = count[env]
        while row - first[env] >= rows:
            oldest = first[env]
            first[env] = oldest + 1
            for other in range(oldest, min(oldest + stack, row)):
                place = (other * num_envs + env) % size
                if flags[place] & SAMPLEABLE and other - min(step[place], stack - 1) <= oldest:
                    flags[place] &= ~np.uint8(SAMPLEABLE)
                    left[gone] = place
                    gone += 1
        place = (row * num_envs + env) % size
        step[place], flags[place], reward[place] = steps[i], marks[i], rewards[i]
        count[env] = row + 1
        for other in range(max(first[env], row - horizon), row + 1):
            place = (other * num_envs + env) % size
            if not flags[place] & SAMPLEABLE and _steps_ahead(
                step, flags, count, first, figures, env, other
            ):
                flags[place] |= SAMPLEABLE
                entered[came] = place
                came += 1
    return gone, came


@njit(nogil=True, cache=True)
def index_validate(step, flags, count, first, figures):  # noqa: ANN001, ANN201
    """Mark every retained row that can be sampled; returns how many."""
    rows, envs = figures[ROWS], figures[ENVS]
    total = 0
    for env in range(envs):
        for row in range(first[env], count[env]):
            place = (row * envs + env) % (rows * envs)
            flags[place] &= ~np.uint8(SAMPLEABLE)
            if _steps_ahead(step, flags, count, first, figures, env, row):
                flags[place] |= SAMPLEABLE
                total += 1
    return total


@njit(nogil=True, cache=True)
def index_load(step, flags, reward, figures, env, start, steps, marks, rewards):  # noqa: ANN001, ANN201
    """Put consecutive rows of one env in their places, without looking at them."""
    rows, envs = figures[ROWS], figures[ENVS]
    for i in range(len(steps)):
        place = ((start + i) * envs + env) % (rows * envs)
        step[place], flags[place], reward[place] = steps[i], marks[i], rewards[i]


@njit(nogil=True, cache=True)
def index_plan(  # noqa: ANN201
    step, flags, reward, count, first, figures, powers, ids,  # noqa: ANN001
    plan, returns, discount, terminated, truncated, steps,  # noqa: ANN001
):  # fmt: skip
    """What to read for each id, and its n-step return; the position of the first bad id, or -1."""
    rows, envs, stack = figures[ROWS], figures[ENVS], figures[STACK]
    size = rows * envs
    for i in range(len(ids)):
        env, row = ids[i] % envs, ids[i] // envs
        if row < first[env] or row >= count[env]:
            return i
        place = (row * envs + env) % size
        if not flags[place] & SAMPLEABLE:
            return i
        ahead = _steps_ahead(step, flags, count, first, figures, env, row)
        start = step[place]
        total = 0.0
        last = place
        for k in range(ahead):
            last = ((row + k) * envs + env) % size
            total += powers[k] * reward[last]
        ended = flags[last] & TERMINATED != 0
        before_next = min(start + ahead, stack - 1)
        if ended:
            following = ((row + ahead) * envs + env) % size
            if (
                row + ahead >= count[env]
                or step[following] != start + ahead
                or not flags[following] & FINAL
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
        truncated[i] = flags[last] & TRUNCATED != 0
        steps[i] = ahead
    return -1


@njit(nogil=True, cache=True)
def index_draw(flags, count, first, figures, uniform, ids):  # noqa: ANN001, ANN201
    """Ids of sampleable rows for as many numbers of ``[0, 1)`` as hit one; returns how many.

    Each number picks one retained row of all envs; rows that cannot be sampled are passed over,
    so the rest are drawn evenly.
    """
    rows, envs = figures[ROWS], figures[ENVS]
    size = rows * envs
    retained = 0
    for env in range(envs):
        retained += count[env] - first[env]
    found = 0
    for i in range(len(uniform)):
        at = int(uniform[i] * retained)
        env = 0
        while at >= count[env] - first[env]:
            at -= count[env] - first[env]
            env += 1
        id_ = (first[env] + at) * envs + env
        if flags[id_ % size] & SAMPLEABLE:
            ids[found] = id_
            found += 1
    return found


@njit(nogil=True, cache=True)
def index_list(flags, count, first, figures):  # noqa: ANN001, ANN201
    """All sampleable ids, env by env, oldest first."""
    rows, envs = figures[ROWS], figures[ENVS]
    size = rows * envs
    total = 0
    for env in range(envs):
        for row in range(first[env], count[env]):
            total += flags[(row * envs + env) % size] & SAMPLEABLE != 0
    ids = np.empty(total, np.int64)
    at = 0
    for env in range(envs):
        for row in range(first[env], count[env]):
            if flags[(row * envs + env) % size] & SAMPLEABLE:
                ids[at] = row * envs + env
                at += 1
    return ids
