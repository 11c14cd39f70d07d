"""The checkpoints of a directory: what each one takes, and how to get rid of old ones."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diskreplay.errors import DiskReplayError, InvalidInputError
from diskreplay.store import files, format, manifest, tempfiles

_NAME = re.compile(r"([^.].*)_ckpt\.([A-Za-z0-9_-][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Listed:
    """One checkpoint.

    Attributes
    ----------
    path : Path
    name, suffix : str
        ``<name>_ckpt.<suffix>``.
    saved : float
        When, in seconds since the epoch.
    rows : int or None
        Retained rows over all envs; None where the metadata cannot be read.
    own_bytes, shared_bytes : int
        On disk, in files of its own, and in files that a store or another checkpoint has too.
    whole : bool
        Whether all files are there in full length. Their contents are for `verify` to check.
    trouble : str or None
        Why it is not whole.
    """

    path: Path
    name: str
    suffix: str
    saved: float
    rows: int | None
    own_bytes: int
    shared_bytes: int
    whole: bool
    trouble: str | None

    @property
    def number(self) -> int | None:
        """The suffix, if it is a number."""
        return int(self.suffix) if self.suffix.isdecimal() else None


def checkpoints(directory: Path) -> list[Listed]:
    """The checkpoints in a directory, numbered ones last and in their order."""
    with files.explained(directory, "cannot list the directory"):
        entries = [path for path in directory.iterdir() if path.is_dir()]
    found = [
        _listed(path, match[1], match[2])
        for path in entries
        if (match := _NAME.fullmatch(path.name))
    ]
    return sorted(found, key=lambda c: (c.name, c.number is not None, c.number or 0, c.suffix))


def _listed(path: Path, name: str, suffix: str) -> Listed:
    rows, trouble = None, None
    try:
        manifest.read_whole(path)
    except DiskReplayError as error:
        trouble = str(error)
    try:
        attributes = format.read_attributes(path)
        rows = sum(attributes["count"]) - sum(attributes["first"])
    except (DiskReplayError, KeyError, TypeError) as error:
        trouble = trouble or str(error)
    own = shared = 0
    saved = path.stat().st_mtime
    for base, _dirs, names in os.walk(path):
        for file in names:
            found = os.lstat(os.path.join(base, file))
            size = found.st_blocks * 512
            own, shared = (own, shared + size) if found.st_nlink > 1 else (own + size, shared)
            if file == "manifest.json":
                saved = found.st_mtime
    return Listed(path, name, suffix, saved, rows, own, shared, trouble is None, trouble)


def superfluous(directory: Path, keep: int) -> list[Listed]:
    """The numbered checkpoints of each name but the `keep` highest that are whole.

    One that is not whole counts for nothing: it is listed unless its number is above all those
    that are kept, and so may be looked at.

    Raises
    ------
    InvalidInputError
        `keep` is not positive.
    """
    if keep < 1:
        raise InvalidInputError(f"keep: a positive integer expected, found {keep!r}")
    numbered = [c for c in checkpoints(directory) if c.number is not None]
    listed = []
    for name in dict.fromkeys(c.name for c in numbered):
        mine = [c for c in numbered if c.name == name]
        kept = [c for c in mine if c.whole][-keep:]
        if kept:
            listed += [c for c in mine if c not in kept and c.number < kept[-1].number]
    return listed


def remove(listed: Iterable[Listed]) -> None:
    """Remove checkpoints of one directory; none is ever seen half removed.

    Of a link only the link goes. What a kill leaves behind is removed by the next save.
    """
    tempfiles.discard(one.path for one in listed)
