"""The calls of a sharded buffer that save and load all shards together."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from diskreplay.ray.client import Client
from diskreplay.ray.sharded_checkpoints import CheckpointPlaces, ShardedCheckpoints
from diskreplay.ray.sharded_prefetcher import ShardedPrefetcher
from diskreplay.store import checkpoint_names

if TYPE_CHECKING:
    from diskreplay.remote.checkpoints import RemoteCheckpoints
    from diskreplay.store.attachments import Source


class CheckpointCalls:
    """What `ShardedReplayBuffer` has of them."""

    _client: Client
    _places: CheckpointPlaces
    _prefetchers: list[ShardedPrefetcher]

    def save(
        self,
        directory: "str | os.PathLike[str] | RemoteCheckpoints",
        suffix: int | str,
        *,
        attachments: "Mapping[str, Source] | None" = None,
        keep: int | None = checkpoint_names.CHECKPOINT_DURATION,
    ) -> Path | str:
        """Write a checkpoint of all shards: it is there whole, or not at all.

        Every shard saves its part on its own node, beside each other, by hard links; then one
        file, ``<directory>/<name>_shards.<suffix>.json`` on this node, publishes it. With a URL
        every shard pushes its part, and then one request publishes all. All priorities that this
        client set before are in it, and none that it sets after. Rows are cut for each shard where
        the save finds them: actors go on.

        Parameters
        ----------
        directory : path, or URL of an object store
            The same on all nodes: of one that all see, or of each node's own disk. Then a shard
            finds its part on its own node only. Or ``s3://bucket/run``, or `RemoteCheckpoints`.
        suffix, attachments, keep
            As for `ReplayBuffer.save`. Attachments are of the learner, for all shards together.

        Returns
        -------
        Path, or str
            What publishes it.

        Raises
        ------
        ShardsLostError
            A shard did not answer. There is no new checkpoint, and older ones are as they were.
        TakenOverError, RemoteError
            Another run publishes at this URL, or the store refused something; likewise.
        SuffixError, InvalidInputError, AttachmentError, StorageError
        """
        return self._checkpoints(directory).save(suffix, keep, attachments)

    def load(
        self,
        directory: "str | os.PathLike[str] | RemoteCheckpoints",
        suffix: int | str | None = None,
    ) -> str:
        """Go back to a checkpoint of all shards, also of another number of shards.

        Each shard has all that it needs beside its store, and checked, before any changes. With
        the same number of shards and the same calls the next batches are those that the saved run
        drew, as long as nobody adds. With another one the envs are divided anew in whole groups of
        `env_group`, by hard links. Ids that were handed out before are void, and updates of them
        are dropped. A writer goes on behind the rows of the checkpoint, with the next
        episode of each env and a warning. The rate
        limiter goes on with the saved counts; its options are those it was made with now.

        Parameters
        ----------
        directory : path, or URL of an object store
            What `save` was given.
        suffix : int or str, optional
            Default: the highest number there.

        Returns
        -------
        str
            The suffix.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, SchemaError, RemoteError
            A part is not there; or it is of another number of envs, or its groups cannot be divided
            so. Nothing has changed.
        ShardsLostError
            A shard did not answer for an hour, or died again and again. Some shards may have
            loaded: load again.
        """
        return self._checkpoints(directory).load(suffix)

    def attachments(
        self,
        directory: "str | os.PathLike[str] | RemoteCheckpoints",
        suffix: int | str | None = None,
    ) -> dict[str, bytes]:
        """What `save` was given to attach, by name.

        Parameters
        ----------
        directory, suffix
            As for `load`.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, RemoteError
        """
        return self._checkpoints(directory).attachments(suffix)

    def restore_shard(
        self,
        number: int,
        directory: "str | os.PathLike[str] | RemoteCheckpoints",
        suffix: int | str | None = None,
    ) -> None:
        """Give a shard whose disk is gone the rows of a checkpoint, on the node where it is now.

        Parameters
        ----------
        number : int
        directory, suffix
            As for `load`. That node has to see the parts that this shard needs.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, SchemaError, ShardsLostError, RemoteError

        Notes
        -----
        The other shards stay as they are. Ids of this shard that were handed out before are void.
        """
        self._checkpoints(directory).restore_shard(number, suffix)

    def _check_open(self) -> None:
        raise NotImplementedError

    def _checkpoints(
        self, place: "str | os.PathLike[str] | RemoteCheckpoints"
    ) -> ShardedCheckpoints:
        self._check_open()
        return ShardedCheckpoints(self._client, self._places.at(place), self._prefetchers)
