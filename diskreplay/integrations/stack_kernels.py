"""Numba kernels of stacks of frames: whether they follow each other, and in which rows they are;
holding no GIL."""

from diskreplay.jit import int64, int64s, kernel, part, pointer

NOTHING, TIP = -1, -2  # in place of ids: of zeros, and of a frame that no row has yet


@part(int64, int64s, int64, int64s, int64, int64)
def _differs(one, from_one, other, from_other, words):
    """0 if so many words are the same from these places on. All of them are looked at, since the
    processor takes several at a time then."""
    different = int64(0)
    for i in range(words):
        different |= one[from_one + i] ^ other[from_other + i]
    return different


@kernel("int64[::1], int64[::1], int64[::1], int64, int64")
def goes_on(tip, seen, led, frame, stack):
    """Whether `seen` is `tip`, and in each stack its newer frames are the older ones of `led`: 1 or
    0. Frames and stacks have so many of these words."""
    if _differs(pointer(tip), 0, pointer(seen), 0, len(tip)):
        return 0
    for start in range(0, len(tip), stack):
        if _differs(pointer(seen), start + frame, pointer(led), start, stack - frame):
            return 0
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
