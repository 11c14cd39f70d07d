"""The memory-mapped page that says how many rows count."""

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, FormatError, StorageError
from diskreplay.store import files
from diskreplay.store.mapping import Mapping
from diskreplay.store.ordering import barrier

_MAGIC = b"DREPLAY2"
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("closed", "<u8"),
        ("boot_id", "S48"),
        ("epoch", "<u8"),
        ("replaced", "<u8"),
        ("flushes", "<u8"),
    ]
)
HEADER_BYTES = _HEADER.itemsize
_COUNTS_AT = 4096
_COUNT_BITS = 24
_EXCHANGED = 1 << 32  # epochs: more than a writer ever makes

MOST_AT_ONCE = 4096  # rows that one commit adds to an env


def finals_word(finals: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The number of final rows, and the low bits of the row count it belongs to, in one word that
    is written by one store."""
    return finals << _COUNT_BITS | count & (1 << _COUNT_BITS) - 1


def finals_in(word: np.ndarray) -> np.ndarray:
    """The number of final rows in each of these words."""
    return word >> _COUNT_BITS


def rows_behind(word: np.ndarray, count: np.ndarray, first: np.ndarray) -> np.ndarray:
    """How many of the newest of `count` rows, `first` being the oldest one there, a word may not
    know of. It is written after the rows are committed, so that is one commit's at most."""
    unknown = np.minimum((count - word) & (1 << _COUNT_BITS) - 1, MOST_AT_ONCE)
    return np.minimum(unknown, count - first)


class CommitPage:
    """Committed row counts, the boot they were written in, and what readers have to know.

    Attributes
    ----------
    count : ndarray of int64, shape (num_envs,)
        A view of the mapped file: raising an element is the commit of a row, one aligned
        8-byte store after all fields of the row are written.
    packed : ndarray of int64, shape (packed fields, num_envs)
        For each packed field, in the order of the group's attributes, the rows that are in shards:
        those from there on are in its tail.
    finals : ndarray of int64, shape (num_envs,)
        Final rows of each env, and which count that was true at. Written after the commit, so it
        may be behind when the process dies; see `rows_behind`.
    first : ndarray of int64, shape (num_envs,)
        The oldest row of each env that no `evict` has let go of; more may have left by the
        capacity. Raised before a file of rows that have left is deleted. A view of the file, or
        zeros where a reader has mapped a page that is older than this.
    is_older : bool
        Whether that is so. A writer makes such a page longer when it opens it.
    epoch, replaced, flushes : ndarray of uint64, shape (1,)
        What readers in other processes look at: the first changes whenever a file that they may
        have mapped is no longer the one to read, the second is set when `load` puts another store
        here, and the third changes behind each record with priorities of rows. It is odd from
        before these are replaced until the record is.
    """

    def __init__(self, path: Path, num_envs: int, packed: int, *, writable: bool) -> None:
        size, before = self.size(num_envs, packed), _whole_pages(num_envs, 2 + packed)
        found = size
        with contextlib.suppress(OSError):  # opening it says what is wrong
            found = os.lstat(path).st_size
        self.is_older = not writable and found == before < size
        self.mapping = Mapping.open(
            path, size=before if found == before else size, writable=writable,
            grown=size if writable else None,
        )  # fmt: skip
        bytes_ = self.mapping.array
        self._header = bytes_[:HEADER_BYTES].view(_HEADER)
        if self._header["magic"][0] != _MAGIC:
            raise FormatError(f"{path}: not a diskreplay commit page (its first bytes differ)")
        words = bytes_[_COUNTS_AT:].view("<i8")
        figures = words[: len(words) // num_envs * num_envs].reshape(-1, num_envs)
        self.count, self.finals, self.packed = figures[0], figures[1], figures[2 : 2 + packed]
        self.first = np.zeros(num_envs, np.int64) if self.is_older else figures[2 + packed]
        # Views made once: reading a field of a structured array costs a microsecond.
        self.epoch, self.replaced = self._header["epoch"], self._header["replaced"]
        self.flushes = self._header["flushes"]
        self._closed = self._header["closed"]

    @staticmethod
    def size(num_envs: int, packed: int) -> int:
        """Bytes of the file: a header page, then whole pages of figures for each env."""
        return _whole_pages(num_envs, 3 + packed)

    @classmethod
    def create(cls, path: Path, count: np.ndarray, packed: int) -> None:
        """Write the page of a store that was closed in good order with `count` rows."""
        page = np.zeros(cls.size(len(count), packed), np.uint8)
        header = page[:HEADER_BYTES].view(_HEADER)
        header["magic"], header["closed"] = _MAGIC, 1
        header["boot_id"] = boot_id().encode()
        page[_COUNTS_AT : _COUNTS_AT + 8 * len(count)].view("<i8")[:] = count
        files.write(path, [page.data])
        files.sync([path])

    def snapshot(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of `count`, `finals` and `first` that belong together.

        `first` is read before `count`, which it is never ahead of, and is the same after it: so of
        each env both were true at one moment.
        """
        while True:
            first, finals = self.first.copy(), self.finals.copy()
            barrier()
            count = self.count.copy()
            barrier()  # the rows that count are looked at after this
            if np.array_equal(finals, self.finals) and np.array_equal(first, self.first):
                return count, finals, first

    def is_exchanged(self) -> bool:
        """Whether another page is at its path, which a writer uses: see `exchanged`."""
        there = _header_of(files.read(self.mapping.path, HEADER_BYTES))
        return abs(int(there["epoch"]) - int(self.epoch[0])) >= _EXCHANGED // 2

    @property
    def closed(self) -> bool:
        """Whether the last writer closed the store in good order."""
        return bool(self._closed[0])

    @property
    def same_boot(self) -> bool:
        """Whether the kernel that saw the last writes still runs, and so has all of them."""
        return self._header["boot_id"][0].decode(errors="replace") == boot_id()

    def mark_open(self) -> None:
        """Say, durably and before the first row, that the counts here are ahead of the record."""
        self._header["boot_id"] = boot_id().encode()
        self._header["closed"] = 0
        self._header["replaced"] = 0
        self.flushes += self.flushes & 1  # whoever wrote priorities was killed amid it
        files.sync([self.mapping.path])

    def mark_closed(self) -> None:
        """Say, durably, that the record in ``zarr.json`` is the whole truth; or an error, and it is
        not said: rows may be added after that, and a kill would take them."""
        # The counts first, which are in other blocks: with the word and without them after a power
        # cut, the store would be refused by readers.
        files.sync([self.mapping.path])
        self._header["closed"] = 1
        try:
            files.sync([self.mapping.path])
        except BaseException:
            self._header["closed"] = 0
            raise


def says_closed(path: Path) -> bool:
    """Whether the page at `path` says that the last writer closed the store in good order. A few
    bytes of it are read. True where there is none: a checkpoint has no page."""
    try:
        read = files.read(path, HEADER_BYTES)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return True
        raise
    return bool(_header_of(read)["closed"])


def _header_of(read: bytes) -> Any:
    return np.frombuffer(read[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), _HEADER)[0]


@contextlib.contextmanager
def exchanged(path: Path) -> Iterator[None]:
    """The block puts a copy of this page, which was made before, in its place, and leaves it to
    another store. Readers that have the old one mapped are told by an epoch that is far from that
    of the new one: to them it would say for ever that nothing comes. Before the block, since nobody
    tells them after a kill, and behind it, since they look when it changes."""
    old = None
    with contextlib.suppress(StorageError, CorruptSegmentError):  # whoever needs it says so
        old = Mapping.open(path, writable=True)
    epoch = None
    if old is not None and old.size >= HEADER_BYTES:
        header = old.array[:HEADER_BYTES].view(_HEADER)
        if header["magic"][0] == _MAGIC:
            epoch = header["epoch"]
            epoch += _EXCHANGED
    yield
    if epoch is not None:
        epoch += 1


def _whole_pages(num_envs: int, figures: int) -> int:
    """Bytes of a header page and so many figures for each env."""
    return _COUNTS_AT + -(-8 * num_envs * figures // 4096) * 4096


def boot_id() -> str:
    """A name for this run of the kernel: when it changes, unsynced writes may be gone."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    size = ctypes.c_size_t(64)
    name = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", name, ctypes.byref(size), None, 0)
    return name.value.decode()
