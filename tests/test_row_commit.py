"""What a kernel writes of a row, and that it is counted last."""

import numba
import numpy as np
import pytest

from diskreplay import row_commit
from diskreplay.sampling.row_index import RowIndex
from diskreplay.sampling.row_index_kernels import TERMINATED, TRUNCATED

ROWS, FIRST = 16, 32  # of a segment, and its first row
KINDS = {
    row_commit.REWARD: np.float32, row_commit.TERMINATED: np.bool_, row_commit.TRUNCATED: np.bool_,
    row_commit.STEP: np.int32, row_commit.IS_FINAL: np.bool_,
}  # fmt: skip


class Files:
    """The memory of one segment of each column, and the commit page."""

    def __init__(self, count):
        self.count = np.array([count])
        self.columns = {at: np.full(ROWS, 1, kind) for at, kind in KINDS.items()}
        self.places = np.zeros(6, np.int64)
        self.places[row_commit.COUNT] = self.count.ctypes.data
        for at, rows in self.columns.items():
            self.places[at] = rows.ctypes.data - FIRST * rows.itemsize


@pytest.mark.parametrize("flags", [0, TERMINATED, TRUNCATED, TERMINATED | TRUNCATED])
@pytest.mark.parametrize("row", [FIRST, FIRST + 7, FIRST + ROWS - 1])
def test_one_row_is_written_whole_and_no_other(row, flags):
    of, index = Files(row), RowIndex(ROWS, 1, 1, 1, 0.9)
    before = {at: rows.copy() for at, rows in of.columns.items()}
    reward = np.float32(-1.7e-42)  # a subnormal number keeps its bits
    index.append_one(5, flags, float(reward), of.places.ctypes.data)
    assert of.count.tolist() == [row + 1]
    expected = {
        row_commit.REWARD: reward, row_commit.TERMINATED: bool(flags & TERMINATED),
        row_commit.TRUNCATED: bool(flags & TRUNCATED), row_commit.STEP: 5,
        row_commit.IS_FINAL: False,
    }  # fmt: skip
    for at, value in expected.items():
        before[at][row - FIRST] = value
        np.testing.assert_array_equal(of.columns[at].view(np.uint8), before[at].view(np.uint8))


def test_rows_follow_each_other():
    of, index = Files(FIRST), RowIndex(ROWS, 1, 1, 1, 0.9)
    for step in range(ROWS):
        index.append_one(step, 0, step / 2, of.places.ctypes.data)
    assert of.count.tolist() == [FIRST + ROWS]
    assert of.columns[row_commit.STEP].tolist() == list(range(ROWS))
    assert of.columns[row_commit.REWARD].tolist() == [step / 2 for step in range(ROWS)]
    assert index.count.tolist() == [ROWS]


def test_a_row_that_is_committed_already_is_only_indexed():
    index = RowIndex(ROWS, 1, 1, 1, 0.9)
    index.append_one(0, 0, 1.0)
    assert index.count.tolist() == [1]


def test_a_count_comes_after_what_was_stored_before_it():
    """A killed process keeps what it has stored in that order; a reader in another one may run on a
    processor that would else see the count first."""

    @numba.njit
    def store(address, value):
        row_commit.store_release(address, value)

    there = np.zeros(3, np.int64)
    store(there.ctypes.data + 8, 7)
    assert there.tolist() == [0, 7, 0]
    (code,) = store.inspect_llvm().values()
    assert "store atomic i64" in code
    assert "release, align 8" in code
