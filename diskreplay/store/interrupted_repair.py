"""What repairs that were killed, or could not tidy up, have left beside a store."""

import os
import re
import warnings
from pathlib import Path

from diskreplay.store import files, tempfiles

_BUILT = "built"
_FINDINGS = "findings.txt"


def note(room: tempfiles.Workspace, build: Path, findings: str) -> None:
    """Write down what a repair has found and set aside, and which directory it has made, before
    that is exchanged with the store: by its inode, which a rename does not change. What is in the
    store's one may be rotten, and says nothing."""
    # As a whole: half of the number would be another directory's.
    built = str(os.lstat(build).st_ino).encode()
    files.replace({room.path / _FINDINGS: findings.encode(), room.path / _BUILT: built})


def keep_findings(room: tempfiles.Workspace, replaced: Path) -> None:
    """Put what was found beside what was replaced."""
    if files.is_file(room.path / _FINDINGS):
        files.rename(room.path / _FINDINGS, replaced / _FINDINGS)


def finish(path: Path) -> None:
    """End the repairs of the store at `path` that did not come to their end.

    A directory that was not put in place yet goes; one that was replaced is kept by its proper
    name, and a warning names it: the repair itself may not have come to say what is lost.
    """
    for room in tempfiles.left_behind(path.parent, re.escape(path.name), "repair"):
        beside, built, aside = room.path / path.name, room.path / _BUILT, None
        room.put_back()
        room.end_exchange(beside)
        if files.is_dir(beside) and files.is_file(built):
            if files.read(built, 20) != str(os.lstat(beside).st_ino).encode():
                keep_findings(room, beside)
                aside = aside_of(path)
                files.rename(beside, aside)
                files.sync_dirs([path.parent])
        room.remove()
        if aside is not None:  # last: whoever makes errors of warnings leaves nothing undone
            warnings.warn(
                f"{path}: a repair of it was cut off after the mended store had taken its place; "
                f"what was replaced is in {aside}, and {_FINDINGS} there says which rows are set "
                "aside",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip


def aside_of(path: Path) -> Path:
    """A name beside the store that is free, for what a repair has replaced."""
    number = 1
    while files.is_there(aside := path.with_name(f"{path.name}.repair-{number}")):
        number += 1
    return aside
