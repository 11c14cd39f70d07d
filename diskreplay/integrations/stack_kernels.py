"""Numba kernels of stacks of frames: whether they follow each other, and in which rows they are;
holding no GIL."""

from diskreplay.jit import int64, int64s, kernel, part, pointer, void

NOTHING, TIP = -1, -2  # in place of ids: of zeros, and of a frame that no row has yet


@part(int64, int64s, int64s, int64)
def _differs(one, other, words):
    """0 if so many words are the same. All of them are looked at, since the processor takes several
    at a time then."""
    different = int64(0)
    for i in range(words):
        different |= one[i] ^ other[i]
    return different


@part(int64, int64s, int64s, int64s, int64)
def _differ(one, other, third, words):
    """0 if so many words are the same in all three: read once."""
    different = int64(0)
    for i in range(words):
        different |= (one[i] ^ other[i]) | (third[i] ^ other[i])
    return different


@part(void, int64s, int64s, int64)
def _copy(out, words_of, words):
    for i in range(words):
        out[i] = words_of[i]


@kernel("int64[::1], int64[::1], int64[::1], int64, int64, int64")
def goes_on(tip, seen, led, frame, places, oldest):
    """Whether `seen` is `tip`, and in each stack its newer frames are the older ones of `led`: 1 or
    0. If so, the newest frame of `led` is in the free place of the tip afterwards.

    Of each env the tip has so many places for frames of so many words, the first of them at
    `oldest`, and one that is free behind the last; the others have one fewer.
    """
    stack = places - 1
    envs = len(seen) // (stack * frame)
    for env in range(envs):
        ring, given = env * places, env * stack
        for at in range(stack):
            place = (oldest + at) % places
            kept = pointer(tip[(ring + place) * frame :])
            now = pointer(seen[(given + at) * frame :])
            if at == 0:
                different = _differs(kept, now, frame)
            else:
                different = _differ(kept, now, pointer(led[(given + at - 1) * frame :]), frame)
            if different:
                return 0
    for env in range(envs):
        free = env * places + (oldest + stack) % places
        newest = env * stack + stack - 1
        _copy(pointer(tip[free * frame :]), pointer(led[newest * frame :]), frame)
    return 1


@kernel(
    "int64[:, ::1], uint8[:, ::1], boolean[:, ::1], boolean[::1], int64[::1], int64[::1], "
    "int64[::1], int64, int64, int64, boolean, int64[:, ::1]"
)
def window_ids(
    rows, before, blind, with_tip, newest, slots, envs, oldest, last, most, repeats, ids
):  # fmt: skip
    """The ids of the frames of a transition in each slot, from `oldest` to `last` as seen from its
    own row, at most `most` of them before that. Of frames before its episode's first one the
    `repeats` of that, or `NOTHING`, as of slots without a transition, and of what a blind one led
    to. Returns how many have a `TIP`, and how many are blind."""
    num_envs, tips, blinds = rows.shape[1], 0, 0
    for i in range(len(slots)):
        slot, env = slots[i], envs[i]
        row = rows[slot, env]
        first = row - min(int64(before[slot, env]), most)
        for offset in range(oldest, last + 1):
            at = row + offset
            if row < 0 or (at < first and not repeats):
                ids[i, offset - oldest] = NOTHING
            else:
                ids[i, offset - oldest] = max(at, first) * num_envs + env
        if row >= 0 and last == 1:
            if blind[slot, env]:
                ids[i, last - oldest] = NOTHING
                blinds += 1
            elif with_tip[env] and newest[env] == row:
                ids[i, last - oldest] = TIP
                tips += 1
    return tips, blinds
