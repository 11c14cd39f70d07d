"""The catalog of a URL as one run reads and writes it."""

import contextlib
import errno
import random
import threading
import time
from collections.abc import Iterator

from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    RemoteError,
    RemoteUnavailableError,
    TakenOverError,
    UnsupportedStoreError,
)
from diskreplay.remote import catalog, document
from diskreplay.remote.bucket import Bucket, Missing, Overtaken
from diskreplay.remote.catalog import Catalog, RemoteCheckpoint
from diskreplay.remote.document import Document
from diskreplay.store.checkpoint import checked_suffix

_KEPT = 16  # documents in memory
_TRIES = 20


class Registry:
    """What is published below a URL.

    Parameters
    ----------
    bucket : Bucket
    run : str
        Who this is.
    takeover : bool
        Publish although another run did last. Once: if that one takes over in turn, it stays so.
    unsafe : bool
        Trust in there being one writer where the store knows no conditions.
    """

    def __init__(self, bucket: Bucket, run: str, *, takeover: bool, unsafe: bool) -> None:
        self.bucket, self.run, self.unsafe = bucket, run, unsafe
        self._takeover, self._is_probed = takeover, False
        self._documents: dict[str, Document] = {}
        self._lock = threading.Lock()

    # -- reading

    def read(self) -> tuple[Catalog, str]:
        """What is published now, and the tag of the object that says so ("" if there is none)."""
        try:
            data, tag = self.bucket.get(catalog.KEY, catalog.MOST_BYTES)
        except Missing:
            return Catalog.empty(), ""
        return catalog.parse(data, self.bucket.where(catalog.KEY)), tag

    def find(self, suffix: int | str | None) -> RemoteCheckpoint:
        """A published checkpoint, by default the one of the highest number.

        Raises
        ------
        CheckpointNotFoundError
        """
        found, _tag = self.read()
        one = found.highest() if suffix is None else found.checkpoints.get(checked_suffix(suffix))
        if one is None:
            has = ", ".join(c.suffix for c in catalog.in_order(found.checkpoints.values()))
            what = "no numbered checkpoint" if suffix is None else f"no checkpoint {suffix!r}"
            raise CheckpointNotFoundError(f"{self.bucket.url}: {what} there (has: {has or 'none'})")
        return one

    def document(self, one: RemoteCheckpoint) -> Document:
        """Where its files are.

        Raises
        ------
        CorruptCheckpointError
        """
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
            while len(self._documents) > _KEPT:
                del self._documents[next(iter(self._documents))]

    # -- writing

    def read_to_write(self) -> tuple[Catalog, str]:
        """As `read`, with this run as the one that publishes: not written yet.

        Raises
        ------
        TakenOverError
            Another run publishes there.
        UnsupportedStoreError
        """
        found, tag = self.read()
        if found.run not in (None, self.run):
            if not self._takeover:
                raise TakenOverError(
                    errno.EBUSY,
                    f"run {found.run} publishes its checkpoints here; nothing was changed. Give "
                    "this run a URL of its own; or, if that one has ended and this one goes on in "
                    "its place, RemoteCheckpoints(url, takeover=True), in the shell --takeover",
                    self.bucket.url,
                )
            found = found.replaced(epoch=found.epoch + 1)
        return found.replaced(run=self.run), tag

    def write(self, wanted: Catalog, tag: str) -> str | None:
        """Publish, if nobody has since `read_to_write`; the new tag, or None if somebody has.

        Raises
        ------
        TakenOverError, UnsupportedStoreError, RemoteError
        """
        written: str | None
        try:
            written = self._replace(wanted.encode(), tag)
        except RemoteUnavailableError:
            written = self._own(wanted)  # done all the same, perhaps
            if written is None:
                raise
        except Overtaken:
            written = self._own(wanted)  # the client may have asked twice
        if written is not None:
            self._takeover = False
        return written

    def _replace(self, data: bytes, tag: str) -> str:
        if self.unsafe:
            return self.bucket.put(catalog.KEY, data)
        if tag:
            self._probe(data, tag)
            return self.bucket.swap(catalog.KEY, data, tag)
        made = self.bucket.create(catalog.KEY, data)
        self._probe(data, made)
        return made

    def _own(self, wanted: Catalog) -> str | None:
        found, tag = self.read()
        return tag if found.nonce == wanted.nonce else None

    def _probe(self, data: bytes, tag: str) -> None:
        """Make sure, once, that the store refuses to create what is there. With a catalog that is
        there already, so that a store which does not refuse loses nothing by it but a swap."""
        if self._is_probed:
            return
        with contextlib.suppress(Missing):
            current, now = self.bucket.get(catalog.KEY, catalog.MOST_BYTES)
            if now != tag:
                raise Overtaken(catalog.KEY)
            try:
                self.bucket.create(catalog.KEY, current)
            except Overtaken:
                self._is_probed = True
                return
        raise UnsupportedStoreError(
            errno.ENOTSUP,
            "this store puts an object although it is there and the request said that it must not "
            "be, so two runs could overwrite each other's checkpoints. Use another store; or, if "
            "never more than one process publishes here, "
            "RemoteCheckpoints(url, unsafe_single_writer=True)",
            self.bucket.url,
        )

    def tries(self) -> Iterator[None]:
        """Turns of reading and writing, until a write is not overtaken.

        Raises
        ------
        RemoteUnavailableError
            That does not end.
        """
        for number in range(_TRIES):
            time.sleep(number * 0.05 * random.random())
            yield
        raise RemoteUnavailableError(
            errno.EAGAIN,
            "the store says each time that somebody else has written; call again later",
            self.bucket.where(catalog.KEY),
        )

    def claim(self) -> None:
        """Become the run that publishes here, if another one is and `takeover` says so."""
        for _ in self.tries():
            found, tag = self.read()
            if not self._takeover or found.run in (None, self.run):
                return
            mine, tag = self.read_to_write()
            if self.write(mine, tag) is not None:
                return

    def put_object(self, key: str, data: bytes | memoryview) -> None:
        """Put an object that is named by its contents; one that is there already is the same."""
        if self.unsafe:
            self.bucket.put(key, data)
            return
        for last in [False] * (_TRIES - 1) + [True]:
            try:
                self.bucket.create(key, data)
                return
            except Overtaken:
                found = self.bucket.size(key)
            if found == len(data):
                return
            if found is not None:
                raise RemoteError(
                    errno.EIO,
                    f"{found:,} bytes found, {len(data):,} expected by its name: damaged, or not "
                    "of diskreplay; remove it",
                    self.bucket.where(key),
                )
            if last:  # else it was deleted in between
                raise RemoteUnavailableError(
                    errno.EIO, "the store says that it is there, and that it is not", key
                )
