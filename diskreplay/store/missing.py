"""The errors for segments whose files are missing, or are not the newest."""

import errno
import os
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.store import manifest
from diskreplay.store.column import Column
from diskreplay.store.packed_column import PackedColumn
from diskreplay.store.segment import Shard


class all_there:
    """Turns the error that a segment's file is missing into one that names its rows.

    Not a generator, as `explained` is none.
    """

    __slots__ = ("_at",)

    def __init__(
        self, column: Column[Any], key: tuple[int, int], envs: np.ndarray, count: np.ndarray
    ) -> None:
        self._at = column, key, envs, count

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, StorageError) or error.errno != errno.ENOENT:
            return
        column, (number, group), envs, count = self._at
        path, root = column.files.paths.chunk(number, group), column.files.root
        if error.filename != os.fspath(path):
            return
        env, start = int(envs[0]), number * column.field.segment_rows
        stop = min(start + column.field.segment_rows, int(count[env]))
        more = _and_of(len(envs) - 1)
        if manifest.is_checkpoint(root):
            remedy = "or load another checkpoint"
        else:
            remedy = (
                "load a checkpoint, or go on without these rows after "
                f"`diskreplay verify {root} --repair`"
            )
        raise CorruptSegmentError(
            f"{path}: missing, and with it rows {start} to {stop - 1} of env {env}{more}; restore "
            f"the file, {remedy}"
        ) from error


def check_used(column: PackedColumn, shard: Shard, first: np.ndarray, stop: np.ndarray) -> None:
    """Refuse a shard in its place that ends amid a block where there has to be one that was
    appended to since: with the rows of each env from `first` up to `stop`. Such a block has
    zeros where the later rows are."""
    used = shard.used
    if used is None:
        return
    end = np.minimum(stop[shard.envs], shard.stop)
    begin = shard.start + used[: len(end)]
    lacking = np.flatnonzero((end > begin) & (first[shard.envs] < end))
    if len(lacking):
        env = int(lacking[0])
        raise CorruptSegmentError(
            f"{column.files.paths.open_segment(*shard.key)}: missing, and with it "
            f"rows {begin[env]} to {end[env] - 1} of env {shard.envs.start + env}"
            f"{_and_of(len(lacking) - 1)}, which the shard in its place does not have; "
            "restore the file, load a checkpoint, or go on without these rows after "
            f"`diskreplay verify {column.files.root} --repair`"
        )


def _and_of(others: int) -> str:
    """What a message says of envs beside the one that it names."""
    return f" and of {others} more env{'s' * (others > 1)}" if others else ""
