"""One published checkpoint: its manifest, and in which objects the bytes of its files are."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from diskreplay.errors import CorruptCheckpointError
from diskreplay.store import checkpoint_names, format, manifest, numbers
from diskreplay.store.manifest import Manifest

VERSION = 1
MOST_BYTES = 256 << 20  # of a document
_OBJECT = re.compile(r"(packs|objects)/[0-9a-f]{64}(\.[0-9]{1,6})?")
_MOST_OBJECTS = 1 << 20
MOST_LEAST = 900_000  # see `Catalog.least`; an object's name has room for some more


class Part(NamedTuple):
    """Where the bytes of a file are.

    Attributes
    ----------
    object : str
    offset, length : int
        In the object. Zeros that the file ends with are not put: segments that are not full have
        many.
    crc32c : int
        Of the whole file.
    """

    object: str
    offset: int
    length: int
    crc32c: int


def sha256_of(key: str) -> str:
    """The checksum that an object is named by."""
    return key.partition("/")[2][:64]


def number_of(key: str) -> int:
    """The number behind the checksum in an object's name: 0 if there is none."""
    return int(key.partition(".")[2] or 0)


def object_name(key: str, number: int) -> str:
    """The name of this number, of an object of the number 0."""
    return f"{key}.{number}" if number else key


@dataclasses.dataclass(frozen=True)
class Document:
    """What is put for a checkpoint.

    Attributes
    ----------
    name, suffix : str
        The checkpoint's directory is ``<name>_ckpt.<suffix>``.
    run : str
    epoch : int
    listing : str
        The text of its manifest.
    objects : dict of str to int
        Lengths of the objects that it needs.
    parts : dict of str to Part
        For each file of the manifest.
    extra : dict
        What the caller wants to have kept with it.
    """

    name: str
    suffix: str
    run: str
    epoch: int
    listing: str
    objects: dict[str, int]
    parts: dict[str, Part]
    extra: dict[str, Any]

    def contents(self) -> Manifest:
        """Its manifest."""
        return _manifest(self.listing)

    def encode(self) -> bytes:
        """As the bytes of an object."""
        numbers_of = {key: number for number, key in enumerate(self.objects)}
        return format.encode({
            "format": VERSION, "name": self.name, "suffix": self.suffix, "run": self.run,
            "epoch": self.epoch, "extra": self.extra,
            "objects": [[key, length] for key, length in self.objects.items()],
            "files": {
                key: [numbers_of[part.object], part.offset, part.length, part.crc32c]
                for key, part in self.parts.items()
            },
            "manifest": self.listing,
        })  # fmt: skip


def load_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object of this format, or a `CorruptCheckpointError`."""
    try:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object expected, found {type(found).__name__}")
        numbers.integer("format", found.get("format"), 1, 1 << 30)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: damaged: {error}") from error
    if found["format"] != VERSION:
        raise CorruptCheckpointError(
            f"{where}: of version {found['format']} of this format; this diskreplay reads "
            f"{VERSION}: upgrade it"
        )
    return found


def text(name: str, value: Any, most: int = 200) -> str:
    """`value` if it is a text that a push writes, or a ``ValueError``."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= most:
        raise ValueError(f"{name}: a text expected, found {value!r:.60}")
    return value


def parse(data: bytes, where: str) -> Document:
    """The opposite of `Document.encode`; a `CorruptCheckpointError` if it is damaged."""
    found = load_json(data, where)
    try:
        listing, objects, files = (found.get(key) for key in ("manifest", "objects", "files"))
        if not isinstance(listing, str) or not isinstance(files, dict):
            raise ValueError("no manifest, or no files")
        listing.encode()  # JSON may have halves of characters, which no file can
        contents = _manifest(listing)
        if not isinstance(objects, list) or len(objects) > _MOST_OBJECTS:
            raise ValueError("no list of objects")
        if files.keys() != contents.files.keys():
            raise ValueError("its files are not those of its manifest")
        lengths = [_object(entry) for entry in objects]
        extra = found.get("extra", {})
        if not isinstance(extra, dict):
            raise ValueError("extra: an object expected")
        return Document(
            checkpoint_names.checked_suffix(found.get("name", "")),
            checkpoint_names.checked_suffix(found.get("suffix", "")),
            text("run", found.get("run")),
            numbers.integer("epoch", found.get("epoch"), 0, 1 << 62),
            listing,
            dict(lengths),
            {key: _part(key, entry, lengths, contents) for key, entry in files.items()},
            extra,
        )
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: damaged: {error}") from error


def _manifest(listing: str) -> Manifest:
    found = json.loads(listing)
    if not isinstance(found, dict):
        raise ValueError("manifest: a JSON object expected")
    return manifest.parse(found)


def object_key(value: Any) -> str:
    """`value` if it is a name of an object, or a ``ValueError``."""
    if not isinstance(value, str) or not _OBJECT.fullmatch(value):
        raise ValueError(f"{value!r:.60} is no name of an object")
    return value


def _object(entry: Any) -> tuple[str, int]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ValueError(f"[object, length] expected, found {entry!r:.60}")
    return object_key(entry[0]), numbers.integer("length", entry[1], 0, numbers.MOST_ROWS)


def _part(key: str, entry: Any, lengths: list[tuple[str, int]], contents: Manifest) -> Part:
    name = f"file {key!r:.80}"
    if not isinstance(entry, list) or len(entry) != 4:
        raise ValueError(
            f"{name}: [object, offset, length, checksum] expected, found {entry!r:.60}"
        )
    at, size = lengths[numbers.integer(f"{name}: object", entry[0], 0, len(lengths) - 1)]
    most = min(size, contents.files[key].size)
    length = numbers.integer(f"{name}: length", entry[2], 0, most)
    return Part(
        at,
        numbers.integer(f"{name}: offset", entry[1], 0, size - length),
        length,
        numbers.integer(f"{name}: checksum", entry[3], 0, 2**32 - 1),
    )


def rows_of(group: Mapping[str, Any]) -> int | None:
    """Retained rows, by the attributes of the checkpoint's group; None if that is not known."""
    try:
        return sum(group["count"]) - sum(group["first"])
    except (KeyError, TypeError):
        return None
