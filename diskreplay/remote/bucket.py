"""The requests to an object store, by obstore: conditional puts, gets, listings.

Every error of the client becomes one of ours, without what may be a secret: a URL of a request can
have a signature in its query. None is raised `from` the client's, whose text a traceback shows.
"""

import contextlib
import datetime
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

from diskreplay import fork
from diskreplay.brief import brief
from diskreplay.errors import (
    ForkedError,
    InvalidInputError,
    RemoteError,
    RemoteUnavailableError,
    StorageError,
    UnsupportedStoreError,
)
from diskreplay.extensions import needed
from diskreplay.locks import Lock
from diskreplay.remote import client_options, directory_url, refusals
from diskreplay.store import files

SCHEMES = ("s3", "gs", "az", "azure", "abfs", "abfss", "file", "memory")
_WITH_ACCOUNT = ("abfs", "abfss", "https")  # a URL that may name the storage account: by its host
_ACCOUNTS = (".blob.core.windows.net", ".dfs.core.windows.net")
_TRIES = 4  # of a body that is cut; the client itself repeats requests that get no answer
_RETRY = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=60)}
_DELETED_AT_ONCE = 500
_Answer = TypeVar("_Answer")
_in_memory: dict[str, Any] = {}  # by URL: two objects of one process see the same
_asked_by: int | None = None  # the process that made the first request


class Overtaken(Exception):
    """Somebody else has written the object since it was read."""


class Missing(Exception):
    """There is no such object."""


class Listed(NamedTuple):
    """An object that is there."""

    key: str
    size: int
    modified: datetime.datetime


def check_process(where: str) -> None:
    """Refuse a request in a child of a process that has made one, by a `ForkedError` that says
    `where`. The client has threads that do its work, and a fork leaves them behind: each request of
    the child, by a new object too, would wait for ever."""
    global _asked_by
    if _asked_by is None:
        _asked_by = fork.pid
    if _asked_by != fork.pid:
        raise ForkedError(
            f"{where}: process {_asked_by} has asked object stores already, with threads that are "
            f"not in its child {fork.pid}; start processes by spawn or forkserver "
            "(multiprocessing.get_context('spawn')), or ask in the child only"
        )


class _Explained:
    """Has the errors of a block explained.

    Not by `contextlib.contextmanager`: in Python 3.13 an error that such a one replaces refers to
    itself, and holds what the frames on its way hold, a buffer say, until garbage is collected.
    """

    def __init__(self, explain: Callable[[BaseException], None]) -> None:
        self._explain = explain

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            self._explain(error)


class Bucket:
    """The objects below a URL, or of a store that obstore made.

    `options` are the client's (``endpoint``, ``region``, ``client_options``, ...), see
    `obstore.store.from_url`. Credentials are better left to the environment or a profile. `url` is
    as messages name it, and `requests` is how many were made.

    An `InvalidInputError` if there is no such kind of URL, or it has credentials in it, or is of a
    file. A `StorageError` if it is of a directory that may not be looked at.
    """

    def __init__(self, url: Any, options: Mapping[str, Any] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise InvalidInputError(f"storage_options: a dict expected, found {brief(options)}")
        with needed("object stores are reached with obstore", "cloud"):
            import obstore
        self._obstore, self.requests = obstore, 0
        self._lock = Lock()
        self._local: Path | None = None
        self._secrets = client_options.secrets_of(options or {})
        if isinstance(url, str):
            self.url = url.rstrip("/")
            self._store = self._made(url, dict(options or {}))
        else:
            if options:
                raise InvalidInputError("storage_options: only with a URL; a store has its own")
            self.url, self._store = type(url).__name__, url
            if not hasattr(obstore.store, self.url):
                raise InvalidInputError(
                    f"url: a text ({', '.join(f'{s}://' for s in SCHEMES)}) or a store of obstore "
                    f"expected, found {self.url}"
                )
            if isinstance(url, obstore.store.LocalStore):
                self._local = Path(str(url.prefix))

    def _made(self, url: str, options: dict[str, Any]) -> Any:
        parts = _split(url)
        has_account = parts.scheme in _WITH_ACCOUNT and (parts.hostname or "").endswith(_ACCOUNTS)
        if parts.scheme not in SCHEMES and not has_account:
            raise InvalidInputError(
                f"url: {parts.scheme or 'no scheme'} found, one of {', '.join(SCHEMES)} expected, "
                f"or https://ACCOUNT{_ACCOUNTS[0]}/CONTAINER/...: s3://bucket/runs/pong"
            )
        is_container = has_account and parts.scheme != "https"  # what is before the @
        credentials = parts.password or (parts.username and not is_container)
        if credentials or parts.query or parts.fragment:
            raise InvalidInputError(
                "url: credentials and queries do not belong into it; give them by the environment, "
                "a profile or storage_options"
            )
        store = self._obstore.store
        if parts.scheme == "memory":
            return _in_memory.setdefault(self.url, store.MemoryStore())
        if parts.scheme == "file":
            self._local = directory_url.directory_of(parts)
            return None  # until it is there: to read makes no directory
        if not parts.netloc:
            raise InvalidInputError(f"url: {parts.scheme}:// and no bucket; s3://bucket/runs/pong")
        client_options.check(parts.scheme, options)
        try:
            return store.from_url(url, **{"retry_config": _RETRY} | options)
        except BaseException as error:
            known = self._obstore.exceptions.BaseError, TypeError, ValueError
            if not isinstance(error, known) and not refusals.is_panic(error):
                raise
            text = self._says(error)
            raise InvalidInputError(
                f"{self.url}: no store can be made with these options: {text} "
                f"({refusals.of_options(text)})"
            ) from None

    # -- errors

    def where(self, key: str) -> str:
        """An object as messages name it."""
        return f"{self.url}/{key}" if key else self.url

    def _says(self, error: BaseException) -> str:
        return refusals.line(error, self._secrets)

    def _explained(
        self, key: str, doing: str, *, conditional: bool = False, makes: bool = False
    ) -> _Explained:
        """`conditional`: the request may find that somebody was faster. `makes`: it needs no object
        to be there, so that only a bucket can be missing."""
        return _Explained(lambda error: self._explain(error, key, doing, conditional, makes))

    def _explain(
        self, error: BaseException, key: str, doing: str, conditional: bool, makes: bool
    ) -> None:
        """Raise one of ours for it, if it is none."""
        known = self._obstore.exceptions
        if isinstance(error, (Overtaken, Missing, StorageError)):
            return
        if isinstance(error, FileNotFoundError):
            if makes or refusals.of_bucket(error):
                raise self._refused(key, doing, error, refusals.NO_BUCKET) from None
            raise Missing(key) from None
        if isinstance(error, (known.PreconditionError, known.AlreadyExistsError)):
            if conditional:
                raise Overtaken(key) from None
            raise self._unavailable(key, doing, error) from None
        if isinstance(error, (known.NotSupportedError, NotImplementedError)):
            raise UnsupportedStoreError(
                errno.ENOTSUP, f"{doing}: {self._says(error)}", self.where(key)
            ) from None
        if isinstance(error, known.InvalidPathError):
            raise InvalidInputError(f"{self.where(key)}: {doing}: {self._says(error)}") from None
        failed = isinstance(error, (known.BaseError, OSError, RuntimeError, ValueError))
        if failed or refusals.is_panic(error):
            denied = isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError))
            why = refusals.reason(error) or (refusals.DENIED if denied else None)
            if why is not None:
                raise self._refused(key, doing, error, why) from None
            raise self._unavailable(key, doing, error) from None

    def _refused(
        self, key: str, doing: str, error: BaseException, why: tuple[int, str]
    ) -> RemoteError:
        code, remedy = why
        return RemoteError(code, f"{doing}: {self._says(error)} ({remedy})", self.where(key))

    def _unavailable(self, key: str, doing: str, error: BaseException) -> RemoteUnavailableError:
        says = f"{doing}: {self._says(error)} ({refusals.later(error)})"
        return RemoteUnavailableError(errno.EIO, says, self.where(key))

    def _count(self) -> None:
        """To be called before each request."""
        check_process(self.url)  # first: what has forked may have held the lock
        with self._lock:
            self.requests += 1

    def _there(self) -> Any:
        """The client's store, or a ``FileNotFoundError`` if the directory is not there."""
        if self._store is None and self._local is not None:
            if not files.is_dir(self._local):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._local)
            self._store = self._obstore.store.LocalStore(self._local)
        return self._store

    # -- requests

    def create(self, key: str, data: bytes | memoryview) -> str:
        """Put an object that must not be there; its tag. `Overtaken` if it is."""
        return self._put(key, data, "create")

    def put(self, key: str, data: bytes | memoryview) -> str:
        """Put an object over whatever is there; its tag. For stores without conditions only."""
        return self._put(key, data, "overwrite")

    def _put(self, key: str, data: bytes | memoryview, mode: Literal["create", "overwrite"]) -> str:
        self._count()
        if self._store is None and self._local is not None:
            files.make_lasting_dirs(self._local)
        with self._explained(key, "cannot put it", conditional=mode == "create", makes=True):
            return str(self._obstore.put(self._there(), key, data, mode=mode)["e_tag"])

    def swap(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that has still this tag; its new one. `Overtaken` if it has not, or is
        gone."""
        self._count()
        try:
            with self._explained(key, "cannot replace it", conditional=True):
                if self._local is None:
                    put = self._obstore.put(self._there(), key, data, mode={"e_tag": tag})
                    return str(put["e_tag"])
                # A directory has no such request, but a lock.
                with open(self._local / f".{os.path.basename(key)}.lock", "w") as held:
                    fcntl.flock(held, fcntl.LOCK_EX)
                    if self._obstore.head(self._there(), key)["e_tag"] != tag:
                        raise Overtaken(key)
                    put = self._obstore.put(self._there(), key, data, mode="overwrite")
                    return str(put["e_tag"])
        except Missing as error:  # some stores say so, others that the tag is not that
            raise Overtaken(key) from error

    def get(self, key: str, most: int) -> tuple[bytes, str]:
        """The bytes of an object, of at most `most`, and its tag. `Missing` if there is none."""

        def ask() -> tuple[bytes, str]:
            found = self._obstore.get(self._there(), key)
            size = found.meta["size"]
            if size > most:
                raise RemoteError(
                    errno.EFBIG,
                    f"{size:,} bytes found, at most {most:,} expected: not what a push puts there",
                    self.where(key),
                )
            return self._whole(key, found.bytes(), size), str(found.meta["e_tag"])

        return self._repeated(key, "cannot get it", ask)

    def pieces(self, key: str) -> Iterator[memoryview]:
        """The bytes of an object, some mebibytes at a time."""
        self._count()
        with self._explained(key, "cannot get it"):
            for piece in self._obstore.get(self._there(), key).stream(min_chunk_size=1 << 20):
                yield memoryview(piece)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Some bytes of an object."""
        if not length:
            return b""

        def ask() -> bytes:
            found = self._obstore.get_range(self._there(), key, start=start, length=length)
            return self._whole(key, found, length)

        return self._repeated(key, "cannot get a range of it", ask)

    def _repeated(self, key: str, doing: str, ask: Callable[[], _Answer]) -> _Answer:
        """What a request answers, made again where its body is cut."""
        for left in reversed(range(_TRIES)):
            self._count()
            try:
                with self._explained(key, doing):
                    return ask()
            except RemoteUnavailableError as error:
                if not left or refusals.was_repeated(error):
                    raise
        raise AssertionError("the last try returns or raises")

    def _whole(self, key: str, found: Any, size: int) -> bytes:
        data = bytes(found)
        if len(data) != size:
            raise RemoteUnavailableError(
                errno.EIO, f"{len(data):,} bytes came where {size:,} are expected", self.where(key)
            )
        return data

    def size(self, key: str) -> int | None:
        """The length of an object; None if there is none."""
        self._count()
        try:
            with self._explained(key, "cannot look at it"):
                return int(self._obstore.head(self._there(), key)["size"])
        except Missing:
            return None

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects below a prefix, which ends with a slash."""
        self._count()
        with self._explained(prefix, "cannot list it"):
            if self._local is not None and not files.is_dir(self._local):
                return
            for chunk in self._obstore.list(self._there(), prefix.rstrip("/")):
                for found in chunk:
                    yield Listed(found["path"], found["size"], found["last_modified"])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is gone already is fine."""
        for at in range(0, len(keys), _DELETED_AT_ONCE):
            self._count()
            with contextlib.suppress(Missing), self._explained(keys[at], "cannot delete it"):
                if self._local is None:
                    self._obstore.delete(self._there(), list(keys[at : at + _DELETED_AT_ONCE]))
                    continue
                for key in keys[at : at + _DELETED_AT_ONCE]:  # of a directory one may be gone
                    with contextlib.suppress(FileNotFoundError):
                        self._obstore.delete(self._there(), key)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # not with its text: it may have a credential in it
        raise InvalidInputError("url: no URL; s3://bucket/runs/pong") from None
