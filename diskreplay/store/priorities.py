"""The leaf priorities on disk: a Zarr array with the store's row numbers, NaN for none."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.store import files, format, private

LARGEST = "largest_priority"  # among the attributes of the group
_CHUNK_VALUES = 131_072  # about a mebibyte
_MOST_OF_A_CHUNK = 1 << 24


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
    """

    start: int
    leaves: np.ndarray
    alpha: float | None


def write(directory: Path, priorities: np.ndarray, start: int, alpha: float | None) -> list[Path]:
    """Write the priorities of rows from `start` on, and sync them.

    Parameters
    ----------
    priorities : ndarray of float64, shape (rows, num_envs)
        NaN for a row that has none.

    Returns
    -------
    list of Path
        The files written.
    """
    rows, num_envs = priorities.shape
    chunk = max(1, _CHUNK_VALUES // num_envs)
    stop = start + rows
    written = []
    files.make_dirs(directory)
    for number in range(start // chunk, -(-stop // chunk)):
        block = np.full((chunk, num_envs), np.nan, "<f8")
        low, high = max(start, number * chunk), min(stop, (number + 1) * chunk)
        block[low - number * chunk : high - number * chunk] = priorities[low - start : high - start]
        path = directory / format.priority_key(number)
        files.write(path, [block.data])
        written.append(path)
    metadata = directory / "zarr.json"
    files.write(metadata, [format.encode(format.priority_document(stop, num_envs, chunk, alpha))])
    files.sync([*written, metadata])
    files.sync_dirs([directory])
    return [*written, metadata]


def read(directory: Path, num_envs: int) -> Saved | None:
    """What was saved, or None if nothing ever was."""
    metadata = directory / "zarr.json"
    if not metadata.exists():
        return None
    document = format.read_document(metadata)
    try:
        rows, envs = document["shape"]
        chunk, _envs = document["chunk_grid"]["configuration"]["chunk_shape"]
        numbers = format.priority_chunks(directory)
        alpha = document["attributes"].get("diskreplay", {}).get("alpha")
        alpha = None if alpha is None else float(alpha)
        if type(rows) is not int or type(chunk) is not int or not 0 < chunk <= _MOST_OF_A_CHUNK:
            raise ValueError(f"shape {rows}, chunks of {chunk}")
        if numbers and numbers[-1] * chunk > rows:
            raise ValueError(f"a chunk {numbers[-1]} of {rows} rows")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{metadata}: damaged ({error})") from error
    if envs != num_envs:
        raise FormatError(f"{metadata}: {envs} envs found, {num_envs} expected")
    if not numbers:
        return None
    blocks = []
    for number in range(numbers[0], numbers[-1] + 1):
        path = directory / format.priority_key(number)
        size = 8 * chunk * num_envs
        data = files.read(path, size)
        if len(data) != size:
            raise FormatError(f"{path}: {size} bytes expected, the file is not that long")
        blocks.append(np.frombuffer(data, "<f8").reshape(chunk, num_envs))
    start = numbers[0] * chunk
    return Saved(start, np.concatenate(blocks)[: rows - start], alpha)


def replace(root: Path, priorities: np.ndarray, start: int, alpha: float | None) -> None:
    """Put new priorities in the place of the saved ones, as a whole."""
    beside = private.new_priorities(root)
    files.remove_tree(beside)
    write(beside, priorities, start, alpha)
    _put_in_place(root, beside)


def adopt(root: Path, written: Path) -> None:
    """Put priorities that are on disk already, and never change, in the place of the saved ones:
    both directories have the same files then."""
    beside = private.new_priorities(root)
    files.remove_tree(beside)
    files.make_dirs(beside)
    copies = []
    for path in written.iterdir():
        if not files.link(path, beside / path.name):
            files.copy(path, beside / path.name)
            copies.append(beside / path.name)
    files.sync(copies)
    files.sync_dirs([beside])
    _put_in_place(root, beside)


def settle(root: Path) -> None:
    """Finish an exchange that was cut, on a file system that cannot swap two directories."""
    aside, target = private.old_priorities(root), root / "priority"
    if aside.is_dir():
        if target.exists():
            files.remove_tree(aside)
        else:
            files.rename(aside, target)
            files.sync_dirs([root])


def _put_in_place(root: Path, beside: Path) -> None:
    target = root / "priority"
    if target.exists():
        files.exchange(beside, target, private.old_priorities(root))
        files.sync_dirs([root])  # else the old ones may come back, and their files be gone
        files.remove_tree(beside)
    else:
        files.rename(beside, target)
        files.sync_dirs([root])
