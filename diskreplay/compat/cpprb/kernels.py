"""Numba kernels of tracks."""

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import kernel

_LINE = 64  # bytes


@kernel(  # stacks of four frames of uint8
    "uint32[::1], uint8[::1], uint8[::1], uint8[::1], uint32[::1]",
    "uint32[::1], uint8[::1], uint32[::1], uint8[::1], uint32[::1]",
)
def compare(last, head, value, newest, kept):
    """Whether a value is the last one, whether a head is the value moved on by one frame; the
    head's newest frame into `newest`, and all of it into `kept`.

    In `last` and `kept` a stack is one word for each place in a frame, the oldest frame in the
    lowest bits; values and heads have the same bytes in a line.
    """
    value, head = value.view(kept.dtype), head.view(kept.dtype)
    start = head.ctypes.data  # new to the caches, unlike all else: to be under way at once
    for line in range(start, start + len(head) * head.itemsize, _LINE):
        prefetch_line(line)
    frame_bits = 8 * newest.itemsize
    last_bits = 8 * head.itemsize - frame_bits
    older = (1 << last_bits) - 1
    changed = moved = 0
    for i in range(len(head)):
        changed |= last[i] ^ value[i]
        moved |= (value[i] >> frame_bits) ^ (head[i] & older)
        newest[i] = head[i] >> last_bits
        kept[i] = head[i]
    return changed == 0, moved == 0
