"""LZ4 decoded by code of our own, where it pays: in long runs, and where it has to stop.

The C library copies runs of a few bytes 8 at a time, each of which waits for the one before, and
single bytes where it has to stop before the end. Frames have many such runs.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from diskreplay.cache_line import prefetch_line
from diskreplay.jit import inner, int64, intrinsic, part, smaller
from diskreplay.store.native import load_i64, load_u8, load_u16, memcpy, store_i64, store_u8

_WIDE = 32  # bytes that are copied at a time
_TOKEN = 15  # of a length in a token: more of it follows
_AHEAD = 1 << 11  # bytes that are expected before they are written

# Of a period below 8 bytes: what repeats it in a word, and how many bytes of that are whole ones.
_REPEATS = tuple(sum(1 << bit for bit in range(0, 64, 8 * n)) if n else 0 for n in range(8))
_STEPS = tuple(8 // n * n if n else 0 for n in range(8))


def _copier(size: int) -> Any:
    @intrinsic
    def copy(_typing, to, source):
        def emit(_context, builder, _signature, arguments):
            pointer = ir.PointerType(ir.VectorType(ir.IntType(8), size))
            to, source = (builder.inttoptr(each, pointer) for each in arguments)
            builder.store(builder.load(source, align=1), to, align=1)
            return cgutils.get_null_value(cgutils.intp_t)

        return types.intp(types.intp, types.intp), emit

    return copy


_copy_16, _copy_32 = _copier(16), _copier(_WIDE)


@inner
def _short_match(to, offset):
    """What begins `offset` bytes before, as long as a token says at most: 18 bytes, and fewer than
    `_WIDE`."""
    if offset < 8:
        word, step = _word(to, offset), _STEPS[offset]
        store_i64(to, word)
        store_i64(to + step, word)
        store_i64(to + 2 * step, word)
    else:
        for at in range(to, to + 24, 8):
            store_i64(at, load_i64(at - offset))


@inner
def _near_match(to, offset, stop):
    """What begins `offset` bytes before `to`, up to `stop`, and fewer than `_WIDE` bytes more."""
    first = smaller(to + 4 * _WIDE, stop)
    if offset < 8:
        word, step = _word(to, offset), _STEPS[offset]
        while to < first:
            store_i64(to, word)
            store_i64(to + step, word)
            to += 2 * step
    elif offset < _WIDE:
        while to < first:
            store_i64(to, load_i64(to - offset))
            store_i64(to + 8, load_i64(to + 8 - offset))
            to += 16
    if to < stop:
        if offset < _WIDE:
            offset *= 1 + (2 * _WIDE - 1) // offset  # a repeat far enough back to go quickly
        while to < stop:
            _copy_32(to, to - offset)
            to += _WIDE


@inner
def _word(to, offset):
    """The `offset` bytes before `to`, again and again."""
    return (load_i64(to - offset) & ((int64(1) << 8 * offset) - 1)) * _REPEATS[offset]


@part(int64, int64, int64, int64, int64, int64)
def lz4_decode(source, size, target, wanted, whole):
    """Decode the first `wanted` of `whole` bytes, of which a stream of `size` is, to `target`, and
    nothing behind them; returns how many there are, or -1 if that is no such stream.

    Any bytes may be given: nothing outside of the two is read or written. A stream that is wanted
    whole has to end there.
    """
    at, end, to, stop = source, source + size, target, target + wanted
    while at < end:
        token = int64(load_u8(at))
        at += 1
        count, length = token >> 4, token & _TOKEN
        if count < _TOKEN and end - at >= 16 and stop - to >= 16:
            _copy_16(to, at)
        else:
            if count == _TOKEN:
                more = int64(255)
                while more == 255 and at < end:
                    more = int64(load_u8(at))
                    at += 1
                    count += more
            if count > end - at:
                return -1
            if end - at - count >= _WIDE and stop - to - count >= _WIDE:
                for k in range(0, count, _WIDE):
                    _copy_32(to + k, at + k)
            else:
                memcpy(to, at, smaller(count, stop - to))
        to += count
        at += count
        if to >= stop:
            break
        if end - at < 3:  # literals are last
            return -1
        offset = int64(load_u16(at))
        at += 2
        if offset == 0 or offset > to - target:
            return -1
        if length < _TOKEN and stop - to >= _WIDE:
            _short_match(to, offset)
            to += length + 4  # which is not the end: that is further away
            continue
        if length == _TOKEN:
            more = int64(255)
            while more == 255:
                if at >= end:
                    return -1
                more = int64(load_u8(at))
                at += 1
                length += more
        last = to + length + 4
        if offset >= _WIDE and stop - last >= 2 * _WIDE:
            _copy_32(to, to - offset)
            to += _WIDE
            while to < last:
                _copy_32(to, to - offset)
                _copy_32(to + _WIDE, to + _WIDE - offset)
                prefetch_line(to + _AHEAD)
                to += 2 * _WIDE
        else:
            # What would go beyond the end is copied byte by byte.
            wide = smaller(last, stop - _WIDE)
            if to < wide:
                _near_match(to, offset, wide)
                to = wide
            while to < smaller(last, stop):
                store_u8(to, load_u8(to - offset))
                to += 1
        to = last
        if to >= stop:
            break
    if to < stop or (wanted == whole and (to > stop or at < end)):
        return -1
    return wanted
