"""The catalog of a URL as one run reads and writes it."""

import sys

from diskreplay.errors import CheckpointNotFoundError, CorruptCheckpointError
from diskreplay.locks import Lock
from diskreplay.remote import catalog, document
from diskreplay.remote.bucket import Bucket, Missing
from diskreplay.remote.catalog import Catalog, RemoteCheckpoint
from diskreplay.remote.document import Document
from diskreplay.remote.fenced_object import FencedObject, Takeover
from diskreplay.store.checkpoint_names import checked_suffix

KEPT = 16  # documents in memory
_MOST_NAMES = 1 << 18  # of objects, those of a document each


class Registry(FencedObject[Catalog]):
    """What is published below a URL."""

    def __init__(self, bucket: Bucket, run: str, *, takeover: Takeover, unsafe: bool) -> None:
        super().__init__(
            bucket, catalog.KEY, catalog.parse, Catalog.empty, run=run, takeover=takeover,
            unsafe=unsafe,
        )  # fmt: skip
        self._documents: dict[str, Document] = {}
        self._objects: dict[str, frozenset[str]] = {}  # by document
        self._names = 0  # in all of these
        self._lock = Lock()

    def find(self, suffix: int | str | None) -> RemoteCheckpoint:
        """A published checkpoint, by default the one of the highest number; a
        `CheckpointNotFoundError` if there is none."""
        found, _tag = self.read()
        one = found.highest() if suffix is None else found.checkpoints.get(checked_suffix(suffix))
        if one is None:
            has = ", ".join(c.suffix for c in catalog.in_order(found.checkpoints.values()))
            what = "no numbered checkpoint" if suffix is None else f"no checkpoint {suffix!r}"
            raise CheckpointNotFoundError(f"{self.bucket.url}: {what} there (has: {has or 'none'})")
        return one

    def document(self, one: RemoteCheckpoint) -> Document:
        """Where its files are; a `CorruptCheckpointError` if that is missing or damaged."""
        with self._lock:
            known = self._documents.get(one.document)
        if known is not None:
            return known
        where = self.bucket.where(one.document)
        try:
            data, _tag = self.bucket.get(one.document, document.MOST_BYTES)
        except Missing:
            raise CorruptCheckpointError(f"{where}: missing; pull another checkpoint") from None
        found = document.parse(data, where)
        if (found.name, found.suffix) != (one.name, one.suffix):
            raise CorruptCheckpointError(
                f"{where}: of {found.name} {found.suffix} where {one.name} {one.suffix} is expected"
            )
        self.remember(one.document, found)
        return found

    def remember(self, key: str, found: Document) -> None:
        """Keep a document in memory."""
        with self._lock:
            self._documents[key] = found
            while len(self._documents) > KEPT:
                del self._documents[next(iter(self._documents))]

    def objects(self, one: RemoteCheckpoint) -> frozenset[str]:
        """The objects that it needs; errors as of `document`. They are remembered for more
        checkpoints than documents are: else who collects beside thousands of them would read all of
        their documents each time."""
        with self._lock:
            known = self._objects.get(one.document)
        if known is None:
            known = frozenset(map(sys.intern, self.document(one).objects))
            with self._lock:
                if self._names > _MOST_NAMES:
                    self._objects.clear()
                    self._names = 0
                self._objects[one.document] = known
                self._names += len(known)
        return known
