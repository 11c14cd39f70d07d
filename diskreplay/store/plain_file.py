"""Reading files that somebody else may have put there: whatever they are, the answer is bytes or
`Unreadable`.

They are read, not mapped: a bad sector is then an error to report and no signal that ends the
process.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diskreplay.errors import StorageError, StoreError
from diskreplay.store import codec
from diskreplay.store.segment import Seal
from diskreplay.store.system_errors import check_lost

PIECE = 1 << 20  # bytes read at once: they stay in a cache until they are checked


class Unreadable(StoreError):
    """A file that is missing, no plain file, or that the disk does not give."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[tuple[int, int]]:
    """Descriptor and length of a regular file, or `Unreadable`. Links and devices are refused.

    Raises
    ------
    StorageError
        The system refused for another reason than the file: nothing is known of it.
    """
    fd = None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("unreadable", "no plain file")
        yield fd, found.st_size
    except OSError as error:
        if fd is None and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise Unreadable("missing", "the file is missing") from error
        check_lost(error, path, "cannot read the file")
        raise Unreadable("unreadable", f"the file cannot be read ({error.strerror})") from error
    finally:
        if fd is not None:
            os.close(fd)


def read_at(fd: int, offset: int, out: np.ndarray) -> None:
    """Fill `out`, an array of bytes, from a file."""
    done = 0
    while done < len(out):
        got = os.preadv(fd, [out.data[done:]], offset + done)
        if not got:
            raise Unreadable("length", "the file was cut while it was read")
        done += got


def pieces(fd: int, size: int) -> Iterator[np.ndarray]:
    """The bytes of a file, some mebibytes at a time, in memory that is used again."""
    buffer = np.empty(min(size, PIECE), np.uint8)
    for offset in range(0, size, PIECE):
        piece = buffer[: min(PIECE, size - offset)]
        read_at(fd, offset, piece)
        yield piece


def checksum(path: Path) -> Seal:
    """Length and CRC-32C of a file, or `Unreadable`."""
    with plain_file(path) as (fd, size):
        crc = 0
        for piece in pieces(fd, size):
            crc = codec.crc32c(piece, start=crc)
        return Seal(size, crc)


def checksum_of_new(path: Path) -> Seal:
    """The same of a file that was just written here: what cannot be read back is the disk's fault,
    a `StorageError`."""
    try:
        return checksum(path)
    except Unreadable as error:
        raise StorageError(errno.EIO, f"cannot be read back: {error}", str(path)) from error


def bytes_of(path: Path, most: int | None = None) -> np.ndarray:
    """The bytes of a file, or of a longer one `most` and one more; or `Unreadable`."""
    with plain_file(path) as (fd, size):
        data = np.empty(size if most is None else min(size, most + 1), np.uint8)
        read_at(fd, 0, data)
    return data
