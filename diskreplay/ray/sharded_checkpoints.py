"""Saves and loads all shards of a buffer together."""

import contextlib
import hashlib
import secrets
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diskreplay.brief import brief
from diskreplay.errors import (
    CheckpointError,
    CorruptCheckpointError,
    DiskReplayError,
    InvalidInputError,
    RemoteError,
    ShardsLostError,
    StoreError,
)
from diskreplay.ray.actors import Actor
from diskreplay.ray.calls import LOST, answer, patient
from diskreplay.ray.checkpoint_bucket import CheckpointBucket
from diskreplay.ray.client import Client
from diskreplay.ray.destination import Bucket
from diskreplay.ray.resharding import PartPiece, pieces_of_shards
from diskreplay.ray.sharded_checkpoint import CheckpointDirectory, attachments_of
from diskreplay.ray.sharded_prefetcher import ShardedPrefetcher
from diskreplay.store import attachments as attaching
from diskreplay.store import checkpoint_names
from diskreplay.store.attachments import Source
from diskreplay.store.manifest import ATTACHMENTS

_LONG = 3600.0  # seconds that a save or load of one shard may take


class CheckpointPlaces:
    """The places that a client saves to and loads from; a URL is taken over once, not each time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._buckets: list[CheckpointBucket] = []

    def at(self, where: Any) -> CheckpointDirectory | CheckpointBucket:
        """The one that a path, a URL or `RemoteCheckpoints` name.

        Raises
        ------
        InvalidInputError, ModuleNotFoundError
        """
        name, bucket = self._client.options["name"], Bucket.of(where)
        if bucket is None:
            return CheckpointDirectory(where, name)
        for known in self._buckets:
            if known.bucket == bucket:
                return known
        run = patient(self._client.coordinator, "run", timeout=self._client.timeout)
        self._buckets.append(CheckpointBucket(bucket, name, run))
        return self._buckets[-1]


class ShardedCheckpoints:
    """The checkpoints of a client's shards in one place.

    Parameters
    ----------
    client : Client
    there : CheckpointDirectory or CheckpointBucket
    prefetchers : sequence of ShardedPrefetcher
        Those of the client.
    """

    def __init__(
        self, client: Client, there: CheckpointDirectory | CheckpointBucket,
        prefetchers: Sequence[ShardedPrefetcher],
    ) -> None:  # fmt: skip
        self._client, self._there, self._prefetchers = client, there, prefetchers

    @contextlib.contextmanager
    def _still(self) -> Iterator[None]:
        """Nothing is drawn ahead, and what was is put back."""
        client = self._client
        for prefetcher in self._prefetchers:
            numbers = prefetcher.pause()
            with client.lock:
                client.rng.put_back(numbers)
        try:
            yield
        finally:
            for prefetcher in self._prefetchers:
                prefetcher.resume()

    def save(
        self, suffix: int | str, keep: int | None, attachments: Mapping[str, Source] | None
    ) -> Path | str:
        """See `ShardedReplayBuffer.save`."""
        client, there = self._client, self._there
        kept, text = checkpoint_names.checked_keep(keep), checkpoint_names.checked_suffix(suffix)
        attached = read_attachments(attachments)
        with there.saving(text, client.actors, client.shard_timeout) as part, self._still():
            with client.lock:
                rng = client.rng.state()
                calls = []
                for handle in client.handles:
                    updates = handle.updates()
                    call = handle.actor.call(
                        "save", there.destination, part, updates, handle.known(client.largest),
                        there.run,
                    )  # fmt: skip
                    calls.append((handle, call, updates))
            asked, parts = 0, []
            try:
                for handle, call, updates in calls:
                    asked = handle.number
                    saved, state = answer(call, _LONG)
                    parts.append(saved)
                    with client.lock:
                        handle.sent(updates)
                        client.learn(handle, state)  # with which a run that loads it begins, too
                for handle, _call, _updates in calls:
                    asked = handle.number
                    self._wait_pushed(handle.actor, part)
            except LOST as error:
                raise ShardsLostError(
                    f"shard {asked} died while it saved; there is no checkpoint {text}, and "
                    "older ones are as they were: save again"
                ) from error
            inserts, samples = patient(client.coordinator, "counts", timeout=client.timeout)
            options = client.options
            document = {
                "suffix": text, "num_shards": options["num_shards"], "shards": parts,
                "num_envs": options["num_envs"], "env_group": options["env_group"], "rng": rng,
                "inserts": inserts, "samples": samples,
                "attachments": {name: sha256 for name, (sha256, _data) in attached.items()},
            }  # fmt: skip
            return there.publish(document, kept, dict(attached.values()))

    def _wait_pushed(self, actor: Actor, part: str) -> None:
        """Until a part is in the object store; the shard answers others meanwhile."""
        if self._there.bucket is None:
            return
        until = time.monotonic() + _LONG
        while not answer(actor.call("is_pushed", part), _LONG):
            if time.monotonic() > until:
                raise ShardsLostError(f"a shard has not pushed its part in {_LONG:g} s")
            time.sleep(0.05)

    def load(self, suffix: int | str | None) -> str:
        """See `ShardedReplayBuffer.load`."""
        client, there = self._client, self._there
        there.read(suffix)  # where there is none, nothing is written
        there.claim(len(client.handles))
        document = there.read(suffix)
        pieces = self._pieces(document)
        load, bucket = secrets.token_hex(8), there.bucket
        with self._still():
            try:
                ask_each(client, "prepare", [(mine, bucket, load) for mine in pieces])
                patient(
                    client.coordinator, "begin_load", load, document["inserts"],
                    document["samples"], timeout=client.timeout,
                )  # fmt: skip
                go_back(client, load)
            except LOST as error:
                raise ShardsLostError(
                    "a shard did not answer; some shards may have loaded the checkpoint and others "
                    "not: load again"
                ) from error
            with client.lock:
                client.rng.restore(document["rng"])
        return str(document["suffix"])

    def restore_shard(self, number: int, suffix: int | str | None) -> None:
        """See `ShardedReplayBuffer.restore_shard`."""
        client, document = self._client, self._there.read(suffix)
        if not 0 <= number < len(client.handles):
            raise InvalidInputError(
                f"number: 0 to {len(client.handles) - 1} expected, found {brief(number)}"
            )
        handle, pieces = client.handles[number], self._pieces(document)[number]
        try:
            state = patient(
                handle.actor, "restore", pieces, self._there.bucket, secrets.token_hex(8),
                timeout=_LONG,
            )  # fmt: skip
        except LOST as error:
            raise ShardsLostError(f"shard {number} does not answer: {error}") from error
        with client.lock:
            client.learn(handle, state)
            handle.sent(handle.updates())

    def attachments(self, suffix: int | str | None) -> dict[str, bytes]:
        """See `ShardedReplayBuffer.attachments`."""
        found = {}
        document = self._there.read(suffix)
        for name, sha256 in attachments_of(document).items():
            data = self._there.attachment(document, sha256)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise CorruptCheckpointError(
                    f"attachment {name!r}: its bytes are not those that were saved; load another "
                    "checkpoint"
                )
            found[name] = data
        return found

    def _pieces(self, document: dict[str, Any]) -> list[list[PartPiece]]:
        """What each shard loads of a checkpoint."""
        return pieces_of_shards(
            document, self._client.options["envs"], f"checkpoint {document['suffix']}"
        )


def ask_each(
    client: Client, method: str, arguments: Sequence[tuple[Any, ...]], timeout: float = _LONG
) -> list[Any]:
    """All shards at once, each with its arguments; again where one dies."""
    calls = [
        handle.actor.call(method, *mine, again=True)
        for handle, mine in zip(client.handles, arguments, strict=True)
    ]
    errors, found = [], []
    for call in calls:
        try:
            found.append(answer(call, timeout))
        except (CheckpointError, StoreError, RemoteError) as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return found


def go_back(client: Client, load: str, timeout: float = _LONG) -> None:
    """Have all shards make a load that they were prepared for."""
    states = ask_each(client, "load", [(load,)] * len(client.handles), timeout)
    with client.lock:
        for handle, state in zip(client.handles, states, strict=True):
            handle.learn(state)
            handle.sent(handle.updates())  # of ids that are void
        client.largest = max(state.mass.largest for state in states)
    patient(client.coordinator, "end_load", load, timeout=client.timeout)


def finish_load(client: Client) -> None:
    """Make the load amid which another client was killed, if there is one."""
    load = patient(client.coordinator, "load_under_way", timeout=client.timeout)
    if load is None:
        return
    try:
        go_back(client, load, client.timeout)
    except (DiskReplayError, *LOST) as error:
        warnings.warn(
            "a client was killed while it loaded a checkpoint, and that could not be finished: "
            f"some shards may have loaded it and others not; load again ({error})",
            RuntimeWarning, 4,
        )  # fmt: skip


def read_attachments(given: Mapping[str, Source] | None) -> dict[str, tuple[str, bytes]]:
    """The bytes of what is to be attached, and their SHA-256, by name.

    Raises
    ------
    InvalidInputError, AttachmentError
    """
    if not given:
        return {}
    with tempfile.TemporaryDirectory(prefix="diskreplay-") as directory:
        build = Path(directory)
        attaching.write(attaching.checked(given), build)
        contents = {name: (build / ATTACHMENTS / name).read_bytes() for name in given}
    return {name: (hashlib.sha256(data).hexdigest(), data) for name, data in contents.items()}
