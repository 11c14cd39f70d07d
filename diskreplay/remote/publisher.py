"""push: what the store does not have of a checkpoint is put there, and then it is published."""

import contextlib
import datetime
import hashlib
import itertools
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskreplay.brief import brief
from diskreplay.errors import CorruptCheckpointError, InvalidInputError, RemoteError
from diskreplay.locks import Lock
from diskreplay.remote import document, refusals
from diskreplay.remote.catalog import Catalog, RemoteCheckpoint
from diskreplay.remote.document import Document, Part
from diskreplay.remote.registry import KEPT, Registry
from diskreplay.remote.source import Source
from diskreplay.store import codec
from diskreplay.store.manifest import Manifest
from diskreplay.store.segment import Seal

_ALONE = 8 << 20  # a file of so many bytes is an object of its own
_LEAST_ALIVE = 0.25  # of a pack, or what is needed of it is put into another
_MOST_SMALL = 16  # packs that are less than a quarter full, or they are put together
_IN_MEMORY = 256 << 20

# A file as checkpoints have it: its path, length and checksum. What is the same is not put twice.
Known = tuple[str, int, int]


class Pushed(NamedTuple):
    """What a push has done.

    Attributes
    ----------
    suffix : str
    requests : int
        All that were made.
    bytes : int
        Of the objects that were put, documents included.
    objects : int
        How many of them.
    seconds : float
    """

    suffix: str
    requests: int
    bytes: int
    objects: int
    seconds: float


class _Budget:
    """Bytes that may be in memory at once; what is larger than all of them waits to be alone."""

    def __init__(self, size: int) -> None:
        self._left = self._size = size
        self._lock = Lock()
        self._changed = threading.Condition(self._lock)

    @contextlib.contextmanager
    def of(self, size: int) -> Iterator[None]:
        size = min(size, self._size)
        with self._lock:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._lock:
                self._left += size
                self._changed.notify_all()


class Publisher:
    """Pushes checkpoints to one URL, one at a time, with `concurrency` requests at once. A pack
    gets about `pack_bytes` long."""

    def __init__(self, registry: Registry, *, concurrency: int, pack_bytes: int) -> None:
        self.registry, self._concurrency = registry, concurrency
        self._pack_bytes = pack_bytes
        self._put: dict[Known, Part] = {}  # by a push that was cut, or overtaken, before its end
        self._lengths: dict[str, int] = {}
        self._budget = _Budget(_IN_MEMORY)

    def push(self, path: Path, name: str, suffix: str, extra: dict[str, Any]) -> Pushed:
        """Publish the checkpoint at `path`."""
        start, bucket = time.monotonic(), self.registry.bucket
        requests = bucket.requests
        source = Source(path)
        contents = source.contents
        sent: Counter[str] = Counter()
        for _ in self.registry.tries():
            found, tag = self.registry.read_to_write()
            _check_name(found, name, bucket.url)
            parts = self._known(found, contents)
            parts |= self._put_missing(source, parts, found, sent)
            used = dict.fromkeys(part.object for part in parts.values())
            made = Document(
                name, suffix, self.registry.run, found.epoch, source.listing,
                {key: self._lengths[key] for key in used},
                {key: parts[key] for key in contents.files}, extra,
            )  # fmt: skip
            data = made.encode()
            key = f"checkpoints/{suffix}.{secrets.token_hex(8)}.json"
            self.registry.put_object(key, data)
            sent[key] = len(data)
            one = RemoteCheckpoint(
                name, suffix, self.registry.run, found.epoch, contents.saved_at,
                datetime.datetime.now(datetime.UTC), source.rows,
                sum(seal.size for seal in contents.files.values()), key,
            )  # fmt: skip
            wanted = found.replaced(checkpoints=found.checkpoints | {suffix: one})
            if self.registry.write(wanted, tag) is not None:
                break
        self.registry.remember(key, made)
        self._put.clear()
        made_requests = bucket.requests - requests
        return Pushed(suffix, made_requests, sent.total(), len(sent), time.monotonic() - start)

    # -- what is there

    def _known(self, found: Catalog, contents: Manifest) -> dict[str, Part]:
        """Where files of a checkpoint are already, but for packs that had better be left."""
        # A stopped collection may delete what is under a lower number, and no checkpoint refers to.
        known = {at: part for at, part in self._put.items() if found.may_use(part.object)}
        # Older ones have little that these have not, and may be thousands. Machines whose clocks
        # differ have other epochs.
        by_age = sorted(found.checkpoints.values(), key=lambda one: (one.epoch, one.published_at))
        for one in by_age[-KEPT:]:
            there = self._there(one)
            if there is not None:
                self._lengths |= there.objects
                files = there.contents().files
                known |= {_known_as(key, files[key]): part for key, part in there.parts.items()}
        parts = {
            key: known[at] for key, seal in contents.files.items()
            if (at := _known_as(key, seal)) in known and known[at].object not in found.doomed
        }  # fmt: skip
        left = self._to_leave(parts)
        left |= self._missing({part.object for part in parts.values()} - left)
        return {key: part for key, part in parts.items() if part.object not in left}

    def _there(self, one: RemoteCheckpoint) -> Document | None:
        """Where files of a published checkpoint are; None if it does not say, or that is denied,
        see `_size`: then nothing is taken from it."""
        try:
            return self.registry.document(one)
        except CorruptCheckpointError:
            return None
        except RemoteError as error:
            if not refusals.is_denied(error):
                raise
            return None

    def _missing(self, objects: set[str]) -> set[str]:
        """Those that are gone, or not whole: a rule of the bucket may delete old objects, and a
        collection deletes what a push that was cut has put. One request for each."""
        keys = sorted(objects)
        with ThreadPoolExecutor(self._concurrency, "diskreplay push") as pool:
            sizes = pool.map(self._size, keys)
            return {
                key for key, size in zip(keys, sizes, strict=True) if size != self._lengths[key]
            }

    def _size(self, key: str) -> int | None:
        """The length of an object; None where it is not known to be there, which may be since it
        is denied: to put it tells whether more is than to look at what is not there."""
        try:
            return self.registry.bucket.size(key)
        except RemoteError as error:
            if not refusals.is_denied(error):
                raise
            return None

    def _to_leave(self, parts: dict[str, Part]) -> set[str]:
        """Packs of which little is needed, and small ones where they are many: else a run of
        thousands of checkpoints would need thousands of packs, each for a few files."""
        alive: Counter[str] = Counter()
        for part in parts.values():
            alive[part.object] += part.length
        packs = {key: self._lengths[key] for key in alive if key.startswith("packs/")}
        left = {key for key, length in packs.items() if alive[key] < _LEAST_ALIVE * length}
        small = {key for key, length in packs.items() if length < self._pack_bytes / 4}
        return left | (small if len(small) > _MOST_SMALL else set())

    # -- what is not

    def _put_missing(
        self, source: Source, parts: dict[str, Part], found: Catalog, sent: Counter[str]
    ) -> dict[str, Part]:
        """Put what no object has yet; returns where it is."""
        files = source.contents.files
        missing = {key: seal for key, seal in files.items() if key not in parts}
        made: dict[str, Part] = {}
        # The first error ends it, and cancels what waits. The next push knows what was put before.
        with ThreadPoolExecutor(self._concurrency, "diskreplay push") as pool:
            lengths = dict(zip(missing, pool.map(source.length, missing), strict=True))
            put = partial(self._put_group, source, found)
            for key, length, its in pool.map(put, _packs(lengths, self._pack_bytes)):
                made |= its
                sent[key] = length
                self._lengths[key] = length
                self._put |= {_known_as(name, missing[name]): its[name] for name in its}
        return made

    def _put_group(
        self, source: Source, found: Catalog, group: dict[str, int]
    ) -> tuple[str, int, dict[str, Part]]:
        """Put some files, of these lengths, as one object."""
        size = sum(group.values())
        parts, offset, data = {}, 0, bytearray()
        with self._budget.of(size + max(source.contents.files[key].size for key in group)):
            for name, length in group.items():
                whole = source.read(name)
                data += whole[:length].data
                parts[name] = Part("", offset, length, codec.crc32c(whole))
                offset += length
            kind = "objects" if len(group) == 1 and size >= _ALONE else "packs"
            key = f"{kind}/{hashlib.sha256(data).hexdigest()}"
            for number in itertools.count(found.least):
                free = document.object_name(key, number)
                if found.may_use(free) and self.registry.has_put(free, bytes(data)):
                    break
        return free, size, {name: part._replace(object=free) for name, part in parts.items()}


def _known_as(key: str, seal: Seal) -> Known:
    return key, seal.size, seal.crc32c


def _check_name(found: Catalog, name: str, url: str) -> None:
    others = {one.name for one in found.checkpoints.values()} - {name}
    if others:
        raise InvalidInputError(
            f"{url}: there are checkpoints of {', '.join(map(repr, sorted(others)))} and these are "
            f"of {name!r}; give each buffer a URL of its own"
        )


def _packs(lengths: dict[str, int], most: int) -> Iterator[dict[str, int]]:
    """Files, by their lengths, that go into one object: large ones alone, small ones behind each
    other."""
    pack: dict[str, int] = {}
    size = 0
    for key, length in lengths.items():
        if length >= _ALONE:
            yield {key: length}
            continue
        if pack and size + length > most:
            yield pack
            pack, size = {}, 0
        pack[key] = length
        size += length
    if pack:
        yield pack


def check_extra(extra: Any) -> dict[str, Any]:
    """A copy of what is kept with a checkpoint, as JSON has it, or an `InvalidInputError`."""
    try:
        kept = json.loads(json.dumps({} if extra is None else extra, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"extra: only what JSON has ({error})") from error
    if not isinstance(kept, dict):
        raise InvalidInputError(f"extra: a dict expected, found {brief(extra)}")
    return kept
