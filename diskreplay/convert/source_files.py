"""Files that are read one after the other, while another export may take their place."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from diskreplay.errors import DiskReplayError, StorageError
from diskreplay.store.paths import identity


class SourceFiles:
    """The files of one export: refuses what was read, if they were replaced meanwhile.

    A context manager, which may be entered several times. It checks at the end of each block, also
    where that failed. So enter it inside of what puts in its place what was made of them.

    Parameters
    ----------
    path : path
        What the error names.
    found : callable
        The files that there are now, each by a name that stays.
    """

    def __init__(
        self, path: str | os.PathLike[str], found: Callable[[], Mapping[str, Path]]
    ) -> None:
        self._path, self._found = path, found
        self._before = self._now()

    def _now(self) -> dict[str, tuple[int, ...] | None]:
        return {name: identity(path) for name, path in self._found().items()}

    def check(self) -> None:
        """Raise a `StorageError` if the files were replaced since this was made."""
        if self._now() != self._before:
            raise StorageError(
                errno.ESTALE,
                "was replaced while it was read, by another export, say; read it again",
                os.fspath(self._path),
            )

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, DiskReplayError):
            self.check()
