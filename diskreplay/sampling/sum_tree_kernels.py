"""Numba kernels of the sum tree.

The nodes of all levels are in one array, the leaves first; ``starts[k]`` is where level k begins.
"""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import address, float64s, int64, int64s, kernel, part, pointer, smaller, void

FANOUT = 64
# So that the sum of 2**36 leaves, the most that a buffer has, is finite; and so that the power of a
# positive priority is one too: what is not 0 can be drawn.
LARGEST_LEAF, LEAST_LEAF = 1e297, 1e-297
_TWO_LINES = 16  # doubles in two lines of the caches, which processors fetch together
_INFINITY = float("inf")
_BELOW_ONE = 1.0 - 2.0**-53  # times a number: the largest number below it


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
