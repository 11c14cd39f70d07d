"""Which stores and checkpoints there are below the paths that were given."""

import contextlib
import hashlib
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diskreplay.errors import DiskReplayError, FormatError, StorageError
from diskreplay.inspection.store_activity import checkpoints_beside, directories, last_write
from diskreplay.locks import Lock
from diskreplay.store import files, format, manifest

_DEPTH = 4  # directories below one that was given
_MOST_DIRECTORIES = 5_000  # below each one that was given
_MOST_STORES = 500  # and checkpoints, beside those that were given
_FRESH = 3.0  # seconds


@dataclass(frozen=True)
class ShownStore:
    """A store or a checkpoint."""

    key: str  # stands for the path in addresses; the same for the same path, always
    path: Path
    is_checkpoint: bool


@dataclass(frozen=True)
class LeftOut:
    """What there is besides, and is not shown."""

    stores: int = 0  # more than the page shows at once
    checkpoints: int = 0
    directories: int = 0  # that were not looked into; a store may be in any of them, or below


class ShownStores:
    """The stores below some paths, and the checkpoints beside them.

    All stores and checkpoints that were given, and 500 of those below and beside them: first live
    stores as they are found, then checkpoints, the newest first. Below each path that was given
    5,000 directories are looked into, those near it first. A live store that was seen once stays,
    so that the page can say that it is gone.

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
        self._left_out = LeftOut()
        self._looked = float("-inf")

    def all(self) -> list[ShownStore]:
        """Those there are now, and live stores that there were; stores first, by path."""
        return self.look()[0]

    def look(self) -> tuple[list[ShownStore], LeftOut]:
        """`all`, and what there is besides."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH:
                found, self._left_out = self._found()
                self._current = {store.key: store for store in found}
                self._seen |= {store.key: store for store in found if not store.is_checkpoint}
                self._looked = time.monotonic()
            shown, left_out = self._seen | self._current, self._left_out
        in_order = sorted(shown.values(), key=lambda each: (each.is_checkpoint, str(each.path)))
        return in_order, left_out

    def find(self, key: str) -> ShownStore | None:
        """The store of a key, or None."""
        return next((store for store in self.all() if store.key == key), None)

    def _found(self) -> tuple[list[ShownStore], LeftOut]:
        given: dict[Path, bool] = {}  # whether each one is a checkpoint
        below: dict[Path, bool] = {}
        unseen = 0
        for path in self.paths:
            found, left = _below(path)
            unseen += left
            for each in found:
                (given if each == path else below)[each] = manifest.is_checkpoint(each)
        live = [path for path, is_checkpoint in (given | below).items() if not is_checkpoint]
        # By what they are beside, since stores of one directory have the same.
        beside = [
            one for near in {path.parent: path for path in live}.values()
            for one in checkpoints_beside(near)
        ]  # fmt: skip
        saved = {one.path: one.saved for one in beside}
        stores = [path for path in live if path not in given]
        copies = [path for path in below if below[path]] + [one.path for one in beside]
        copies = [path for path in dict.fromkeys(copies) if path not in given]
        if len(stores) + len(copies) > _MOST_STORES:
            copies.sort(key=lambda path: saved.get(path) or _last_write(path), reverse=True)
        kept_stores = stores[:_MOST_STORES]
        kept_copies = copies[: _MOST_STORES - len(kept_stores)]
        shown = given | dict.fromkeys(kept_stores, False) | dict.fromkeys(kept_copies, True)
        left_out = LeftOut(len(stores) - len(kept_stores), len(copies) - len(kept_copies), unseen)
        return [ShownStore(key_of(path), path, shown[path]) for path in shown], left_out


def _below(given: Path) -> tuple[list[Path], int]:
    """The stores and checkpoints below a path, itself included, and how many directories there are
    that were not looked into. What is near comes first, so that one large directory does not hide
    what is beside it."""
    found = []
    waiting, looked = deque([(given, 0)]), 0
    while waiting and looked < _MOST_DIRECTORIES:
        path, depth = waiting.popleft()
        looked += 1
        try:
            is_group = files.is_there(path / "zarr.json")
        except StorageError:  # not ours to look into: there is nothing to show in it
            continue
        if is_group:
            if format.is_store(path):
                found.append(path)
        elif depth < _DEPTH:
            waiting.extend((inner, depth + 1) for inner in sorted(directories(path)))
    return found, len(waiting)


def _last_write(path: Path) -> float:
    with contextlib.suppress(DiskReplayError):  # it is gone, or not ours to look into
        return last_write(path) or 0.0
    return 0.0


def key_of(path: Path) -> str:
    """What stands for a path in an address."""
    return hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()
