"""The leaf priorities on disk: Zarr arrays with the store's row numbers, NaN for none.

The buffer's own are ``priority``; those of a view of sequences are a set beside them, named
``priority.`` and the view's name.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import FormatError, StorageError
from diskreplay.store import codec, files, format, numbers, private
from diskreplay.store.segment import Seal

LARGEST_LEAF = 1e297  # of a `SumTree`: the sum of all leaves stays finite
LARGEST = "largest_priority"  # among the attributes of the group
VIEWS = "views"  # likewise: what is said of each view
MAIN = "priority"
Notes = Mapping[str, float]
_SMALLEST_CHUNK, _LARGEST_CHUNK = 512, 131_072  # values: a page, a mebibyte
_MOST_OF_A_CHUNK = 1 << 24


class Unsaved(NamedTuple):
    """Leaf priorities that are to be saved.

    Attributes
    ----------
    leaves : ndarray of float64, shape (rows, num_envs)
        From the oldest retained row of any env on; NaN for a row that has none.
    alpha : float or None
        What they were raised to.
    notes : mapping of str to float, optional
        What the owner of a store of its own says of them.
    """

    leaves: np.ndarray
    alpha: float | None
    notes: Notes | None = None


Sets = Mapping[str, Unsaved]
"""What is to be saved, by directory."""


class Saved(NamedTuple):
    """Leaf priorities as they are on disk.

    Attributes
    ----------
    start : int
        The row of the first.
    leaves : ndarray of float64, shape (rows, num_envs)
    alpha : float or None
        What they were raised to. With the leaves, not with the record: the two are not replaced in
        one step, and a store that is reopened with another alpha may be killed in between.
    notes : mapping of str to float
        What the owner of a store of its own says of them; here for the same reason.
    """

    start: int
    leaves: np.ndarray
    alpha: float | None
    notes: Notes

    @property
    def made_by(self) -> tuple[float | None, ...]:
        """What made leaves of priorities. Sets in which this differs cannot be mixed."""
        return self.alpha, self.notes.get("alpha"), self.notes.get("eps")


def write(
    directory: Path, unsaved: Unsaved, start: int, known: Path | None = None
) -> dict[Path, Seal]:
    """Write the priorities of rows from `start` on. Not synced.

    Parameters
    ----------
    known : Path, optional
        The directory of a set that was written before. Chunks that are the same there, byte by
        byte, are linked: nobody writes to them any more.

    Returns
    -------
    dict of Path to Seal
        The files written, or linked.
    """
    leaves, alpha, notes = unsaved
    rows, num_envs = leaves.shape
    chunk = chunk_rows(rows, num_envs)
    stop = start + rows
    written = {}
    files.make_dirs(directory)
    for number in range(start // chunk, -(-stop // chunk)):
        low, high = max(start, number * chunk), min(stop, (number + 1) * chunk)
        block = np.ascontiguousarray(leaves[low - start : high - start], "<f8")
        if high - low < chunk:
            some, block = block, np.full((chunk, num_envs), np.nan, "<f8")
            block[low - number * chunk : high - number * chunk] = some
        path = directory / format.priority_key(number)
        there = known / path.name if known else None
        if there is None or not _has(there, block) or not files.link(there, path):
            files.write(path, [block.data])
        written[path] = Seal(block.nbytes, codec.crc32c(block.reshape(-1).view(np.uint8)))
    metadata = directory / "zarr.json"
    data = format.encode(format.priority_document(stop, num_envs, chunk, alpha, notes))
    files.write(metadata, [data])
    written[metadata] = Seal(len(data), codec.crc32c(data))
    return written


def chunk_rows(rows: int, num_envs: int) -> int:
    """Rows in a chunk where there are so many: one chunk, or two, has those of a small buffer, and
    is not much larger than they are."""
    values = 1 << max(rows * num_envs - 1, 0).bit_length()
    return max(1, min(max(values, _SMALLEST_CHUNK), _LARGEST_CHUNK) // num_envs)


def _has(path: Path, block: np.ndarray) -> bool:
    """Whether a file has these bytes and no others. One that cannot be read has not."""
    try:
        there = files.read(path, block.nbytes + 1) if files.is_there(path) else b""
    except StorageError:
        return False
    # As integers: NaN is no number, and bytes one by one would take ten times as long.
    return len(there) == block.nbytes and np.array_equal(
        np.frombuffer(there, "<i8"), block.reshape(-1).view("<i8")
    )


def parse(document: dict[str, Any], num_envs: int) -> tuple[int, int, float | None, Notes]:
    """Rows, rows in a chunk, what the leaves were raised to, and what their owner says of them, of
    a ``zarr.json``.

    Raises
    ------
    KeyError, IndexError, TypeError, ValueError, AttributeError
        It does not describe priorities of so many envs.
    """
    rows = numbers.integer("shape", document["shape"][0], 0, numbers.MOST_ROWS)
    chunk = document["chunk_grid"]["configuration"]["chunk_shape"][0]
    numbers.integer("chunk_shape", chunk, 1, _MOST_OF_A_CHUNK)
    said, most = document["attributes"].get("diskreplay", {}), sys.float_info.max
    alpha = said.get("alpha")
    if alpha is not None:
        alpha = numbers.real("alpha", alpha, 0, most)
    found = said.get("notes", {}).items()
    notes = {name: numbers.real(name, value, -most, most) for name, value in found}
    if document != format.priority_document(rows, num_envs, chunk, alpha, notes):
        raise ValueError(f"it does not describe the priorities of {num_envs} env(s)")
    return rows, chunk, alpha, notes


def unlikely(leaves: np.ndarray) -> np.ndarray:
    """Which leaves no writer can have saved: those that are neither NaN, for none, nor from 0 to
    `LARGEST_LEAF`."""
    return ~(np.isnan(leaves) | ((leaves >= 0) & (leaves <= LARGEST_LEAF)))


def read(directory: Path, num_envs: int) -> Saved | None:
    """What was saved, or None if nothing ever was.

    Raises
    ------
    FormatError
        A file is damaged, or a leaf is one that nobody can have saved.
    StorageError
    """
    metadata = directory / "zarr.json"
    if not files.is_there(metadata):
        return None
    document = format.read_document(metadata)
    try:
        rows, chunk, alpha, notes = parse(document, num_envs)
        there = format.priority_chunks(directory)
        if there and there[-1] * chunk > rows:
            raise ValueError(f"a chunk {there[-1]} of {rows} rows")
        if there and there != list(range(there[0], there[-1] + 1)):
            raise ValueError(f"chunks {there[0]} to {there[-1]} expected, {len(there)} found")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"{metadata}: damaged ({error})") from error
    if not there:
        return None
    blocks = []
    for number in there:
        path = directory / format.priority_key(number)
        size = 8 * chunk * num_envs
        data = files.read(path, size)
        if len(data) != size:
            raise FormatError(f"{path}: {size} bytes expected, the file is not that long")
        leaves = np.frombuffer(data, "<f8").reshape(chunk, num_envs)
        bad = unlikely(leaves)
        if bad.any():
            row, env = (int(at[0]) for at in np.nonzero(bad))
            raise FormatError(
                f"{path}: damaged: row {number * chunk + row} of env {env} has the priority "
                f"{leaves[row, env]}; a number from 0 to {LARGEST_LEAF:g} expected, or NaN for "
                "none: restore the file, remove the directory to let all rows have the largest "
                "priority, or load a checkpoint"
            )
        blocks.append(leaves)
    start = there[0] * chunk
    return Saved(start, np.concatenate(blocks)[: rows - start], alpha, notes)


def set_name(view: str) -> str:
    """The directory of a view's priorities."""
    return f"{MAIN}.{view}"


def is_set(name: str) -> bool:
    """Whether a member of the group is a set of priorities. No field has such a name."""
    return name == MAIN or name.startswith(f"{MAIN}.")


def sets(root: Path) -> list[str]:
    """The names of the sets that are there, in order."""
    return [path.name for path in files.listed(root, f"{MAIN}*") if is_set(path.name)]


def replace(root: Path, name: str, unsaved: Unsaved, start: int) -> None:
    """Put a set of new priorities in the place of the saved one, as a whole."""
    beside = private.new_priorities(root, name)
    files.remove_tree(beside)
    files.sync(write(beside, unsaved, start, root / name))
    files.sync_dirs([beside])
    put_in_place(root, name)


def share(root: Path, written: Path) -> list[Path]:
    """Have a set that is on disk already, and never changes, beside the saved one of that name, for
    `put_in_place`: both directories have the same files then. Returns what is to be synced
    before."""
    beside = private.new_priorities(root, written.name)
    files.remove_tree(beside)
    files.make_dirs(beside)
    copies = []
    for path in files.listed(written):
        if not files.link(path, beside / path.name):
            files.copy(path, beside / path.name)
            copies.append(beside / path.name)
    return [*copies, beside]


def finish_exchanges(root: Path) -> None:
    """Finish exchanges that were cut, on a file system that cannot swap two directories."""
    for aside in private.all_old_priorities(root):
        target = root / aside.name.removesuffix(private.ASIDE)
        if files.is_there(target):
            files.remove_tree(aside)
        else:
            files.rename(aside, target)
            files.sync_dirs([root])


def put_in_place(root: Path, name: str) -> None:
    """Put what `share` made, or another set that is there durably, in the place of the saved one,
    durably."""
    target, beside = root / name, private.new_priorities(root, name)
    if files.is_there(target):
        files.exchange(beside, target, private.old_priorities(root, name))
        files.sync_dirs([root])  # else the old ones may come back, and their files be gone
        files.remove_tree(beside)
    else:
        files.rename(beside, target)
        files.sync_dirs([root])
