"""Numba kernels that go along an episode: returns to go, and goals that were reached."""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import address, inner, int64, kernel, larger, smaller
from diskreplay.sampling.row_index_kernels import (
    COUNT,
    ENDED,
    ENVS,
    EPISODE,
    FINAL,
    FIRST,
    FLAGS,
    REWARD,
    ROWS,
    WIDTH,
    near,
)
from diskreplay.sampling.window_kernels import ROWS_OF_A_LINE

# The strategies of hindsight.
_FUTURE_GOAL, _FINAL_GOAL, _EPISODE_GOAL = range(3)
_ROWS_EXPECTED = 64  # most episodes with goals end within so many
_INFINITY = float("inf")


@kernel(
    "int32[:, ::1], float32[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], float64, "
    "float32[::1]"
)
def fill_to_go(ring, rewards, bounds, figures, seen, gamma, to_go):
    """Discounted sums of an episode's rewards from each row on, for rows behind ``seen[env, 1]``.

    ``seen[env, 0]`` is where the newest episode begins, as far as it is retained: what is not over
    has no sum, which is NaN, and is looked at again.
    """
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    for env in range(envs):
        first, count = bounds[env, FIRST], bounds[env, COUNT]
        begin = larger(seen[env, 0], first)
        low = larger(seen[env, 1], begin)
        for row in range(low, count + 1):
            place = (row * envs + env) % size
            if row < count:
                to_go[place] = float("nan")
            before = ((row - 1) * envs + env) % size
            if row == begin:
                continue
            if row < count and ring[place, EPISODE] == ring[before, EPISODE]:
                # It seemed to be over, since its last row was a frame alone.
                back = row - 1
                while back >= begin and to_go[(back * envs + env) % size] >= -_INFINITY:
                    to_go[(back * envs + env) % size] = float("nan")
                    back -= 1
                continue
            if row == count and not ring[before, FLAGS] & (ENDED | FINAL):
                continue
            total = 0.0
            for back in range(row - 1, begin - 1, -1):
                at = (back * envs + env) % size
                total = rewards[at, REWARD] + gamma * total
                to_go[at] = total
            if row < count:
                begin = row
        seen[env, 0], seen[env, 1] = begin, count
    return 0


@inner
def _reach(ring, figures, place, way, most):
    """How many rows behind that in `place` (`way` 1), or before it (-1), are of its episode; of so
    many that there are. Galloping: in steps that double, and then by halves of the last one."""
    episode = ring[place, EPISODE]
    inside, outside, stride = int64(0), most + 1, int64(1)
    while inside + stride <= most:
        if ring[near(figures, place, way * (inside + stride)), EPISODE] != episode:
            outside = inside + stride
            break
        inside += stride
        stride *= 2
    while inside + 1 < outside:
        middle = (inside + outside) // 2
        if ring[near(figures, place, way * middle), EPISODE] == episode:
            inside = middle
        else:
            outside = middle
    return inside


@kernel(
    "int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], float64[::1], int64, boolean, int64[::1]"
)
def choose_goals(ring, bounds, figures, ids, uniform, strategy, finished, goals):
    """For each transition a row of its episode whose observation becomes the goal, evenly by a
    number of ``[0, 1)``; -1 where there is none: what the transition led to is not known, or
    (`finished`) the episode is not over.

    The ends of an episode are found by galloping over the index: O(log length).
    """
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    # Apart from the rest, so that the cache misses of all rows are under way together.
    apart = ROWS_OF_A_LINE if envs == 1 else 1
    for i in range(len(ids)):
        place = ids[i] % size
        goals[i] = place  # until its turn comes: divisions take their time
        for _ in range(0, smaller(_ROWS_EXPECTED, figures[ROWS]), apart):
            prefetch_line(address(ring) + 4 * WIDTH * place)
            place += apart * envs
            if place >= size:
                place -= size
    for i in range(len(ids)):
        env, row, place = int64(0), ids[i], goals[i]
        if envs > 1:
            env, row = row % envs, row // envs
        first, count = bounds[env, FIRST], bounds[env, COUNT]
        last = row + _reach(ring, figures, place, 1, count - 1 - row)
        newest = near(figures, place, last - row)
        over = last + 1 < count or ring[newest, FLAGS] & (ENDED | FINAL) != 0
        goals[i] = -1
        if last == row or (finished and not over):
            continue
        low = last if strategy == _FINAL_GOAL else row + 1
        if strategy == _EPISODE_GOAL:
            low = row - _reach(ring, figures, place, -1, row - first) + 1
        goals[i] = (low + int64(uniform[i] * (last - low + 1))) * envs + env
    return 0
