"""A checkpoint in the place of a live store; all or nothing."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from diskreplay import extensions, signals
from diskreplay.errors import CheckpointNotFoundError, DiskReplayError, StorageError
from diskreplay.indexed_store import IndexedStore
from diskreplay.late_warning import no_error
from diskreplay.metadata import parse as parse_metadata
from diskreplay.metadata import warn_of_damage
from diskreplay.one_checkpoint import check_only
from diskreplay.prefetch import Prefetcher
from diskreplay.prefetchers import Prefetchers, Resumed
from diskreplay.sequence_state import SequenceState
from diskreplay.sequence_view import Views
from diskreplay.store import (
    attachments,
    checkpoint_names,
    generation,
    loading,
    priorities,
    tempfiles,
)
from diskreplay.store.listing import Checkpoint
from diskreplay.store.manifest import Manifest
from diskreplay.store.place import Place
from diskreplay.store.store import Store
from diskreplay.store_kind import StoreKind

_TRIES = 20  # where the checkpoint is replaced while it is read


class Attached(NamedTuple):
    """What a session has of one store."""

    rows: IndexedStore
    rng: tuple[np.random.BitGenerator, np.ndarray] | None  # None: the session keeps its own
    metadata: dict[str, Any] | None


class Checkpointed(Protocol):
    """What loaders and savers ask of their `Session`."""

    path: Path
    name: str
    _kind: StoreKind
    _busy: set[int]
    _rows: IndexedStore
    _views: Views
    _prefetchers: Prefetchers

    def _take_waiting(self) -> None: ...
    def _turn(self) -> Any: ...
    def _check_writable(self) -> None: ...
    def _options_meta(self) -> dict[str, Any]: ...
    def _meta(self, states: dict[str, SequenceState]) -> dict[str, Any]: ...
    def _leaves(self, states: dict[str, SequenceState]) -> priorities.Sets: ...
    def _attach(self, store: Store, *, resume_episodes: bool) -> Attached: ...
    def _take_over(self, attached: Attached) -> None: ...


class CheckpointLoader:
    """`Session.load`. With the session's lock held."""

    def __init__(self, session: Checkpointed) -> None:
        self._session = session
        self._name: str | None = None

    def load(
        self, directory: Path, suffix: int | str | None, *, resume_episodes: bool,
        name: str | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Load what is there, again if it is replaced meanwhile. The store then has the `name` of
        this load, if it has one."""
        self._name = name
        for last in [False] * (_TRIES - 1) + [True]:
            with self._located(directory, suffix) as (path, text, at):
                place = Place(path)
                try:
                    return self._load(path, place, text, at, resume_episodes)
                except DiskReplayError:
                    # A save may replace or retire a checkpoint whoever reads it.
                    if last or place.holds():
                        raise
                finally:
                    place.close()
        raise AssertionError("the last try returns or raises")

    @contextlib.contextmanager
    def _located(
        self, directory: Path, suffix: int | str | None
    ) -> Iterator[tuple[Path, str, Path]]:
        """The checkpoint to load, its suffix, and where it was found: one of another project is
        converted, beside the store."""
        session = self._session
        try:
            path, text = checkpoint_names.find(directory, session.name, suffix)
        except CheckpointNotFoundError:
            if not session._kind.reads_foreign:
                raise
            foreign = extensions.find("foreign_checkpoint")(directory, suffix)
            if foreign is None:
                raise
        else:
            yield path, text, path
            return
        with tempfiles.Workspace(session.path, "load") as room:
            yield foreign.convert(session, room.path), foreign.suffix, directory

    def check(self, path: Path) -> None:
        """Refuse what `load` would, before it changes anything. Without the session's lock."""
        with self._opened(path):
            pass

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[Store, Manifest]]:
        """A checkpoint that is whole and that the live store can take."""
        saved, contents = loading.open_checked(path)
        try:
            self._session._kind.check_opened(saved)
            self._session._kind.check_saved(saved)
            self._session._views.check_saved(saved)
            yield saved, contents
        finally:
            saved.close()

    def _load(
        self, path: Path, place: Place, text: str, at: Path, resume_episodes: bool
    ) -> Checkpoint:
        """Load what is in a directory, if that stays at its path until all is read."""
        session = self._session
        with self._opened(path) as (saved, contents):
            warn_of_damage(saved.path, saved.meta, stacklevel=5)
            with session._prefetchers.drained() as under_way, session._views.drained() as paused:
                self._replace(saved, place, under_way, resume_episodes)
                session._views.take_over(session._rows, paused)
        rows = int((saved.count - saved.first).sum())
        return Checkpoint(
            at, session.name, text, contents.saved_at if at == path else None,
            attachments.paths(path, contents), rows, None,
        )  # fmt: skip

    def _switch(
        self, replacement: loading.Replacement, attached: Attached, under_way: list[Prefetcher],
        resumed: Resumed,
    ) -> StorageError | None:  # fmt: skip
        session = self._session
        with signals.undisturbed():  # else this is a buffer of a store that is gone
            doubt = replacement.put_in_place(session._rows.store)
            session._take_over(attached)
            under_way.clear()  # of the rows that are gone
            session._prefetchers.take_over(resumed)
        return doubt

    def _replace(
        self, saved: Store, place: Place, under_way: list[Prefetcher], resume_episodes: bool
    ) -> None:  # fmt: skip
        """Put a checkpoint that was checked in the place of the live store."""
        session = self._session
        kind, live = session._kind, session._rows.store
        meta = {**saved.meta, **session._options_meta()}
        meta[generation.KEY] = generation.following(live.meta)
        meta.pop(generation.LOAD, None)  # of the load before the save
        if self._name is not None:
            meta[generation.LOAD] = self._name
        if "metadata" in saved.meta:
            meta["metadata"] = parse_metadata(saved.meta)[0]
        replacement = loading.Replacement(live, saved, meta, kind.schema.lacking(saved))
        try:
            attached = session._attach(replacement.store, resume_episodes=resume_episodes)
            kind.complete(attached.rows)
            resumed = session._prefetchers.resumed(session, kind.under_way(saved))
            place.check()  # else what was linked may be of two checkpoints
            check_only()
            doubt = self._switch(replacement, attached, under_way, resumed)
        except BaseException:
            if session._rows.store is live:
                replacement.discard()
            raise
        if doubt is not None:
            with no_error():
                warnings.warn(
                    f"{session.path}: loaded, but a power cut may bring back the rows of before "
                    f"({doubt})",
                    RuntimeWarning,
                    stacklevel=5,
                )
