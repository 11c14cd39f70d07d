"""A checkpoint of all shards: one JSON that names the part of each, and publishes them."""

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diskreplay.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    LockedError,
    StorageError,
)
from diskreplay.ray.actors import Actor
from diskreplay.ray.noted_parts import NotedParts
from diskreplay.store import checkpoint_names, file_locks, files
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import resolved
from diskreplay.store.tempfiles import Workspace

FORMAT = 1
_LONGEST_TURN_S = 120.0
_ATTACHMENTS = "attachments"
_NEEDED = ("format", "suffix", "num_shards", "num_envs", "shards", "rng", "inserts", "samples")


class CheckpointDirectory:
    """Where the checkpoints of one sharded buffer are.

    Phase one of a save: every shard writes its part on its own node,
    ``parts/<name>-<shard>_ckpt.<suffix>-<token>``. Phase two: ``<name>_shards.<suffix>.json`` is
    renamed into place, here.

    Parameters
    ----------
    directory : path
    name : str
        Of the buffer.

    Attributes
    ----------
    destination : str
        Where shards save their parts to.
    bucket, run : None
        As of `CheckpointBucket`.
    """

    bucket, run = None, None

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self.path, self._name = resolved(directory), name
        self.parts = self.path / "parts"
        self.destination = str(self.parts)
        self._notes: NotedParts | None = None

    def claim(self, _num_shards: int) -> None:
        """Nothing: nobody else writes here."""

    @contextlib.contextmanager
    def saving(self, suffix: str, shards: Sequence[Actor], wait_s: float) -> Iterator[str]:
        """A save: of parts that it writes, and that dead ones have written, those stay that are
        published at its end.

        Parameters
        ----------
        suffix : str
        shards : sequence of Actor
        wait_s : float
            Seconds that they may take to remove parts.

        Yields
        ------
        str
            What its parts are called: none that is there.
        """
        check_outside(self.parts)
        files.make_lasting_dirs(self.path)
        for left in NotedParts.left(self.path, re.escape(self._name) + r"_shards\..*\.json"):
            if not left.remove_unnamed(shards, self._named(), wait_s):
                break  # each of the others would wait for that shard, too
        part = f"{suffix}-{secrets.token_hex(4)}"
        self._notes = NotedParts(Workspace(self._file(suffix), "tmp"))
        self._notes.add(
            [
                (number, str(self.parts / f"{self._name}-{number}_ckpt.{part}"))
                for number in range(len(shards))
            ]
        )
        try:
            yield part
        finally:
            self._notes.remove_unnamed(shards, self._named(), wait_s)

    def _named(self) -> set[str] | None:
        """The names of the parts of all published checkpoints; None if one cannot be read."""
        documents = [self._known(text) for text in self.suffixes()]
        if None in documents:
            return None
        return {Path(part["path"]).name for each in documents if each for part in each["shards"]}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One publishes at a time: what another one has written and not published is not removed
        as something that nobody names."""
        path, held = self.path / f".{self._name}_shards.lock", None
        try:
            until = time.monotonic() + _LONGEST_TURN_S
            while (held := file_locks.try_lock(path)) is None:
                if time.monotonic() > until:
                    raise LockedError(
                        f"{path}: another saver has published for {_LONGEST_TURN_S:g} s now, where "
                        "milliseconds are usual; find it (fuser names it), end it, and save again"
                    )
                time.sleep(0.02)
        except StorageError as error:
            if error.errno not in file_locks.NO_LOCKS:
                raise
        try:
            yield
        finally:
            if held is not None:
                file_locks.unlock(held)

    def _file(self, suffix: str) -> Path:
        return self.path / f"{self._name}_shards.{suffix}.json"

    def publish(
        self, document: dict[str, Any], keep: int | None, attached: Mapping[str, bytes]
    ) -> Path:
        """Have a checkpoint be there, or replace the one of its suffix, and unpublish what
        retention does not keep; amid `saving`, which removes the parts of those."""
        with self._turn():
            before = {text: self._known(text) for text in self.suffixes()}
            path = self._file(document["suffix"])
            self._write_attachments(attached)
            gone = superfluous(before, document["suffix"], keep)
            assert self._notes is not None
            self._notes.add(
                [
                    (number, part["path"])
                    for text in gone if (known := before[text]) is not None
                    for number, part in enumerate(known["shards"])
                ]
            )  # fmt: skip
            # Written among the notes: what a killed saver leaves there goes with them.
            contents = json.dumps({"format": FORMAT, **document}).encode()
            files.replace({path: contents}, build=self._notes.directory)
            for text in gone:
                if text != document["suffix"]:
                    files.remove(self._file(text))
            if gone:  # before their parts go: a power cut would bring back one that has none
                files.sync_dirs([self.path])
            left = [each for text, each in before.items() if text not in gone]
            self._remove_attachments([document, *left])
        return path

    def _known(self, suffix: str) -> dict[str, Any] | None:
        """A document; None of one that is damaged, which keeps no other from being published."""
        try:
            return self.read(suffix)
        except (CheckpointError, OSError):
            return None

    def _write_attachments(self, attached: Mapping[str, bytes]) -> None:
        new = {
            self._attachment(sha256): data for sha256, data in attached.items()
            if not self._attachment(sha256).exists()
        }  # fmt: skip
        if new:
            files.make_lasting_dirs(self.path / _ATTACHMENTS)
            files.replace(new)

    def _remove_attachments(self, left: list[dict[str, Any] | None]) -> None:
        """Remove what no checkpoint names, if it is known what they name."""
        place, prefix = self.path / _ATTACHMENTS, f"{self._name}."
        if None in left or not files.is_dir(place):
            return
        named = {sha256 for each in left if each for sha256 in attachments_of(each).values()}
        for path in files.listed(place):
            if path.name.startswith(prefix) and path.name.removeprefix(prefix) not in named:
                files.remove(path)

    def _attachment(self, sha256: str) -> Path:
        return self.path / _ATTACHMENTS / f"{self._name}.{sha256}"

    def attachment(self, _document: dict[str, Any], sha256: str) -> bytes:
        """The bytes of an attachment of a checkpoint; the caller checks them.

        Raises
        ------
        CorruptCheckpointError
            It is missing.
        """
        path = self._attachment(sha256)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"{path}: missing; load another checkpoint") from error

    def suffixes(self) -> list[str]:
        """Those of the checkpoints that are there, numbers first, in their order."""
        pattern = re.compile(re.escape(self._name) + r"_shards\.([A-Za-z0-9._-]+)\.json")
        paths = files.listed(self.path) if files.is_dir(self.path) else []
        found = [match[1] for path in paths if (match := pattern.fullmatch(path.name))]
        return in_order(found)

    def read(self, suffix: int | str | None) -> dict[str, Any]:
        """The document of a checkpoint; by default that of the highest number.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError
        """
        text = wanted(self.suffixes(), suffix, f"{self.path}: {self._name}_shards.<number>.json")
        path = self._file(text)
        try:
            document = checked(json.loads(path.read_bytes()), str(path))
            for number, part in enumerate(document["shards"]):
                if not isinstance(part, dict) or not isinstance(part.get("path"), str):
                    raise ValueError(f"the part of shard {number} has no path")
            return document
        except FileNotFoundError as error:  # it was retired since
            raise CheckpointNotFoundError(f"{path}: there is no such checkpoint") from error
        except (ValueError, RecursionError) as error:
            raise CorruptCheckpointError(f"{path}: damaged ({error})") from error


def in_order(suffixes: Iterable[str]) -> list[str]:
    """Numbers first, in their order."""
    return sorted(suffixes, key=lambda s: (not s.isdecimal(), int(s) if s.isdecimal() else s))


def wanted(there: list[str], suffix: int | str | None, where: str) -> str:
    """The suffix of the checkpoint that somebody asks for.

    Raises
    ------
    CheckpointNotFoundError
    """
    if suffix is None:
        numbers = [text for text in there if text.isdecimal()]
        if not numbers:
            raise CheckpointNotFoundError(f"{where}: no checkpoint of a number is there")
        return numbers[-1]
    text = checkpoint_names.checked_suffix(suffix)
    if text not in there:
        raise CheckpointNotFoundError(
            f"{where}: there is no such checkpoint {text!r}; there are {there}"
        )
    return text


def superfluous(there: Iterable[str], written: str, keep: int | None) -> list[str]:
    """Which ones go when one has been written: that of the same suffix, and numbers that retention
    does not keep."""
    numbers = [text for text in in_order({*there, written}) if text.isdecimal()]
    old = [] if keep is None else numbers[:-keep]
    return [text for text in there if text == written or text in old]


def attachments_of(document: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each attachment, by its name."""
    found: dict[str, str] = document.get("attachments", {})
    return found


def checked(document: Any, where: str) -> dict[str, Any]:
    """A document that a save has written, or a `CorruptCheckpointError`."""
    lacking = [
        name for name in _NEEDED if not isinstance(document, dict) or name not in document
    ]  # fmt: skip
    if (
        lacking
        or document["format"] != FORMAT
        or not isinstance(document["shards"], list)
        or len(document["shards"]) != document["num_shards"]
    ):
        raise CorruptCheckpointError(
            f"{where}: damaged, or of a newer version: {lacking or 'format'} is not as expected"
        )
    return document
