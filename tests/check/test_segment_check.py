"""Single files of segments: what is wrong with them, and which rows that costs."""

import os

import numpy as np
import pytest

from diskreplay.check import segment_check
from diskreplay.check.segment_check import (
    check_raw,
    check_shard,
    encoded,
    pieces_of_rows,
    raw_rows,
    read_blocks,
    rows_of_pieces,
    salvaged,
)
from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.plain_file import Unreadable
from diskreplay.store.segment import Seal

RAW = Field("f", (300,), np.dtype("u1"), "raw", 50, 2)  # 600 bytes a moment
WIDE = Field("f", (1100,), np.dtype("u1"), "raw", 50, 2)  # one env behind the other
FLAGS = Field("f", (), np.dtype("?"), "raw", 4096, 2)
PACKED = Field("f", (5,), np.dtype("u1"), "lz4", 24, 2, 8)


def every(of):
    return np.ones((of.segment_rows, of.env_group), np.bool_)


def bytes_of_row(of, row, env):
    """Where a row lies in the file."""
    if of.env_major:
        return (env * of.segment_rows + row) * of.row_bytes
    return (row * of.env_group + env) * of.row_bytes


@pytest.mark.parametrize("of", [RAW, WIDE])
def test_rows_and_pieces_of_a_file(of):
    size = codec.piece_bytes(of)
    count = -(-of.segment_bytes // size)
    touched = {}  # pieces, by row
    for row in range(of.segment_rows):
        for env in range(of.env_group):
            start = bytes_of_row(of, row, env)
            touched[row, env] = set(range(start // size, (start + of.row_bytes - 1) // size + 1))
    for piece in range(count):
        wrong = np.arange(count) == piece
        found = {(int(r), int(e)) for r, e in np.argwhere(rows_of_pieces(of, wrong))}
        assert found == {key for key, pieces in touched.items() if piece in pieces}
    rng = np.random.default_rng(0)
    for share in (0, 0.02, 0.5, 1):
        rows = rng.random((of.segment_rows, of.env_group)) < share
        expected = set().union(*(touched[int(r), int(e)] for r, e in np.argwhere(rows)))
        assert set(np.flatnonzero(pieces_of_rows(of, rows)).tolist()) == expected


@pytest.mark.parametrize("of", [RAW, WIDE])
def test_a_sound_raw_file_and_its_seal(tmp_path, of):
    data = np.random.default_rng(1).integers(0, 256, of.segment_bytes, np.uint8)
    (tmp_path / "x").write_bytes(data)
    checked = check_raw(of, tmp_path / "x", every(of))
    crc, pieces = codec.raw_sums(of, data)
    assert checked.seal == Seal(len(data), crc)
    assert checked.seal.pieces == pieces
    assert checked.faults == []
    rows = raw_rows(of, tmp_path / "x")
    for row, env in ((0, 0), (0, 1), (49, 0), (49, 1)):
        start = bytes_of_row(of, row, env)
        np.testing.assert_array_equal(rows[row, env], data[start : start + of.row_bytes])


@pytest.mark.parametrize("change", [-1, 1, 5000])
def test_a_raw_file_of_another_length(tmp_path, change):
    (tmp_path / "x").write_bytes(bytes(RAW.segment_bytes + change))
    checked = check_raw(RAW, tmp_path / "x", every(RAW))
    ((kind, why),) = checked.faults
    assert kind == "length"
    assert why == f"{RAW.segment_bytes + change} bytes found, {RAW.segment_bytes} expected"
    with pytest.raises(Unreadable):
        check_raw(RAW, tmp_path / "gone", every(RAW))


def test_a_bool_that_is_neither_0_nor_1_costs_its_row_if_it_counts(tmp_path):
    data = np.zeros(FLAGS.segment_bytes, np.uint8)
    data[[2 * 7 + 1, 2 * 5000 % len(data), 2 * 9]] = [2, 255, 1]
    (tmp_path / "x").write_bytes(data)
    counted = every(FLAGS)
    counted[5000 % 4096] = False
    checked = check_raw(FLAGS, tmp_path / "x", counted)
    assert [kind for kind, _why in checked.faults] == ["rows"]
    assert np.argwhere(checked.lost).tolist() == [[7, 1]]


# -- shards


def packed(used=(24, 13), seed=0):
    rows = np.random.default_rng(seed).integers(0, 9, (24, 2, 5), np.uint8)
    for env, count in enumerate(used):
        rows[count:, env] = 0
    data, seal = encoded(PACKED, rows, np.array(used))
    return rows, data, seal


def counted(used=(24, 13)):
    return np.arange(24)[:, None] < np.array(used)


@pytest.mark.parametrize("used", [(24, 24), (24, 13), (8, 0), (1, 0)])
def test_a_sound_shard_is_read_back(tmp_path, used):
    rows, data, seal = packed(used)
    (tmp_path / "x").write_bytes(data)
    checked = check_shard(PACKED, tmp_path / "x", counted(used))
    assert checked.faults == []
    assert checked.seal == seal
    assert not checked.lost.any()
    found = np.zeros_like(rows)
    read_blocks(PACKED, tmp_path / "x", checked.index, found)
    np.testing.assert_array_equal(found, rows)
    whole = all(count % 8 == 0 for count in used)
    assert (None if checked.used is None else checked.used.tolist()) == (
        None if whole else list(used)
    )


def test_a_rotten_block_costs_its_rows(tmp_path):
    _rows, data, _seal = packed()
    sound = codec.blank_index(PACKED)
    sound[:] = data[: PACKED.index_bytes].view("<i8").reshape(-1, 2)
    for place in np.flatnonzero(sound[:, 0] >= 0).tolist():
        rotten = data.copy()
        rotten[sound[place].sum() - 6] ^= 1
        (tmp_path / "x").write_bytes(rotten)
        checked = check_shard(PACKED, tmp_path / "x", counted())
        assert [kind for kind, _why in checked.faults] == ["block"]
        block, env = divmod(place, 2)
        lost = np.zeros((24, 2), np.bool_)
        lost[8 * block : 8 * block + 8, env] = True
        np.testing.assert_array_equal(checked.lost, lost & checked.lost)
        assert (checked.lost & counted()).any()
        assert (checked.index[place] == -1).all()


@pytest.mark.parametrize("extra", [1, 100])
def test_bytes_that_nothing_names(tmp_path, extra):
    _rows, data, _seal = packed((24, 24))
    (tmp_path / "x").write_bytes(data.tobytes() + bytes(extra))
    checked = check_shard(PACKED, tmp_path / "x", counted((24, 24)))
    assert checked.faults == [("length", "it has bytes that its index does not name")]
    opened = check_shard(PACKED, tmp_path / "x", counted((24, 24)), is_open=True)
    assert opened.faults == []  # of blocks that are being appended


# -- an index that is rotten


def salvage(tmp_path, data, seal, used=(24, 13)):
    (tmp_path / "x").write_bytes(data)
    found = salvaged(PACKED, tmp_path / "x", counted(used), seal)
    return None if found is None else found.tolist()


def test_one_entry_that_is_lost_is_found_again(tmp_path):
    _rows, data, seal = packed()
    index = data[: PACKED.index_bytes].copy().view("<i8").reshape(-1, 2)
    for place in np.flatnonzero(index[:, 0] >= 0).tolist():
        for bad in ([-1, -1], [0, 0], [2**62, 5], index[(place + 1) % 2].tolist()):
            rotten = data.copy()
            rotten[16 * place : 16 * place + 16] = np.array(bad, "<i8").view(np.uint8)
            found = salvage(tmp_path, rotten, seal)
            assert found is not None
            right = [entry for entry in found if entry[0] >= 0]
            assert all(entry in index.tolist() for entry in right)
            if bad[0] != index[(place + 1) % 2][0]:  # else two entries name one block
                assert found == index.tolist()


def test_what_does_not_fit_the_seal_is_not_believed(tmp_path):
    _rows, data, seal = packed()
    index = data[: PACKED.index_bytes].copy().view("<i8").reshape(-1, 2).tolist()
    assert salvage(tmp_path, data, seal) == index
    assert salvage(tmp_path, data, None) == index
    assert salvage(tmp_path, data, Seal(seal.size, seal.crc32c ^ 1)) is None
    assert salvage(tmp_path, data, Seal(seal.size + 1, seal.crc32c)) is None
    assert salvage(tmp_path, data[: PACKED.index_bytes + 3], None) is None


def test_of_a_file_that_has_grown_no_more_is_read_than_a_shard_can_have(tmp_path):
    """By a hole larger than any memory."""
    _rows, data, seal = packed()
    index = data[: PACKED.index_bytes].copy().view("<i8").reshape(-1, 2).tolist()
    rotten = data.copy()
    rotten[:16] = 255
    (tmp_path / "x").write_bytes(rotten)
    os.truncate(tmp_path / "x", 1 << 42)
    assert salvaged(PACKED, tmp_path / "x", counted((24, 13)), None).tolist() == index
    assert salvaged(PACKED, tmp_path / "x", counted((24, 13)), seal) is None


def test_a_shard_as_long_as_one_can_be_is_read_to_its_end(tmp_path):
    """Of noise, that no codec makes smaller; one byte more is none."""
    rows = np.random.default_rng(3).integers(0, 256, (24, 2, 5), np.uint8)
    data, seal = encoded(PACKED, rows, np.array([24, 24]))
    index = data[: PACKED.index_bytes].copy().view("<i8").reshape(-1, 2).tolist()
    assert salvage(tmp_path, data, seal, (24, 24)) == index
    longer = np.append(data, np.uint8(0))
    assert salvage(tmp_path, longer, seal, (24, 24)) is None


def test_of_two_envs_nobody_knows_which_of_two_blocks_is_whose(tmp_path):
    _rows, data, seal = packed()
    rotten = data.copy()
    rotten[:32] = 255
    found = salvage(tmp_path, rotten, seal)
    assert found[:2] == [[-1, -1], [-1, -1]]
    one = Field("f", (5,), np.dtype("u1"), "lz4", 24, 1, 8)
    rows = np.random.default_rng(3).integers(0, 9, (24, 1, 5), np.uint8)
    data, seal = encoded(one, rows, np.array([24]))
    index = data[: one.index_bytes].copy().view("<i8").reshape(-1, 2).tolist()
    rotten = data.copy()
    rotten[: one.index_bytes] = 255
    (tmp_path / "y").write_bytes(rotten)
    everything = np.ones((24, 1), np.bool_)
    assert salvaged(one, tmp_path / "y", everything, seal).tolist() == index  # in their order
    assert (salvaged(one, tmp_path / "y", everything, None) == -1).all()  # which is not proven
    assert segment_check.nothing(one).shape == (24, 1)
