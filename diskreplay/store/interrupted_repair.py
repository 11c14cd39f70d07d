"""What repairs that were killed, or could not tidy up, have left beside a store."""

import re
from pathlib import Path

from diskreplay.store import files, private, tempfiles


def finish(path: Path) -> None:
    """End the repairs of the store at `path` that did not come to their end.

    A directory that was not put in place yet goes; one that was replaced is kept by its proper
    name. That has its zarr.json, which is always kept.

    Raises
    ------
    StorageError
    """
    for room in tempfiles.left_behind(path.parent, re.escape(path.name), "repair"):
        beside = room.path / path.name
        page = private.commit_page(beside)
        is_begun = not (beside / "zarr.json").exists()
        if not is_begun and not (page.is_file() and page.read_bytes()[72:80] == bytes(8)):
            files.rename(beside, aside_of(path))
            files.sync_dirs([path.parent])
        room.remove()


def aside_of(path: Path) -> Path:
    """A name beside the store that is free, for what a repair has replaced."""
    number = 1
    while (aside := path.with_name(f"{path.name}.repair-{number}")).exists():
        number += 1
    return aside
