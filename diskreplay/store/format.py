"""Format version 2: its metadata documents. `docs/format.md` specifies it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import DiskReplayError, FormatError
from diskreplay.store import files, numbers
from diskreplay.store.field import MOST_ENVS, Field, parse_chunk_key

VERSION = 2
RESTORE = "restore the file from a backup, or load a checkpoint into a new store"
"""What to do about a store whose own ``zarr.json`` is damaged."""
_LARGEST_JSON = 64 << 20
_MOST_FIELDS = 1 << 12


def priority_key(number: int) -> str:
    """The Zarr key of a chunk of the priorities."""
    return f"c.{number}.0"


def priority_chunks(directory: Path) -> list[int]:
    """The numbers of the chunks of priorities that are there, in order."""
    keys = (parse_chunk_key(path.name) for path in files.listed(directory))
    return sorted(key[0] for key in keys if key is not None)


def parse_head(attributes: dict[str, Any]) -> tuple[int, int | None, list[Field]]:
    """``num_envs``, ``capacity`` and ``fields`` of a group, if anybody could have meant them.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError, DiskReplayError
        They are damaged.
    """
    num_envs = numbers.integer("num_envs", attributes["num_envs"], 1, MOST_ENVS)
    capacity = attributes["capacity"]
    if capacity is not None:
        numbers.integer("capacity", capacity, num_envs, numbers.MOST_ROWS)
    if not 1 <= len(attributes["fields"]) <= _MOST_FIELDS:
        raise ValueError(f"1 to {_MOST_FIELDS} fields expected, found {len(attributes['fields'])}")
    fields = [Field.parse(document) for document in attributes["fields"]]
    if len({field.name for field in fields}) < len(fields):
        raise ValueError("two fields have one name")
    if len({min(field.env_group, num_envs + 1) for field in fields}) > 1 or (
        fields[0].env_group > num_envs
    ):
        raise ValueError(f"env_group: one for all fields expected, of 1 to {num_envs} envs")
    return num_envs, capacity, fields


def parse_rows(attributes: dict[str, Any], num_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """``count`` and ``first`` of a group, int64 of shape (num_envs,), if they can be.

    Raises
    ------
    KeyError, ValueError
        They are damaged.
    """
    count, first = (
        numbers.integers(name, attributes[name], num_envs, 0, numbers.MOST_ROWS // num_envs)
        for name in ("count", "first")
    )
    if (count < first).any():
        raise ValueError("first and count do not fit together")
    return count, first


def parse_transitions(attributes: dict[str, Any], count: np.ndarray) -> np.ndarray:
    """``transitions`` of a group, int64 of shape (num_envs,), if there can be as many.

    Raises
    ------
    KeyError, ValueError
        They are damaged.
    """
    transitions = numbers.integers(
        "transitions", attributes["transitions"], len(count), 0, numbers.MOST_ROWS
    )
    if (transitions > count).any():
        raise ValueError("transitions: there are more than rows")
    return transitions


def field_documents(
    directory: Path, field: Field, document: dict[Any, Any]
) -> dict[Path, dict[Any, Any]]:
    """A field's ``zarr.json`` below a store's directory, and those of the groups that it is in, by
    their paths."""
    *groups, _name = (directory / field.name).relative_to(directory).parents
    found = {directory / group / "zarr.json": group_document() for group in groups}
    return {**found, directory / field.name / "zarr.json": document}


def write_documents(build: Path, field: Field, document: dict[Any, Any]) -> list[Path]:
    """Write a field's ``zarr.json``, and those of the groups that it is in; returns their paths."""
    documents = field_documents(build, field, document)
    for path, content in documents.items():
        files.make_dirs(path.parent)
        files.write(path, [encode(content)])
    return list(documents)


def array_document(
    field: Field, rows: int, num_envs: int, attributes: dict[Any, Any]
) -> dict[str, Any]:
    """The ``zarr.json`` of one field."""
    endian = {"name": "bytes", "configuration": {"endian": "little"}}
    checksum = {"name": "crc32c"}
    codecs: list[dict[Any, Any]] = [endian]
    if field.env_major:
        axes = list(range(2 + len(field.shape)))
        order = {"order": [1, 0, *axes[2:]]}
        codecs = [{"name": "transpose", "configuration": order}, endian]
    if field.packed:
        blosc = {
            "name": "blosc",
            "configuration": {
                "typesize": 1,
                "cname": field.compressor,
                "clevel": 5,  # of the format; says nothing to a reader, and blocks have their own
                "shuffle": "noshuffle",
                "blocksize": 0,
            },
        }
        codecs = [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [field.block_rows, 1, *field.shape],
                    "codecs": [endian, blosc, checksum],
                    "index_codecs": [endian, checksum],
                    "index_location": "start",
                },
            }
        ]
    leaf = field.name.replace("/", "_")
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, num_envs, *field.shape],
        "data_type": field.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [field.segment_rows, field.env_group, *field.shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": False if field.dtype == np.bool_ else 0,
        "codecs": codecs,
        "attributes": {"diskreplay": attributes},
        "dimension_names": ["row", "env", *(f"{leaf}_{i}" for i in range(len(field.shape)))],
    }


def priority_document(
    rows: int,
    num_envs: int,
    chunk_rows: int,
    alpha: float | None,
    notes: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The ``zarr.json`` of the leaf priorities; NaN where a row has none.

    `alpha` is what they were raised to, None where they are weights of another kind. `notes` are
    what the owner of such weights says of them.
    """
    said: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
    if notes:
        said["notes"] = dict(notes)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, num_envs],
        "data_type": "float64",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [chunk_rows, num_envs]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"diskreplay": said} if said else {},
        "dimension_names": ["row", "env"],
    }


def group_document(attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The ``zarr.json`` of a group."""
    inside = {} if attributes is None else {"diskreplay": attributes}
    return {"zarr_format": 3, "node_type": "group", "attributes": inside}


def encode(document: dict[str, Any]) -> bytes:
    """A metadata document as the bytes of its file, a line for each member.

    `json` with an indent is written in Python: ten milliseconds for the seals of a million rows, in
    which the maintenance thread holds the GIL and `add` waits for it.
    """
    members = (f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in document.items())
    return ("{\n" + ",\n".join(members) + "\n}").encode()


def read_json(path: Path, **how: Any) -> Any:
    """JSON of bounded size, read as `json.loads` is told, or a `FormatError`."""
    return _json_in(_bounded(path), path, **how)


def _bounded(path: Path) -> bytes:
    data = files.read(path, _LARGEST_JSON)
    if len(data) > _LARGEST_JSON:
        raise FormatError(f"{path}: larger than any metadata of this format")
    return data


def _json_in(data: bytes, path: Path, **how: Any) -> Any:
    try:
        return json.loads(data, **how)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from error


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size, or a `FormatError`."""
    return read_document_and_bytes(path)[0]


def read_document_and_bytes(path: Path) -> tuple[dict[str, Any], bytes]:
    """The same, with the bytes that say so: a second look could find another file there."""
    data = _bounded(path)
    document = _json_in(data, path, parse_constant=_finite, parse_float=_finite)
    if not isinstance(document, dict):
        raise FormatError(f"{path}: a JSON object was expected, found {type(document).__name__}")
    return document, data


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # Python's json reads what JSON does not have
        raise ValueError(f"{text} is no number")
    return number


class DamagedAttributes(FormatError):
    """A store's own ``zarr.json`` is no JSON object: it is damaged, and not of a newer format."""


def is_store(path: Path) -> bool:
    """Whether a directory has the metadata of a store or of a checkpoint."""
    try:
        read_attributes(path)
    except DiskReplayError:
        return False
    return True


def read_attributes(path: Path) -> dict[str, Any]:
    """The ``diskreplay`` object of a store's group, its version checked."""
    metadata = path / "zarr.json"
    if not files.is_file(metadata):
        what = "it has no zarr.json" if files.is_there(path) else "no such directory"
        raise FormatError(
            f"{path}: not a diskreplay store ({what}); the directory of a store or a checkpoint "
            "expected"
        )
    try:
        document = read_document(metadata)
    except FormatError as error:
        raise DamagedAttributes(f"{error}; {RESTORE}") from error
    attributes = document.get("attributes")
    attributes = attributes.get("diskreplay") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict):
        raise FormatError(
            f"{path}: a Zarr node, but not a diskreplay store (no 'diskreplay' attribute)"
        )
    version = attributes.get("format_version")
    if document.get("node_type") == "array":
        raise FormatError(f"{path}: an array of a store; the directory of the store expected")
    if not isinstance(version, int) or version < 1:
        raise FormatError(f"{metadata}: format version {version!r} is no version of this format")
    if version < VERSION:
        raise FormatError(
            f"{path}: format version {version}, which was given up before the first release; this "
            f"diskreplay reads version {VERSION}: record it anew, or convert it with the version "
            "that wrote it (`diskreplay export`)"
        )
    if version > VERSION:
        raise FormatError(
            f"{path}: format version {version}; this diskreplay reads up to {VERSION}: upgrade it"
        )
    return attributes
