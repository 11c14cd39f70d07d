"""The files of one checkpoint of ReAgent or Dopamine."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from diskreplay.convert.npy_gz import NpyGzReader, gzipped, read_gz
from diskreplay.convert.output import making
from diskreplay.convert.unpickling import MOST_PICKLED, unpickled
from diskreplay.errors import CheckpointNotFoundError, CorruptCheckpointError
from diskreplay.store import checkpoint_names, files
from diskreplay.store.paths import local

STORE_PREFIX = "$store$_"
"""Of the names of files of elements, as in Dopamine."""
_COUNT = "add_count"
_ATTRIBUTES = (_COUNT, "invalid_range", "episode_end_indices", "sum_tree")
_NAME = r"((?:(?!_ckpt\.).)+)"  # else the suffix 1 would have files of the suffix x_ckpt.1
_CHUNK_BYTES = 4 << 20
_MOST_ARRAY = 1 << 30  # bytes of an array that is no column


class GzFiles:
    """``{name}_ckpt.{suffix}.gz`` in a directory, for each name. A `SuffixError` if the suffix is
    no plain name."""

    def __init__(self, directory: str | os.PathLike[str], suffix: int | str) -> None:
        self.directory = local(directory, "directory")
        self.suffix = checkpoint_names.checked_suffix(suffix)

    def path(self, name: str) -> Path:
        """Where the file of this name is, or would be."""
        return self.directory / f"{name}_ckpt.{self.suffix}.gz"

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return files.is_file(self.path(name))

    def columns(self) -> list[str]:
        """Names of the stored columns, in alphabetical order."""
        return sorted(self._names(STORE_PREFIX))

    def _names(self, before: str, after: str = "") -> list[str]:
        """What stands in the names of files between `before` and the suffix."""
        end = re.escape(f"_ckpt.{self.suffix}.gz{after}")
        pattern = re.compile(re.escape(before) + _NAME + end)
        paths = files.listed(self.directory) if files.is_dir(self.directory) else []
        return [match[1] for path in paths if (match := pattern.fullmatch(path.name))]

    def check_present(self, names: Iterable[str]) -> None:
        """Raise a `CheckpointNotFoundError` that names the first missing file."""
        for name in names:
            if not self.has(name):
                is_cut = not self.has(_COUNT) and self.columns()  # see `write`
                raise CheckpointNotFoundError(
                    f"{self.path(name)}: missing; a checkpoint of ReAgent or Dopamine with the "
                    f"suffix {self.suffix} has this file"
                    + ("; it seems that an export was killed: export it again" if is_cut else "")
                )

    # -- reading

    def array(self, name: str) -> np.ndarray:
        """An attribute that is an array."""
        with NpyGzReader(self.path(name)) as reader:
            return reader.whole(_MOST_ARRAY)

    def value(self, name: str) -> object:
        """An attribute that was pickled, see `unpickled`."""
        path = self.path(name)
        return unpickled(read_gz(path, MOST_PICKLED), str(path))

    def add_count(self) -> int:
        """Rows ever added, padding included."""
        found = self.array(_COUNT)
        if found.size != 1 or found.dtype.kind not in "iu" or not 0 <= found.item() < 2**62:
            raise CorruptCheckpointError(
                f"{self.path(_COUNT)}: one number from 0 on expected, found "
                f"{found.dtype}{found.shape}"
            )
        return int(found.item())

    def spec(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape, slots included, and dtype of a column."""
        with NpyGzReader(self.path(STORE_PREFIX + name)) as reader:
            return reader.shape, reader.dtype

    def in_time_order(
        self, names: Iterable[str], add_count: int, slots: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """The retained rows of these columns, oldest first, in chunks of 4 MiB or one row.

        The oldest row of a full ring is in the middle of each file. The files are read twice then,
        rather than half of one kept. Each is read to its end once, so that its length and checksum
        are verified: an error may come after the last chunk.
        """
        oldest = add_count % slots if add_count > slots else 0
        stored = min(add_count, slots)
        yield from self._parts(names, oldest, stored - oldest, slots - stored, whole=True)
        if oldest:
            yield from self._parts(names, 0, oldest, 0, whole=False)

    def _parts(
        self, names: Iterable[str], skipped: int, rows: int, after: int, *, whole: bool
    ) -> Iterator[dict[str, np.ndarray]]:
        readers = {name: NpyGzReader(self.path(STORE_PREFIX + name)) for name in names}
        try:
            for reader in readers.values():
                reader.skip(skipped)
            row_bytes = sum(r.row_bytes for r in readers.values())
            at_once = max(1, _CHUNK_BYTES // max(row_bytes, 1))
            for start in range(0, rows, at_once):
                count = min(at_once, rows - start)
                yield {name: reader.rows(count) for name, reader in readers.items()}
            if whole:
                for reader in readers.values():
                    reader.skip(after)
                    reader.finish()
        finally:
            for reader in readers.values():
                reader.close()

    # -- writing

    def write(self, contents: Mapping[str, Iterable[bytes]]) -> None:
        """Write a file for each name, durably; `contents` are the bytes before compression.

        They are all written beside first, so an error leaves what was there. Then they take its
        place: a kill amid that leaves no `add_count`, without which nobody reads the other files.
        Else it would leave new columns beside old ones.
        """
        with making(self.directory):
            self._write(contents)
        files.sync_dirs([self.directory])

    def _write(self, contents: Mapping[str, Iterable[bytes]]) -> None:
        for name in self._names(".", ".tmp"):
            files.remove(self._beside(name))  # of a process that was killed
        try:
            for name, pieces in contents.items():
                files.write(self._beside(name), gzipped(pieces))
            files.sync(map(self._beside, contents))
            self.remove([_COUNT])
            files.sync_dirs([self.directory])
            there = [*_ATTRIBUTES, *(STORE_PREFIX + name for name in self.columns())]
            self.remove(name for name in there if name not in contents)
            for name in contents:
                if name != _COUNT:
                    files.rename(self._beside(name), self.path(name))
            files.sync_dirs([self.directory])
            if _COUNT in contents:
                files.rename(self._beside(_COUNT), self.path(_COUNT))
        finally:
            for name in contents:
                files.remove(self._beside(name))

    def _beside(self, name: str) -> Path:
        return self.directory / f".{self.path(name).name}.tmp"

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files, as far as they are there."""
        for name in names:
            files.remove(self.path(name))
