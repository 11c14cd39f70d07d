"""Gzipped .npy files a piece at a time, beside NumPy's own readers and writers."""

import gzip
import io
import os

import numpy as np
import pytest

from diskreplay.convert.npy_gz import NpyGzReader, gzipped, npy_pieces, read_gz
from diskreplay.errors import (
    CorruptCheckpointError,
    IncompleteCheckpointError,
    InvalidInputError,
    StorageError,
)


def saved(path, array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    path.write_bytes(gzip.compress(file.getvalue()))
    return path


def header(path, text, version=b"\x01\x00", more=b""):
    """A file whose header is this text."""
    data = b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode() + more
    path.write_bytes(gzip.compress(data))
    return path


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f2", ">f8", "?"])
def test_rows_from_front_to_back(tmp_path, dtype):
    array = (np.arange(60).reshape(10, 3, 2) % 2 if dtype == "?" else
             np.arange(60).reshape(10, 3, 2)).astype(dtype)  # fmt: skip
    with NpyGzReader(saved(tmp_path / "x", array)) as reader:
        assert reader.shape == (10, 3, 2)
        assert reader.dtype == array.dtype.newbyteorder("=")
        assert reader.dtype.isnative
        assert reader.row_bytes == 6 * array.itemsize
        found = [reader.rows(3), reader.rows(0), reader.rows(1)]
        reader.skip(2)
        reader.skip(0)
        found.append(reader.rows(4))
        reader.finish()
    assert [len(part) for part in found] == [3, 0, 1, 4]
    np.testing.assert_array_equal(np.concatenate(found), array[[0, 1, 2, 3, 6, 7, 8, 9]])
    assert all(part.dtype == reader.dtype for part in found)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 5), (3, 0), (2, 2)])
def test_whole_arrays(tmp_path, shape):
    array = np.ones(shape, np.int16) * 7
    with NpyGzReader(saved(tmp_path / "x", array)) as reader:
        np.testing.assert_array_equal(reader.whole(array.nbytes), array)
    if array.nbytes:
        with NpyGzReader(tmp_path / "x") as reader:
            with pytest.raises(CorruptCheckpointError, match=f"at most {array.nbytes - 1} expect"):
                reader.whole(array.nbytes - 1)


def test_one_axis_in_the_order_of_fortran_is_in_both(tmp_path):
    array = np.asfortranarray(np.arange(5))
    with NpyGzReader(saved(tmp_path / "x", array)) as reader:
        assert reader.rows(5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptCheckpointError, match="Fortran order"):
        NpyGzReader(saved(tmp_path / "x", np.asfortranarray(np.ones((2, 3)))))


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, -1), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 268435457), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': 5, }",
        "{'descr': '<i4', 'fortran_order': False, }",
        "{'descr': 'nothing', 'fortran_order': False, 'shape': (2,), }",
        "__import__('os').abort()", "{", "[" * 5000, "\0", "", "5",
    ],
)  # fmt: skip
def test_headers_of_what_is_no_array_of_numbers(tmp_path, text):
    with pytest.raises(CorruptCheckpointError, match=r"x: "):
        NpyGzReader(header(tmp_path / "x", text, more=bytes(64)))


def test_other_versions_of_the_format_are_refused(tmp_path):
    """They may declare a header of gigabytes."""
    text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n"
    assert NpyGzReader(header(tmp_path / "x", text, more=bytes(8))).rows(2).tolist() == [0, 0]
    for version in (b"\x02\x00", b"\x03\x00", b"\x01\x01", b"\x00\x00"):
        with pytest.raises(CorruptCheckpointError):
            NpyGzReader(header(tmp_path / "x", text, version, more=bytes(8)))


@pytest.mark.parametrize(
    "data", [b"", b"\x1f", b"plain", gzip.compress(b"NUMPY", mtime=0), bytes(100)], ids=len
)
def test_files_that_are_none(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=r"not a gzipped \.npy file of numbers"):
        NpyGzReader(tmp_path / "x")


def test_where_there_is_no_file(tmp_path):
    (tmp_path / "directory").mkdir()
    for read in (NpyGzReader, lambda path: read_gz(path, 9)):
        with pytest.raises(IncompleteCheckpointError, match="the file is missing"):
            read(tmp_path / "gone")
        with pytest.raises((StorageError, CorruptCheckpointError)):
            read(tmp_path / "directory")


def test_one_that_is_cut_or_goes_on(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (50, 1000), np.uint8)
    path = saved(tmp_path / "x", array)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with NpyGzReader(path) as reader, pytest.raises(CorruptCheckpointError):
        reader.rows(50)
    with NpyGzReader(path) as reader, pytest.raises(CorruptCheckpointError):
        reader.skip(50)
    path.write_bytes(data)
    with NpyGzReader(path) as reader:
        reader.skip(50)
        for call in (reader.rows, reader.skip):
            with pytest.raises(CorruptCheckpointError, match="shorter than its header says"):
                call(1)
        reader.finish()
    with NpyGzReader(path) as reader:
        reader.skip(49)
        with pytest.raises(CorruptCheckpointError, match="longer than its header says"):
            reader.finish()
    rotten = bytearray(data)
    rotten[-8] ^= 1  # in the checksum
    path.write_bytes(rotten)
    with NpyGzReader(path) as reader, pytest.raises(CorruptCheckpointError):
        reader.whole(array.nbytes)


def test_a_file_far_longer_than_what_it_holds_is_not_gone_through(tmp_path):
    path = saved(tmp_path / "x", np.zeros((10, 10), np.uint8))
    length = path.stat().st_size
    for more in ((1 << 16) - length, 100):  # zeros may follow a stream
        os.truncate(path, length + more)
        with NpyGzReader(path) as reader:
            assert not reader.whole(100).any()
    os.truncate(path, 1 << 40)
    for read in (NpyGzReader, lambda path: read_gz(path, 1000)):
        with pytest.raises(CorruptCheckpointError, match=f"{1 << 40} bytes cannot hold"):
            read(path)


def test_no_descriptor_stays_open(tmp_path):
    (tmp_path / "x").write_bytes(b"no file of this kind")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CorruptCheckpointError):
        NpyGzReader(tmp_path / "x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_in_a_gzip_file(tmp_path):
    (tmp_path / "x").write_bytes(gzip.compress(b"0123456789"))
    assert read_gz(tmp_path / "x", 10) == b"0123456789"
    with pytest.raises(CorruptCheckpointError, match="more than 9 bytes"):
        read_gz(tmp_path / "x", 9)
    (tmp_path / "x").write_bytes(b"0123456789")
    with pytest.raises(CorruptCheckpointError):
        read_gz(tmp_path / "x", 10)


@pytest.mark.parametrize("chunks", [[], [0], [4, 0, 3], [7]])
def test_what_is_written_in_pieces_is_what_numpy_reads(chunks):
    array = np.arange(21, dtype=np.float32).reshape(7, 3)[: sum(chunks)]
    parts = np.split(array, np.cumsum(chunks)[:-1]) if chunks else []
    pieces = list(npy_pieces(array.shape, array.dtype, [part.astype("f8") for part in parts]))
    np.testing.assert_array_equal(np.load(io.BytesIO(b"".join(pieces))), array)
    packed = b"".join(gzipped(iter(pieces)))
    assert gzip.decompress(packed) == b"".join(pieces)
    with pytest.raises(InvalidInputError, match="objects"):
        list(npy_pieces((1,), np.dtype(object), []))


def test_a_file_that_goes_behind_its_opening_is_read(tmp_path, monkeypatch):
    """An export that replaces the checkpoint removes it."""
    opened = gzip.open

    def remove(path, mode):
        file = opened(path, mode)
        path.unlink()
        return file

    monkeypatch.setattr(gzip, "open", remove)
    with NpyGzReader(saved(tmp_path / "x", np.arange(3))) as reader:
        assert reader.whole(100).tolist() == [0, 1, 2]
    path = saved(tmp_path / "x", np.arange(3))
    assert len(read_gz(path, 1000)) > 24

    def gone(path, mode):
        path.unlink()
        return opened(path, mode)

    monkeypatch.setattr(gzip, "open", gone)
    for read in (NpyGzReader, lambda path: read_gz(path, 1000)):
        with pytest.raises(StorageError, match="cannot open the file: No such file"):
            read(saved(tmp_path / "x", np.arange(3)))
