"""The leaf priorities on disk: a Zarr array with the store's row numbers, NaN for none."""

from pathlib import Path

import numpy as np

from diskreplay.errors import FormatError
from diskreplay.store import files, format

_CHUNK_VALUES = 131_072  # about a mebibyte


def write(directory: Path, priorities: np.ndarray, start: int) -> list[Path]:
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
    for number in range(start // chunk, -(-stop // chunk)):
        block = np.full((chunk, num_envs), np.nan, "<f8")
        low, high = max(start, number * chunk), min(stop, (number + 1) * chunk)
        block[low - number * chunk : high - number * chunk] = priorities[low - start : high - start]
        path = directory / "c" / str(number) / "0"
        files.make_dirs(path.parent)
        files.write(path, [block.data])
        written.append(path)
    files.make_dirs(directory)
    metadata = directory / "zarr.json"
    files.write(metadata, [format.encode(format.priority_document(stop, num_envs, chunk))])
    files.sync([*written, metadata])
    files.sync_dirs({parent for path in written for parent in path.parents
                     if parent.is_relative_to(directory)} | {directory})  # fmt: skip
    return [*written, metadata]


def read(directory: Path, num_envs: int) -> tuple[int, np.ndarray] | None:
    """The row of the first priority and all of them, or None if none were ever saved."""
    metadata = directory / "zarr.json"
    if not metadata.exists():
        return None
    document = format.read_document(metadata)
    try:
        rows, envs = document["shape"]
        chunk, _envs = document["chunk_grid"]["configuration"]["chunk_shape"]
        chunks = directory / "c"
        numbers = sorted(int(p.name) for p in chunks.iterdir()) if chunks.exists() else []
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{metadata}: damaged ({error})") from error
    if envs != num_envs:
        raise FormatError(f"{metadata}: {envs} envs found, {num_envs} expected")
    if not numbers:
        return None
    blocks = []
    for number in range(numbers[0], numbers[-1] + 1):
        path = directory / "c" / str(number) / "0"
        with files.explained(path, "cannot read the priorities"):
            data = np.fromfile(path, "<f8")
        if len(data) != chunk * num_envs:
            raise FormatError(f"{path}: {data.nbytes} bytes found, {8 * chunk * num_envs} expected")
        blocks.append(data.reshape(chunk, num_envs))
    start = numbers[0] * chunk
    return start, np.concatenate(blocks)[: rows - start]


def replace(root: Path, priorities: np.ndarray, start: int) -> None:
    """Put new priorities in the place of the saved ones, as a whole."""
    target, beside = root / "priority", root / "tail" / "priority"
    files.remove_tree(beside)
    write(beside, priorities, start)
    if target.exists():
        files.exchange(beside, target)
        files.remove_tree(beside)
    else:
        files.rename(beside, target)
    files.sync_dirs([root])
