"""LZ4 streams decoded by the package's own code, beside a decoder of a few lines, and the library's
encoder. What is read and written ends where a page ends behind which nothing may be touched."""

import ctypes
import mmap

import numpy as np
import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import lz4

from diskreplay.jit import kernel
from diskreplay.store.lz4_kernels import lz4_decode

ROOM = 1 << 17


@kernel("int64, int64, int64, int64, int64")
def decode(source, size, target, wanted, whole):
    return lz4_decode(source, size, target, wanted, whole)


class Fenced:
    """Bytes before a page that nobody may read or write: whoever does is killed."""

    def __init__(self):
        self._mapped = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
        self.bytes = np.frombuffer(self._mapped, np.uint8)[:ROOM]
        self.end = self.bytes.ctypes.data + ROOM
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self.end), mmap.PAGESIZE, 0) == 0


@pytest.fixture(scope="module")
def memory():
    return Fenced(), Fenced()


def ours(memory, stream, wanted, whole):
    """The first bytes, or None if there are none; nothing before them is changed."""
    source, target = memory
    source.bytes[ROOM - len(stream) :] = np.frombuffer(stream, np.uint8)
    target.bytes[:] = 77
    got = decode(source.end - len(stream), len(stream), target.end - wanted, wanted, whole)
    assert (target.bytes[: ROOM - wanted] == 77).all()
    assert got in (wanted, -1)
    return None if got < 0 else target.bytes[ROOM - wanted :].tobytes()


def naive(stream, wanted):
    """The first bytes of a stream, by the description of the format; None if they are not there."""
    out, at = bytearray(), 0

    def further(length):
        nonlocal at
        if length == 15:
            while True:
                length, at = length + stream[at], at + 1
                if stream[at - 1] != 255:
                    break
        return length

    try:
        while len(out) < wanted:
            token, at = stream[at], at + 1
            literals = further(token >> 4)
            if at + literals > len(stream):
                return None
            out, at = out + stream[at : at + literals], at + literals
            if len(out) >= wanted:
                break
            offset, at = stream[at] + 256 * stream[at + 1], at + 2
            if not 0 < offset <= len(out):
                return None
            length = further(token & 15) + 4
            for _ in range(min(length, wanted - len(out))):
                out.append(out[-offset])
    except IndexError:
        return None
    return bytes(out[:wanted])


def written(sequences, last):
    """The stream of (literals, offset, length of the match), and of the literals at its end."""

    def further(length):
        whole, rest = divmod(length - 15, 255)
        return b"" if length < 15 else b"\xff" * whole + bytes([rest])

    stream = b""
    for literals, offset, length in sequences:
        count, more = len(literals), length - 4
        stream += bytes([16 * min(count, 15) + min(more, 15)]) + further(count) + literals
        stream += offset.to_bytes(2, "little") + further(more)
    return stream + bytes([16 * min(len(last), 15)]) + further(len(last)) + last


LITERALS = st.one_of(st.binary(max_size=20), st.binary(min_size=14, max_size=300))
OFFSETS = st.one_of(st.integers(1, 40), st.integers(41, 500))
LENGTHS = st.one_of(st.integers(4, 40), st.integers(41, 1200))
SEQUENCES = st.lists(st.tuples(LITERALS, OFFSETS, LENGTHS), max_size=12)


@settings(max_examples=effort(300, 1000, 20_000), deadline=None)
@given(
    sequences=SEQUENCES, begin=st.binary(min_size=1, max_size=60),
    last=st.binary(min_size=5, max_size=40), part=st.floats(0, 1),
)  # fmt: skip
def test_streams_of_all_kinds_of_matches(memory, sequences, begin, last, part):
    sequences = [(begin, 1, 4), *sequences]
    there = 0
    for i, (literals, offset, length) in enumerate(sequences):
        there += len(literals)
        sequences[i] = literals, min(offset, there), length
        there += length
    stream, whole = written(sequences, last), there + len(last)
    expected = naive(stream, whole)
    assert expected is not None
    assert ours(memory, stream, whole, whole) == expected
    wanted = max(1, int(part * (whole - 1)))
    assert ours(memory, stream, wanted, whole) == expected[:wanted]
    # A byte more or less is no stream of so many.
    assert ours(memory, stream + b"\0", whole, whole) is None
    assert ours(memory, stream, whole + 1, whole + 1) is None
    if whole > 1:
        assert ours(memory, stream, whole - 1, whole - 1) is None


@settings(max_examples=effort(300, 1000, 20_000), deadline=None)
@given(
    sequences=SEQUENCES, last=st.binary(min_size=5, max_size=40), wanted=st.integers(1, 3000),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 40),
)  # fmt: skip
def test_what_is_damaged_is_refused_or_has_what_it_says(
    memory, sequences, last, wanted, changes, cut
):
    stream = bytearray(written(sequences, last))
    for at, value in changes:
        stream[at % len(stream)] = value
    stream = bytes(stream[: max(1, len(stream) - cut)])
    expected = naive(stream, wanted)
    if expected is None:
        assert ours(memory, stream, wanted, 10**6) is None
    else:
        # A stream that was cut right behind a match is none: literals are last.
        assert ours(memory, stream, wanted, 10**6) in (expected, None)


@pytest.mark.parametrize(
    "content",
    [
        lambda rng: np.zeros(60_000, np.uint8),
        lambda rng: np.resize(np.array([3, 5, 7], np.uint8), 60_000),
        lambda rng: np.resize(rng.integers(0, 256, 31, np.uint8), 60_000),
        lambda rng: rng.integers(0, 4, 60_000).astype(np.uint8),
        lambda rng: np.repeat(rng.integers(0, 256, 3000, np.uint8), 20),
        lambda rng: rng.integers(0, 256, 60_000, np.uint8),
    ],
    ids=["zeros", "a colour", "31 bytes", "four values", "runs", "noise"],
)
def test_what_the_library_encodes(memory, content):
    data = content(np.random.default_rng(0)).tobytes()
    stream = bytes(lz4.compress(data))[4:]  # behind the size that numcodecs puts in front
    for wanted in (1, 17, 31, 32, 33, 64, 1000, 30_011, len(data) - 1, len(data)):
        assert ours(memory, stream, wanted, len(data)) == data[:wanted]
