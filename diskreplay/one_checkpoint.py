"""Rows and attachments of one and the same checkpoint, whoever saves meanwhile.

A save of another process may replace or retire a checkpoint while it is loaded. The rows are safe:
`load` holds them open. The attachments are found by path. So they are read first, and the rows are
loaded only if the directory is still the one that they were read from.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from diskreplay.errors import CheckpointNotFoundError, InvalidInputError
from diskreplay.store import attachments, files, loading, manifest
from diskreplay.store.manifest import ATTACHMENTS
from diskreplay.store.paths import resolved
from diskreplay.store.place import Place

Parts = TypeVar("Parts")
Loaded = TypeVar("Loaded")

_only: ContextVar[tuple[Place, ...]] = ContextVar("what may be loaded", default=())


@contextlib.contextmanager
def only(place: Place) -> Iterator[None]:
    """For whoever has read more of a checkpoint than its rows: where another one has come to its
    path, loads on this thread end with a `StoreMovedError` and change nothing."""
    token = _only.set((*_only.get(), place))
    try:
        yield
    finally:
        _only.reset(token)


def check_only() -> None:
    """Refuse to load where `only` says so. As what is loaded and what was read are both at their
    path at this moment, they are one."""
    for place in _only.get():
        place.check()


def loaded_with(
    path: Path, read: Callable[[Mapping[str, Path]], Parts], load: Callable[[], Loaded], *,
    needs: str | None = None,
) -> tuple[Parts, Loaded]:  # fmt: skip
    """Read what is attached to the checkpoint at `path`, then load its rows; again if another one
    comes to its path meanwhile.

    Parameters
    ----------
    path : Path
    read : callable
        Given the attachments, by their names. Their bytes are those that were saved.
    load : callable
        Loads the rows by `path`, and changes nothing where that is refused.
    needs : str, optional
        An attachment without which there is nothing to read.

    Returns
    -------
    parts, loaded
        What both returned.

    Raises
    ------
    CheckpointNotFoundError
        It was removed; nothing was loaded.
    InvalidInputError
        It has not what `read` needs.
    """
    path = resolved(path)
    while True:
        with contextlib.closing(Place(path)) as place:
            try:
                contents = manifest.read_whole(path)
                if needs is not None and needs not in contents.attachments:
                    raise InvalidInputError(
                        f"{path}: it has no attachment {needs}: it was saved by something else"
                    )
                for name in contents.attachments:
                    loading.check_bytes(path, (ATTACHMENTS / name).as_posix(), contents)
                parts = read(attachments.paths(path, contents))
                with only(place):
                    return parts, load()
            except Exception as error:  # of a file that is gone, whatever reads it may raise
                if place.holds():
                    raise
                if not files.is_there(path):
                    raise CheckpointNotFoundError(
                        f"{path}: this checkpoint is not there any more; nothing was loaded"
                    ) from error
