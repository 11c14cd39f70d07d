"""The error for a segment whose file is missing."""

import errno
import os

import numpy as np

from diskreplay.errors import CorruptSegmentError, StorageError
from diskreplay.store import manifest
from diskreplay.store.column import Column


class all_there:
    """Turns the error that a segment's file is missing into one that names its rows.

    Not a generator, as `explained` is none.
    """

    __slots__ = ("_at",)

    def __init__(
        self, column: Column, key: tuple[int, int], envs: np.ndarray, count: np.ndarray
    ) -> None:
        self._at = column, key, envs, count

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, StorageError) or error.errno != errno.ENOENT:
            return
        column, (number, group), envs, count = self._at
        path, root = column.path(number, group), column.root
        if error.filename != os.fspath(path):
            return
        env, start = int(envs[0]), number * column.field.segment_rows
        stop = min(start + column.field.segment_rows, int(count[env]))
        more = f" and of {len(envs) - 1} more envs" if len(envs) > 1 else ""
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
