"""A checkpoint of all shards: one JSON that names the part of each, and publishes them."""

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diskreplay.errors import CheckpointError, CheckpointNotFoundError, CorruptCheckpointError
from diskreplay.ray.actors import Actor
from diskreplay.store import checkpoint, files
from diskreplay.store.paths import resolved

FORMAT = 1
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

    def __init__(self, directory: str | os.PathLike, name: str) -> None:
        self.path, self._name = resolved(directory), name
        self.parts = self.path / "parts"
        self.destination = str(self.parts)

    def claim(self) -> None:
        """Nothing: nobody else writes here."""

    begin = claim

    def part_suffix(self, suffix: int | str) -> str:
        """What the parts of a new checkpoint of this suffix are called: none that is there."""
        return f"{checkpoint.checked_suffix(suffix)}-{secrets.token_hex(4)}"

    def _file(self, suffix: str) -> Path:
        return self.path / f"{self._name}_shards.{suffix}.json"

    def publish(
        self, document: dict[str, Any], keep: int | None, attached: Mapping[str, bytes]
    ) -> tuple[Path, list[dict[str, Any]]]:
        """Have a checkpoint be there, or replace the one of its suffix, and unpublish what
        retention does not keep.

        Returns
        -------
        Path
        list of dict
            The documents of those that went.
        """
        files.make_lasting_dirs(self.path)
        before = {text: self._known(text) for text in self.suffixes()}
        path = self._file(document["suffix"])
        self._write_attachments(attached)
        files.replace({path: json.dumps({"format": FORMAT, **document}).encode()})
        gone = superfluous(before, document["suffix"], keep)
        for text in gone:
            if text != document["suffix"]:
                files.remove(self._file(text))
        left = [each for text, each in before.items() if text not in gone]
        self._remove_attachments([document, *left])
        return path, [known for text in gone if (known := before[text]) is not None]

    def _known(self, suffix: str) -> dict[str, Any] | None:
        """A document; None of one that is damaged, which keeps no other from being published."""
        try:
            return self.read(suffix)
        except CheckpointError:
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
        if None in left or not place.is_dir():
            return
        named = {sha256 for each in left if each for sha256 in attachments_of(each).values()}
        for name in os.listdir(place):
            if name.startswith(prefix) and name.removeprefix(prefix) not in named:
                files.remove(place / name)

    def _attachment(self, sha256: str) -> Path:
        return self.path / _ATTACHMENTS / f"{self._name}.{sha256}"

    def attachment(self, sha256: str) -> bytes:
        """The bytes of an attachment; the caller checks them.

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
        names = os.listdir(self.path) if self.path.is_dir() else []
        found = [match[1] for name in names if (match := pattern.fullmatch(name))]
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
            return checked(json.loads(path.read_bytes()), str(path))
        except FileNotFoundError as error:  # it was retired since
            raise CheckpointNotFoundError(f"{path}: there is no such checkpoint") from error
        except ValueError as error:
            raise CorruptCheckpointError(f"{path}: damaged ({error})") from error

    def discard(self, shards: Sequence[Actor], documents: list[dict[str, Any]]) -> None:
        """Have the shards remove their parts of checkpoints that went."""
        for document in documents:
            for number, part in enumerate(document["shards"]):
                actor = shards[number % len(shards)]  # there were more shards, perhaps
                actor.call("remove", [part["path"]], again=True)

    def discard_failed(self, shards: Sequence[Actor], part: str) -> None:
        """The same of a save that failed."""
        for number, actor in enumerate(shards):
            path = self.parts / f"{self._name}-{number}_ckpt.{part}"
            actor.call("remove", [str(path)], again=True)


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
    text = checkpoint.checked_suffix(suffix)
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
