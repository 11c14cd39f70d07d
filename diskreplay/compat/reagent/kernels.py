"""Numba kernels of ReAgent's buffers."""

from diskreplay.jit import kernel, pointer
from diskreplay.sampling.sum_tree_kernels import find_leaves


@kernel(
    "int64[::1], uint8[::1], int64, int64, int64, int64, int64[:, ::1], int64[:, ::1], int64[::1], "
    "boolean[::1]"
)
def follow(indices, terminal, horizon, count, base, stored, slots, ids, steps, ended):
    """For each index, taken modulo the capacity: its slot and the one after its n-step window, as
    the two lines of `slots`; how many steps the window has, and whether an episode ends there.

    In `ids` what `SlotBuffer.ids` says of the slots, of the last `stored` of `count` rows.
    """
    capacity = len(terminal)
    for i in range(len(indices)):
        last = indices[i] % capacity
        slots[0, i] = last
        steps[i] = 1
        while steps[i] < horizon and not terminal[last]:
            last = (last + 1) % capacity
            steps[i] += 1
        slots[1, i] = (last + 1) % capacity
        ended[i] = terminal[last] != 0
        for k in range(2):
            back = (count - 1 - slots[k, i]) % capacity
            ids[k, i] = count - base - 1 - back if back < stored else -1


@kernel("float64[::1], int64[::1], float64[::1], int64[::1]")
def stratified(nodes, starts, draws, leaves):
    """The leaf at each draw from ``[0, 1)`` within its part, of `draws` equal ones, of the total.
    The draws are used up.

    Rounds as ``random.uniform`` of ``linspace`` does.
    """
    step = 1.0 / max(len(draws), 1)
    for i in range(len(draws)):
        low, high = i * step, (i + 1) * step if i + 1 < len(draws) else 1.0
        draws[i] = (low + (high - low) * draws[i]) * nodes[-1]
    find_leaves(
        pointer(nodes),
        pointer(starts),
        len(starts) - 1,
        pointer(draws),
        pointer(leaves),
        len(draws),
    )
