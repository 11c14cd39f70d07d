"""pull: a published checkpoint in a directory of this machine, whole or not at all."""

import contextlib
import errno
import glob
import hashlib
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from diskreplay.errors import (
    CorruptCheckpointError,
    DiskReplayError,
    RemoteUnavailableError,
    StorageError,
)
from diskreplay.remote import refusals
from diskreplay.remote.bucket import Bucket, Missing
from diskreplay.remote.document import Document, Part, sha256_of
from diskreplay.remote.source import is_sound
from diskreplay.store import checkpoint_names, codec, files, machine, manifest, tempfiles
from diskreplay.store.manifest import Manifest
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import is_in_memory
from diskreplay.store.system_errors import explained

_TRIES = 4


class Fetcher:
    """Pulls checkpoints of one URL, `concurrency` objects at once."""

    def __init__(self, bucket: Bucket, *, concurrency: int) -> None:
        self._bucket, self._concurrency = bucket, concurrency

    def pull(self, wanted: Document, directory: Path) -> Path:
        """Make the checkpoint's directory in `directory`; its path. After an error there is no new
        directory. A `CorruptCheckpointError` also if a file is said to be longer than all of the
        file system.

        What a checkpoint there has already is linked, and what a pull that was cut has fetched is
        used; both only if their bytes are right. So each byte of a checkpoint that is there already
        is read once, at the speed of the disk, and nothing is fetched if all of them are.
        """
        target = checkpoint_names.path_of(directory, wanted.name, wanted.suffix)
        if _is_there(target, wanted):
            for room in _cut(target):  # killed when the checkpoint was in its place
                room.remove()
            return target
        check_outside(target)
        contents = wanted.contents()
        self._check_sizes(wanted, contents, directory)
        files.make_lasting_dirs(directory)
        with tempfiles.Workspace(target, "tmp") as room:
            build = room.path / target.name
            for parent in sorted({(build / key).parent for key in contents.files}):
                files.make_dirs(parent)
            missing = dict(wanted.parts)
            for key in [*_from_here(target, build, contents, missing)]:
                del missing[key]
            self._fetch_all(wanted, contents, missing, build)
            for key in contents.files:
                files.seal(build / key)
            listing = build / manifest.NAME
            files.make_dirs(listing.parent)
            files.write(listing, [wanted.listing.encode()])
            made = [*(build / key for key in contents.files), listing]
            files.sync(made)
            # Not as they are found: that raises a bare error where the directory has vanished.
            files.sync_dirs({up for one in made for up in one.parents if up.is_relative_to(build)})
            room.put_in_place(build)
        return target

    def _check_sizes(self, wanted: Document, contents: Manifest, directory: Path) -> None:
        """Refuse files that cannot be. Zeros at a file's end take no room in the store, so somebody
        else's manifest may name any length, and who reads such a file later never gets to its end.
        Not what is free counts: these zeros are a hole in the file here, too, but in memory."""
        there = files.nearest(directory)
        with explained(there, "cannot look at the file system"):
            most = shutil.disk_usage(there).total
        found = [
            f"file {key!r:.80} of {seal.size:,} bytes"
            for key, seal in contents.files.items() if seal.size > most
        ]  # fmt: skip
        zeros = sum(seal.size - wanted.parts[key].length for key, seal in contents.files.items())
        if zeros > most:
            found.append(f"its files end with {zeros:,} bytes of zeros together")
        if found and most:  # some file systems say 0
            raise CorruptCheckpointError(
                f"{self._bucket.url}: checkpoint {wanted.suffix}: {found[0]}, and the whole file "
                f"system at {there} has {most:,}; nothing was fetched: pull another checkpoint, or "
                "to a larger disk"
            )

    def _fetch_all(
        self, wanted: Document, contents: Manifest, missing: dict[str, Part], build: Path
    ) -> None:
        by_object: dict[str, dict[str, Part]] = defaultdict(dict)
        for key, part in missing.items():
            by_object[part.object][key] = part

        def fetch(key: str) -> None:
            self._fetch(key, wanted.objects[key], by_object[key], contents, build)

        with ThreadPoolExecutor(self._concurrency, "diskreplay pull") as pool:
            list(pool.map(fetch, by_object))  # the first error ends it: what waits is cancelled

    def _fetch(
        self, key: str, length: int, parts: dict[str, Part], contents: Manifest, build: Path
    ) -> None:
        """Write the files that are in one object, all of whose bytes are checked first."""
        data = self.checked(key, length)
        for name, part in parts.items():
            piece, size = data[part.offset : part.offset + part.length], contents.files[name].size
            crc = codec.crc32c(np.frombuffer(piece, np.uint8), zeros=size - part.length)
            if crc != part.crc32c:
                raise CorruptCheckpointError(
                    f"{self._bucket.where(key)}: the bytes of {name} do not match their checksum; "
                    "pull another checkpoint"
                )
            files.write(build / name, [piece], length=size)
            if size > part.length and is_in_memory(build):
                _allocate(build / name, size)

    def checked(self, key: str, length: int) -> memoryview:
        """The bytes of an object, if they are those that it is named by. A `CorruptCheckpointError`
        if not, and a `StorageError` if it does not fit into memory."""
        where = self._bucket.where(key)
        if length > machine.memory():
            self._refuse_length(key, length)
        for last in [False] * (_TRIES - 1) + [True]:
            data, summed = bytearray(), hashlib.sha256()
            try:
                for piece in self._bucket.pieces(key):
                    data += piece
                    summed.update(piece)
                    if len(data) > length:
                        break
                if len(data) < length and self._bucket.size(key) == length:
                    raise RemoteUnavailableError(
                        errno.EIO, f"{len(data):,} of {length:,} bytes came", where
                    )
            except Missing:
                raise CorruptCheckpointError(f"{where}: missing; pull another checkpoint") from None
            except RemoteUnavailableError as error:
                if last or refusals.was_repeated(error):
                    raise
                continue
            break
        if len(data) != length or summed.hexdigest() != sha256_of(key):
            raise CorruptCheckpointError(
                f"{where}: its bytes are not those that it is named by (SHA-256); pull another "
                "checkpoint"
            )
        return memoryview(data)

    def _refuse_length(self, key: str, length: int) -> None:
        """Say of an object that should be longer than memory whether it is."""
        where, found = self._bucket.where(key), self._bucket.size(key)
        if found != length:
            what = "missing" if found is None else f"{found:,} bytes found, {length:,} expected"
            raise CorruptCheckpointError(f"{where}: {what}; pull another checkpoint")
        raise StorageError(
            errno.ENOMEM,
            f"{length:,} bytes, which have to be in memory at once, and this process may have "
            f"{machine.memory():,}; do it where there is more",
            where,
        )


def _allocate(path: Path, size: int) -> None:
    """Have the hole at a file's end allocated. On a file system in memory it needs room once it is
    read, and where there is none, who reads it through a mapping gets a SIGBUS."""
    fd = files.open_to_write(path)
    try:
        with explained(path, "cannot allocate the file"):
            files.promise(fd, size)
    finally:
        files.close(fd)


def _is_there(target: Path, wanted: Document) -> bool:
    """Whether that checkpoint is there already, and all of its bytes are right."""
    try:
        there, listing = manifest.read_whole_and_bytes(target)
        if listing != wanted.listing.encode():
            return False
        return all(
            is_sound(target / key, seal, wanted.parts[key].crc32c)
            for key, seal in there.files.items()
        )
    except (DiskReplayError, OSError, ValueError):
        return False


def _cut(target: Path) -> Iterator[tempfiles.Workspace]:
    """What pulls and saves of this checkpoint left that were killed."""
    return tempfiles.left_behind(target.parent, re.escape(target.name), "tmp")


def _from_here(
    target: Path, build: Path, contents: Manifest, wanted: dict[str, Part]
) -> Iterator[str]:
    """Take what there is on this machine already: of checkpoints beside `target`, and of pulls of
    it that were cut, which are removed. Yields the files that were taken."""
    needed = set(wanted)

    def take(places: dict[str, Path]) -> Iterator[str]:
        for key in sorted(needed & places.keys()):
            seal = contents.files[key]
            if is_sound(places[key], seal, wanted[key].crc32c):
                if not files.link(places[key], build / key):
                    files.copy(places[key], build / key)
                needed.discard(key)
                yield key

    name = target.name.partition("_ckpt.")[0]
    for path in sorted(target.parent.glob(f"{glob.escape(name)}_ckpt.*")):
        with contextlib.suppress(DiskReplayError, OSError):  # not whole: then it has nothing
            listed = manifest.read(path).files
            same = {key for key in needed if listed.get(key) == contents.files[key]}
            yield from take({key: path / key for key in same})
    for room in _cut(target):
        base = room.path / target.name
        yield from take({key: base / key for key in needed})
        room.remove()
