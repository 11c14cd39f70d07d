"""The files of one checkpoint of ReAgent or Dopamine.

::

    {name}_ckpt.{suffix}.gz    what the originals read, and write
    .ckpt.{suffix}.lock        held (flock) by the export that is under way
    .ckpt.{suffix}.new/        files of the same names, while they are written
    .ckpt.{suffix}.whole/      the same, when all of them are there, until all are in their places

Where ``add_count`` is among the first, they are the checkpoint; else those in ``.whole`` are. It is
the first file that goes and the last one that comes, so a kill at any moment leaves the old
checkpoint or the new one. The originals read none without an ``add_count``; what they write counts.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from diskreplay.convert.npy_gz import NpyGzReader, gzipped, read_gz
from diskreplay.convert.output import alone, making
from diskreplay.convert.unpickling import MOST_PICKLED, unpickled
from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
)
from diskreplay.store import checkpoint_names, files
from diskreplay.store.paths import local

STORE_PREFIX = "$store$_"
"""Of the names of files of elements, as in Dopamine."""
_COUNT = "add_count"
_ATTRIBUTES = (_COUNT, "invalid_range", "episode_end_indices", "sum_tree")
_NUMBERED = re.compile(r"add_count_ckpt\.(\d+)\.gz|\.ckpt\.(\d+)\.whole")
_NAME = r"((?:(?!_ckpt\.).)+)"  # else the suffix 1 would have files of the suffix x_ckpt.1
_CHUNK_BYTES = 4 << 20
_MOST_ARRAY = 1 << 30  # bytes of an array that is no column


def numbers(directory: Path) -> list[int]:
    """The suffixes that are numbers of the checkpoints in a directory."""
    paths = files.listed(directory) if files.is_dir(directory) else []
    matches = (_NUMBERED.fullmatch(path.name) for path in paths)
    return [int(match[1] or match[2]) for match in matches if match]


class GzFiles:
    """``{name}_ckpt.{suffix}.gz`` in a directory, for each name. A `SuffixError` if the suffix is
    no plain name."""

    def __init__(self, directory: str | os.PathLike[str], suffix: int | str) -> None:
        self.directory = local(directory, "directory")
        self.suffix = checkpoint_names.checked_suffix(suffix)
        self._new, self._whole, self._lock = (
            self.directory / f".ckpt.{self.suffix}.{of}" for of in ("new", "whole", "lock")
        )

    def path(self, name: str) -> Path:
        """Where the file of this name is, or would be."""
        return self._current() / self._named(name)

    def _named(self, name: str) -> str:
        return f"{name}_ckpt.{self.suffix}.gz"

    def _current(self) -> Path:
        """The directory that the files are read from."""
        if files.is_file(self.directory / self._named(_COUNT)) or not files.is_dir(self._whole):
            return self.directory
        return self._whole

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return files.is_file(self.path(name))

    def columns(self) -> list[str]:
        """Names of the stored columns, in alphabetical order."""
        return self._columns(self._current())

    def _columns(self, directory: Path) -> list[str]:
        pattern = re.compile(re.escape(STORE_PREFIX) + _NAME + re.escape(self._named("")))
        paths = files.listed(directory) if files.is_dir(directory) else []
        return sorted(match[1] for path in paths if (match := pattern.fullmatch(path.name)))

    def all(self) -> dict[str, Path]:
        """All files of the checkpoint that are there, by the names of their arrays."""
        names = (*_ATTRIBUTES, *(STORE_PREFIX + name for name in self.columns()))
        return {name: self.path(name) for name in names if self.has(name)}

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

        An error while they are written leaves what was there, and so does a kill. What comes later
        leaves the new files, in their places or not: see above. A `LockedError` while another
        export to this suffix is under way.
        """
        refusal = (
            f"{self.directory}: another export of a checkpoint with the suffix {self.suffix} is "
            "under way there; wait for its end, or choose another suffix or directory"
        )
        with making(self.directory), alone(self._lock, refusal):
            if self._current() == self._whole:  # of an export that was killed
                self._put_in_place()
            files.remove_tree(self._whole)
            files.remove_tree(self._new)
            try:
                files.make_dirs(self._new)
                for name, pieces in contents.items():
                    files.write(self._new / self._named(name), gzipped(pieces))
                files.sync([*files.listed(self._new), self._new])
                files.rename(self._new, self._whole)
            except BaseException:
                files.remove_tree(self._new)
                raise
            self._put_in_place()

    def _put_in_place(self) -> None:
        """Put the files of a checkpoint that is whole where the originals look for them; after a
        kill amid it, what is left to do."""
        files.sync_dirs([self.directory])
        self._remove([_COUNT])
        files.sync_dirs([self.directory])
        columns = (STORE_PREFIX + name for name in self._columns(self.directory))
        self._remove([*_ATTRIBUTES, *columns])
        *others, count = sorted(
            files.listed(self._whole), key=lambda path: path.name == self._named(_COUNT)
        )
        for paths in (others, [count]):
            for path in paths:
                place = self.directory / path.name
                files.remove(place)
                if not files.link(path, place):
                    files.copy(path, place)
                    files.sync([place])
            files.sync_dirs([self.directory])
        files.rename(self._whole, self._new)
        files.sync_dirs([self.directory])
        files.remove_tree(self._new)

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files, as far as they are there, and what a killed export has left."""
        files.remove_tree(self._whole)
        files.remove_tree(self._new)
        self._remove(names)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            files.remove(self.directory / self._named(name))
