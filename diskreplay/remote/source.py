"""A checkpoint on this machine as a push reads it: each file held against what is known of it."""

from pathlib import Path

import numpy as np

from diskreplay.check.segment_check import check_shard, nothing
from diskreplay.errors import CorruptCheckpointError
from diskreplay.remote import document
from diskreplay.store import codec, format, manifest, plain_file
from diskreplay.store.segment import Seal


class Source:
    """The checkpoint at `path`: its manifest, the text of it as `listing`, and how many `rows` it
    has, or None if it does not say. An `IncompleteCheckpointError`, `CorruptCheckpointError` or
    `FormatError` if it is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents, listing = manifest.read_whole_and_bytes(path)
        try:
            self.listing = listing.decode()
        except UnicodeDecodeError as error:
            raise CorruptCheckpointError(f"{path / manifest.NAME}: {error}; not pushed") from error
        attributes = format.read_attributes(path)
        self.rows = document.rows_of(attributes)
        try:
            _num_envs, _capacity, fields = format.parse_head(attributes)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptCheckpointError(f"{path}/zarr.json: damaged attributes: {error}") from None
        self._packed = {field.name: field for field in fields if field.packed}

    def length(self, key: str) -> int:
        """How long a file is without the zeros at its end."""
        try:
            with plain_file.plain_file(self.path / key) as (fd, size):
                for stop in range(size, 0, -plain_file.PIECE):
                    start = max(0, stop - plain_file.PIECE)
                    piece = np.empty(stop - start, np.uint8)
                    plain_file.read_at(fd, start, piece)
                    if piece.any():
                        return start + int(piece.nonzero()[0][-1]) + 1
        except plain_file.Unreadable as error:
            raise CorruptCheckpointError(f"{self.path / key}: {error}; not pushed") from error
        return 0

    def read(self, key: str) -> np.ndarray:
        """The bytes of a file, those of each block of a shard checked; a `CorruptCheckpointError`
        if they are not right."""
        seal = self.contents.files[key]
        try:
            data = plain_file.bytes_of(self.path / key)
            is_sound = len(data) == seal.size and self._sum(key, data) == seal.crc32c
        except plain_file.Unreadable as error:
            raise CorruptCheckpointError(f"{self.path / key}: {error}; not pushed") from error
        if not is_sound:
            raise CorruptCheckpointError(
                f"{self.path / key}: its bytes do not match their checksum; not pushed. Push "
                "another checkpoint"
            )
        return data

    def _sum(self, key: str, data: np.ndarray) -> int | None:
        """The checksum as a manifest has it; None where a block does not match its own."""
        name, _, file = key.rpartition("/")
        field = self._packed.get(name)
        if field is None or file == "zarr.json":
            return codec.crc32c(data)
        checked = check_shard(field, self.path / key, nothing(field))
        return None if checked.faults else checked.seal.crc32c


def is_sound(path: Path, seal: Seal, crc32c: int) -> bool:
    """Whether a file has this length and, all of it, this CRC-32C."""
    try:
        return plain_file.checksum(path) == Seal(seal.size, crc32c)
    except plain_file.Unreadable:
        return False
