"""A file that is held open, so that another one at its path is told from it."""

import os
from pathlib import Path

from diskreplay.store.system_errors import explained


class Held:
    """What has a descriptor for as long as somebody refers to it, or until it is closed."""

    _fd: int | None = None  # of the class: a signal may come before `__init__` has set anything

    def close(self) -> None:
        """Let go of it. Twice is fine."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class HeldFile(Held):
    """The file that is at a path now.

    Numbers and times of files do not tell one from the next that gets its name: a file system
    gives a number again once its file is gone, and times may be whole seconds. But it gives no
    number again while the file is open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with explained(path, "cannot look at the file"):
            self._fd = os.open(path, os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY))
            self._about = os.fstat(self._fd)

    def is_at_its_path(self) -> bool:
        """Whether no other file is there, and this one is. One system call. An ``OSError`` where
        nobody can tell: the directory was moved, say."""
        return os.path.samestat(self._about, os.stat(self._path))
