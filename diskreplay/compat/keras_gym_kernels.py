"""Numba kernel of keras-gym's buffer."""

from diskreplay.jit import kernel


@kernel(
    "int64[::1], int64, int64, int64[::1], boolean[::1], boolean[::1], float64[::1], "
    "float64[::1], int64[:, ::1], float64[::1], float64[::1], int64"
)
def judge(
    slots, count, before, starts, dones, aside, rewards, powers, rows, returns, factors, found
):
    """Add the rows in `slots` that can be used to the `found` ones in `rows`, which has a second
    line for the rows n later; their n-step returns, summed up in the order of the steps, and
    bootstrap factors, 0 where the episode ended. Returns how many there are.

    A row cannot be used if its episode goes on, as far as is known, for less than n rows; nor if
    one of the `before` rows ahead of it left the ring, also where nothing was before it: the
    original's draws go on without such rows. Nor if it is `aside`.
    """
    size, n = len(starts), len(powers) - 1
    for slot in slots:
        row = count - 1 - (count - 1 - slot) % size
        if aside[slot] or row - before < count - size:
            continue
        start, total, over = starts[slot], 0.0, False
        ahead = row
        while ahead < row + n and not over:
            at = ahead % size
            if ahead >= count or starts[at] != start:
                break
            total += powers[ahead - row] * rewards[at]
            over = dones[at]
            ahead += 1
        if not over and (row + n >= count or starts[(row + n) % size] != start):
            continue
        rows[0, found], rows[1, found] = row, row + n
        returns[found], factors[found] = total, 0.0 if over else powers[n]
        found += 1
    return found
