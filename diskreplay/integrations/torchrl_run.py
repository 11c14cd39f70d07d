"""A replay buffer of torchrl in the checkpoints of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diskreplay.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidInputError,
)
from diskreplay.one_checkpoint import loaded_with
from diskreplay.store.checkpoint_names import CHECKPOINT_DURATION
from diskreplay.store.listing import Checkpoint, checkpoints

_STATE = "torchrl.pkl"


class SavedReplayBuffer:
    """A replay buffer of torchrl as `RunState` saves and loads it.

    ::

        run = RunState(SavedReplayBuffer(buffer), "runs/pong/checkpoints", modules=..., env=...)

    A checkpoint has the records, by hard links, and what the replay buffer's ``state_dict`` has of
    sampler, writer, transforms, generator and batches that were drawn ahead.

    Parameters
    ----------
    buffer : torchrl.data.ReplayBuffer
        Of any class, over a `DiskStorage`.

    Raises
    ------
    InvalidInputError
        Its storage is another one.
    """

    name = "replay"

    def __init__(self, buffer: Any) -> None:
        storage: Any = getattr(buffer, "_storage", None)
        if not hasattr(storage, "is_apart"):
            raise InvalidInputError(
                "buffer: a replay buffer of torchrl over a DiskStorage expected, found "
                f"{type(buffer).__name__} over {type(storage).__name__}"
            )
        self._buffer = buffer
        self._storage: Any = storage
        self.buffers = buffer, storage  # what an environment may hold, see `RunState`

    def save(
        self,
        checkpoint_dir: Path,
        iteration_number: int | str,
        *,
        attachments: Mapping[str, Any] | None = None,
        keep: int | None = CHECKPOINT_DURATION,
    ) -> Path:
        """As `diskreplay.ReplayBuffer.save`.

        Raises
        ------
        InvalidInputError
            There was never a record: there is no store yet.
        """
        if not self._storage.initialized:
            raise InvalidInputError("nothing to save: add records first")
        state = self._state()
        mine = {_STATE: lambda path: torch.save(state, path)}
        return self._storage.write(
            checkpoint_dir, iteration_number, keep, {**(attachments or {}), **mine}
        )

    def load(
        self, checkpoint_dir: Path, suffix: int | str | None = None, *, resume_episodes: bool = True
    ) -> Checkpoint:
        """Go back to a checkpoint, all or nothing; the next batches are those of its run.

        Parameters
        ----------
        checkpoint_dir, suffix
            As for `diskreplay.ReplayBuffer.load`.
        resume_episodes : bool
            Without effect: records say themselves where episodes end.

        Raises
        ------
        CheckpointError, SchemaError, StorageError
            As `diskreplay.ReplayBuffer.load`.
        InvalidInputError
            It was saved without sampler and writer, or does not fit those of this buffer.

        Notes
        -----
        The state of samplers and writers is unpickled, which runs what it says: load checkpoints
        that you trust.
        """
        there = [each for each in checkpoints(checkpoint_dir) if each.name == self.name]
        if suffix is None:
            there = [each for each in there if each.number is not None][-1:]
        else:
            there = [each for each in there if each.suffix == str(suffix)]
        if not there:
            raise CheckpointNotFoundError(f"{checkpoint_dir}: no checkpoint {suffix or ''}")
        path = there[0].path
        before = self._state()
        try:
            _, loaded = loaded_with(
                path, self._give, lambda: self._storage.restore(path), needs=_STATE
            )
        except BaseException:
            self._buffer.load_state_dict(before["buffer"])
            raise
        self._storage._bump_mutation_revision()  # what samplers know of the records is out of date
        return loaded

    def _give(self, attached: Mapping[str, Path]) -> None:
        """Set sampler, writer and the like to what a checkpoint has."""
        path = attached[_STATE]
        try:
            state = torch.load(path, weights_only=False)
            saved, parts = state["parts"], state["buffer"]
        except Exception as error:  # whatever damaged bytes, or a class that is gone, raise
            raise CorruptCheckpointError(f"{path}: it cannot be read: {error!r}") from error
        if saved != self._parts():
            raise InvalidInputError(f"{path}: {saved} saved, and {self._parts()} here")
        try:
            self._buffer.load_state_dict(parts)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{path}: what was saved does not fit this replay buffer: {error}"
            ) from error

    def _parts(self) -> list[str]:
        """What a state has to be of, to fit."""
        sampler, writer = self._buffer._sampler, self._buffer._writer
        size = getattr(sampler, "_max_capacity", None)
        return [
            type(sampler).__qualname__ + ("" if size is None else f" of {size}"),
            type(writer).__qualname__,
        ]

    def _state(self) -> dict[str, Any]:
        """All but the records."""
        self._storage.is_apart = True
        try:
            return {"parts": self._parts(), "buffer": self._buffer.state_dict()}
        finally:
            self._storage.is_apart = False

    def _remote_saver(self) -> Any:
        """What publishes checkpoints, and has those that were published."""
        if not self._storage.initialized:
            raise InvalidInputError("a URL: add records first, or load a checkpoint from a path")
        return self._storage._opened.log.buffer._remote_saver()
