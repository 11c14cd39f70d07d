"""Files that somebody else may have put there: bytes, or a word for what they are instead."""

import errno
import os
import socket

import google_crc32c
import numpy as np
import pytest

from diskreplay.errors import StorageError
from diskreplay.store import plain_file
from diskreplay.store.plain_file import (
    PIECE,
    Unreadable,
    bytes_of,
    checksum,
    checksum_of_new,
)
from diskreplay.store.segment import Seal


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7])
def test_bytes_and_their_checksum(tmp_path, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    (tmp_path / "x").write_bytes(data)
    assert bytes_of(tmp_path / "x").tobytes() == data
    assert checksum(tmp_path / "x") == Seal(size, google_crc32c.value(data))
    assert checksum_of_new(tmp_path / "x") == checksum(tmp_path / "x")


def test_what_was_just_written_and_cannot_be_read_back_is_the_disks_fault(tmp_path):
    with pytest.raises(StorageError, match="cannot be read back: the file is missing") as caught:
        checksum_of_new(tmp_path / "x")
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: ")
    assert caught.value.errno == errno.EIO


def a_socket(path):
    os.chdir(path.parent)  # its whole path may be too long for one
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda _path: None, "missing"),
        (lambda path: path.mkdir(), "unreadable"),
        (os.mkfifo, "unreadable"),  # nobody writes to it: to open it must not wait
        (a_socket, "unreadable"),
        (lambda path: path.symlink_to(path.with_name("other")), "unreadable"),
        (lambda path: path.symlink_to("/dev/zero"), "unreadable"),
        (lambda path: path.symlink_to(path), "unreadable"),
    ],
)
def test_what_is_no_plain_file(tmp_path, monkeypatch, make, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_bytes(b"sound")
    make(tmp_path / "x")
    before = len(os.listdir("/proc/self/fd"))
    for read in (bytes_of, checksum):
        with pytest.raises(Unreadable) as caught:
            read(tmp_path / "x")
        assert caught.value.kind == kind
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_below_a_file_is_missing(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(Unreadable) as caught:
        bytes_of(tmp_path / "x" / "y")
    assert caught.value.kind == "missing"


@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EIO, Unreadable), (errno.EMFILE, StorageError), (errno.EACCES, StorageError)],
)
def test_what_the_system_says_of_the_file_and_what_of_itself(
    tmp_path, monkeypatch, call, code, error
):
    """Nothing is known of a file that could not be looked at for another reason."""
    (tmp_path / "x").write_bytes(b"sound")
    before = len(os.listdir("/proc/self/fd"))

    def refuse(*_arguments):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(plain_file.os, call, refuse)
        with pytest.raises(error) as caught:
            bytes_of(tmp_path / "x")
    if error is Unreadable:
        assert caught.value.kind == "unreadable"
        assert os.strerror(code) in str(caught.value)
    else:
        assert caught.value.errno == code
    assert len(os.listdir("/proc/self/fd")) == before


def test_parts_that_come_one_by_one_and_one_that_is_cut_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(bytes(range(10)))
    preadv = os.preadv

    def few(fd, buffers, offset):
        return preadv(fd, [buffers[0][:3]], offset)

    monkeypatch.setattr(plain_file.os, "preadv", few)
    assert bytes_of(tmp_path / "x").tolist() == list(range(10))

    def cut(fd, buffers, offset):
        return few(fd, buffers, offset) if offset < 6 else 0

    monkeypatch.setattr(plain_file.os, "preadv", cut)
    with pytest.raises(Unreadable) as caught:
        bytes_of(tmp_path / "x")
    assert caught.value.kind == "length"
