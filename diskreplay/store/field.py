"""One named column: its rows, its files and how they are laid out. See `docs/format.md`."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diskreplay.errors import DtypeError, InvalidInputError
from diskreplay.store import numbers

BLOCK_ROWS = 8  # rows of one env that are compressed together, unless a field says otherwise
CODECS = ("raw", "lz4", "zstd")
_LEVELS = {"lz4": 9, "zstd": 1}  # see design/0008
DTYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
     "float32", "float64")
)  # fmt: skip

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
_LARGEST_SEGMENT = 1 << 40
MOST_ENVS = 1 << 17
_MOST_AXES = 28  # NumPy 1 has 32, of which batches of stacks in windows take three
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
        dtype = np.dtype(self.dtype).newbyteorder("=")
        # By its name NumPy's own object is found, which arrays have: that is seen at once.
        dtype = np.dtype(dtype.name) if dtype.name in DTYPES else dtype
        object.__setattr__(self, "dtype", dtype)
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
        if min(self.shape, default=1) < 0 or len(self.shape) > _MOST_AXES:
            raise InvalidInputError(
                f"field {self.name!r:.120}: shape {self.shape!s:.120} found; at most {_MOST_AXES} "
                "axes expected, each of 1 or more"
            )
        if self.row_bytes > _LARGEST_SEGMENT:
            raise InvalidInputError(
                f"field {self.name!r:.120}: a row of shape {self.shape} has {self.row_bytes:,} "
                f"bytes; at most {_LARGEST_SEGMENT:,} expected"
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

    def envs(self, group: int) -> slice:
        """The envs of a group; the last one may have fewer."""
        return slice(group * self.env_group, (group + 1) * self.env_group)

    def used(self, number: int, group: int, count: np.ndarray) -> np.ndarray:
        """How many of the first ``count[e]`` rows of each env of a group are in a segment."""
        start = number * self.segment_rows
        return np.clip(count[self.envs(group)] - start, 0, self.segment_rows)

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
        rows, a header and a checksum; and behind them there may be a number of rows for each
        env, and a checksum."""
        blocks = self.blocks * self.env_group * (self.block_bytes + 20)
        return self.index_bytes + 4 + blocks + 4 * self.env_group + 4

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
            numbers.integer("env_group", document["env_group"], 1, MOST_ENVS),
            numbers.integer("block_rows", document["block_rows"], 1, _LONGEST_BLOCK),
            numbers.flag("mutable", document.get("mutable", False)),
        )
        if field.packed and field.segment_rows % field.block_rows:
            raise ValueError(f"field {field.name!r}: its segments are no whole blocks")
        # Blosc takes less than 2 GiB at once.
        if field.shard_bytes > _LARGEST_SEGMENT or (
            field.packed and field.block_bytes > _LARGEST_BLOCK
        ):
            raise ValueError(
                f"field {field.name!r}: {field.segment_rows} rows of {field.row_bytes} bytes, of "
                f"{field.env_group} env(s) in one file, are too large"
            )
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
