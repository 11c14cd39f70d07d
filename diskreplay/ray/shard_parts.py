"""A shard's parts of checkpoints: saved, pushed, and made ready to be loaded."""

import hashlib
import json
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diskreplay.convert.regrouping import regroup
from diskreplay.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ShardsLostError,
)
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.ray.destination import Bucket
from diskreplay.ray.resharding import PartPiece
from diskreplay.store import files, manifest, tempfiles
from diskreplay.store.format import read_document


class ShardParts:
    """What of checkpoints passes through one shard's directory.

    Parameters
    ----------
    number : int
        Of the shard.
    directory : Path
        ``<directory>/outgoing`` has parts that are pushed to an object store, and
        ``<directory>/incoming`` the one that is loaded next, with what it is made of, and
        ``<directory>/load.json`` says which load that is for.
    name : str
        Of the shard's buffer.
    """

    def __init__(self, number: int, directory: Path, name: str) -> None:
        self._number, self._name = number, name
        self._outgoing, self._incoming = directory / "outgoing", directory / "incoming"
        self._note = directory / "load.json"
        self._pushes: dict[str, threading.Thread] = {}
        self._failed: dict[str, BaseException] = {}
        self._given_up: set[str] = set()

    # -- saving

    def save(
        self, buffer: PrioritizedReplayBuffer, where: str | Bucket, suffix: str, run: str | None
    ) -> dict[str, Any]:
        """Save the buffer to a directory, or beside it, from where a thread pushes it.

        Returns
        -------
        dict
            ``path``, or ``url`` and ``suffix``; ``digest`` of the manifest; rows of each env.
        """
        place = where if isinstance(where, str) else self._outgoing
        if f"{self._name}_ckpt.{suffix}" in self._given_up:
            raise ShardsLostError(f"shard {self._number}: checkpoint {suffix} was given up")
        path = buffer.save(place, suffix, keep=None)
        part = {
            "digest": digest(path), "count": buffer.bounds[:, 1].tolist(),
            "transitions": buffer.add_count,
        }  # fmt: skip
        if isinstance(where, str):
            return {"path": str(path), **part}
        thread = threading.Thread(
            target=self._push, args=(where, path, suffix, run), name="diskreplay push", daemon=True
        )
        self._pushes = {suffix: thread}
        thread.start()
        return {"name": self._name, "suffix": suffix, **part}

    def _push(self, where: Bucket, path: Path, suffix: str, run: str | None) -> None:
        try:
            with where.part(self._name, run) as remote:
                remote.push(path)
        except BaseException as error:  # raised where it is asked about
            self._failed[suffix] = error
        finally:
            files.remove_tree(path)

    def is_pushed(self, suffix: str) -> bool:
        """Whether a part that was saved is in the object store.

        Raises
        ------
        RemoteError
            What its push failed for.
        ShardsLostError
            This process was started since, and pushes nothing.
        """
        thread = self._pushes.get(suffix)
        if thread is None:
            raise ShardsLostError(f"shard {self._number} was started again while it pushed")
        thread.join(0.05)
        if thread.is_alive():
            return False
        error = self._failed.pop(suffix, None)
        if error is not None:
            raise error
        return True

    # -- loading

    def prepare(self, pieces: Sequence[PartPiece], bucket: Bucket | None, load: str) -> None:
        """Have a checkpoint of these envs, checked, for a load; also after the death of this
        process.

        Parameters
        ----------
        pieces, bucket
            What it is made of.
        load : str
            The name of the load.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, RemoteError
        """
        if self._noted().get("load") == load:  # asked again
            return
        files.remove(self._note)
        files.remove_tree(self._incoming)
        paths = [self._located(piece.part, bucket) for piece in pieces]
        is_whole = len(pieces) == 1 and pieces[0].is_whole
        path = paths[0] if is_whole else self._regrouped(pieces, paths)
        files.make_lasting_dirs(self._note.parent)
        self._write_note(load=load, path=str(path))

    def check(self, buffer: PrioritizedReplayBuffer) -> None:
        """Refuse what was prepared where this buffer could not load it.

        Raises
        ------
        CheckpointError, StoreError
        """
        path = self._noted()["path"]
        if path is not None:  # else it was loaded
            buffer._check_load(Path(path))

    def load(self, buffer: PrioritizedReplayBuffer, load: str) -> None:
        """Go back to what was prepared for this load, if that was not done yet.

        Raises
        ------
        CheckpointError
            Another load was prepared since.
        CheckpointNotFoundError, CorruptCheckpointError
        """
        noted = self._noted()
        if noted.get("load") != load:
            raise CheckpointError(
                f"shard {self._number}: another load came between, or its disk is another one; "
                "load again"
            )
        # Killed before the note says that it was loaded, the store says it. Its generation would
        # not do: that is another one also after a power cut that took rows from it.
        if noted["path"] is not None and buffer._loaded_as != load:
            buffer._load_as(load, Path(noted["path"]))
        self._write_note(load=load, path=None)
        files.remove_tree(self._incoming)

    def _noted(self) -> dict[str, Any]:
        return read_document(self._note) if files.is_there(self._note) else {}

    def _write_note(self, **noted: Any) -> None:
        files.replace({self._note: json.dumps(noted).encode()})

    def _located(self, part: dict[str, Any], bucket: Bucket | None) -> Path:
        if "path" in part:
            path = Path(part["path"])
            if not (path / manifest.NAME).is_file():
                raise CheckpointNotFoundError(
                    f"{path}: not there for shard {self._number}, on {socket.gethostname()}; a "
                    "shard needs the parts of its envs on its own node. Save to a file system that "
                    "all nodes see, or to an object store"
                )
        else:
            assert bucket is not None
            with bucket.part(part["name"]) as remote:
                path = remote.pull(part["suffix"], self._incoming)
        if digest(path) != part["digest"]:
            raise CorruptCheckpointError(
                f"{path}: its manifest is not the one that the checkpoint names; nothing was "
                "loaded: load another checkpoint"
            )
        return path

    def _regrouped(self, pieces: Sequence[PartPiece], paths: list[Path]) -> Path:
        envs, before = list[int](), 0
        for piece in pieces:
            envs += range(before + piece.start, before + piece.stop)
            before += len(piece.part["count"])
        target = self._incoming / f"{self._name}_ckpt.{secrets.token_hex(4)}"
        return regroup(paths, [target], [envs])[0]

    def sweep(self) -> None:
        """Remove what a process that was killed has left."""
        if not self._pushes:
            files.remove_tree(self._outgoing)
        if self._noted().get("path") is None:
            files.remove_tree(self._incoming)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove parts of checkpoints that no published one names. What a saver that is dead has
        asked for, and was not done yet, is not done any more."""
        self._given_up |= {Path(path).name for path in paths}
        tempfiles.discard(path for path in map(Path, paths) if manifest.is_checkpoint(path))


def digest(path: Path) -> str:
    """Of the manifest of a checkpoint, which has the checksums of all its files."""
    return hashlib.sha256((path / manifest.NAME).read_bytes()).hexdigest()
