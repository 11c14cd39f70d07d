"""A file that HDF5 writes to, also where the disk refuses to take it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diskreplay.store import files


class UnrefusingFile:
    """A file that is there and takes all that is written to it. What the disk refuses, and all that
    comes after, is kept in memory; `refused` is what the system said.

    HDF5 cannot close a file that could not be written: it raises at each try, and takes the process
    with it when that ends. So it is not told.
    """

    def __init__(self, path: Path) -> None:
        self._fd = files.open_to_write(path)
        self._at, self._size = 0, os.fstat(self._fd).st_size
        self._beside: list[tuple[int, bytes]] = []
        self.refused: OSError | None = None

    def check(self) -> None:
        """Raise what the system said, if it refused anything."""
        if self.refused is not None:
            raise self.refused

    def close(self) -> None:
        """Close the file; what is written later goes nowhere."""
        fd, self._fd = self._fd, -1
        files.close(fd)

    # -- as h5py calls it

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, from the beginning or from the end."""
        self._at = offset + (self._size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        """Where it is."""
        return self._at

    def read(self, size: int) -> bytes:
        """Bytes from here on."""
        into = bytearray(max(min(size, self._size - self._at), 0))
        self.readinto(into)
        return bytes(into)

    def readinto(self, into: Any) -> int:
        """Fill a buffer from here on; with zeros behind the end."""
        view = memoryview(into).cast("B")
        found = os.pread(self._fd, len(view), self._at)
        view[:] = found.ljust(len(view), b"\0")
        for start, data in self._beside:
            low, high = max(start, self._at), min(start + len(data), self._at + len(view))
            if low < high:
                view[low - self._at : high - self._at] = data[low - start : high - start]
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of it here."""
        view, done = memoryview(data).cast("B"), 0
        try:
            while self.refused is None and done < len(view):
                done += os.pwrite(self._fd, view[done:], self._at + done)
        except OSError as error:
            self.refused = error
        if done < len(view):
            self._beside.append((self._at + done, bytes(view[done:])))
        self._at += len(view)
        if len(view):
            self._size = max(self._size, self._at)
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut it, or extend it by zeros."""
        try:
            if self.refused is None:
                os.ftruncate(self._fd, size)
        except OSError as error:
            self.refused = error
        self._size = size
        return size

    def flush(self) -> None:
        """There is nothing to be flushed."""


@contextlib.contextmanager
def telling_nothing(storage: Any) -> Iterator[Callable[[], None]]:
    """Meanwhile Minari writes to such a file, if the new data set's `storage` is HDF5.

    Gives what raises the system's error, to be called between episodes; raises it at the end.
    """
    path = getattr(storage, "_file_path", None)
    if storage.FORMAT != "hdf5" or path is None:
        yield lambda: None
        return
    storage._file_path = file = UnrefusingFile(path)
    try:
        yield file.check
        file.check()
    finally:
        storage._file_path = path
        file.close()
