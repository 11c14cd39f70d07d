"""Numba kernels that look whether stacks of frames follow each other, holding no GIL."""

from diskreplay.jit import int64, int64s, kernel, part, pointer


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
