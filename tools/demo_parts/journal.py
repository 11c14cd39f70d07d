"""What a training process tells the director: one record for each thing it has finished.

Records go through a pipe. Whatever was written before a SIGKILL is still in the pipe afterwards, so
the journal holds exactly what the process acknowledged.
"""

import os
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

_RECORD = struct.Struct("<B3xIqdd")
_ROW_TAIL = struct.Struct("<qf???")


class Kind(IntEnum):
    """What was finished."""

    READY = 1  # seconds: opening the store; more: loading the checkpoint
    ROW = 2  # number: the id; seconds: the add
    FINAL = 3  # number: the id of the final row that the same add wrote
    BATCH = 4  # number: add_count at the draw; seconds: the sample; more: update_priorities
    SAVED = 5  # number: the iteration; seconds: the save
    DONE = 6


class Record(NamedTuple):
    """One thing finished."""

    kind: int
    checksum: int
    number: int
    seconds: float
    more: float


class Reporter:
    """Writes records into a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, *records: Record) -> None:
        # One write of less than PIPE_BUF bytes: a kill cannot cut it in two.
        os.write(self._descriptor, b"".join(_RECORD.pack(*record) for record in records))


class Journal:
    """Collects records from a pipe's bytes, in any cut."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}  # id to checksum, final rows included
        self.batches: dict[int, int] = {}  # add_count to checksum
        self.seconds: dict[str, list[float]] = {
            name: [] for name in ("open", "load", "add", "sample", "update", "save")
        }
        self.last_saved: int | None = None
        self.done = False
        self._rest = b""

    @property
    def frames(self) -> int:
        """Calls of `add` that returned."""
        return len(self.seconds["add"])

    def feed(self, data: bytes) -> None:
        """Take in some bytes."""
        data = self._rest + data
        whole = len(data) - len(data) % _RECORD.size
        self._rest = data[whole:]
        for values in _RECORD.iter_unpack(data[:whole]):
            self._enter(Record(*values))

    def _enter(self, record: Record) -> None:
        match record.kind:
            case Kind.READY:
                self.seconds["open"].append(record.seconds)
                self.seconds["load"].append(record.more)
            case Kind.ROW:
                self.rows[record.number] = record.checksum
                self.seconds["add"].append(record.seconds)
            case Kind.FINAL:
                self.rows[record.number] = record.checksum
            case Kind.BATCH:
                self.batches[record.number] = record.checksum
                self.seconds["sample"].append(record.seconds)
                self.seconds["update"].append(record.more)
            case Kind.SAVED:
                self.last_saved = record.number
                self.seconds["save"].append(record.seconds)
            case Kind.DONE:
                self.done = True


def row_checksum(
    observation: np.ndarray, action: int, reward: float, terminated: bool, truncated: bool,
    is_final: bool,
) -> int:  # fmt: skip
    """crc32c of all that a row holds."""
    tail = _ROW_TAIL.pack(action, reward, terminated, truncated, is_final)
    return google_crc32c.extend(google_crc32c.value(observation.tobytes()), tail)


def batch_checksum(arrays: dict[str, Any]) -> int:
    """crc32c of all fields of a batch, in the order of their names."""
    checksum = 0
    for name in sorted(arrays):
        checksum = google_crc32c.extend(checksum, np.ascontiguousarray(arrays[name]).tobytes())
    return checksum
