"""Blocks and pieces that kernels check, beside a loop in Python."""

import google_crc32c
import numpy as np
import pytest
from numcodecs import blosc

from diskreplay.store import checking_kernels

WHOLE = 64


def block(rows=bytes(range(WHOLE))):
    packed = blosc.compress(rows, cname=b"lz4", clevel=9, shuffle=0)
    return packed + google_crc32c.value(packed).to_bytes(4, "little")


def again(packed):
    """The block with its checksum anew: as one that somebody wrote in this form."""
    return packed[:-4] + google_crc32c.value(packed[:-4]).to_bytes(4, "little")


def check(*blocks):
    lengths = np.array([len(each) for each in blocks])
    bad, sums = np.zeros(len(blocks), np.bool_), np.zeros(len(blocks), np.uint32)
    data = np.frombuffer(b"".join(blocks), np.uint8)
    checking_kernels.check_blocks(data, np.cumsum(lengths) - lengths, lengths, WHOLE, bad, sums)
    return bad.tolist(), sums.tolist()


def test_sound_blocks_and_their_checksums():
    blocks = [block(), block(bytes(WHOLE)), block()]
    bad, sums = check(*blocks)
    assert bad == [False] * 3
    assert sums == [int.from_bytes(each[-4:], "little") for each in blocks]


@pytest.mark.parametrize("at", range(0, len(block()), 7))
def test_a_bit_anywhere(at):
    rotten = bytearray(block())
    rotten[at] ^= 4
    assert check(block(), bytes(rotten), block())[0] == [False, True, False]


@pytest.mark.parametrize("length", [0, 4, 5, 19])
def test_one_too_short_for_a_header(length):
    """Nothing before the data is read, nor a checksum noted."""
    assert check(block()[:length], block())[0] == [True, False]


def test_a_header_of_16_bytes_is_enough():
    head = bytes(4) + b"".join(n.to_bytes(4, "little") for n in (WHOLE, WHOLE, 16))
    assert check(again(head + bytes(4)))[0] == [False]


@pytest.mark.parametrize(
    ("at", "number"), [(4, WHOLE - 1), (4, WHOLE + 1), (8, WHOLE + 1), (12, 17), (12, 0)]
)
def test_a_header_that_says_other_lengths(at, number):
    """Whoever wrote it: a decoder would read or write past the end."""
    packed = bytearray(block())
    packed[at : at + 4] = number.to_bytes(4, "little")
    assert check(again(bytes(packed)))[0] == [True]


def test_pieces_are_those_of_the_segment_and_add_up():
    from diskreplay.store.codec import behind

    rng = np.random.default_rng(0)
    for size, length in ((10, 10), (10, 11), (10, 19), (10, 95), (100, 7), (1, 5)):
        data = rng.integers(0, 256, length, np.uint8)
        count = -(-length // size)
        sums = np.zeros(count, np.uint32)
        last = behind(length - (count - 1) * size)
        whole = checking_kernels.piece_sums(data, size, behind(size), last, sums)
        assert sums.tolist() == [
            google_crc32c.value(data[at : at + size].tobytes()) for at in range(0, length, size)
        ]
        assert whole == google_crc32c.value(data.tobytes())
