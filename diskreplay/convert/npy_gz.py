"""Arrays in gzipped .npy files, read and written a piece at a time."""

import contextlib
import gzip
import io
import math
import os
import tokenize
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from diskreplay.closing import Closing
from diskreplay.errors import CorruptCheckpointError, IncompleteCheckpointError, InvalidInputError
from diskreplay.store import files
from diskreplay.store.system_errors import explained, translated

_MOST_ROW_BYTES = 1 << 28
_SKIPPED_AT_ONCE = 1 << 20
_LEVEL = 1  # gzip: frames shrink to a few hundredths at any level, and this one keeps up


class NpyGzReader(Closing):
    """One array, of numbers or bools in the byte order of this machine, from front to back; never
    more of it in memory than is asked for.

    An `IncompleteCheckpointError` if there is no such file. A `CorruptCheckpointError` if it is no
    gzipped .npy file, or holds objects; and from every method when the file turns out to be
    damaged, or shorter or longer than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not files.is_there(path):
            raise IncompleteCheckpointError(f"{path}: the file is missing")
        with explained(path, "cannot open the file"):
            self._file = gzip.open(path, "rb")  # noqa: SIM115 - closed by close()
        try:
            with _told(self.path):
                self._read_header()
            _check_length(self._file, path, self.dtype.itemsize * math.prod(self.shape))
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        version = np.lib.format.read_magic(self._file)
        if version != (1, 0):  # later ones may declare a header of gigabytes
            raise ValueError(f"version {version} of the .npy format, 1.0 expected")
        self.shape, fortran, stored = np.lib.format.read_array_header_1_0(self._file)
        if stored.kind not in "biuf":
            raise ValueError(f"an array of {stored}, numbers expected")
        if min(self.shape, default=0) < 0 or math.prod(self.shape) >= 2**62:
            raise ValueError(f"shape {self.shape}")
        if fortran and len(self.shape) > 1:
            raise ValueError("rows are not stored one after another (Fortran order)")
        self._stored, self.dtype = stored, stored.newbyteorder("=")
        self.row_bytes = stored.itemsize * math.prod(self.shape[1:])
        if self.row_bytes > _MOST_ROW_BYTES:
            raise ValueError(f"rows of {self.row_bytes} bytes, at most {_MOST_ROW_BYTES} expected")

    def rows(self, count: int) -> np.ndarray:
        """The next `count` rows; of an array without axes, its value."""
        with _told(self.path):
            data = self._file.read(count * self.row_bytes)
        if len(data) != count * self.row_bytes:
            raise self._corrupt("it is shorter than its header says")
        found = np.frombuffer(data, self._stored).reshape((count, *self.shape[1:]))
        return found.astype(self.dtype, copy=False)

    def skip(self, count: int) -> None:
        """Pass over `count` rows."""
        left = count * self.row_bytes
        while left:
            with _told(self.path):
                found = len(self._file.read(min(left, _SKIPPED_AT_ONCE)))
            if not found:
                raise self._corrupt("it is shorter than its header says")
            left -= found

    def finish(self) -> None:
        """Verify that nothing follows, and the checksum of all that came."""
        with _told(self.path):
            if self._file.read(1):
                raise self._corrupt("it is longer than its header says")

    def whole(self, most: int) -> np.ndarray:
        """The array, if it is of at most so many bytes."""
        size = self.dtype.itemsize * math.prod(self.shape)
        if size > most:
            raise self._corrupt(f"{size} bytes, at most {most} expected")
        found = self.rows(self.shape[0] if self.shape else 1)
        self.finish()
        return found.reshape(self.shape)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.path}: {what}; the checkpoint cannot be read")


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what gzip and NumPy raise on damaged bytes into a `CorruptCheckpointError`."""
    try:
        yield
    except (
        ValueError, EOFError, OverflowError, zlib.error, gzip.BadGzipFile,
        SyntaxError, tokenize.TokenError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        # The last four come from NumPy, which parses a header as Python.
        raise CorruptCheckpointError(
            f"{path}: not a gzipped .npy file of numbers ({error}); the checkpoint cannot be read"
        ) from error
    except OSError as error:
        raise translated(error, path, "cannot read the file") from error


def _check_length(file: gzip.GzipFile, path: Path, size: int) -> None:
    """Refuse a file longer than `size` bytes can get by packing: the zeros that may follow a gzip
    stream are read one by one, and a hole of gigabytes costs nothing to make."""
    length = os.fstat(file.fileno()).st_size  # by its name there may be another one
    if length > size + (size >> 8) + (1 << 16):
        raise CorruptCheckpointError(
            f"{path}: {length} bytes cannot hold {size}; the checkpoint cannot be read"
        )


def read_gz(path: Path, most: int) -> bytes:
    """What is in a gzip file, if it is at most so many bytes; errors as `NpyGzReader`."""
    if not files.is_there(path):
        raise IncompleteCheckpointError(f"{path}: the file is missing")
    with explained(path, "cannot open the file"):
        file = gzip.open(path, "rb")  # noqa: SIM115 - closed by the next statement
    with file:
        _check_length(file, path, most)
        with _told(path):
            data = file.read(most + 1)
    if len(data) > most:
        raise CorruptCheckpointError(f"{path}: more than {most} bytes")
    return data


def npy_pieces(
    shape: tuple[int, ...], dtype: np.dtype, chunks: Iterable[np.ndarray]
) -> Iterator[bytes]:
    """The bytes of a .npy file whose rows come in `chunks`."""
    if dtype.hasobject:
        raise InvalidInputError("an array of objects cannot be saved as numbers")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape},
    )
    yield header.getvalue()
    for chunk in chunks:
        yield np.ascontiguousarray(chunk, dtype).tobytes()


def gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes as a gzip file."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)  # 31: with gzip's header and checksum
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
