"""Which stores and checkpoints there are below the paths that were given."""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diskreplay.errors import DiskReplayError, FormatError, StorageError
from diskreplay.inspection.store_activity import checkpoints_beside
from diskreplay.locks import Lock
from diskreplay.store import files, format, manifest

_DEPTH = 4  # directories below one that was given
_MOST_DIRECTORIES = 5_000
_MOST_STORES = 500
_FRESH = 3.0  # seconds


@dataclass(frozen=True)
class ShownStore:
    """A store or a checkpoint.

    Attributes
    ----------
    key : str
        Stands for the path in addresses; the same for the same path, always.
    path : Path
    is_checkpoint : bool
    """

    key: str
    path: Path
    is_checkpoint: bool


class ShownStores:
    """The stores below some paths, and the checkpoints beside them.

    A live store that was seen once stays, so that the page can say that it is gone.

    Parameters
    ----------
    paths : iterable of Path
        Stores, checkpoints, or directories of them; of a directory those at most four levels below.

    Raises
    ------
    FormatError
        A path does not exist, is a file, or has a ``zarr.json`` that is no store's.
    StorageError
        A directory cannot be listed.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = [Path(os.path.abspath(path)) for path in paths]
        for path in self.paths:
            if not files.is_dir(path):
                what = "a file" if files.is_there(path) else "no such directory"
                raise FormatError(
                    f"{path}: {what}; a store, a checkpoint or a directory of them expected"
                )
            files.listed(path)
            if files.is_there(path / "zarr.json"):
                format.read_attributes(path)
        self._lock = Lock()
        self._seen: dict[str, ShownStore] = {}
        self._current: dict[str, ShownStore] = {}
        self._looked = float("-inf")

    def all(self) -> list[ShownStore]:
        """Those there are now, and live stores that there were; stores first, by path."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH:
                self._current = {store.key: store for store in self._found()}
                live = (store for store in self._current.values() if not store.is_checkpoint)
                self._seen |= {store.key: store for store in live}
                self._looked = time.monotonic()
            found = self._seen | self._current
        return sorted(found.values(), key=lambda store: (store.is_checkpoint, str(store.path)))

    def find(self, key: str) -> ShownStore | None:
        """The store of a key, or None."""
        return next((store for store in self.all() if store.key == key), None)

    def _found(self) -> Iterator[ShownStore]:
        known: set[Path] = set()
        for path in self._below():
            stores = [path]
            if not manifest.is_checkpoint(path):
                stores += [beside.path for beside in checkpoints_beside(path)]
            for each in stores:
                if each not in known and len(known) < _MOST_STORES:
                    known.add(each)
                    yield ShownStore(key_of(each), each, manifest.is_checkpoint(each))

    def _below(self) -> Iterator[Path]:
        waiting = [(path, 0) for path in reversed(self.paths)]
        looked = 0
        while waiting and looked < _MOST_DIRECTORIES:
            path, depth = waiting.pop()
            looked += 1
            try:
                is_group = files.is_there(path / "zarr.json")
            except StorageError:  # not ours to look into: there is nothing to show in it
                continue
            if is_group:
                if _is_ours(path):
                    yield path
            elif depth < _DEPTH:
                waiting += [(inner, depth + 1) for inner in reversed(_directories(path))]


def key_of(path: Path) -> str:
    """What stands for a path in an address."""
    return hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()


def _is_ours(path: Path) -> bool:
    try:
        format.read_attributes(path)
    except DiskReplayError:
        return False
    return True


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir()
            )
    except OSError:  # it is gone, or not ours to read: there is nothing to show in it
        return []
