"""Rows that a kernel writes into a file."""

import os

import numpy as np
import pytest

from diskreplay.store import file_kernels


@pytest.fixture
def fd(tmp_path):
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


SOURCE = np.arange(40, dtype=np.uint8)  # of five envs, rows of eight bytes


def test_each_row_at_its_place(fd):
    envs, offsets = np.array([4, 0, 3]), np.array([16, 0, 32])
    assert file_kernels.write_rows(fd, 8, envs, offsets, SOURCE) == 3
    expected = bytearray(40)
    for env, offset in ((4, 16), (0, 0), (3, 32)):
        expected[offset : offset + 8] = bytes(range(8 * env, 8 * env + 8))
    assert os.pread(fd, 100, 0) == expected
    nothing = np.empty(0, np.int64)
    assert file_kernels.write_rows(fd, 8, nothing, nothing, SOURCE) == 0


def test_how_many_were_written_before_one_that_was_refused(fd, tmp_path):
    envs, offsets = np.array([1, 2, 3]), np.array([0, 8, -1])
    assert file_kernels.write_rows(fd, 8, envs, offsets, SOURCE) == 2
    assert os.pread(fd, 100, 0) == bytes(range(8, 24))
    only_read = os.open(tmp_path / "f", os.O_RDONLY)
    assert file_kernels.write_rows(only_read, 8, envs, np.array([0, 8, 16]), SOURCE) == 0
    os.close(only_read)
