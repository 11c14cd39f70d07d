"""Numba kernels of the segment trees: binary heaps, the root at 1, leaf i at capacity + i."""

import numpy as np

from diskreplay.jit import kernel


@kernel("int64[::1], int64")
def any_outside(leaves, capacity):
    """Whether any is not in ``[0, capacity)``."""
    for leaf in leaves:  # noqa: SIM110 - Numba takes no generators
        if leaf < 0 or leaf >= capacity:
            return True
    return False


@kernel("float64[::1], int64[::1], float64[::1]")
def set_sums(nodes, leaves, values):
    """Set leaves one after the other, and recompute the sums above each."""
    capacity = len(nodes) // 2
    for i in range(len(leaves)):
        node = capacity + leaves[i]
        nodes[node] = values[i]
        node //= 2
        while node >= 1:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node //= 2


@kernel("float64[::1], int64[::1], float64[::1]")
def set_minima(nodes, leaves, values):
    """As `set_sums`, with minima."""
    capacity = len(nodes) // 2
    for i in range(len(leaves)):
        node = capacity + leaves[i]
        nodes[node] = values[i]
        node //= 2
        while node >= 1:
            nodes[node] = min(nodes[2 * node], nodes[2 * node + 1])
            node //= 2


@kernel("float64[::1], float64[::1], int64, float64")
def set_leaf(sums, minima, leaf, value):
    """Set one leaf of two trees of a capacity, as `set_sums` and `set_minima` do."""
    node = len(sums) // 2 + leaf
    sums[node] = minima[node] = value
    node //= 2
    while node >= 1:
        sums[node] = sums[2 * node] + sums[2 * node + 1]
        minima[node] = min(minima[2 * node], minima[2 * node + 1])
        node //= 2


@kernel("float64[::1], float64[::1]")
def find(nodes, masses):
    """For each mass the leaf i with ``prefix(i) <= mass < prefix(i + 1)``; never a leaf of 0."""
    capacity = len(nodes) // 2
    found = np.empty(len(masses), np.int64)
    for i in range(len(masses)):
        mass, node = masses[i], 1
        while node < capacity:
            node *= 2
            # Nothing to the right: rounding, or the total itself, has led past the last weight.
            if nodes[node] <= mass and nodes[node + 1] > 0:
                mass -= nodes[node]
                node += 1
        found[i] = node - capacity
    return found
