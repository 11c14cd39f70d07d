"""Format version 2: names, metadata documents and segment sizes. `docs/format.md` specifies it."""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import DtypeError, FormatError, InvalidInputError
from diskreplay.store import files, numbers

VERSION = 2
BLOCK_ROWS = 8  # rows of one env that are compressed together, unless a field says otherwise
CODECS = ("raw", "lz4", "zstd")
_LEVELS = {"lz4": 9, "zstd": 1}  # see design/0008
DTYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
)

_LARGE_SEGMENT = 32 << 20
_LARGE_SEGMENT_OF_MANY = 64 << 20  # of several envs
_LARGE_MUTABLE_SEGMENT = 2 << 20  # copied as a whole for the first value that changes
_MOST_GROUPED = 4096  # envs whose rows share files, unless asked otherwise
_WIDE = 1 << 10  # bytes of a row
_LARGE_TAIL = 16 << 20
_MOST_TAIL_BLOCKS = 32
_LONGEST_BLOCK = 1 << 10  # rows
_MOST_BLOCKS = 4096  # of a segment
_SMALL_SEGMENT = 64 << 10  # a file costs more than these bytes do
_MOST_ROWS = 131_072
_PAGE, _LARGE_PAGE = 4096, 16_384
_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.\- ]{0,198}[A-Za-z0-9_\-])?")
PART_RULE = (
    "it becomes a directory, so it must begin with a letter, digit or underscore, end with one of "
    "these or '-', and have only these, '.' and spaces in between, at most 200 of ASCII; no '..', "
    "not zarr.json, and not '__' at the beginning, which is Zarr's"
)
_LONGEST_NAME = 1000
_CHUNK_KEY = re.compile(r"c\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:\.0)*")
_LARGEST_JSON = 64 << 20
_LARGEST_SEGMENT = 1 << 40
_MOST_ENVS = 1 << 17
_MOST_FIELDS = 1 << 12
_LARGEST_BLOCK = (1 << 31) - 64


@dataclass(frozen=True)
class Field:
    """One named column.

    Attributes
    ----------
    name : str
        ``/`` separates the leaves of a nested observation.
    shape : tuple of int
        Of one row.
    dtype : numpy.dtype
    compressor : {"raw", "lz4", "zstd"}
    segment_rows : int
        Rows of each env in one file; 0 until `sized` chooses it.
    env_group : int
        Envs whose rows share files.
    block_rows : int
        Rows of one env that are compressed together; of no meaning for a raw field.
    mutable : bool
        Whether values of rows that are there may be replaced; only of a raw field.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    compressor: str = "raw"
    segment_rows: int = 0
    env_group: int = 1
    block_rows: int = BLOCK_ROWS
    mutable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).newbyteorder("="))
        if self.dtype.name not in DTYPES:
            raise DtypeError(
                f"field {self.name!r}: dtype {self.dtype} cannot be stored; expected one of "
                f"{', '.join(sorted(DTYPES))}"
            )
        bad = [part for part in self.name.split("/") if not is_part(part)]
        if bad:
            raise InvalidInputError(f"field {self.name!r:.120}: {bad[0]!r:.120}: {PART_RULE}")
        if len(self.name) > _LONGEST_NAME:
            raise InvalidInputError(
                f"field {self.name!r:.120}: {len(self.name)} letters are too long for a path; at "
                f"most {_LONGEST_NAME} expected"
            )
        if self.compressor not in CODECS:
            raise InvalidInputError(
                f"field {self.name!r}: compressor {self.compressor!r} is unknown; expected one of "
                f"{', '.join(CODECS)}"
            )
        if self.mutable and self.packed:
            raise InvalidInputError(
                f"field {self.name!r}: compressor {self.compressor!r} asked for, and its values "
                "may be replaced, which compressed ones cannot be; leave it 'raw'"
            )
        if not self.row_bytes:
            raise InvalidInputError(
                f"field {self.name!r}: a row of shape {self.shape} holds nothing"
            )

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def segment_bytes(self) -> int:
        """Bytes of one segment before compression."""
        return self.segment_rows * self.env_group * self.row_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block before compression."""
        return self.block_rows * self.row_bytes

    @property
    def env_major(self) -> bool:
        """Whether a raw segment has the rows of one env one behind the other, and then those of the
        next env; else it has those of one moment. See design/0011."""
        return not self.packed and self.env_group > 1 and self.row_bytes >= _WIDE

    @property
    def stride(self) -> int:
        """Bytes from a row to the next one of that env in a raw segment."""
        grouped = 1 if self.packed or self.env_major else self.env_group
        return grouped * self.row_bytes

    @property
    def packed(self) -> bool:
        return self.compressor != "raw"

    @property
    def level(self) -> int:
        """Blosc's level of compression, for what is written."""
        return _LEVELS[self.compressor]

    @property
    def blocks(self) -> int:
        """Blocks of each env in one segment."""
        return self.segment_rows // self.block_rows

    @property
    def index_bytes(self) -> int:
        """Bytes of a shard's index, without its checksum: 16 for each block."""
        return 16 * self.blocks * self.env_group

    @property
    def shard_bytes(self) -> int:
        """The most bytes that a shard can have: a block that does not compress takes as much as its
        rows, a header and a checksum."""
        return self.index_bytes + 4 + self.blocks * self.env_group * (self.block_bytes + 20)

    def groups(self, num_envs: int) -> int:
        """How many groups so many envs make."""
        return -(-num_envs // self.env_group)

    def tail_rows(self, num_envs: int) -> int:
        """Rows of each env that the tail of a packed field has room for: whole blocks, a power of 2
        of them and at least two, of which one is written to while another is compressed."""
        fit = _LARGE_TAIL // (num_envs * self.block_bytes)
        blocks = 1 << max(min(fit, _MOST_TAIL_BLOCKS), 2).bit_length() - 1
        return blocks * self.block_rows

    def tail_bytes(self, num_envs: int) -> int:
        """Length of the tail of a packed field, whole pages."""
        return -(-num_envs * self.tail_rows(num_envs) * self.row_bytes // _PAGE) * _PAGE

    def sized(
        self, rows_per_env: int | None, num_envs: int, asked: int | None, env_group: int | None
    ) -> "Field":
        """The same field with its `env_group` and `segment_rows`: chosen, or what was asked for,
        `asked` rounded up to what fits.

        A segment has about 32 MiB before compression, 64 where it has several envs, 2 where its
        values may be replaced, and at most an eighth of the rows that an env keeps where that is
        not a file of next to nothing. Raw segments are whole pages (of 16 KiB where the budget
        allows), packed ones whole blocks.
        """
        if env_group is None:
            groups = -(-num_envs // _MOST_GROUPED)
            env_group = -(-num_envs // groups)
        env_group = min(env_group, num_envs)
        bytes_ = env_group * self.row_bytes  # of one moment
        if self.packed:
            granule = self.block_rows
        else:
            granule = _PAGE // math.gcd(bytes_, _PAGE)
        if asked is not None:
            rows = -(-asked // granule) * granule
            return replace(self, segment_rows=rows, env_group=env_group)
        budget = (_LARGE_SEGMENT if env_group == 1 else _LARGE_SEGMENT_OF_MANY) // bytes_
        if self.mutable:
            budget = _LARGE_MUTABLE_SEGMENT // bytes_
        if rows_per_env is not None:
            small = 0 if self.packed else min(rows_per_env, _SMALL_SEGMENT // bytes_)
            budget = min(budget, max(rows_per_env // 8, small))
        budget = min(budget, _MOST_ROWS)
        if self.packed:
            # The index has 16 bytes for each block, in use or not.
            budget = min(budget, _MOST_BLOCKS // env_group * self.block_rows)
            rows = 1 << max(budget, granule).bit_length() - 1
            rows = max(rows // granule, 1) * granule
        else:
            large = _LARGE_PAGE // math.gcd(bytes_, _LARGE_PAGE)
            if budget >= large:
                granule = large
            rows = max(granule, budget // granule * granule)
        return replace(self, segment_rows=rows, env_group=env_group)

    def describe(self) -> dict[str, Any]:
        """As JSON, for the group's attributes."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "compressor": self.compressor,
            "segment_rows": self.segment_rows,
            "env_group": self.env_group,
            "block_rows": self.block_rows,
            **({"mutable": True} if self.mutable else {}),
        }

    @classmethod
    def parse(cls, document: dict[str, Any]) -> "Field":
        """The opposite of `describe`."""
        field = cls(
            str(document["name"]),
            tuple(
                numbers.integer("shape", n, 1, _LARGEST_SEGMENT) for n in list(document["shape"])
            ),
            np.dtype(str(document["dtype"])),
            str(document["compressor"]),
            numbers.integer("segment_rows", document["segment_rows"], 1, _LARGEST_SEGMENT),
            numbers.integer("env_group", document["env_group"], 1, _MOST_ENVS),
            numbers.integer("block_rows", document["block_rows"], 1, _LONGEST_BLOCK),
            numbers.flag("mutable", document.get("mutable", False)),
        )
        if field.packed and field.segment_rows % field.block_rows:
            raise ValueError(f"field {field.name!r}: its segments are no whole blocks")
        # Blosc takes less than 2 GiB at once.
        if field.shard_bytes > _LARGEST_SEGMENT or (
            field.packed and field.block_bytes > _LARGEST_BLOCK
        ):
            raise ValueError(f"field {field.name!r}: rows of {field.row_bytes} bytes are too large")
        return field

    def chunk_key(self, segment: int, group: int) -> str:
        """The Zarr key of a segment, below the field's directory."""
        return ".".join(["c", str(segment), str(group), *("0" for _ in self.shape)])


def is_part(name: str) -> bool:
    """Whether a field, or a part of its name between two ``/``, may be called so: `PART_RULE`."""
    special = ".." in name or name.startswith("__") or name.lower() == "zarr.json"
    return bool(_PART.fullmatch(name)) and not special


def parse_chunk_key(name: str) -> tuple[int, int] | None:
    """Segment and group of what `Field.chunk_key` made; None for another name."""
    found = _CHUNK_KEY.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def priority_key(number: int) -> str:
    """The Zarr key of a chunk of the priorities."""
    return f"c.{number}.0"


def priority_chunks(directory: Path) -> list[int]:
    """The numbers of the chunks of priorities that are there, in order."""
    keys = (parse_chunk_key(path.name) for path in directory.iterdir())
    return sorted(key[0] for key in keys if key is not None)


def parse_head(attributes: dict[str, Any]) -> tuple[int, int | None, list[Field]]:
    """``num_envs``, ``capacity`` and ``fields`` of a group, if anybody could have meant them.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError, DiskReplayError
        They are damaged.
    """
    num_envs = numbers.integer("num_envs", attributes["num_envs"], 1, _MOST_ENVS)
    capacity = attributes["capacity"]
    if capacity is not None:
        numbers.integer("capacity", capacity, num_envs, numbers.MOST_ROWS)
    if not 1 <= len(attributes["fields"]) <= _MOST_FIELDS:
        raise ValueError(f"{len(attributes['fields'])} fields")
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


def array_document(field: Field, rows: int, num_envs: int, attributes: dict) -> dict[str, Any]:
    """The ``zarr.json`` of one field."""
    endian = {"name": "bytes", "configuration": {"endian": "little"}}
    checksum = {"name": "crc32c"}
    codecs: list[dict] = [endian]
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
    rows: int, num_envs: int, chunk_rows: int, alpha: float | None
) -> dict[str, Any]:
    """The ``zarr.json`` of the leaf priorities; NaN where a row has none.

    `alpha` is what they were raised to, None where they are weights of another kind.
    """
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
        "attributes": {} if alpha is None else {"diskreplay": {"alpha": alpha}},
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


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size, or a `FormatError`."""
    data = files.read(path, _LARGEST_JSON)
    if len(data) > _LARGEST_JSON:
        raise FormatError(f"{path}: larger than any metadata of this format")
    try:
        document = json.loads(data, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(document, dict):
        raise FormatError(f"{path}: a JSON object was expected, found {type(document).__name__}")
    return document


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # Python's json reads what JSON does not have
        raise ValueError(f"{text} is no number")
    return number


def read_attributes(path: Path) -> dict[str, Any]:
    """The ``diskreplay`` object of a store's group, its version checked."""
    metadata = path / "zarr.json"
    if not metadata.is_file():
        what = "no such directory" if not path.exists() else "it has no zarr.json"
        raise FormatError(f"{path}: not a diskreplay store ({what})")
    document = read_document(metadata)
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
