"""What `save` and `load` of a buffer do where they are given a URL."""

import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diskreplay import fork
from diskreplay.brief import brief
from diskreplay.errors import (
    CheckpointNotFoundError,
    DiskReplayError,
    InvalidInputError,
    RemoteUnavailableError,
)
from diskreplay.locks import Lock
from diskreplay.remote.checkpoints import RemoteCheckpoints
from diskreplay.remote.publisher import Pushed
from diskreplay.session import Session
from diskreplay.store import checkpoint_names
from diskreplay.store.listing import Checkpoint


class SaveStatus(NamedTuple):
    """How far the last save to a URL is.

    Attributes
    ----------
    suffix : str
    state : {"publishing", "published", "failed"}
    path : Path
        The checkpoint beside the store.
    pushed : Pushed or None
        Once it is published.
    error : Exception or None
        Why it failed.
    """

    suffix: str
    state: str
    path: Path
    pushed: Pushed | None = None
    error: BaseException | None = None


class RemoteSaver:
    """Saves one buffer to URLs and loads it from there.

    Checkpoints are in the directory ``<store>.remote`` on their way. The last one stays there: the
    next one shares its files, and ``remote.json`` beside it says which run this is.
    """

    def __init__(self, session: Session) -> None:
        self._session: Session = weakref.proxy(session)  # which has this: else it is never dropped
        self._place = session.path.with_name(session.path.name + ".remote")
        self._opened: dict[str, RemoteCheckpoints] = {}
        self._status: SaveStatus | None = None
        self._pushing: threading.Thread | None = None
        self._untold: list[str] = []  # what a thread has failed at
        self._saving = Lock()
        # A buffer that is dropped without `close` tells of it all the same, at the program's end
        # at the latest.
        weakref.finalize(self, _tell, self._untold, fork.pid)

    def save(
        self, where: Any, number: int | str, attachments: Mapping[str, Any] | None,
        given_keep: int | None, wait: bool,
    ) -> Path:  # fmt: skip
        """Save beside the store, and publish that; not `wait`: on a thread. A `RemoteError` also of
        the save before, which was published on a thread, if the next ones must fail too."""
        remote, keep = self._remote(where), checkpoint_names.checked_keep(given_keep)
        with self._turn(remote):
            return self._save(remote, number, attachments, keep, wait)

    def _turn(self, remote: RemoteCheckpoints) -> Lock:
        """The lock, for a call that is to begin: another one would remove, or replace, the
        checkpoint that this one is about to publish or to load.

        Raises
        ------
        ReentryError
            This thread is amid one, or amid another call of the buffer, for whose end whoever has
            the lock may wait; or it publishes there, which that one waits for.
        """
        if self._saving._is_owned() or remote.is_called():  # type: ignore[attr-defined]
            self._session._refuse()
        self._session._turn()
        return self._saving

    def _save(
        self, remote: RemoteCheckpoints, number: int | str,
        attachments: Mapping[str, Any] | None, keep: int | None, wait: bool,
    ) -> Path:  # fmt: skip
        self.wait()
        self._report(refuse=True)
        path = self._session.save(self._place, number, attachments=attachments, keep=1)
        suffix = path.name.partition("_ckpt.")[2]
        self._status = SaveStatus(suffix, "publishing", path)
        if wait:
            self._push(remote, path, suffix, keep)
            status, self._status = self._status, self._status._replace(error=None)
            self._untold.clear()
            if status.error is not None:
                raise status.error
        else:
            # Not a daemon: the interpreter waits for it at its end.
            self._pushing = threading.Thread(
                target=self._push, args=(remote, path, suffix, keep), name="diskreplay push"
            )
            self._pushing.start()
        return path

    def _push(self, remote: RemoteCheckpoints, path: Path, suffix: str, keep: int | None) -> None:
        try:
            pushed = remote.push(path)
        except BaseException as error:  # raised by `save`, or kept until somebody asks
            # Without the frame of this call, which refers to this: the two would be dropped by a
            # collection of garbage only.
            error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            self._untold[:] = [f"{remote.url}: checkpoint {suffix} was not published: {error}"]
            self._status = SaveStatus(suffix, "failed", path, None, error)
            return
        self._status = SaveStatus(suffix, "published", path, pushed)
        try:
            if keep is not None and sum(c.number is not None for c in remote.list()) > keep:
                remote._collect_beside(path, suffix, keep)
        except DiskReplayError as error:
            warnings.warn(
                f"{remote.url}: checkpoint {suffix} is published, but older ones could not be "
                f"removed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _report(self, *, refuse: bool) -> None:
        """Tell of a failure that nobody has been told of: raise it if `refuse`, and if the next
        save would fail like it."""
        status = self._status
        if status is None or status.error is None:
            return
        error, self._status = status.error, status._replace(error=None)
        (told,) = self._untold
        self._untold.clear()
        if refuse and not isinstance(error, RemoteUnavailableError):
            raise error
        warnings.warn(told, RuntimeWarning, stacklevel=4)

    def load(self, where: Any, suffix: int | str | None, resume_episodes: bool) -> Checkpoint:
        """Pull a checkpoint beside the store, and load that."""
        remote = self._remote(where)
        with self._turn(remote):
            place, found = self._fetch(remote, suffix)
            return self._session.load(place, found, resume_episodes=resume_episodes)

    def turn(self, where: Any) -> Lock:
        """The lock, for who calls `fetch` and loads what that has pulled: until it is released no
        other checkpoint comes beside the store. A ReentryError as of `save`."""
        return self._turn(self._remote(where))

    def fetch(self, where: Any, suffix: int | str | None) -> tuple[Path, str]:
        """Pull a checkpoint beside the store: the directory, and which one it is. A
        `CheckpointNotFoundError` if there is none of this buffer's name. Needs the lock."""
        return self._fetch(self._remote(where), suffix)

    def _fetch(self, remote: RemoteCheckpoints, suffix: int | str | None) -> tuple[Path, str]:
        self.wait()
        if not any(one.name == self._session.name for one in remote.list()):
            others = ", ".join(sorted({one.name for one in remote.list()})) or "none"
            raise CheckpointNotFoundError(
                f"{remote.url}: no checkpoint of {self._session.name!r} there (of others: {others})"
            )
        path = remote.pull(suffix, self._place)
        return path.parent, path.name.partition("_ckpt.")[2]

    def status(self) -> SaveStatus | None:
        """Of the last save to a URL."""
        return self._status

    def wait(self) -> None:
        """Until nothing is being published."""
        if self._pushing is not None:
            self._pushing.join()
            self._pushing = None

    def close(self) -> None:
        """Wait, and warn of a failure that nobody has been told of: the buffer is closed anyway."""
        self.wait()
        self._report(refuse=False)

    def _remote(self, where: Any) -> RemoteCheckpoints:
        if isinstance(where, RemoteCheckpoints):
            return where
        if not isinstance(where, str):
            raise InvalidInputError(
                "checkpoint_dir: a path, a URL or RemoteCheckpoints expected, found "
                f"{brief(where, 80)}"
            )
        return self._opened.setdefault(where, RemoteCheckpoints(where))


def _tell(untold: list[str], pid: int) -> None:
    """Warn of a failure that nobody was told of; in the process that saved only."""
    if fork.pid == pid:
        for what in untold:
            warnings.warn(what, RuntimeWarning, stacklevel=2)
