"""A checkpoint of all shards: one JSON that names the part of each, and publishes them."""

import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diskreplay.errors import CheckpointNotFoundError, CorruptCheckpointError
from diskreplay.store import checkpoint, files
from diskreplay.store.paths import resolved

_FORMAT = 1
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
    """

    def __init__(self, directory: str | os.PathLike, name: str) -> None:
        self.path, self._name = resolved(directory), name
        self.parts = self.path / "parts"

    def part_suffix(self, suffix: int | str) -> str:
        """What the parts of a new checkpoint of this suffix are called: none that is there."""
        return f"{checkpoint.checked_suffix(suffix)}-{secrets.token_hex(4)}"

    def _file(self, suffix: str) -> Path:
        return self.path / f"{self._name}_shards.{suffix}.json"

    def publish(self, document: dict[str, Any]) -> Path:
        """Have a checkpoint be there, or replace the one of its suffix."""
        files.make_lasting_dirs(self.path)
        path = self._file(document["suffix"])
        files.replace({path: json.dumps({"format": _FORMAT, **document}).encode()})
        return path

    def suffixes(self) -> list[str]:
        """Those of the checkpoints that are there, numbers first, in their order."""
        pattern = re.compile(re.escape(self._name) + r"_shards\.([A-Za-z0-9._-]+)\.json")
        names = os.listdir(self.path) if self.path.is_dir() else []
        found = [match[1] for name in names if (match := pattern.fullmatch(name))]
        return sorted(found, key=lambda s: (not s.isdecimal(), int(s) if s.isdecimal() else s))

    def read(self, suffix: int | str | None) -> dict[str, Any]:
        """The document of a checkpoint; by default that of the highest number.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError
        """
        if suffix is None:
            numbers = [text for text in self.suffixes() if text.isdecimal()]
            if not numbers:
                raise CheckpointNotFoundError(
                    f"{self.path}: no checkpoint {self._name}_shards.<number>.json is there"
                )
            suffix = numbers[-1]
        path = self._file(checkpoint.checked_suffix(suffix))
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{path}: there is no such checkpoint; there are {self.suffixes()}"
            ) from error
        except ValueError as error:
            raise CorruptCheckpointError(f"{path}: damaged ({error})") from error
        lacking = [
            name for name in _NEEDED if not isinstance(document, dict) or name not in document
        ]
        if (
            lacking
            or document["format"] != _FORMAT
            or len(document["shards"]) != (document["num_shards"])
        ):
            raise CorruptCheckpointError(
                f"{path}: damaged, or of a newer version: {lacking or 'format'} is not as expected"
            )
        return document

    def retire(self, keep: int | None, just_written: str) -> Iterator[dict[str, Any]]:
        """Unpublish what retention does not keep, as `save` has it; the documents of those that
        went."""
        numbers = [text for text in self.suffixes() if text.isdecimal()]
        for text in [] if keep is None else numbers[:-keep]:
            if text != just_written:
                document = self.read(text)
                files.remove(self._file(text))
                yield document
