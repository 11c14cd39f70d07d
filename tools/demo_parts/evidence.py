"""What a store holds, held against what was acknowledged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demo_parts.journal import Journal, row_checksum

_FIELDS = ("observation", "action", "reward", "terminated", "truncated", "is_final")
_AT_ONCE = 2048  # rows, 14 MB


@dataclass
class RowsFound:
    """Outcome of `compare_rows`."""

    stored: int
    acknowledged: int
    missing: int
    different: int

    @property
    def unacknowledged(self) -> int:
        """Rows whose add was over before it could be acknowledged, or a final row."""
        return self.stored - (self.acknowledged - self.missing)

    @property
    def holds(self) -> bool:
        """Whether nothing acknowledged was lost, and at most one add was cut off."""
        return not self.missing and not self.different and self.unacknowledged <= 2


@dataclass
class BatchesFound:
    """Outcome of `compare_batches`."""

    suffix: int
    compared: int
    different: int
    added: int

    @property
    def holds(self) -> bool:
        """Whether there were batches, and all were equal."""
        return self.compared > 0 and not self.different


def read_rows(group: Any, start: int, stop: int, env: int = 0) -> dict[str, np.ndarray]:
    """Rows of one env, read by zarr-python."""
    return {name: group[name][start:stop, env] for name in _FIELDS}


def row_checksums(rows: dict[str, np.ndarray]) -> Iterator[int]:
    """As the training process made them of what it added."""
    columns = [rows["observation"], *(rows[name].tolist() for name in _FIELDS[1:])]
    for row in zip(*columns, strict=True):
        yield row_checksum(*row)


def compare_rows(
    group: Any, stored: int, journal: Journal, advance: Callable[[int], None]
) -> RowsFound:
    """Every acknowledged row against what zarr-python finds in the store."""
    different = 0
    for start in range(0, stored, _AT_ONCE):
        rows = read_rows(group, start, min(start + _AT_ONCE, stored))
        for row, checksum in enumerate(row_checksums(rows), start):
            different += journal.rows.get(row, checksum) != checksum
        advance(len(rows["action"]))
    missing = sum(row >= stored for row in journal.rows)
    return RowsFound(stored, len(journal.rows), missing, different)


def compare_batches(twin: Journal, resumed: Journal, suffix: int, since: int) -> BatchesFound:
    """The batches after a save: of the run that went on, and of the one resumed there.

    Parameters
    ----------
    twin, resumed : Journal
    suffix : int
        The checkpoint's.
    since : int
        `add_count` at the save.
    """
    theirs = {frames: crc for frames, crc in twin.batches.items() if frames >= since}
    different = sum(resumed.batches.get(frames) != crc for frames, crc in theirs.items())
    return BatchesFound(suffix, len(theirs), different, max(theirs, default=since) - since)


def disk_bytes(directory: Path) -> tuple[int, int]:
    """Bytes that a directory takes on disk, and those of them that no other directory shares."""
    total = own = 0
    for path in directory.rglob("*"):
        status = path.stat()
        if path.is_file():
            total += status.st_blocks * 512
            own += status.st_blocks * 512 * (status.st_nlink == 1)
    return total, own
