"""A file mapped into memory as one flat array of bytes."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diskreplay.errors import CorruptSegmentError
from diskreplay.store import files
from diskreplay.store.system_errors import explained

_MADV_POPULATE_WRITE = 23  # Linux 5.14
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
for _name in ("munmap", "mprotect", "madvise"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * (
        _name != "munmap"
    )


class Mapping:
    """A shared mapping of a whole file, unmapped when nothing refers to it any more.

    `mmap.mmap` keeps a descriptor open for each mapping; a store has hundreds, so this one calls
    the C library and keeps none.

    Attributes
    ----------
    path : Path
        The file; a renamed file keeps its mapping, and the owner updates `path`.
    address, size : int
        Where the bytes are, and how many.
    length : int
        Of the file, when it was mapped.
    array : ndarray of uint8
        The bytes. Views of it keep the mapping alive.
    """

    __slots__ = ("__array_interface__", "__weakref__", "address", "length", "path", "size")

    def __init__(self, path: Path, fd: int, size: int, *, writable: bool) -> None:
        self.address = 0
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        with explained(path, "cannot map the file"):
            address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
            if address == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        self.path, self.address, self.size, self.length = path, address, size, size
        self.__array_interface__ = {
            "data": (address, not writable), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    @classmethod
    def create(cls, path: Path, size: int, *, prepared: bool = True) -> "Mapping":
        """A new file of zeros, allocated and, unless told otherwise, prepared for writing."""
        fd = files.allocate(path, size)
        try:
            mapping = cls(path, fd, size, writable=True)
        finally:
            os.close(fd)
        if prepared:
            mapping.prepare()
        return mapping

    @classmethod
    def copy_of(cls, source: "Mapping", path: Path) -> "Mapping":
        """A new file with the bytes of another one, allocated; to write them through a mapping
        would cost a fault for each page, five times as much."""
        fd = files.allocate(path, source.size)
        try:
            files.write_at(fd, path, source.array.data, 0)
            return cls(path, fd, source.size, writable=True)
        finally:
            os.close(fd)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        size: int | None = None,
        most: int | None = None,
        grown: int | None = None,
        writable: bool = False,
    ) -> "Mapping":
        """Map a file that exists; with `size`, refuse one of another length.

        With `most`, so many bytes are mapped of one that is going to grow: to touch those behind
        its end kills the process. One that is to be written to is allocated first: a write into a
        hole kills the process too where the disk is full. It is made as long as `grown` then.
        """
        with explained(path, "cannot open the segment"):
            fd = files.open_plain(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            with explained(path, "cannot open the segment"):
                found = os.fstat(fd).st_size
            if found == 0 or (size is not None and found != size):
                raise CorruptSegmentError(
                    f"{path}: {found} bytes found, {size or 'some'} expected; the file was cut or "
                    "replaced: restore it, or load a checkpoint"
                )
            if writable:
                with explained(path, "cannot allocate the segment"):
                    found = max(found, grown or 0)
                    files.promise(fd, found)
            size = found if most is None else max(most, found)
            mapping = cls(path, fd, size, writable=writable)
            mapping.length = found
            return mapping
        finally:
            os.close(fd)

    @property
    def array(self) -> np.ndarray:
        return np.asarray(self)

    def is_cut(self) -> bool:
        """Whether the file at its path is shorter now: if it is the same one, to read what is gone
        kills the process."""
        try:
            return os.stat(self.path).st_size < min(self.length, self.size)
        except OSError:  # one that was removed is read as before
            return False

    def prepare(self) -> None:
        """Have the file system take note of every page now.

        The first write to a page of a new file, or of one that was written back since, costs the
        writer microseconds; taken in advance, off the adding thread, it costs `add` nothing.
        """
        if sys.platform == "linux":  # older kernels refuse the advice: the pages come when touched
            _libc.madvise(self.address, self.size, _MADV_POPULATE_WRITE)

    def let_go_of_pages(self) -> None:
        """Have pages that were written to leave the mapping; the file keeps what is in them.
        Whoever reads one next gets it again, to be read only.

        Else a sync of the file takes each page by itself away from all processors, and each thread
        is interrupted for that.
        """
        if sys.platform == "linux":  # elsewhere the advice may throw away what was written
            _libc.madvise(self.address, self.size, mmap.MADV_DONTNEED)

    def shrink(self, size: int) -> None:
        """Give back the addresses behind the first `size` bytes, which nobody uses."""
        page = mmap.PAGESIZE
        kept = -(-size // page) * page
        if kept < self.size:
            _libc.munmap(self.address + kept, self.size - kept)
            self.size = kept

    def protect(self) -> None:
        """No more writes through this mapping: the file is sealed."""
        _libc.mprotect(self.address, self.size, mmap.PROT_READ)

    def expect_random_access(self) -> None:
        """Ask for no read-ahead: a cold window should not drag its neighbours in."""
        _libc.madvise(self.address, self.size, mmap.MADV_RANDOM)

    def __del__(self, munmap: Callable[..., int] = _libc.munmap) -> None:
        # At the interpreter's exit this module's names may be gone already; and a signal may come
        # before `__init__` has set anything.
        if getattr(self, "address", 0):
            munmap(self.address, self.size)
