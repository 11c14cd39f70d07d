"""Whether the saved priorities can be what a writer saved."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diskreplay.check.snapshot import Snapshot
from diskreplay.errors import DiskReplayError
from diskreplay.store import codec, format, plain_file, priorities
from diskreplay.store.plain_file import Unreadable
from diskreplay.store.segment import Seal
from diskreplay.store.system_errors import says_lost


@dataclass
class Priorities:
    """What was found: files that belong there, those that were read, and what is wrong."""

    expected: set[Path] = field(default_factory=set)
    seals: dict[Path, Seal] = field(default_factory=dict)
    faults: list[tuple[Path, str]] = field(default_factory=list)


def check(directory: Path, snapshot: Snapshot) -> Priorities:
    """Check the metadata, the files' names and lengths, and every leaf."""
    metadata, catalog = directory / "zarr.json", snapshot.catalog
    found = Priorities({metadata})
    try:
        document = format.read_document(metadata)
        rows, chunk, *_ = priorities.parse(document, catalog.num_envs)
    except (AttributeError, LookupError, TypeError, ValueError, DiskReplayError) as error:
        if not says_lost(error):
            raise
        found.faults.append((metadata, f"the metadata are damaged ({error})"))
        return found
    most = int(catalog.count.max())
    if rows > most or (catalog.is_settled and rows != most):
        found.faults.append((metadata, f"priorities of {rows} rows found, {most} expected"))
        return found
    first = int(catalog.first.min()) // chunk
    if not catalog.is_settled:  # saved at the last flush, when other rows were the oldest
        first = min(format.priority_chunks(directory), default=first)
    for number in range(first, -(-rows // chunk)):
        path = directory / format.priority_key(number)
        found.expected.add(path)
        try:
            leaves = _read(path, chunk * catalog.num_envs)
        except Unreadable as error:
            found.faults.append((path, str(error)))
            continue
        found.seals[path] = Seal(leaves.nbytes, codec.crc32c(leaves))
        bad = priorities.unlikely(leaves)
        if bad.any():
            found.faults.append((path, f"{bad.sum()} priorities are negative or not finite"))
        elif not np.isnan(leaves[max(rows - number * chunk, 0) * catalog.num_envs :]).all():
            found.faults.append((path, "there are priorities behind the last row"))
    return found


def _read(path: Path, leaves: int) -> np.ndarray:
    with plain_file.plain_file(path) as (fd, size):
        if size != 8 * leaves:
            raise Unreadable("length", f"{size} bytes found, {8 * leaves} expected")
        out = np.empty(leaves, "<f8")
        plain_file.read_at(fd, 0, out.view(np.uint8))
    return out
