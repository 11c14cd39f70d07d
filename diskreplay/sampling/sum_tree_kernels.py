"""Numba kernels of the sum tree.

The nodes of all levels are in one array, the leaves first; ``starts[k]`` is where level k begins.
Each level but the root's is filled up with zeros to whole groups of siblings.
"""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import address, float64s, inner, int64, int64s, kernel, part, pointer, void

FANOUT = 16
# So that the sum of 2**36 leaves, the most that a buffer has, is finite; and so that the power of a
# positive priority is one too: what is not 0 can be drawn.
LARGEST_LEAF, LEAST_LEAF = 1e297, 1e-297
_LINE = 8  # doubles in a line of the caches
_STALE = -1.0  # in place of a sum that is to be taken
_INFINITY = float("inf")
_BELOW_ONE = 1.0 - 2.0**-53  # times a number: the largest number below it


@part(void, float64s, float64s, int64, int64s, int64, int64s, int64, int64)
def refresh_parents(nodes, least, keeps_least, starts, levels, leaves, low, high):
    """Recompute every node above leaves[low:high] from its children, each once.

    A sum is always taken in the same order. Four partial sums let the processor add while it waits
    for the last addition.
    """
    shrink = FANOUT
    for level in range(1, levels):
        below, here = starts[level - 1], starts[level]
        for i in range(low, high):
            if level == 1:
                siblings = address(nodes) + 8 * (leaves[i] // FANOUT * FANOUT)
                prefetch_line(siblings)
                prefetch_line(siblings + 8 * _LINE)
            nodes[here + leaves[i] // shrink] = _STALE
        for i in range(low, high):
            parent = leaves[i] // shrink
            if nodes[here + parent] != _STALE:
                continue
            first = below + parent * FANOUT
            a = b = c = d = 0.0
            for child in range(first, first + FANOUT, 4):
                a += nodes[child]
                b += nodes[child + 1]
                c += nodes[child + 2]
                d += nodes[child + 3]
            nodes[here + parent] = (a + b) + (c + d)
            if keeps_least:  # it takes longer than the sums
                # `least` has no leaves of its own: on the first level it is taken from the nodes.
                shift = starts[1]
                smallest = _INFINITY
                for child in range(first, first + FANOUT):
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

    Level by level for all of them, so that their cache misses are under way together. First among
    four groups of four siblings, then in that group, without a branch: those that the processor
    guesses wrong take longer than all of the additions.
    """
    for i in range(count):
        out[i] = 0
    for level in range(levels - 2, -1, -1):
        here = starts[level]
        for i in range(count):
            siblings = address(nodes) + 8 * (here + out[i] * FANOUT)
            prefetch_line(siblings)
            prefetch_line(siblings + 8 * _LINE)
        for i in range(count):
            child, mass = here + out[i] * FANOUT, masses[i]
            one = _sum_of_four(nodes, child)
            two = one + _sum_of_four(nodes, child + 4)
            three = two + _sum_of_four(nodes, child + 8)
            child += 4 * ((one <= mass) + (two <= mass) + (three <= mass))
            mass -= _last_within(mass, one, two, three)
            one = nodes[child]
            two = one + nodes[child + 1]
            three = two + nodes[child + 2]
            if three + nodes[child + 3] <= mass:  # rounding carried it past the end of the group
                child += 3
                first = here + out[i] * FANOUT  # not below it: sums may be wrong, memory must not
                while child > first and not nodes[child] > 0.0:
                    child -= 1
                mass = nodes[child] * _BELOW_ONE
            else:
                child += (one <= mass) + (two <= mass) + (three <= mass)
                mass -= _last_within(mass, one, two, three)
            masses[i] = mass
            out[i] = child - here


@inner
def _sum_of_four(nodes, first):
    return (nodes[first] + nodes[first + 1]) + (nodes[first + 2] + nodes[first + 3])


@inner
def _last_within(mass, one, two, three):
    """The last of these rising sums that is no more than `mass`, 0 if none is."""
    found = one if one <= mass else 0.0
    found = two if two <= mass else found
    return three if three <= mass else found


@kernel("float64[::1], int64[::1], float64[::1], int64[::1]")
def tree_find(nodes, starts, masses, out):
    """The leaf for each mass in ``[0, total)``, never one of zero; the masses are used up."""
    find_leaves(
        pointer(nodes), pointer(starts), len(starts) - 1, pointer(masses), pointer(out), len(masses)
    )
