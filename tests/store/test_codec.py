"""Shards and checksums beside google-crc32c, numcodecs and plain loops."""

import google_crc32c
import numpy as np
import pytest
from numcodecs import blosc

from diskreplay.errors import CorruptSegmentError
from diskreplay.store import codec
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping

BLOCK, BLOCKS, GROUP = 4, 3, 2
FIELD = Field("f", (5,), np.dtype("u1"), "lz4", BLOCK * BLOCKS, GROUP, BLOCK)
HEAD = FIELD.index_bytes + 4
RNG = np.random.default_rng(0)


def some_bytes(size):
    return RNG.integers(0, 256, size, np.uint8)


# -- checksums


def test_the_checksum_is_castagnolis():
    assert codec.crc32c(b"123456789") == 0xE3069283  # RFC 3720's test, as Zarr has it
    assert codec.crc32c(b"") == 0
    for size in (1, 7, 4096, 100_001):
        data = some_bytes(size)
        assert codec.crc32c(data) == google_crc32c.value(data.tobytes())


def test_a_checksum_goes_on_and_over_zeros():
    first, second = some_bytes(1000), some_bytes(77)
    whole = google_crc32c.value(first.tobytes() + second.tobytes())
    assert codec.crc32c(second, start=codec.crc32c(first)) == whole
    for zeros in (0, 1, 1 << 18, (1 << 18) + 1, 1 << 20, (1 << 21) + 5):
        expected = google_crc32c.value(first.tobytes() + bytes(zeros))
        assert codec.crc32c(first, zeros=zeros) == expected
        assert codec.crc32c(b"", start=codec.crc32c(first), zeros=zeros) == expected


def test_zeros_cost_nothing_however_many_they_are():
    """A file of somebody else may be said to have any number of them."""
    half = codec.crc32c(b"abc", zeros=1 << 49)
    assert codec.crc32c(b"", start=half, zeros=1 << 49) == codec.crc32c(b"abc", zeros=1 << 50)
    assert codec.crc32c(b"", zeros=(1 << 62) - 1) < 1 << 32


@pytest.mark.parametrize("length", [0, 1, 2, 31, 4096, 12_345])
def test_the_matrix_takes_a_checksum_past_further_bytes(length):
    first, second = some_bytes(50), some_bytes(length)
    crc = google_crc32c.value(first.tobytes())
    moved = 0
    for bit, column in enumerate(codec.behind(length).tolist()):
        moved ^= column * (crc >> bit & 1)
    whole = google_crc32c.value(first.tobytes() + second.tobytes())
    assert moved ^ google_crc32c.value(second.tobytes()) == whole


@pytest.mark.parametrize("rows", [1, 1000, 4096, 4097, 300_000, 1_048_577])
def test_pieces_of_a_raw_segment(rows):
    """At least 4096 bytes, and at most 256 of them."""
    field = Field("f", (), np.dtype("u1"), "raw", rows)
    size = codec.piece_bytes(field)
    assert size >= 4096
    assert -(-rows // size) <= 256
    assert size == 4096 or -(-rows // (size - 1)) > 256  # no larger than they have to be
    data = some_bytes(rows)
    expected = [google_crc32c.value(data[at : at + size].tobytes()) for at in range(0, rows, size)]
    whole, text = codec.raw_sums(field, data)
    assert whole == google_crc32c.value(data.tobytes())
    assert codec.unpacked_sums(text).tolist() == expected


def test_checksums_as_text():
    sums = [0, 1, 0x12345678, 2**32 - 1]
    text = codec.packed_sums(sums)
    assert text == "AAAAAAEAAAB4VjQS/////w=="  # base64 of 4 bytes each, lowest first
    assert codec.unpacked_sums(text).tolist() == sums
    for wrong in ("AAA", "AAAA", "AAAAAAEAAAB4VjQS////\n/w==", "AAAAAAEAAAB4VjQS----/w=="):
        with pytest.raises(ValueError):
            codec.unpacked_sums(wrong)


# -- blocks


@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_blocks_are_what_blosc_reads_and_end_with_their_checksum(compressor):
    field = Field("f", (5,), np.dtype("u1"), compressor, BLOCK * BLOCKS, GROUP, BLOCK)
    rows = [some_bytes((BLOCK, 5)), np.full((BLOCK, 5), 7, np.uint8), some_bytes((BLOCK, 5))]
    used = np.array([BLOCK, 1, 0])
    sources = np.array([block.ctypes.data for block in rows])
    data, lengths = codec.encode(field, sources, used)
    assert lengths.sum() == len(data)
    for block, count, end, length in zip(rows, used, np.cumsum(lengths), lengths, strict=True):
        packed = data[end - length : end].tobytes()
        assert int.from_bytes(packed[-4:], "little") == google_crc32c.value(packed[:-4])
        expected = block.copy()
        expected[count:] = 0  # what does not count
        found = np.frombuffer(blosc.decompress(packed[:-4]), np.uint8).reshape(BLOCK, 5)
        np.testing.assert_array_equal(found, expected)
        assert length <= field.block_bytes + 20
    out = np.empty((int(used.sum()), 5), np.uint8)
    codec.decode(field, data, lengths, used, out)
    expected = np.concatenate([block[:n] for block, n in zip(rows, used, strict=True)])
    np.testing.assert_array_equal(out, expected)


def test_no_blocks():
    data, lengths = codec.encode(FIELD, np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(data) == len(lengths) == 0


# -- indexes


def shard(blocks, behind=b""):
    """A shard with blocks of these sizes by their places, as `codec.encode` orders them."""
    index, pieces, at = codec.blank_index(FIELD), [], HEAD
    for place, size in blocks.items():
        index[place] = at, size
        pieces.append(some_bytes(size).tobytes())
        at += size
    return index, codec.index_bytes(index) + b"".join(pieces) + behind


def mapped(tmp_path, data):
    path = tmp_path / "shard"
    path.write_bytes(data)
    return Mapping.open(path)


def test_an_index_is_offsets_and_lengths_and_their_checksum():
    index = codec.blank_index(FIELD)
    assert index.shape == (BLOCKS * GROUP, 2)
    assert (index == -1).all()
    index[:] = np.arange(12).reshape(6, 2)
    data = codec.index_bytes(index)
    assert np.frombuffer(data[:-4], "<i8").tolist() == list(range(12))
    assert int.from_bytes(data[-4:], "little") == google_crc32c.value(data[:-4])


def test_a_whole_shard_is_read(tmp_path):
    index, data = shard({0: 40, 5: 30, 2: 50})
    assert codec.whole_index(FIELD, mapped(tmp_path, data)).tolist() == index.tolist()
    assert codec.blocks_end(FIELD, index) == len(data)
    empty = codec.blank_index(FIELD)
    assert codec.blocks_end(FIELD, empty) == HEAD
    found = codec.whole_index(FIELD, mapped(tmp_path, codec.index_bytes(empty)))
    assert (found == -1).all()


def test_the_index_is_a_copy(tmp_path):
    """Memory of a file may leave the page cache, and come back otherwise."""
    index, data = shard({0: 40})
    (tmp_path / "shard").write_bytes(data)
    found = codec.whole_index(FIELD, Mapping.open(tmp_path / "shard"))
    with open(tmp_path / "shard", "r+b") as file:
        file.write(bytes(HEAD))
    assert found.tolist() == index.tolist()


@pytest.mark.parametrize("size", [1, HEAD - 1])
def test_a_shard_that_is_cut_amid_its_index(tmp_path, size):
    with pytest.raises(CorruptSegmentError, match=f"{size} bytes are too few"):
        codec.whole_index(FIELD, mapped(tmp_path, shard({})[1][:size]))


@pytest.mark.parametrize("at", [0, FIELD.index_bytes - 1, FIELD.index_bytes, HEAD - 1])
def test_an_index_that_is_rotten(tmp_path, at):
    data = bytearray(shard({0: 40})[1])
    data[at] ^= 1
    with pytest.raises(CorruptSegmentError, match="checksum of the shard index"):
        codec.whole_index(FIELD, mapped(tmp_path, bytes(data)))


def test_a_block_outside_the_file(tmp_path):
    data = shard({0: 40, 1: 30})[1]
    with pytest.raises(CorruptSegmentError, match="lies outside the file"):
        codec.whole_index(FIELD, mapped(tmp_path, data[:-1]))


@pytest.mark.parametrize(
    ("offset", "length", "bad"),
    [
        (-1, -1, False), (HEAD, 4, False), (HEAD, 96, False), (HEAD + 92, 4, False),
        (HEAD - 1, 4, True), (HEAD, 3, True), (HEAD, 97, True), (HEAD + 93, 4, True),
        (-1, 4, True), (HEAD, -1, True), (0, 0, True), (HEAD + 100, 0, True),
        (2**63 - 1, 2**63 - 1, True), (HEAD, 2**63 - 1, True), (-(2**63), 4, True),
        (HEAD, -(2**63), True), (2**63 - 1, 4, True),
    ],
)  # fmt: skip
def test_where_a_block_can_be(offset, length, bad):
    """In a file with 96 bytes behind the index; a sum must not go round."""
    index = codec.blank_index(FIELD)
    index[3] = offset, length
    assert codec.misplaced(FIELD, index, HEAD + 96).tolist() == [False] * 3 + [bad] + [False] * 2


def test_bytes_that_no_entry_names_are_left_out():
    index, data = shard({0: 40, 4: 30, 1: 50})
    index[4] = -1
    whole = np.frombuffer(data, np.uint8)
    kept, made = codec.named_only(FIELD, whole, index)
    assert made[:2].tolist() == [[HEAD, 40], [HEAD + 40, 50]]
    assert (made[2:] == -1).all()
    assert kept[:HEAD].tobytes() == codec.index_bytes(made)
    np.testing.assert_array_equal(kept[HEAD : HEAD + 40], whole[HEAD : HEAD + 40])
    np.testing.assert_array_equal(kept[HEAD + 40 :], whole[HEAD + 70 :])
    assert index[1, 0] == HEAD + 70  # what was given is as it was
    again, same = codec.named_only(FIELD, kept, made)
    assert again is kept
    assert same is made


def test_the_checksum_of_a_shard_is_that_of_its_blocks_checksums():
    index, data = shard({4: 40, 0: 30, 1: 50}, behind=b"more")
    ends = [HEAD + 70, HEAD + 120, HEAD + 40]  # in the order of the index
    expected = google_crc32c.value(b"".join(data[end - 4 : end] for end in ends))
    assert codec.checksum(np.frombuffer(data, np.uint8), index) == expected
    assert codec.checksum(np.frombuffer(data, np.uint8), codec.blank_index(FIELD)) == 0


# -- what stands behind the blocks


def test_a_file_that_ends_amid_a_block_says_for_which_rows_it_stands():
    data = codec.used_bytes(FIELD, np.array([8, 5]))
    assert np.frombuffer(data[:-4], "<u4").tolist() == [8, 5]
    assert int.from_bytes(data[-4:], "little") == google_crc32c.value(data[:-4])
    assert codec.used_rows(FIELD, np.frombuffer(data, np.uint8)).tolist() == [8, 5]
    few = codec.used_bytes(FIELD, np.array([5]))  # of a last group with fewer envs
    assert codec.used_rows(FIELD, np.frombuffer(few, np.uint8)).tolist() == [5, 0]


@pytest.mark.parametrize("used", [[0, 0], [4, 8], [12, 12], [12]])
def test_one_that_ends_with_whole_blocks_says_nothing(used):
    assert codec.used_bytes(FIELD, np.array(used)) == b""


def test_what_says_nothing_of_rows():
    sound = np.frombuffer(codec.used_bytes(FIELD, np.array([8, 5])), np.uint8)
    rotten = sound.copy()
    rotten[0] ^= 1
    assert codec.used_rows(FIELD, sound[:0]) is None
    assert codec.used_rows(FIELD, sound[:-1]) is None
    assert codec.used_rows(FIELD, np.append(sound, sound[-1])) is None
    assert codec.used_rows(FIELD, rotten) is None
    for rows, found in (([12, 1], [12, 1]), ([13, 1], None)):  # more than a segment has
        data = np.frombuffer(codec.used_bytes(FIELD, np.array(rows)), np.uint8)
        there = codec.used_rows(FIELD, data)
        assert (there if there is None else there.tolist()) == found
