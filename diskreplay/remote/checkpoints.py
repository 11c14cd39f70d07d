"""Checkpoints in an object store, as a program calls them."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskreplay.buffer import ReplayBuffer
from diskreplay.closing import Closing
from diskreplay.errors import ClosedError, InvalidInputError
from diskreplay.given_numbers import whole
from diskreplay.locks import Lock
from diskreplay.opening import open as open_buffer
from diskreplay.remote import catalog
from diskreplay.remote.bucket import Bucket, check_process
from diskreplay.remote.catalog import RemoteCheckpoint
from diskreplay.remote.collector import Collected, Collector, seconds_of
from diskreplay.remote.document import Document, text
from diskreplay.remote.fenced_object import Takeover
from diskreplay.remote.fetcher import Fetcher
from diskreplay.remote.publisher import Publisher, Pushed, check_extra
from diskreplay.remote.registry import Registry
from diskreplay.remote.run_file import run_of
from diskreplay.remote.verifier import RemoteReport, verify
from diskreplay.store import checkpoint_names, files, listing, manifest
from diskreplay.store.checkpoint_names import checked_suffix
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import resolved
from diskreplay.validation import fit_flag

if TYPE_CHECKING:
    import zarr


class RemoteCheckpoints(Closing):
    """The checkpoints that are published at one URL.

    Parameters
    ----------
    url : str or obstore store
        ``s3://bucket/runs/pong``, ``gs://``, ``az://container/runs/pong`` (or with the account,
        ``abfss://container@account.dfs.core.windows.net/runs/pong``), ``file:///directory``,
        ``memory://name`` (of this process), or a store that obstore made. For one buffer only.
    run : str, optional
        Who publishes. By default random, and kept in ``remote.json`` in the directory that the
        checkpoints are pushed from: a run that goes on there is the same run.
    takeover : bool
        Publish although another run did last: on another machine, say, after the first was taken
        away. From then on that one cannot publish any more. Once for each of these objects: where
        a third run takes over from this one, this one gets the `TakenOverError`.
    concurrency : int
        Requests at once.
    pack_bytes : int
        About how many bytes of small files are put as one object.
    keep : int
        How many numbered checkpoints `collect` leaves, if it is not told.
    storage_options : dict, optional
        For `obstore.store.from_url`: ``endpoint``, ``region``, ``client_options``,
        ``retry_config`` and so on. Credentials are taken from the environment or a profile; they
        are written nowhere, neither into a store nor into a message.
    unsafe_single_writer : bool
        Publish into a store that knows no conditional puts. Two runs at one URL may then overwrite
        each other's checkpoints.

    Raises
    ------
    InvalidInputError
    ModuleNotFoundError
        There is no obstore.

    Attributes
    ----------
    has_url : bool
        Whether `url` was a text.
    options : dict
        All other arguments: of ones for another URL, in another process.

    Notes
    -----
    For one thread at a time. What is there, and why a checkpoint is published whole or not at all:
    ``docs/design/0014-remote-checkpoints.md``.
    """

    def __init__(
        self,
        url: Any,
        *,
        run: str | None = None,
        takeover: bool = False,
        concurrency: int = 16,
        pack_bytes: int = 16 << 20,
        keep: int = 4,
        storage_options: Mapping[str, Any] | None = None,
        unsafe_single_writer: bool = False,
    ) -> None:
        concurrency = whole("concurrency", concurrency)
        pack_bytes = whole("pack_bytes", pack_bytes, most=1 << 62)
        try:
            self._given_run = None if run is None else text("run", run)
        except ValueError as error:
            raise InvalidInputError(str(error)) from None
        self._keep = _checked_keep(keep)
        self._takes_over = fit_flag("takeover", takeover)
        self._unsafe = fit_flag("unsafe_single_writer", unsafe_single_writer)
        self._bucket = Bucket(url, storage_options)
        self.options = {
            "run": run, "takeover": self._takes_over, "concurrency": concurrency, "keep": keep,
            "pack_bytes": pack_bytes, "storage_options": storage_options,
            "unsafe_single_writer": self._unsafe,
        }  # fmt: skip
        self._concurrency, self._pack_bytes = concurrency, pack_bytes
        self._takeover = Takeover(self._takes_over)
        self._run = self._given_run or secrets.token_hex(8)  # the one that has written last
        self._reader = self._registry(self._run)
        self._writers: dict[str, Publisher] = {}
        self._turn = Lock()
        self._closed = False

        self.has_url = isinstance(url, str)

    @property
    def url(self) -> str:
        """As it was given."""
        return self._bucket.url

    # -- writing

    def push(
        self,
        path: str | os.PathLike[str],
        suffix: int | str | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> Pushed:
        """Publish a checkpoint.

        Parameters
        ----------
        path : path
            A checkpoint, or a directory of them.
        suffix : int or str, optional
            Of a directory: which one; by default the one of the highest number.
        extra : dict, optional
            What JSON has; `document` of the checkpoint keeps it.

        Returns
        -------
        Pushed

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, FormatError
            Of the checkpoint at `path`.
        TakenOverError
            Another run publishes at this URL.
        UnsupportedStoreError
            The store knows no conditional puts.
        RemoteUnavailableError, RemoteError
            It does not answer, or refused. In all these cases what was published before is as it
            was, and the next push makes use of what this one has put.

        Notes
        -----
        A file that a published checkpoint has already, by path, length and checksum, is neither
        read nor put. All others are held against their checksums first. One request publishes: the
        checkpoint is there whole or not at all. A checkpoint of the same suffix is replaced.
        """
        place, name, text_of_suffix = _located(path, suffix)
        kept = check_extra(extra)
        with self._writing(place.parent) as writer:
            return writer.push(place, name, text_of_suffix, kept)

    def collect(
        self,
        keep: int | None = None,
        grace: float | str = "24h",
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> Collected:
        """Remove numbered checkpoints but the `keep` highest, and what none of the others needs.

        Parameters
        ----------
        keep : int, optional
        grace : float or str
            Objects that are younger stay: seconds, or ``"90s"``, ``"30m"``, ``"24h"``, ``"7d"``.
            They may be of a push that is under way: it would have to put them again.
        directory : path, optional
            From where this run pushes, if it has not pushed with this object yet and `run` was not
            given.

        Returns
        -------
        Collected

        Raises
        ------
        TakenOverError
            Another run publishes at this URL: only that one may.
        RemoteUnavailableError, RemoteError
            Call it again: nothing that a checkpoint needs was deleted.
        CorruptCheckpointError
            One that stays does not say which objects it needs. Old checkpoints are removed, and no
            objects.
        """
        kept, seconds = self._keep if keep is None else _checked_keep(keep), seconds_of(grace)
        place = None if directory is None else resolved(directory)
        with self._writing(place) as writer:
            return Collector(writer.registry, self._concurrency).collect(kept, seconds)

    def _collect_beside(self, path: Path, suffix: str, keep: int) -> None:
        """`collect` after the push of the checkpoint at `path`, which stays also if its number is
        low: a run that counts from 0 again would else have none."""
        with self._writing(path.parent) as writer:
            Collector(writer.registry, self._concurrency).collect(keep, seconds_of("24h"), suffix)

    @contextlib.contextmanager
    def _writing(self, directory: Path | None) -> Iterator[Publisher]:
        """As the run of this directory; without one, as the run that has written last."""
        check_process(self.url)  # first: what has forked may have held the lock
        with self._turn:
            self._check_open()
            run = self._run
            if self._given_run is None and directory is not None:
                run = run_of(directory)
            if run not in self._writers:
                self._writers[run] = Publisher(
                    self._registry(run), concurrency=self._concurrency, pack_bytes=self._pack_bytes
                )
            yield self._writers[run]
            self._run = run  # not where it was refused

    def _registry(self, run: str) -> Registry:
        return Registry(self._bucket, run, takeover=self._takeover, unsafe=self._unsafe)

    def _retain(
        self, suffixes: Collection[str], gone: Collection[str], grace_s: float
    ) -> Collected:
        """Remove all checkpoints but those of these suffixes, as `collect` does: at once those of
        `gone`, others once they are so old."""
        with self._writing(None) as writer:
            return Collector(writer.registry, self._concurrency).retain(suffixes, gone, grace_s)

    def is_called(self) -> bool:
        """Whether this thread is amid a push, a pull or a collection here."""
        return bool(self._turn._is_owned())  # type: ignore[attr-defined]

    def _hold(self, check: Callable[[], object]) -> None:
        """Become the run that publishes here, see `FencedObject.hold`."""
        with self._writing(None) as writer:
            writer.registry.hold(check)

    # -- reading

    def pull(
        self, suffix: int | str | None = None, directory: str | os.PathLike[str] = "."
    ) -> Path:
        """Make a published checkpoint a directory of this machine.

        Parameters
        ----------
        suffix : int or str, optional
            Default: the highest number.
        directory : path
            It gets ``<name>_ckpt.<suffix>``, which is replaced if it is there.

        Returns
        -------
        Path
            The checkpoint, durable; `ReplayBuffer.load` and `diskreplay.open` take it.

        Raises
        ------
        CheckpointNotFoundError
        CorruptCheckpointError
            An object is missing, or its bytes are not those that were put.
        RemoteUnavailableError, RemoteError, StorageError
            In all these cases there is no new directory.

        Notes
        -----
        What checkpoints in `directory` have already is linked, and what a pull that was cut has
        fetched is used. With ``takeover=True`` the run of `directory` takes over first, so that
        nothing can be published between this and its first push from there.
        """
        place = resolved(directory)
        check_process(self.url)
        with self._turn:
            self._check_open()
            if self._takes_over:
                self._reader.find(suffix)  # where there is none, no directory is made
                check_outside(place / "checkpoint")
                files.make_lasting_dirs(place)
                with self._writing(place) as writer:
                    writer.registry.claim()
            return self._pull(suffix, place)

    def _pull(self, suffix: int | str | None, place: Path) -> Path:
        fetcher = Fetcher(self._bucket, concurrency=self._concurrency)
        return fetcher.pull(self._document(suffix), place)

    def _document(self, suffix: int | str | None) -> Document:
        registry = self._reading()
        return registry.document(registry.find(suffix))

    def _reading(self) -> Registry:
        self._check_open()
        return self._reader

    def list(self) -> list[RemoteCheckpoint]:
        """What is published: those with a text for a suffix first, then by number. One request.

        Raises
        ------
        CorruptCheckpointError, RemoteUnavailableError, RemoteError
        """
        return catalog.in_order(self._reading().read()[0].checkpoints.values())

    def extra(self, suffix: int | str | None = None) -> dict[str, Any]:
        """What `push` was given as `extra`.

        Parameters
        ----------
        suffix : int or str, optional
            Default: the highest number.
        """
        return dict(self._document(suffix).extra)

    def open(
        self, suffix: int | str | None = None, *, cache: str | os.PathLike[str] | None = None
    ) -> ReplayBuffer:
        """A reader of a published checkpoint, which is pulled first.

        Parameters
        ----------
        suffix : int or str, optional
            Default: the highest number.
        cache : path, optional
            Where it is pulled to, and found the next time; by default a directory of this URL below
            ``$XDG_CACHE_HOME/diskreplay`` (``~/.cache``). Delete it when you want.

        Returns
        -------
        ReplayBuffer or PrioritizedReplayBuffer
            As of `diskreplay.open`.
        """
        self._check_open()
        place = _cache_of(self.url) if cache is None else resolved(cache)
        return open_buffer(self._pull(suffix, place))

    def zarr(self, suffix: int | str | None = None) -> "zarr.Group":
        """The arrays of a published checkpoint, read when they are indexed: a request for each
        range of bytes that is needed.

        Parameters
        ----------
        suffix : int or str, optional
            Default: the highest number.
        """
        import zarr

        from diskreplay.remote.ranges import RangeStore

        return zarr.open_group(RangeStore(self._bucket, self._document(suffix)), mode="r")

    def verify(self, suffix: int | str | None = None, *, deep: bool = False) -> RemoteReport:
        """Check a published checkpoint, or all of them: that every object is there in full length.

        Parameters
        ----------
        suffix : int or str, optional
            Default: all of them.
        deep : bool
            Get each object, and hold it against its SHA-256.
        """
        registry = self._reading()
        checked = self.list() if suffix is None else [registry.find(suffix)]
        return verify(registry, checked, deep=deep, concurrency=self._concurrency)

    def close(self) -> None:
        """Let go of it. Twice is fine."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url}: these RemoteCheckpoints were closed; make new ones")

    def __reduce__(self) -> tuple[Any, ...]:
        # Not with its options: they may have credentials in them, which are written nowhere.
        raise InvalidInputError(
            "RemoteCheckpoints cannot be pickled or copied; pass the URL and the options, and make "
            "them there: RemoteCheckpoints(url, takeover=..., storage_options=...)"
        )

    def __repr__(self) -> str:
        return f"RemoteCheckpoints({self.url!r})"


def _checked_keep(keep: int) -> int:
    checked = checkpoint_names.checked_keep(keep)
    if checked is None:
        raise InvalidInputError("keep: a positive integer expected, found None")
    return checked


def _located(path: str | os.PathLike[str], suffix: int | str | None) -> tuple[Path, str, str]:
    """A checkpoint's directory, the name of its buffer and its suffix."""
    place = resolved(path)
    if not manifest.is_checkpoint(place):
        place = _in_directory(place, suffix)
    elif suffix is not None and checked_suffix(suffix) != place.name.partition("_ckpt.")[2]:
        raise InvalidInputError(
            f"{place}: a checkpoint itself, and not {suffix!r}; leave the suffix out"
        )
    name, separator, text_of_suffix = place.name.partition("_ckpt.")
    if not separator:
        raise InvalidInputError(
            f"{place}: a checkpoint, but not named <name>_ckpt.<suffix>; rename it so"
        )
    return place, checked_suffix(name), checked_suffix(text_of_suffix)


def _in_directory(directory: Path, suffix: int | str | None) -> Path:
    names = {one.name for one in listing.checkpoints(directory, None)}
    if len(names) > 1:
        raise InvalidInputError(
            f"{directory}: checkpoints of {', '.join(map(repr, sorted(names)))}; name the one to "
            "push by its path"
        )
    return checkpoint_names.find(directory, next(iter(names), "replay"), suffix)[0]


def _cache_of(url: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "diskreplay" / hashlib.sha256(url.encode()).hexdigest()[:16]
