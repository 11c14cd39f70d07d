"""Buffers and checkpoints by their path alone."""

import os
from pathlib import Path

import numpy as np

from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.distribution import PrioritizedDistribution, UniformDistribution
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError, SchemaError
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store import checkpoint_names, files, loading, manifest
from diskreplay.store.listing import checkpoints
from diskreplay.store.manifest import ATTACHMENTS
from diskreplay.store.paths import resolved
from diskreplay.store.store import Store
from diskreplay.store_kind import StoreKind
from diskreplay.validation import generator, one_of

__all__ = ["attachment", "checkpoints", "open"]

_KINDS = {
    "uniform": (ReplayBuffer, UniformDistribution),
    "prioritized": (PrioritizedReplayBuffer, PrioritizedDistribution),
}


def open(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    follow: bool = True,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """Open a store or a checkpoint by its path alone.

    Parameters
    ----------
    path : path
    mode : {"r", "a"}
        ``"r"`` reads along with a live store that another process writes to, or reads a checkpoint
        directory; ``"a"`` goes on writing a store.
    follow : bool
        Whether a reader takes over what the writer does at each call. With False it shows the store
        as it is now for as long as it is open: no row comes, and none leaves, unless the writer
        adds as many as the store keeps. What that deletes takes room on the disk until this is
        closed. After a `load` of the writer it may have to be opened again (`StorageError`).
    seed : int or numpy.random.Generator, optional
        Of the draws. None goes on with the generator that was saved, so that several readers of one
        store draw the same batches.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        As the store was made. Of a reader, priorities are those of the writer's last flush, later
        rows have the largest. It reads all of them again at the next call, 8 bytes a row: 50 ms for
        half a million.

    Raises
    ------
    InvalidInputError
        `path` is no path.
    FormatError
        There is no store, or one of a newer format.
    LockedError
        With ``"a"``: another writer has it.
    """
    one_of("mode", mode, ("r", "a"))
    store = Store.open(resolved(path), mode=mode)
    store.follower.follows = follow
    try:
        if mode == "a" and "facade" in store.meta:
            owner = store.meta["facade"]
            place = "diskreplay" if owner == "Slots" else "diskreplay.compat"
            raise SchemaError(
                f"{path}: its rows belong to {place}.{owner}: open it there to write, or with "
                "mode='r' to read"
            )
        kind = store.meta.get("kind")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise FormatError(f"{path}/zarr.json: unknown kind of buffer {kind!r:.60}")
        rng = None if seed is None else generator(seed)
        made, distribution = _KINDS[kind]
        return made._over(store, StoreKind.parse(store, distribution), rng)
    except BaseException:
        store.close()
        raise


def attachment(
    directory: str | os.PathLike[str],
    number: int | str | None = None,
    name: str = "agent.pt",
    *,
    prefix: str = "replay",
) -> Path:
    """A file that was saved with the rows: of the checkpoint that `load` would take.

    For whoever wants the network and not the rows: an evaluation beside the run, say.

    Parameters
    ----------
    directory : path
        What `ReplayBuffer.save` was given. Or the path of one checkpoint, without a number.
    number : int or str, optional
        The suffix of the checkpoint. Default: the highest number there.
    name : str
        That it was attached by.
    prefix : str
        The `name` of the buffer that saved.

    Returns
    -------
    Path
        A file that nobody changes; it goes with its checkpoint when a later `save` removes that.
        Held against its checksum.

    Raises
    ------
    CheckpointNotFoundError
        There is no such checkpoint (a ``FileNotFoundError``).
    InvalidInputError
        Nothing was attached by that name; or `directory` is no path.
    IncompleteCheckpointError, CorruptCheckpointError, FormatError
        The checkpoint misses a file, or this one is damaged.
    """
    directory = resolved(directory, "directory")
    while True:
        path, _suffix = checkpoint_names.find(directory, prefix, number)
        try:
            contents = manifest.read_whole(path)
            if not isinstance(name, str) or name not in contents.attachments:
                there = ", ".join(sorted(contents.attachments)) or "none"
                raise InvalidInputError(
                    f"{path}: no attachment {brief(name, 120)}; it has: {there}"
                )
            loading.check_bytes(path, (ATTACHMENTS / name).as_posix(), contents)
            return path / ATTACHMENTS / name
        except InvalidInputError:
            raise
        except DiskReplayError:
            if files.is_there(path):  # else a save has retired it meanwhile
                raise
