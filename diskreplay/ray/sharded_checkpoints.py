"""Saves and loads all shards of a buffer together."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diskreplay.errors import CheckpointError, InvalidInputError, SchemaError, ShardsLostError
from diskreplay.ray.calls import LOST, answer, patient
from diskreplay.ray.client import Client
from diskreplay.ray.sharded_checkpoint import CheckpointDirectory
from diskreplay.ray.sharded_prefetcher import ShardedPrefetcher
from diskreplay.store import checkpoint

_LONG = 3600.0  # seconds that a save or load of one shard may take


class ShardedCheckpoints:
    """The checkpoints of a client's shards in one directory.

    Parameters
    ----------
    client : Client
    there : CheckpointDirectory
    prefetchers : sequence of ShardedPrefetcher
        Those of the client.
    """

    def __init__(
        self, client: Client, there: CheckpointDirectory, prefetchers: Sequence[ShardedPrefetcher]
    ) -> None:
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

    def save(self, suffix: int | str, keep: int | None) -> Path:
        """See `ShardedReplayBuffer.save`."""
        client, there = self._client, self._there
        kept, text = checkpoint.checked_keep(keep), checkpoint.checked_suffix(suffix)
        part = there.part_suffix(text)
        with self._still():
            with client.lock:
                rng = client.rng.state()
                calls = []
                for handle in client.handles:
                    updates = handle.updates()
                    call = handle.actor.save.remote(str(there.parts), part, updates, client.largest)
                    calls.append((handle, call, len(updates)))
            parts = []
            try:
                for handle, call, count in calls:
                    saved, state = answer(call, _LONG)
                    parts.append(saved)
                    with client.lock:
                        handle.sent(count)
                        handle.learn(state)  # with which a run that loads it begins, too
            except LOST as error:
                self._discard(part)
                raise ShardsLostError(
                    f"shard {len(parts)} died while it saved; there is no checkpoint {text}, and "
                    "older ones are as they were: save again"
                ) from error
            except BaseException:
                self._discard(part)
                raise
            inserts, samples = patient(client.coordinator.counts, timeout=client.timeout)
            replaced = [there.read(text)] if text in there.suffixes() else []
            options = client.options
            path = there.publish({
                "suffix": text, "num_shards": options["num_shards"], "shards": parts,
                "num_envs": options["num_envs"], "rng": rng, "inserts": inserts,
                "samples": samples,
            })  # fmt: skip
        for document in [*replaced, *there.retire(kept, text)]:
            self._remove([found["path"] for found in document["shards"]])
        return path

    def _discard(self, part: str) -> None:
        """Remove the parts of a save that failed, where a shard answers."""
        name, parts = self._client.options["name"], self._there.parts
        self._remove([
            str(parts / f"{name}-{handle.number}_ckpt.{part}") for handle in self._client.handles
        ])  # fmt: skip

    def _remove(self, paths: list[str]) -> None:
        for handle, path in zip(self._client.handles, paths, strict=False):
            handle.actor.remove.options(max_task_retries=-1).remote([path])

    def load(self, suffix: int | str | None) -> str:
        """See `ShardedReplayBuffer.load`."""
        client = self._client
        document = self._document(suffix)
        with self._still():
            try:
                self._each("check", document["shards"], client.timeout)
                states = self._each("load", document["shards"], _LONG)
            except LOST as error:
                raise ShardsLostError(
                    "a shard did not answer; some shards may have loaded the checkpoint and others "
                    "not: load again"
                ) from error
            with client.lock:
                for handle, state in zip(client.handles, states, strict=True):
                    handle.learn(state)
                    handle.sent(len(handle.updates()))  # of ids that are void
                client.rng.restore(document["rng"])
                client.largest = max(state.mass.largest for state in states)
            patient(
                client.coordinator.restore, document["inserts"], document["samples"],
                timeout=client.timeout,
            )  # fmt: skip
        return str(document["suffix"])

    def restore_shard(self, number: int, suffix: int | str | None) -> None:
        """See `ShardedReplayBuffer.restore_shard`."""
        client, document = self._client, self._document(suffix)
        if not 0 <= number < len(client.handles):
            raise InvalidInputError(
                f"number: 0 to {len(client.handles) - 1} expected, found {number!r}"
            )
        handle = client.handles[number]
        try:
            state = patient(handle.actor.restore, document["shards"][number], timeout=_LONG)
        except LOST as error:
            raise ShardsLostError(f"shard {number} does not answer") from error
        with client.lock:
            handle.learn(state)
            handle.sent(len(handle.updates()))

    def _document(self, suffix: int | str | None) -> dict[str, Any]:
        """That of a checkpoint of as many shards and envs."""
        document = self._there.read(suffix)
        options = self._client.options
        for name in ("num_shards", "num_envs"):
            if document[name] != options[name]:
                raise SchemaError(
                    f"{name} is {document[name]} in the checkpoint, and {options[name]} here; make "
                    "the buffer with the same"
                )
        return document

    def _each(self, method: str, parts: list[dict[str, Any]], timeout: float) -> list[Any]:
        """All shards at once, each with its part; again where one dies."""
        calls = [
            getattr(handle.actor, method).options(max_task_retries=-1).remote(part)
            for handle, part in zip(self._client.handles, parts, strict=True)
        ]
        errors, found = [], []
        for call in calls:
            try:
                found.append(answer(call, timeout))
            except CheckpointError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found
