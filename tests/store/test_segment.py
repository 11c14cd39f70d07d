"""Segments on the disk, raw and packed: where each row is, beside the bytes of the files."""

import os

import google_crc32c
import numpy as np
import pytest

from diskreplay.errors import CorruptSegmentError, DiskReplayError, StorageError
from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.segment import UNKNOWN, RawSegment, Seal, Segment, Shard

ROWS, BLOCK, GROUP = 12, 4, 2
PACKED = Field("f", (5,), np.dtype("u1"), "lz4", ROWS, GROUP, BLOCK)
NARROW = Field("n", (3,), np.dtype("<i2"), "raw", ROWS, 3)  # the rows of one moment side by side
WIDE = Field("w", (600,), np.dtype("<i2"), "raw", ROWS, 3)  # those of one env
NOBODY = np.empty(0, np.int64)


# -- seals


def test_a_seal_is_its_length_and_checksum_and_not_its_pieces():
    assert Seal(3, 4, "abc") == Seal(3, 4)
    assert Seal(3, 4) != Seal(3, 5)
    assert Seal(3, 4) != Seal(2, 4)
    assert Seal(3, 4).entry == [3, 4]
    assert Seal(3, 4, "abc").entry == [3, 4, "abc"]
    assert Seal.checked("x", 0, 2**32 - 1, "p").entry == [0, 2**32 - 1, "p"]
    for size, crc in ((-1, 0), (0, -1), (0, 2**32), (1.5, 0), (True, 0), (None, 1)):
        with pytest.raises(ValueError, match="x: its"):
            Seal.checked("x", size, crc)


# -- which rows


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("group", [0, 1])
def test_which_rows_of_which_envs(number, group):
    segment = Segment(NARROW, number, group, None)
    envs, rows = range(3 * group, 3 * group + 3), range(ROWS * number, ROWS * number + ROWS)
    assert segment.key == (number, group)
    assert range(100)[segment.envs] == envs
    assert range(segment.start, segment.stop) == rows
    count = np.array([0, 7, 36, 37, 41, 48, 100])[np.arange(6) % 7]
    assert segment.used_of(count).tolist() == [
        len([row for row in rows if row < count[env]]) for env in envs
    ]


# -- raw ones


def raw(path, field):
    Mapping.create(path, field.segment_bytes)
    return RawSegment.open(field, 2, 1, path, writable=True)


def offset(field, row, place):
    """Where a row is in the file: of narrow rows those of one moment are side by side."""
    at = place * ROWS + row if field is WIDE else row * field.env_group + place
    return at * field.row_bytes


@pytest.mark.parametrize("field", [NARROW, WIDE], ids=["narrow", "wide"])
def test_rows_are_where_the_format_says(tmp_path, field):
    segment, rng = raw(tmp_path / "c", field), np.random.default_rng(0)
    expected = {}
    for place in range(3):
        for row in range(ROWS):
            values = rng.integers(-999, 999, field.shape).astype("<i2")
            segment.rows(place)[row] = values
            expected[row, place] = values
    data = (tmp_path / "c").read_bytes()
    for (row, place), values in expected.items():
        at = offset(field, row, place)
        assert data[at : at + field.row_bytes] == values.tobytes()
        np.testing.assert_array_equal(segment.values[row, place], values)
        assert segment.every_row[row, place].tobytes() == values.tobytes()
    starts, more = segment.addresses(np.arange(3))
    assert more == 0
    assert (starts - segment.mapping.address).tolist() == [offset(field, 0, p) for p in range(3)]
    assert segment.sum().size == len(data)
    assert segment.sum().crc32c == google_crc32c.value(data)


@pytest.mark.parametrize("field", [NARROW, WIDE], ids=["narrow", "wide"])
def test_what_is_behind_the_rows_that_count_becomes_zeros(tmp_path, field):
    segment = raw(tmp_path / "c", field)  # of envs 3 to 5, from row 24 on
    segment.values[:] = 7
    segment.clear_behind(np.array([99, 99, 99, 24, 30, 40]))
    for place, used in enumerate((0, 6, ROWS)):
        assert (segment.values[:used, place] == 7).all()
        assert not segment.values[used:, place].any()


@pytest.mark.parametrize("with_file", [True, False])
def test_the_rows_of_one_moment_are_written_side_by_side(tmp_path, with_file):
    segment = raw(tmp_path / "c", NARROW)
    if with_file:
        segment.open_file()
        assert segment._fd is not None
    for at, envs in ((4, 3), (5, 2), (11, 3)):
        segment.write_moment(at, np.full((envs, 3), 10 * at + envs, "<i2"))
    assert segment.values[:, :, 0].tolist() == [
        {4: [43] * 3, 5: [52, 52, 0], 11: [113] * 3}.get(row, [0] * 3) for row in range(ROWS)
    ]
    fd = segment._fd
    segment.close_file()
    assert segment._fd is None
    if with_file:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_others_have_too_or_was_made_read_only_is_sealed(tmp_path):
    def opened(path, *, writable=True):
        return RawSegment.open(NARROW, 0, 0, path, writable=writable)

    for name in ("own", "shared", "locked", "read"):
        Mapping.create(tmp_path / name, NARROW.segment_bytes)
    os.link(tmp_path / "shared", tmp_path / "other")
    (tmp_path / "locked").chmod(0o444)
    assert opened(tmp_path / "own").seal is None
    opened(tmp_path / "own").values[0] = 1
    for found in (opened(tmp_path / "shared"), opened(tmp_path / "locked"),
                  opened(tmp_path / "read", writable=False)):  # fmt: skip
        assert found.seal is UNKNOWN
        assert not found.mapping.array.flags.writeable
    with pytest.raises(StorageError, match="cannot look at the segment"):
        opened(tmp_path / "nothing")
    (tmp_path / "own").write_bytes(bytes(NARROW.segment_bytes - 1))
    with pytest.raises(CorruptSegmentError, match="bytes found"):
        opened(tmp_path / "own")


# -- packed ones


def blocks(count, seed=0):
    """Rows of some blocks, how they are compressed, and the length of each."""
    rows = np.random.default_rng(seed).integers(0, 9, (count, BLOCK, 5)).astype("u1")
    sources = rows.ctypes.data + np.arange(count) * PACKED.block_bytes
    return rows, *codec.encode(PACKED, sources, np.full(count, BLOCK))


def put(shard, places, seed=0):
    rows, data, lengths = blocks(len(places), seed)
    shard.write(data)
    shard.enter(np.array(places), lengths, 0, NOBODY, NOBODY)
    return dict(zip(places, rows, strict=True))


@pytest.fixture
def shard(tmp_path):
    return Shard.create(PACKED, 1, 1, tmp_path / "1.1")  # envs 2 and 3, rows 12 to 23


def test_blocks_are_found_where_they_were_entered(shard, tmp_path):
    assert shard.block(0) is None
    expected = put(shard, [0, 3]) | put(shard, [5, 1], seed=1)
    followed = Shard.open_to_follow(PACKED, 1, 1, shard.path)
    for found in (shard, followed):
        for place in range(6):
            rows = found.block(place)
            if place in expected:
                np.testing.assert_array_equal(rows, expected[place])
            else:
                assert rows is None
        assert not found.rotten().any()
    assert shard.end == shard.path.stat().st_size
    lengths = shard.index[[0, 3, 5, 1]]
    assert lengths[0, 0] == PACKED.index_bytes + 4
    assert (lengths[1:, 0] == lengths[:-1].sum(axis=1)).all()  # one behind the other
    base, entries = shard.addresses(np.arange(2))
    assert base == shard.mapping.address
    assert (entries - shard.index.ctypes.data).tolist() == [0, 16]


def test_entering_blocks_raises_the_numbers_of_rows_that_are_in_shards(shard):
    packed = np.array([12, 12, 12, 12])
    _rows, data, lengths = blocks(2)
    shard.write(data)
    shard.enter(np.array([0, 1]), lengths, packed.ctypes.data, np.array([2, 3]), np.array([16, 15]))
    assert packed.tolist() == [12, 12, 16, 15]


def test_places_of_blocks_and_which_are_behind(shard):
    for env in (2, 3):
        for row in range(12, 24):
            assert shard.places_of(env, row) == (row - 12) // BLOCK * GROUP + env - 2
    rng = np.random.default_rng(0)
    for _ in range(50):
        packed = rng.integers(8, 28, 4)
        expected = [packed[2 + place % GROUP] < 12 + (place // GROUP + 1) * BLOCK
                    for place in range(6)]  # fmt: skip
        assert shard.behind(packed).tolist() == expected
    # The last group has fewer envs than places: those count as its last one.
    assert shard.behind(np.array([0, 0, 16])).tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("at", ["first", "middle", "header", "checksum"])
def test_a_flipped_bit_makes_its_block_rotten_and_no_other(shard, at):
    expected = put(shard, [0, 1, 2])
    offset, length = shard.index[1].tolist()
    place = {"first": 0, "middle": length // 2, "header": 13, "checksum": length - 1}[at]
    shard.mapping.array[offset + place] ^= 1
    assert shard.rotten().tolist() == [False, True, False, False, False, False]
    assert shard.rotten(np.array([2, 1])).tolist() == [False, True]
    assert shard.block(1) is None
    np.testing.assert_array_equal(shard.block(2), expected[2])


def test_a_block_of_another_field_is_rotten_though_its_checksum_fits(shard):
    other = Field("f", (6,), np.dtype("u1"), "lz4", ROWS, GROUP, BLOCK)
    rows = np.zeros((BLOCK, 6), "u1")
    data, lengths = codec.encode(other, np.array([rows.ctypes.data]), np.array([BLOCK]))
    shard.write(data)
    shard.enter(np.array([0]), lengths, 0, NOBODY, NOBODY)
    assert shard.rotten()[0]
    assert shard.block(0) is None


def test_a_reader_sees_what_was_appended_since_and_believes_no_entry_beyond_the_file(shard):
    reader = Shard.open_to_follow(PACKED, 1, 1, shard.path)
    expected = put(shard, [4])
    assert reader.block(4) is None
    assert reader.look()
    np.testing.assert_array_equal(reader.block(4), expected[4])
    beyond = shard.index.copy()
    beyond[2] = shard.path.stat().st_size - 3, 50
    shard.mapping.array[: PACKED.index_bytes] = np.frombuffer(beyond.tobytes(), np.uint8)
    assert reader.look()
    assert reader.index[2, 0] == codec.MISSING
    assert reader.block(4) is not None
    os.truncate(shard.path, PACKED.index_bytes + 3)
    with pytest.raises(CorruptSegmentError, match=r"bytes are too few for its index"):
        reader.look()
    shard.path.unlink()
    assert reader.look() is False
    with pytest.raises(StorageError):
        Shard.open_to_follow(PACKED, 1, 1, shard.path)


def test_what_is_finished_is_a_whole_shard(shard, tmp_path):
    expected = put(shard, [0, 1])
    shard.write(blocks(3, 5)[1])  # of a write that failed, which nothing names
    rows, more, lengths = blocks(1, 7)
    index = shard.index.copy()
    index[2] = shard.end, lengths[0]
    pieces = shard.contents(index, shard.end, more)
    shard.finish(index, more)
    assert shard.index[2, 0] == codec.MISSING  # until it is in its place
    assert b"".join(bytes(piece) for piece in pieces) == shard.path.read_bytes()
    shard.became(index, more)
    assert shard.end == shard.path.stat().st_size
    whole = Shard.open_whole(PACKED, 1, 1, shard.path)
    assert whole.seal is UNKNOWN
    assert whole.end == shard.end
    for found in (shard, whole):
        for place, block in (expected | {2: rows[0]}).items():
            np.testing.assert_array_equal(found.block(place), block)
    sums = [google_crc32c.value(bytes(whole.mapping.array[o : o + n - 4])) for o, n in index[:3]]
    inner = b"".join(crc.to_bytes(4, "little") for crc in sums)
    assert shard.sum() == Seal(shard.end, google_crc32c.value(inner))
    assert whole.used is None
    shard.close_file()
    assert shard._fd is None
    assert shard.mapping.size < PACKED.shard_bytes or PACKED.shard_bytes <= os.sysconf(
        "SC_PAGESIZE"
    )


def test_a_shard_in_its_place_says_how_many_rows_of_each_env_it_has(shard):
    put(shard, [0, 1])
    used = np.array([4, 3])
    shard.path.write_bytes(shard.path.read_bytes() + codec.used_bytes(PACKED, used))
    shard.write_index(shard.index)
    whole = Shard.open_whole(PACKED, 1, 1, shard.path)
    assert whole.used.tolist() == [4, 3]


def test_blocks_that_are_appended_twice_are_refused(shard):
    _rows, data, _lengths = blocks(6)
    shard.end = shard.mapping.size - len(data) + 1
    with pytest.raises(DiskReplayError, match="appended twice"):
        shard.write(data)
    shard.end -= 1
    shard.write(data)


def test_going_on_with_a_file_writes_behind_the_blocks_that_are_known(shard):
    expected = put(shard, [0, 1])
    index = shard.index.copy()
    index[1] = codec.MISSING
    again = Shard.open_to_append(PACKED, 1, 1, shard.path, index)
    assert again.end == index[0].sum()
    expected |= put(again, [1, 2], seed=3)
    for place in range(3):
        np.testing.assert_array_equal(again.block(place), expected[place])
