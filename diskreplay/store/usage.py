"""How much of a disk the files of a directory take."""

import contextlib
import os
from pathlib import Path

from diskreplay.store.system_errors import explained

_BLOCK = 512  # bytes; what ``st_blocks`` counts, whatever the file system's own blocks are


def sizes(directory: Path) -> dict[str, int]:
    """The names of the files in `directory`, not below it, and the bytes each takes on disk.

    Nothing where there is no such directory. A writer may work meanwhile: what it has sealed or
    deleted since it was listed is left out. Costs one look at each file.
    """
    found: dict[str, int] = {}
    with (
        explained(directory, "cannot list the directory"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(directory) as entries,
    ):
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if not entry.is_dir(follow_symlinks=False):
                    blocks = entry.stat(follow_symlinks=False).st_blocks
                    found[entry.name] = _BLOCK * blocks
    return found
