"""How much of a disk the files of a directory take."""

import os
from pathlib import Path

_BLOCK = 512  # bytes; what ``st_blocks`` counts, whatever the file system's own blocks are


def sizes(directory: Path) -> dict[str, int]:
    """The files below `directory` by their paths in it, and the bytes each takes on disk.

    Nothing where there is no such directory. A writer may work meanwhile: what it has sealed or
    deleted since it was listed is left out. Costs one look at each file.
    """
    found: dict[str, int] = {}
    _walk(os.fspath(directory), "", found)
    return found


def _walk(directory: str, below: str, found: dict[str, int]) -> None:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _walk(entry.path, f"{below}{entry.name}/", found)
                    continue
                try:
                    blocks = entry.stat(follow_symlinks=False).st_blocks
                except FileNotFoundError:
                    continue
                found[below + entry.name] = _BLOCK * blocks
    except (FileNotFoundError, NotADirectoryError):
        return
