"""One object that says what is published, and which run may: replaced by compare-and-swap only."""

import contextlib
import errno
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from diskreplay.errors import (
    RemoteError,
    RemoteUnavailableError,
    TakenOverError,
    UnsupportedStoreError,
)
from diskreplay.remote import refusals
from diskreplay.remote.bucket import Bucket, Missing, Overtaken

_TRIES = 20
_MOST_BYTES = 64 << 20


class Fenced(Protocol):
    """What such an object has in it."""

    @property
    def run(self) -> str | None:
        """Who may publish; None where nobody has yet."""

    @property
    def epoch(self) -> int:
        """Raised by each run that takes over."""

    @property
    def nonce(self) -> str:
        """Another one each time that it is written: who reads his own knows that his swap was done,
        whatever the answer to it was."""

    def replaced(self, **changes: Any) -> Self:
        """One with these changes and another nonce, to be written."""

    def encode(self) -> bytes:
        """As the bytes of the object."""


Found = TypeVar("Found", bound=Fenced)


class Takeover:
    """The leave of one program to publish although another run did last.

    It is good once: a run that was replaced, and wakes up again, must not take over from the run in
    its place. What the program has written is known by its run and epoch together. Each run that
    takes over raises the epoch, so another program's writing never has the same two, also if it is
    the same run's.
    """

    def __init__(self, given: bool) -> None:
        self._given = given
        self._most: float = math.inf if given else -math.inf  # the last epoch to take over from
        self._written: tuple[str | None, int] | None = None

    def is_left(self, found: Fenced) -> bool:
        """Whether the program may take over from who has written this."""
        return found.epoch <= self._most

    def allows(self, found: Fenced) -> bool:
        """Whether a run of the program may publish after this. It may be one run that pulls to one
        directory, and another one that pushes from a second."""
        return self.is_left(found) or (self._given and (found.run, found.epoch) == self._written)

    def try_(self, wanted: Fenced) -> None:
        """The program is about to write this. If it does not learn whether it did, it may try again
        after others of the same epoch, and not after one that has taken over from it."""
        if wanted.epoch - 1 <= self._most:
            self._most = wanted.epoch

    def use(self, found: Fenced) -> None:
        """The program publishes now: it has written this, or its run had."""
        self._most, self._written = -math.inf, (found.run, found.epoch)


class FencedObject(Generic[Found]):
    """Such an object as one run reads and writes it.

    `parse` makes of its bytes, and where they are, what is in it, and `empty` says what is in it
    before it is there. `takeover` is that of the program, for all objects that it goes by.
    `unsafe`: trust in there being one writer where the store knows no conditions.
    """

    def __init__(
        self, bucket: Bucket, key: str, parse: Callable[[bytes, str], Found],
        empty: Callable[[], Found], *, run: str, takeover: Takeover, unsafe: bool,
    ) -> None:  # fmt: skip
        self.bucket, self.run, self.unsafe = bucket, run, unsafe
        self._key, self._parse, self._empty = key, parse, empty
        self._takeover, self._is_probed = takeover, False

    def read(self) -> tuple[Found, str]:
        """What is published now, and the tag of the object that says so ("" if there is none)."""
        try:
            data, tag = self.bucket.get(self._key, _MOST_BYTES)
        except Missing:
            return self._empty(), ""
        except RemoteError as error:
            if error.strerror is None or not error.strerror.endswith(f"({refusals.DENIED[1]})"):
                raise
            raise RemoteError(
                error.errno,
                f"{error.strerror}. Or nothing is published there yet: without the right to list "
                "the bucket (s3:ListBucket) S3 does not tell, and the first push needs it",
                error.filename,
            ) from None
        return self._parse(data, self.bucket.where(self._key)), tag

    def read_to_write(self) -> tuple[Found, str]:
        """As `read`, with this run as the one that publishes: not written yet. A `TakenOverError`
        if another run publishes there."""
        found, tag = self.read()
        if found.run == self.run:
            self._takeover.use(found)  # who publishes after this has taken over from it
        elif found.run is not None:
            if not self._takeover.allows(found):
                raise TakenOverError(
                    errno.EBUSY,
                    f"run {found.run} publishes its checkpoints here; nothing was changed. Give "
                    "this run a URL of its own; or, if that one has ended and this one goes on in "
                    "its place, RemoteCheckpoints(url, takeover=True), in the shell --takeover",
                    self.bucket.url,
                )
            found = found.replaced(epoch=found.epoch + 1)
        return found.replaced(run=self.run), tag

    def write(self, wanted: Found, tag: str) -> str | None:
        """Publish, if nobody has since `read_to_write`; the new tag, or None if somebody has.
        Errors as of `read_to_write`, an `UnsupportedStoreError` or a `RemoteError`."""
        written: str | None
        self._takeover.try_(wanted)
        try:
            written = self._replace(wanted, tag)
        except RemoteUnavailableError:
            written = self._own(wanted)  # done all the same, perhaps
            if written is None:
                raise
        except Overtaken:
            written = self._own(wanted)  # the client may have asked twice
        if written is not None:
            self._takeover.use(wanted)
        return written

    def _replace(self, wanted: Found, tag: str) -> str:
        data = wanted.encode()
        if self.unsafe:
            return self.bucket.put(self._key, data)
        if tag:
            self._probe(data, tag)
            return self.bucket.swap(self._key, data, tag)
        made = self.bucket.create(self._key, data)
        self._takeover.use(wanted)  # at once: another one may take over before the probe
        self._probe(data, made)
        return made

    def _own(self, wanted: Found) -> str | None:
        found, tag = self.read()
        return tag if found.nonce == wanted.nonce else None

    def _probe(self, data: bytes, tag: str) -> None:
        """Make sure, once, that the store refuses to create what is there. With a catalog that is
        there already, so that a store which does not refuse loses nothing by it but a swap."""
        if self._is_probed:
            return
        with contextlib.suppress(Missing):
            current, now = self.bucket.get(self._key, _MOST_BYTES)
            if now != tag:
                raise Overtaken(self._key)
            try:
                self.bucket.create(self._key, current)
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
        """Turns of reading and writing, until a write is not overtaken. A `RemoteUnavailableError`
        if that does not end."""
        for number in range(_TRIES):
            time.sleep(number * 0.05 * random.random())
            yield
        raise RemoteUnavailableError(
            errno.EAGAIN,
            "the store says each time that somebody else has written; call again later",
            self.bucket.where(self._key),
        )

    def claim(self) -> None:
        """Become the run that publishes here, if another program's is and `takeover` allows it."""
        found = self.read()[0]
        if found.run is not None and (found.run == self.run or self._takeover.is_left(found)):
            self.hold()

    def hold(self, check: Callable[[], object] = lambda: None) -> None:
        """Become the run that publishes here, also where nobody has yet; errors as of `write`.
        Where it does not publish here already, `check` is called between the reading of the object
        and its replacement, and raises where this run has been replaced meanwhile."""
        for _ in self.tries():
            found = self.read()[0]
            if found.run == self.run:
                self._takeover.use(found)
                return
            mine, tag = self.read_to_write()
            check()
            if self.write(mine, tag) is not None:
                return

    def put_object(self, key: str, data: bytes | memoryview) -> None:
        """Put an object under a name that nobody else has, or that says its contents. A
        `RemoteError` if what has that name is of another length: damaged, or not of diskreplay."""
        if not self.has_put(key, data):
            raise RemoteError(
                errno.EIO,
                f"it is there, and has not the {len(data):,} bytes that its name stands for: "
                "damaged, or not of diskreplay; remove it",
                self.bucket.where(key),
            )

    def has_put(self, key: str, data: bytes | memoryview) -> bool:
        """Put an object that is named by its contents; one that is there already is the same.
        Whether it is there now: not, if what has that name is of another length."""
        if self.unsafe:
            self.bucket.put(key, data)
            return True
        was_denied = False
        for last in [False] * (_TRIES - 1) + [True]:
            try:
                self.bucket.create(key, data)
                return True
            except Overtaken:
                pass
            try:
                found = self.bucket.size(key)
            except RemoteError as error:
                if was_denied or not refusals.is_denied(error):
                    raise
                found, was_denied = None, True  # deleted in between, perhaps; not each time
            if found is not None:
                return found == len(data)
            if last:  # else it was deleted in between
                raise RemoteUnavailableError(
                    errno.EIO, "the store says that it is there, and that it is not", key
                )
        raise AssertionError("the last try returns or raises")
