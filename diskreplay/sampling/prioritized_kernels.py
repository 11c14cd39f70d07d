"""Numba kernels that go through a row index and a sum tree in one call."""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import address, float64s_at, inner, int64, int64s_at, kernel, pointer
from diskreplay.sampling.rng_kernels import draw_uniform
from diskreplay.sampling.row_index_kernels import (
    CHANGED,
    COUNT,
    ENVS,
    FIRST,
    FLAGS,
    LEAST,
    LEASTS,
    LEVELS,
    NODES,
    ROOM,
    ROWS,
    SAMPLEABLE,
    STARTS,
    append_one,
)
from diskreplay.sampling.sum_tree_kernels import (
    LARGEST_LEAF,
    LEAST_LEAF,
    find_leaves,
    refresh_parents,
)

_INFINITY, _NAN = float("inf"), float("nan")


@kernel(
    "float64[::1], float64[::1], int64[::1], int32[:, ::1], int64[:, ::1], int64[::1], "
    "int64[::1], float64[::1], float64, int64[::1]"
)
def tree_update(nodes, least, starts, ring, bounds, figures, ids, priorities, alpha, places):
    """Set the leaves of rows that can be sampled to ``priority ** alpha``; `places` is for their
    places.

    Returns what is wrong (0: nothing, 1: a priority, 2: an id), where, and for 0 how many rows
    were ignored and the largest priority that was not. Looks at everything before it sets anything.
    """
    return _update(
        nodes, least, starts, ring, FLAGS, SAMPLEABLE, bounds, figures, ids, priorities, alpha,
        places,
    )  # fmt: skip


@kernel(
    "float64[::1], float64[::1], int64[::1], uint8[:, ::1], int64[:, ::1], int64[::1], "
    "int64[::1], float64[::1], float64, int64[::1]"
)
def tree_update_marked(
    nodes, least, starts, marks, bounds, figures, ids, priorities, alpha, places
):
    """The same, of rows that are marked in ``marks[place, 0]``."""
    return _update(
        nodes, least, starts, marks, 0, 255, bounds, figures, ids, priorities, alpha, places
    )


@inner
def _update(
    nodes, least, starts, words, column, bits, bounds, figures, ids, priorities, alpha, places
):  # fmt: skip
    """The same, of rows that have any of `bits` in ``words[place, column]``."""
    rows, envs, line = figures[ROWS], figures[ENVS], words.itemsize * words.shape[1]
    for i in range(len(ids)):
        if not 0.0 <= priorities[i] < _INFINITY:
            return 1, i, 0.0
        if alpha > 1.0 or priorities[i] > LARGEST_LEAF:  # else the power is not larger either
            if as_leaf(priorities[i], alpha) > LARGEST_LEAF:
                return 1, i, 0.0
        row, env = _divided(ids[i], envs)
        if ids[i] < 0 or row >= bounds[env, COUNT]:
            return 2, i, 0.0
        places[i] = row % rows * envs + env
        prefetch_line(address(words) + line * places[i])
    taken = 0
    largest = 0.0
    for i in range(len(ids)):
        row, env = _divided(ids[i], envs)
        place = places[i]
        if row >= bounds[env, FIRST] and words[place, column] & bits:
            nodes[place] = as_leaf(priorities[i], alpha)
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
def _divided(number, by):
    """Quotient and remainder; most often by 1, the envs, and a division takes long."""
    if by == 1:
        return number, int64(0)
    return number // by, number % by


@inner
def as_leaf(priority, alpha):
    """``priority ** alpha``, at least `LEAST_LEAF`; 0 for a priority of 0, also when alpha is 0."""
    return max(priority**alpha, LEAST_LEAF) if priority > 0.0 else 0.0


@kernel("float64, float64")
def leaf_of(priority, alpha):
    """The same, always the same bits for the same numbers."""
    return as_leaf(priority, alpha)


@kernel("float64[::1], float64, float64[::1]")
def leaves_of(priorities, alpha, leaves):
    """The leaves of many; NaN stays. The position of the first that is none, or -1, and the largest
    priority."""
    largest = 0.0
    for i in range(len(priorities)):
        if priorities[i] != priorities[i]:
            leaves[i] = priorities[i]
            continue
        if not 0.0 <= priorities[i] < _INFINITY:
            return i, 0.0
        leaves[i] = as_leaf(priorities[i], alpha)
        if leaves[i] > LARGEST_LEAF:
            return i, 0.0
        largest = max(largest, priorities[i])
    return -1, largest


@kernel(
    "float64[::1], int64[::1], float64, float64, int64[:, ::1], int64[::1], int64[::1], "
    "float64[::1], float32[::1], float64[::1], int64, int64"
)
def tree_draw(
    nodes, starts, beta, whole, bounds, figures, ids, probability, weight, uniform, known, generator
):  # fmt: skip
    """A stratified draw: ids, probabilities and importance weights of ``len(uniform)`` rows, by
    numbers as `draw_uniform` takes them.

    ``whole`` is the smallest probability to normalise the weights by, or 0 to normalise by the
    batch's largest weight.
    """
    draw_uniform(uniform, known, generator)
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
        place, env = _divided(leaf, envs)
        last = bounds[env, COUNT] - 1
        # The newest row of that env that sits in this place of the ring.
        ids[i] = (last - (last - place) % rows) * envs + env
        probability[i] = nodes[leaf] / total
        if probability[i] < least:
            least = probability[i]
    if whole > 0.0:
        least = whole
    for i in range(size):
        # (N P)^-beta over the largest such weight, either of which no float may hold.
        weight[i] = (least / probability[i]) ** beta


@kernel("int64[::1], int64, int64, int64, float64, float64")
def tree_append_one(table, columns, step, flags, reward, leaf):
    """`append_one` and the tree's share in one call: what stopped being sampleable has the leaf 0
    then, what began `leaf`."""
    more = append_one(pointer(table), columns, step, flags, reward)
    nodes, least, starts = (
        float64s_at(table[NODES]), float64s_at(table[LEAST]), int64s_at(table[STARTS])
    )  # fmt: skip
    changed, room = int64s_at(table[CHANGED]), table[ROOM]
    for began in range(2):
        low = began * room + 1
        high = low + changed[low - 1]
        for i in range(low, high):
            nodes[changed[i]] = leaf if began else 0.0
        refresh_parents(nodes, least, table[LEASTS], starts, table[LEVELS], changed, low, high)
    return more


@kernel("float64[::1], int32[:, ::1], int64[:, ::1], int64[::1], int64, float64[:, ::1]")
def copy_leaves(nodes, ring, bounds, figures, start, out):
    """The leaves of all rows from `start` on, as they are saved: NaN of one that is not retained,
    or cannot be sampled."""
    envs, size = figures[ENVS], figures[ROWS] * figures[ENVS]
    place, rows = start * envs % size, len(out)
    for i in range(rows):
        for env in range(envs):
            leaf = nodes[place + env]
            # Only of a leaf of 0 the row is looked at: a save does this while each `add` waits.
            if leaf == 0.0 and not ring[place + env, FLAGS] & SAMPLEABLE:
                leaf = _NAN
            out[i, env] = leaf
        place += envs  # a division for each row takes longer than all else
        place = 0 if place == size else place
    for env in range(envs):  # another row, which is retained, may have the place of one that is not
        for i in range(min(bounds[env, FIRST] - start, rows)):
            out[i, env] = _NAN
        for i in range(max(bounds[env, COUNT] - start, 0), rows):
            out[i, env] = _NAN
    return 0
