"""Blocks as kernels compress and enter them, beside numcodecs and google-crc32c."""

import google_crc32c
import numpy as np
import pytest
from numcodecs import blosc

from diskreplay.store import packing_kernels
from diskreplay.store.packing_kernels import ROOM

WHOLE = 1000


@pytest.mark.parametrize(("name", "level"), [(b"lz4\0", 9), (b"zstd\0", 1)])
@pytest.mark.parametrize("noise", [1, 256])
def test_blocks_lie_one_behind_the_other_each_with_its_checksum(name, level, noise):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, noise, (4, WHOLE), np.uint8)
    used = np.array([WHOLE, 0, WHOLE - 1, 17])
    out, lengths = np.zeros(4 * (WHOLE + ROOM), np.uint8), np.zeros(4, np.int64)
    size = packing_kernels.encode(
        rows.ctypes.data + WHOLE * np.arange(4), used, WHOLE, np.frombuffer(name, np.uint8), level,
        np.full(WHOLE, 7, np.uint8), out, lengths,
    )  # fmt: skip
    assert size == lengths.sum()
    assert not out[size:].any()
    at = 0
    for row, count, length in zip(rows, used.tolist(), lengths.tolist(), strict=True):
        block = out[at : at + length].tobytes()
        assert length <= WHOLE + ROOM
        assert int.from_bytes(block[-4:], "little") == google_crc32c.value(block[:-4])
        assert blosc.decompress(block[:-4]) == row[:count].tobytes() + bytes(WHOLE - count)
        at += length


def test_what_blosc_does_not_know_is_said():
    rows, out, lengths = np.zeros(WHOLE, np.uint8), np.zeros(2 * WHOLE, np.uint8), np.zeros(1, int)
    size = packing_kernels.encode(
        np.array([rows.ctypes.data]), np.array([WHOLE]), WHOLE, np.frombuffer(b"none\0", np.uint8),
        9, np.zeros(WHOLE, np.uint8), out, lengths,
    )  # fmt: skip
    assert size == -1


def test_entries_are_in_memory_and_in_the_file_and_then_the_rows_are_said_to_be_there():
    index, file = np.full((5, 2), -1), np.full((5, 2), -1)
    packed = np.array([8, 8, 8])
    packing_kernels.enter(
        index.reshape(-1), file.ctypes.data, np.array([3, 0]), 100, np.array([20, 7]),
        packed.ctypes.data, np.array([2, 0]), np.array([16, 9]),
    )  # fmt: skip
    expected = [[120, 7], [-1, -1], [-1, -1], [100, 20], [-1, -1]]
    assert index.tolist() == expected
    assert file.tolist() == expected
    assert packed.tolist() == [9, 8, 16]
