"""The manifest of a checkpoint: its files, their lengths and checksums, and when it was saved.

It lies below an array, as the private files of a live store do: see `private`.
"""

import datetime
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diskreplay.errors import CorruptCheckpointError, IncompleteCheckpointError
from diskreplay.store import files, format, numbers
from diskreplay.store.segment import Seal

_HALF = re.compile("[\ud800-\udfff]")  # of a character: JSON may have one alone
PLACE = Path("is_final", "saved")  # what a checkpoint has besides its rows
NAME = PLACE / "manifest.json"
ATTACHMENTS = PLACE / "attachments"


def is_checkpoint(path: Path) -> bool:
    """Whether there is a manifest, sound or not."""
    return files.is_there(path / NAME)


def was_checkpoint(path: Path) -> bool:
    """Whether it is a checkpoint, or one whose manifest is gone."""
    return files.is_dir((path / NAME).parent)


class Manifest(NamedTuple):
    """What is known of a checkpoint's files.

    Attributes
    ----------
    files : dict of str to Seal
        For every file but the manifest itself, by its path below the checkpoint.
    saved_at : datetime or None
        With a time zone; None in checkpoints of versions that did not note it.
    """

    files: dict[str, Seal]
    saved_at: datetime.datetime | None

    @property
    def attachments(self) -> dict[str, Seal]:
        """The attachments among the files, by their names."""
        prefix = f"{ATTACHMENTS.as_posix()}/"
        return {
            key.removeprefix(prefix): seal
            for key, seal in self.files.items()
            if key.startswith(prefix)
        }


def encode(files: Mapping[str, Seal], saved_at: datetime.datetime) -> bytes:
    """The bytes of a manifest."""
    document = {
        "saved_at": saved_at.astimezone(datetime.UTC).isoformat(),
        "files": {key: [seal.size, seal.crc32c] for key, seal in files.items()},
    }
    return format.encode(document)


def write(build: Path, contents: Mapping[str, Seal]) -> Path:
    """Write the manifest of a checkpoint that is saved now; returns where it is. Not synced."""
    listing = build / NAME
    files.make_dirs(listing.parent)
    files.write(listing, [encode(contents, datetime.datetime.now(datetime.UTC))])
    return listing


def parse(document: Mapping[str, Any]) -> Manifest:
    """The opposite of `encode`, or a ``ValueError`` where it is damaged."""
    entries, saved_at = document.get("files"), document.get("saved_at")
    if not isinstance(entries, dict) or "zarr.json" not in entries:
        raise ValueError("does not list the files of a checkpoint")
    found = {}
    for key, entry in entries.items():
        name = f"entry {key!r:.80}"
        if key.startswith("/") or "\0" in key or {"", ".", ".."} & set(key.split("/")):
            raise ValueError(f"{name} is damaged: no path below the checkpoint")
        if _HALF.search(key):
            raise ValueError(f"{name} is damaged: it has half a character, as no path has")
        if not isinstance(entry, list) or len(entry) != 2:
            raise ValueError(f"{name} is damaged: [length, checksum] expected")
        found[key] = Seal.checked(name, *entry)
    return Manifest(found, None if saved_at is None else numbers.time("saved_at", saved_at))


def read(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`, whose files are looked at by nobody here.

    Raises
    ------
    IncompleteCheckpointError
        There is none (it is a ``FileNotFoundError`` too).
    CorruptCheckpointError, FormatError
        It is damaged.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Manifest, bytes]:
    listing = path / NAME
    if not files.is_file(listing):
        raise IncompleteCheckpointError(
            f"{listing}: missing, so this is no whole checkpoint; load another one"
        )
    try:
        document, data = format.read_document_and_bytes(listing)
        return parse(document), data
    except ValueError as error:
        raise CorruptCheckpointError(f"{listing}: {error}") from error


def read_whole(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`, each of whose files is there in full, or an error.

    Raises
    ------
    IncompleteCheckpointError
        A file is missing (it is a ``FileNotFoundError`` too).
    CorruptCheckpointError, FormatError
        A file is short or long, or the manifest itself is damaged.
    """
    return read_whole_and_bytes(path)[0]


def read_whole_and_bytes(path: Path) -> tuple[Manifest, bytes]:
    """The same, with the bytes of the manifest: a second look could find another checkpoint's."""
    manifest, data = _read(path)
    missing = []
    for key, seal in manifest.files.items():
        try:
            about = os.stat(path / key, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(key)
            continue
        except (OSError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{path / NAME}: entry {key!r:.80} is damaged"
            ) from error  # fmt: skip
        if not stat.S_ISREG(about.st_mode):
            raise CorruptCheckpointError(f"{path / key}: no regular file; load another checkpoint")
        if about.st_size != seal.size:
            raise CorruptCheckpointError(
                f"{path / key}: {about.st_size} bytes found, {seal.size} expected; load another "
                "checkpoint"
            )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise IncompleteCheckpointError(
            f"{path}: {missing[0]}{more} missing; nothing was loaded: restore it, or load another "
            "checkpoint"
        )
    return manifest, data
