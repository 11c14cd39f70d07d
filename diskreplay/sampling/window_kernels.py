"""Numba kernels of sequences: which rows are anchors of windows, and what a window consists of."""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import (
    address,
    bytes_at,
    float32s_at,
    float64s_at,
    int32s,
    int32s_at,
    int64,
    int64s,
    int64s_at,
    kernel,
    larger,
    part,
    pointer,
    smaller,
)
from diskreplay.sampling.rng_kernels import draw_uniform
from diskreplay.sampling.row_index_kernels import (
    BOUNDS,
    COUNT,
    ENDED,
    ENDS_AT,
    ENVS,
    EPISODE,
    FIGURES,
    FINAL,
    FIRST,
    FLAGS,
    REWARD,
    RING,
    ROWS,
    STACK,
    STEP,
    TERMINATED,
    TRUNCATED,
    WIDTH,
    pick_retained,
    stack_is_whole,
)

# The figures of a window.
BURN_IN, LENGTH, AHEAD, N_STEP, STRIDE, ENDS, ARRIVAL, FINISHED, REPEAT_FIRST = range(9)
INSIDE, SHIFT, PAD, CROSS = 0, 1, 2, 3
# The masks of a window's positions, in the order of `window_plan`.
OBSERVED, TRANSITION, IS_FIRST, IS_LAST, BEGIN, LEARN, IS_TERMINATED, IS_TRUNCATED = range(8)
MASKS = 8
# What `WindowPlan.table` has: the addresses of its parts, and how many windows it is of.
IDS_AT, TRANSITIONS_AT, FRAMES_AT, STATE_AT, ANCHORS_AT, PROBABILITIES_AT, STEPS_AT = range(7)
REWARDS_AT, TO_GO_AT, RETURNS_AT, DISCOUNTS_AT, TARGETS_AT, WEIGHTS_AT, MASKS_AT = range(7, 14)
WINDOWS = 14

ROWS_OF_A_LINE = 4  # of the caches


@part(int64, int32s, int64s, int64s, int64, int64)
def _is_usable(ring, bounds, figures, env, row):
    """Whether a row is there, with its whole stack: it can be a position of a window."""
    if row < bounds[2 * env + FIRST] or row >= bounds[2 * env + COUNT]:
        return 0
    return stack_is_whole(ring, bounds, figures, env, row)


@part(int64, int32s, int64s, int64s, int64s, int64, int64, int64)
def _settled(ring, bounds, figures, shape, env, first, seen):
    """The first of an env's rows that rows behind `seen` may make an anchor, or no anchor: a window
    ends with the last transition, which final rows may follow; or all of an episode's come with its
    end."""
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    row = seen - 1
    while row > first and ring[WIDTH * ((row * envs + env) % size) + FLAGS] & FINAL:
        row -= 1
    low = row - shape[LENGTH] - 1
    if shape[FINISHED] and seen > first:
        low = smaller(low, seen - 1 - ring[WIDTH * (((seen - 1) * envs + env) % size) + STEP])
        if shape[ENDS] == CROSS:  # windows that end in that episode
            low -= shape[LENGTH]
    return larger(first, low)


@kernel(
    "int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1], uint8[::1], int64[:, ::1]"
)
def find_anchors(ring, bounds, figures, shape, seen, marks, changed):
    """Mark the rows that are anchors now, where that may have changed since the rows ``seen[env]``,
    which are taken forward; lists the places that are none any more in ``changed[0]``, those that
    are new in ``changed[1]``, and returns how many of each.

    An episode's rows are looked at from the last to the first, so that the cost of a row does not
    depend on the length of a window.
    """
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    flat, limits, sizes, asked = pointer(ring), pointer(bounds), pointer(figures), pointer(shape)
    length, ends = shape[LENGTH], shape[ENDS]
    gone = came = 0
    for env in range(envs):
        first, count = bounds[env, FIRST], bounds[env, COUNT]
        old_first, old_count = seen[env, FIRST], seen[env, COUNT]
        # Before the places of evicted rows get the marks of newer ones.
        for row in range(old_first, smaller(first + figures[STACK], old_count)):
            place = (row * envs + env) % size
            if marks[place] and not _is_usable(flat, limits, sizes, env, row):
                marks[place] = 0
                changed[0, gone] = place
                gone += 1
        seen[env, FIRST], seen[env, COUNT] = first, count
        if count == old_count:
            continue
        low = first
        if old_count > first:
            low = _settled(flat, limits, sizes, asked, env, first, old_count)
        newest = (count - 1) * envs + env
        newest_episode = ring[newest % size, EPISODE]
        newest_is_over = ring[newest % size, FLAGS] & (ENDED | FINAL) != 0
        episode, over = newest_episode, newest_is_over
        last = last_transition = count - 1
        run, has_transition = 0, False
        for row in range(count - 1, low - 1, -1):
            place = (row * envs + env) % size
            if ring[place, EPISODE] != episode:
                episode, over = ring[place, EPISODE], True
                last, run, has_transition = row, 0, False
            is_anchor = False
            if ring[place, FLAGS] & FINAL:
                run = 0
            else:
                run += 1
                if not has_transition:
                    last_transition, has_transition = row, True
                aligned = ring[place, STEP] % shape[STRIDE] == 0
                if ends == CROSS:
                    is_anchor = row % shape[STRIDE] == 0 and row + length <= count
                elif ends == PAD:
                    is_anchor = aligned and (last - row + 1 >= length or over)
                else:
                    is_anchor = aligned and run >= length
                if ends == SHIFT and over and not is_anchor:
                    to_last = last_transition - row + 1
                    if to_last == length:
                        is_anchor = run >= length
                    elif to_last < length:
                        is_anchor = ring[place, STEP] == 0
                if is_anchor and shape[FINISHED] and not newest_is_over:
                    end = row if ends != CROSS else row + length - 1
                    is_anchor = ring[(end * envs + env) % size, EPISODE] != newest_episode
                if is_anchor:
                    is_anchor = stack_is_whole(flat, limits, sizes, env, row) != 0
            if is_anchor and not marks[place]:
                marks[place] = 1
                changed[1, came] = place
                came += 1
            elif marks[place] and not is_anchor:
                marks[place] = 0
                changed[0, gone] = place
                gone += 1
    return gone, came


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1]")
def count_changes(ring, bounds, figures, shape, seen):
    """How many places `find_anchors` may list, at most."""
    total = 0
    for env in range(figures[ENVS]):
        first, count = bounds[env, FIRST], bounds[env, COUNT]
        old_first, old_count = seen[env, FIRST], seen[env, COUNT]
        total += larger(0, smaller(first + figures[STACK], old_count) - old_first)
        if count != old_count:
            low = first
            if old_count > first:
                low = _settled(
                    pointer(ring), pointer(bounds), pointer(figures), pointer(shape), env, first,
                    old_count,
                )  # fmt: skip
            total += count - low
    return total


@kernel("uint8[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64, int64[::1]")
def take_new(marks, bounds, figures, cursor, settled, apart, ids):
    """The oldest anchors that no one was given yet, row by row and env by env; returns how many
    there were for the places of `ids`. ``cursor[env]`` is the first row to look at, and moves on,
    `apart` rows behind each that is given; no row before ``settled[env]`` becomes an anchor any
    more."""
    envs = figures[ENVS]
    size = figures[ROWS] * envs
    found = 0
    for env in range(envs):
        cursor[env] = larger(cursor[env], bounds[env, FIRST])
    while found < len(ids):
        best, best_env = int64(0), -1
        for env in range(envs):
            row = cursor[env]
            while row < bounds[env, COUNT] and not marks[(row * envs + env) % size]:
                row += 1
            if row >= bounds[env, COUNT]:  # all that are marked were given away
                cursor[env] = larger(cursor[env], settled[env])
                continue
            cursor[env] = row
            if best_env < 0 or row < best:
                best, best_env = row, env
        if best_env < 0:
            break
        ids[found] = best * envs + best_env
        cursor[best_env] = best + apart
        found += 1
    return found


@kernel("int32[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1]")
def settled_rows(ring, bounds, figures, shape, out):
    """For each env the first row that later ones may make an anchor."""
    for env in range(figures[ENVS]):
        first, count = bounds[env, FIRST], bounds[env, COUNT]
        out[env] = first
        if count > first:
            out[env] = _settled(
                pointer(ring), pointer(bounds), pointer(figures), pointer(shape), env, first, count
            )
    return 0


@kernel(
    "int64[::1], int64[::1], uint8[::1], float64[::1], float32[::1], float64, int64[::1], "
    "float64[::1], int64, int64"
)
def window_plan(table, shape, marks, powers, to_go, share, plan, uniform, known, generator):
    """Draw the last windows of a plan, one for each number of ``[0, 1)`` that hits a marked row, as
    `index_draw` finds sampleable ones. Returns how many of all places have one then; if all, the
    plan says what the windows consist of. The first ones are anchors that are known.

    `table` is that of the index, `plan` that of a `WindowPlan`, `share` the probability of each
    window that is drawn here. The ids of frames are those of ``positions + stack - 1`` rows a
    window, or of ``positions * stack`` where windows go over the ends of episodes; there are none
    for a stack of 1, where they would be the rows themselves. `to_go` is what `fill_to_go` found,
    or empty.
    """
    ring, limits, sizes = table[RING], int64s_at(table[BOUNDS]), int64s_at(table[FIGURES])
    envs, stack, count = sizes[ENVS], sizes[STACK], plan[WINDOWS]
    size = sizes[ROWS] * envs
    # Flat memory: of arrays each index is looked at, whether it is negative.
    flat, pay, anchors = int32s_at(ring), float32s_at(ring), int64s_at(plan[ANCHORS_AT])
    if len(uniform):
        draw_uniform(uniform, known, generator)
        probability = float64s_at(plan[PROBABILITIES_AT])
        weight = float32s_at(plan[WEIGHTS_AT])
        found = count - len(uniform)
        pick_retained(
            limits, sizes, int64s_at(table[ENDS_AT]), pointer(uniform),
            int64s_at(plan[ANCHORS_AT] + 8 * found), len(uniform),
        )  # fmt: skip
        for i in range(found, count):
            if marks[anchors[i] % size]:
                anchors[found], probability[found], weight[found] = anchors[i], share, 1.0
                found += 1
        if found < count:
            return found
    burn_in, length, cross = shape[BURN_IN], shape[LENGTH], shape[ENDS] == CROSS
    n_step, arrival = shape[N_STEP], shape[ARRIVAL]
    positions = burn_in + length + shape[AHEAD]
    plane = count * positions
    all_ids, all_transitions = int64s_at(plan[IDS_AT]), int64s_at(plan[TRANSITIONS_AT])
    frames, state = int64s_at(plan[FRAMES_AT]), int64s_at(plan[STATE_AT])
    all_steps, all_rewards = int32s_at(plan[STEPS_AT]), float32s_at(plan[REWARDS_AT])
    all_to_go, all_returns = float32s_at(plan[TO_GO_AT]), float32s_at(plan[RETURNS_AT])
    all_discounts, all_targets = float32s_at(plan[DISCOUNTS_AT]), int32s_at(plan[TARGETS_AT])
    all_masks = bytes_at(plan[MASKS_AT])
    # Apart from the rest, so that the cache misses of all windows are under way together.
    stride = ROWS_OF_A_LINE if envs == 1 else 1
    for i in range(count):
        place = (anchors[i] - burn_in * envs) % size
        state[i] = place  # of the first position, until its turn comes: divisions take their time
        place -= envs if place >= envs else 0  # the row before is looked at, too
        for _ in range(0, positions + 1, stride):
            prefetch_line(ring + 4 * WIDTH * place)
            if len(to_go):
                prefetch_line(address(to_go) + 4 * place)
            place += stride * envs
            if place >= size:
                place -= size
    # As most windows have it, whose rows are all of one episode, and which it does not end in.
    for at in range(2 * plane):
        all_masks[at] = True  # OBSERVED and TRANSITION
    for at in range(2 * plane, MASKS * plane):
        all_masks[at] = False
    for i in range(count):
        env, anchor, place = int64(0), anchors[i], state[i]
        if envs > 1:
            env, anchor = anchor % envs, anchor // envs
        first, behind_last = limits[2 * env + FIRST], limits[2 * env + COUNT]
        named = place + burn_in * envs  # the place of the anchor
        if named >= size:
            named %= size
        episode = flat[WIDTH * named + EPISODE]
        state[i] = -1
        started = False
        row = anchor - burn_in
        # Of the position before: whether its row is usable, and where it is.
        before = place - envs if place >= envs else place - envs + size
        follows = first <= row - 1 < behind_last
        if follows and stack > 1:
            follows = stack_is_whole(flat, limits, sizes, env, row - 1) != 0
        # Whether all rows are there and of one episode, as most windows are: its first row and its
        # last one say so, and whether stacks are whole the first one.
        whole = first <= row and row + positions <= behind_last
        if whole:
            last = place + (positions - 1) * envs
            last -= size if last >= size else 0
            whole = flat[WIDTH * place + EPISODE] == flat[WIDTH * last + EPISODE]
        if whole and stack > 1:
            whole = stack_is_whole(flat, limits, sizes, env, row) != 0
        seen = FINAL
        if whole and shape[AHEAD] >= n_step and (stack == 1 or not cross):
            seen, here, shown = 0, place, before
            id_ = row * envs + env
            for at in range(i * positions, (i + 1) * positions):
                all_ids[at] = all_transitions[at] = id_
                all_steps[at] = flat[WIDTH * here + STEP]
                all_rewards[at] = pay[WIDTH * (shown if arrival else here) + REWARD]
                seen |= flat[WIDTH * here + FLAGS]
                if len(to_go):
                    all_to_go[at] = to_go[here]
                shown, id_ = here, id_ + envs
                here += envs
                if here >= size:
                    here -= size
        if not seen & (ENDED | FINAL):
            state[i], at = row * envs + env, i * positions
            is_first = not follows or flat[WIDTH * before + EPISODE] != episode
            all_masks[IS_FIRST * plane + at], all_masks[BEGIN * plane + at] = is_first, True
            if arrival and is_first:
                all_rewards[at] = 0.0
            here = named
            for p in range(burn_in, burn_in + length):
                all_masks[LEARN * plane + at + p] = True
                last, total = here, 0.0
                for ahead in range(n_step):
                    total += powers[ahead] * pay[WIDTH * last + REWARD]
                    last += envs
                    if last >= size:
                        last -= size
                q = i * length + p - burn_in
                all_returns[q], all_discounts[q], all_targets[q] = total, powers[n_step], p + n_step
                here += envs
                if here >= size:
                    here -= size
        else:
            for p in range(positions):
                row, at = anchor - burn_in + p, i * positions + p
                place = before + envs
                if place >= size:
                    place -= size
                here = WIDTH * place
                usable = whole or first <= row < behind_last
                if usable and not whole and stack > 1:
                    usable = stack_is_whole(flat, limits, sizes, env, row) != 0
                is_first = not follows or flat[WIDTH * before + EPISODE] != flat[here + EPISODE]
                shown, before, follows = before, place, usable
                valid = whole or (usable and (cross or flat[here + EPISODE] == episode))
                q = i * length + p - burn_in
                learns = burn_in <= p < burn_in + length
                if learns:
                    all_returns[q], all_discounts[q], all_targets[q] = 0.0, 0.0, -1
                if cross and stack > 1:
                    for k in range(stack):
                        back = stack - 1 - k
                        if valid and shape[REPEAT_FIRST]:
                            back = smaller(back, int64(flat[here + STEP]))
                        there = valid and back <= flat[here + STEP]
                        frames[at * stack + k] = (row - back) * envs + env if there else -1
                if not valid:
                    for mask in range(MASKS):
                        all_masks[mask * plane + at] = False
                    all_ids[at] = all_transitions[at] = -1
                    all_steps[at], all_rewards[at], all_to_go[at] = 0, 0.0, 0.0
                    continue
                flags, id_ = flat[here + FLAGS], row * envs + env
                transition = flags & FINAL == 0
                if not started and transition:
                    state[i] = id_
                all_ids[at], all_steps[at] = id_, flat[here + STEP]
                all_transitions[at] = id_ if transition else -1
                if len(to_go):
                    all_to_go[at] = to_go[place]
                told, paid = flags, pay[here + REWARD]
                if arrival:
                    told = 0 if is_first else flat[WIDTH * shown + FLAGS]
                    paid = 0.0 if is_first else pay[WIDTH * shown + REWARD]
                all_rewards[at] = paid
                terminated, truncated = told & TERMINATED != 0, told & TRUNCATED != 0
                all_masks[OBSERVED * plane + at] = True
                all_masks[TRANSITION * plane + at] = transition
                all_masks[IS_FIRST * plane + at] = is_first
                all_masks[IS_LAST * plane + at] = terminated | truncated | (not transition)
                all_masks[BEGIN * plane + at] = is_first | (not started)
                all_masks[LEARN * plane + at] = False
                all_masks[IS_TERMINATED * plane + at] = terminated
                all_masks[IS_TRUNCATED * plane + at] = truncated
                started = True
                if not learns or not transition:
                    continue
                # As `_steps_to_go` of the row index, but along the ring, without divisions.
                last, ahead, ended, known, total = place, 0, False, False, 0.0
                while not known:
                    behind = flat[WIDTH * last + FLAGS]
                    total += powers[ahead] * pay[WIDTH * last + REWARD]
                    ahead += 1
                    if behind & TERMINATED:
                        ended = known = True
                        break
                    if row + ahead >= behind_last:
                        break
                    last += envs
                    if last >= size:
                        last -= size
                    if flat[WIDTH * last + EPISODE] != flat[here + EPISODE]:
                        break
                    if flat[WIDTH * last + FLAGS] & FINAL:
                        known = True
                    elif behind & TRUNCATED:
                        break
                    elif ahead == n_step:
                        known = True
                if not known or (not ended and p + ahead >= positions):
                    continue
                all_masks[LEARN * plane + at] = True
                all_returns[q] = total
                all_discounts[q] = 0.0 if ended else powers[ahead]
                all_targets[q] = p if ended else p + ahead
        if stack > 1 and not cross:
            start = anchor - flat[WIDTH * named + STEP]
            width = positions + stack - 1
            for k in range(width):
                row = anchor - burn_in - (stack - 1) + k
                if row < start and shape[REPEAT_FIRST]:
                    row = start
                there = first <= row < behind_last
                if there:
                    there = flat[WIDTH * ((row * envs + env) % size) + EPISODE] == episode
                frames[i * width + k] = row * envs + env if there else -1
    return count
