"""Rows of envs packed for the way, beside the rows themselves; without a cluster."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskreplay import CorruptSegmentError
from diskreplay.ray.packed_rows import PackedRows
from diskreplay.store.field import Field


def made(field, filled, room, seed=0, values=256):
    """A column with so many rows of each env, and garbage behind them; and those rows."""
    rng = np.random.default_rng(seed)
    column = rng.integers(0, values, (len(filled), room, *field.shape)).astype(field.dtype)
    rows = np.concatenate([column[env, :count] for env, count in enumerate(filled)])
    return column, np.array(filled), rows


@given(
    filled=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    shape=st.sampled_from([(), (3,), (12, 7)]),
    dtype=st.sampled_from(["uint8", "float32", "int64", "bool"]),
    compressor=st.sampled_from(["lz4", "zstd"]),
    values=st.sampled_from([1, 2, 256]),
)
def test_they_come_back(filled, shape, dtype, compressor, values):
    field = Field("observation", shape, np.dtype(dtype), compressor)
    column, counts, rows = made(field, filled, 20, values=values)
    sent = pickle.loads(pickle.dumps(PackedRows.of(field, column, counts), 5))
    column[:] = 0  # what is sent is no view of it
    found = sent.unpacked()
    assert found.dtype == rows.dtype
    np.testing.assert_array_equal(found, rows)
    assert found.flags.writeable


def test_frames_of_a_game_are_few_bytes():
    field = Field("observation", (84, 84), np.dtype("uint8"), "zstd")
    column = np.zeros((2, 129, 84, 84), np.uint8)
    column[:, :, 10:20, 30:40] = np.arange(129)[:, None, None]
    sent = PackedRows.of(field, column, np.array([129, 64]))
    assert len(pickle.dumps(sent, 5)) < 193 * 84 * 84 / 20
    assert sent.field.compressor == "lz4"  # zstd would take longer than it saves


@pytest.mark.parametrize("values", [2, 256])
def test_what_was_damaged_on_the_way_is_refused(values):
    field = Field("observation", (40,), np.dtype("uint8"), "lz4")
    column, counts, _rows = made(field, [5, 9], 9, values=values)
    sent = PackedRows.of(field, column, counts)
    for at in range(len(sent.data)):
        data = sent.data.copy()
        data[at] ^= 1 << at % 8
        with pytest.raises(CorruptSegmentError, match=r"'observation': block \d of 3 "):
            sent._replace(data=data).unpacked()
    for cut in (1, 4, len(sent.data)):
        with pytest.raises(CorruptSegmentError, match="block"):
            sent._replace(data=sent.data[:-cut].copy()).unpacked()
    for length in (-1, 0, 3, 19, 1 << 40):
        lengths = sent.lengths.copy()
        lengths[1] = length
        with pytest.raises(CorruptSegmentError, match="block 1 of 3"):
            sent._replace(lengths=lengths).unpacked()
