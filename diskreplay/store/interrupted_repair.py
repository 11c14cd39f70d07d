"""What repairs that were killed, or could not tidy up, have left beside a store."""

import os
import re
from pathlib import Path

from diskreplay.store import files, tempfiles

_BUILT = "built"


def note(room: tempfiles.Workspace, build: Path) -> None:
    """Write down which directory a repair has made, before it is exchanged with the store: by its
    inode, which a rename does not change. What is in the store's one may be rotten, and says
    nothing."""
    # As a whole: half of the number would be another directory's.
    files.replace({room.path / _BUILT: str(os.lstat(build).st_ino).encode()})


def finish(path: Path) -> None:
    """End the repairs of the store at `path` that did not come to their end.

    A directory that was not put in place yet goes; one that was replaced is kept by its proper
    name.

    Raises
    ------
    StorageError
    """
    for room in tempfiles.left_behind(path.parent, re.escape(path.name), "repair"):
        beside, built = room.path / path.name, room.path / _BUILT
        room.put_back()
        room.end_exchange(beside)
        if files.is_dir(beside) and files.is_file(built):
            if files.read(built, 20) != str(os.lstat(beside).st_ino).encode():
                files.rename(beside, aside_of(path))
                files.sync_dirs([path.parent])
        room.remove()


def aside_of(path: Path) -> Path:
    """A name beside the store that is free, for what a repair has replaced."""
    number = 1
    while files.is_there(aside := path.with_name(f"{path.name}.repair-{number}")):
        number += 1
    return aside
