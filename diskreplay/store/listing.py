"""The checkpoints of a directory: what each one holds and takes, and how to get rid of old ones."""

import datetime
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from diskreplay.errors import DiskReplayError, StorageError
from diskreplay.given_numbers import whole
from diskreplay.store import attachments, checkpoint_names, files, format, manifest, tempfiles
from diskreplay.store.manifest import Manifest
from diskreplay.store.paths import resolved


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, as `diskreplay.checkpoints` finds it and `ReplayBuffer.load` returns it.

    Attributes
    ----------
    path : Path
        Its directory, which `diskreplay.open` reads; of one of ReAgent or Dopamine that its files
        are in.
    name, suffix : str
        ``<name>_ckpt.<suffix>``.
    saved_at : datetime or None
        When, with a time zone (UTC); None if that is not known.
    attachments : dict of str to Path
        The files that were attached, by their names. `load` has held them against their checksums;
        `diskreplay.checkpoints` has only seen that they are there in full length.
    rows : int or None
        Retained rows over all envs; None if that is not known.
    trouble : str or None
        What is missing or damaged; None where every file is there in full length. Their contents
        are for `load` and ``diskreplay verify`` to check.
    """

    path: Path
    name: str
    suffix: str
    saved_at: datetime.datetime | None
    attachments: dict[str, Path]
    rows: int | None
    trouble: str | None

    @property
    def number(self) -> int | None:
        """The suffix, if it is a number: what was given to `save`."""
        return int(self.suffix) if self.suffix.isdecimal() else None

    @property
    def whole(self) -> bool:
        """Whether every file is there in full length."""
        return self.trouble is None

    @classmethod
    def of(cls, path: Path, name: str, suffix: str, contents: Manifest, rows: int | None) -> Self:
        """A whole one.

        Parameters
        ----------
        path, name, suffix, rows
            As the attributes.
        contents : Manifest
        """
        attached = attachments.paths(path, contents)
        return cls(path, name, suffix, contents.saved_at, attached, rows, None)

    @classmethod
    def found(cls, path: Path, name: str, suffix: str) -> Self:
        """What is at `path`, whole or not. Raises nothing.

        Parameters
        ----------
        path, name, suffix
            As the attributes.
        """
        rows = None
        try:
            attributes = format.read_attributes(path)
            rows = sum(attributes["count"]) - sum(attributes["first"])
            return cls.of(path, name, suffix, manifest.read_whole(path), rows)
        except (DiskReplayError, OSError) as error:
            trouble = str(error)
        except (KeyError, TypeError) as error:
            trouble = f"{path / 'zarr.json'}: damaged attributes ({error})"
        return cls(path, name, suffix, None, {}, rows, trouble)


def checkpoints(directory: str | os.PathLike[str], name: str | None = "replay") -> list[Checkpoint]:
    """The checkpoints in a directory.

    Parameters
    ----------
    directory : path
        What `ReplayBuffer.save` was given. If it is missing there are none.
    name : str or None
        That of the buffer; None lists those of all names.

    Returns
    -------
    list of Checkpoint
        Those with a text for a suffix first, in its order, then the numbered ones, lowest number
        first: the last one is what `load` takes if it is not told a number. One that is not whole
        is listed too, and its `trouble` says why. What a killed `save` left is not listed.

    Raises
    ------
    InvalidInputError
        `directory` is no path.
    StorageError
        The directory cannot be read, or its path leads over a link to what is not there.

    Notes
    -----
    A look at each file's length; none is read but the metadata. Saving and removing may go on
    meanwhile.
    """
    resolved(directory, "directory")  # not where a link leads nowhere: nobody should begin anew
    directory = Path(directory)
    try:
        entries = [path for path in files.listed(directory) if files.is_dir(path)]
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    matches = [(path, checkpoint_names.NAME.fullmatch(path.name)) for path in entries]
    found = [
        Checkpoint.found(path, match[1], match[2])
        for path, match in matches
        if match and name in (None, match[1])
    ]
    # Else it was just removed.
    there = [one for one in found if one.whole or files.is_dir(one.path)]
    return sorted(there, key=lambda c: (c.name, c.number is not None, c.number or 0, c.suffix))


def next_number(directory: str | os.PathLike[str]) -> int:
    """One more than the highest number that a checkpoint of the name "replay" has there."""
    numbers = (one.number for one in checkpoints(directory) if one.number is not None)
    return max(numbers, default=0) + 1


def disk_usage(checkpoint: Checkpoint) -> tuple[int, int]:
    """Bytes on disk in files of its own, and in those that a store or another checkpoint shares."""
    own = shared = 0
    for base, _dirs, names in os.walk(checkpoint.path):
        for file in names:
            try:
                about = os.lstat(os.path.join(base, file))
            except FileNotFoundError:  # it is being removed
                continue
            size = about.st_blocks * 512
            own, shared = (own, shared + size) if about.st_nlink > 1 else (own + size, shared)
    return own, shared


def superfluous(directory: Path, keep: int) -> list[Checkpoint]:
    """The numbered checkpoints of each name but the `keep` highest that are whole.

    One that is not whole counts for nothing: it is listed unless its number is above all those
    that are kept, and so may be looked at. What a link in the directory leads to is not listed,
    unless the link is.
    """
    keep = whole("keep", keep)
    numbered = [c for c in checkpoints(directory, None) if c.number is not None]
    listed = []
    for name in dict.fromkeys(c.name for c in numbered):
        mine = [c for c in numbered if c.name == name]
        kept = [c for c in mine if c.whole][-keep:]
        if kept:
            highest = kept[-1].number or 0
            listed += [c for c in mine if c not in kept and (c.number or 0) < highest]
    needed = files.led_to(directory, {c.path for c in listed}) if listed else set()
    return [c for c in listed if c.path not in needed]


def remove(listed: Iterable[Checkpoint]) -> None:
    """Remove checkpoints of one directory; none is ever seen half removed.

    Of a link only the link goes. What a kill leaves behind is removed by the next save.
    """
    tempfiles.discard(one.path for one in listed)
