"""The parts of checkpoints that are to go, unless a published checkpoint names them; noted on disk.

A save notes its parts before any shard writes one, and those of checkpoints that it retires before
they are retired. The notes are in a directory whose lock the save holds. So who finds the lock free
knows that the saver is dead, and removes what it has left; of a living one nothing is touched.
"""

import json
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from diskreplay.errors import DiskReplayError, FormatError
from diskreplay.ray.actors import Actor, wait
from diskreplay.ray.calls import LOST, answer
from diskreplay.store import files
from diskreplay.store.format import read_json
from diskreplay.store.tempfiles import Workspace, left_behind

_NOTES = "parts.json"
Part = tuple[int, str]
"""The shard that has it, and its path there."""


class NotedParts:
    """The notes of one save.

    Parameters
    ----------
    room : Workspace
        Beside the place of the checkpoint.

    Attributes
    ----------
    directory : Path
        Where they are; it goes with them.
    """

    def __init__(self, room: Workspace) -> None:
        self._room, self.directory, self._path = room, room.path, room.path / _NOTES
        self.parts: list[Part] = []

    @classmethod
    def left(cls, directory: Path, names: str) -> Iterator["NotedParts"]:
        """Those of savers that are dead; each is ours until the next is asked for.

        Parameters
        ----------
        directory : Path
        names : str
            A pattern of the names of the places.
        """
        for room in left_behind(directory, names, "tmp"):
            notes = cls(room)
            try:
                found = read_json(notes._path)
                notes.parts = [(int(shard), str(path)) for shard, path in found]
            except (OSError, FormatError, TypeError, ValueError):
                notes.parts = []  # it died before it had asked a shard
            yield notes

    def add(self, parts: Sequence[Part]) -> None:
        """Note these too, durably.

        Raises
        ------
        StorageError
        """
        self.parts += parts
        files.replace({self._path: json.dumps(self.parts).encode()})

    def remove_unnamed(
        self, shards: Sequence[Actor], named: Collection[str] | None, wait_s: float
    ) -> bool:
        """Have the shards remove what is not named, and forget the notes; where a shard does not
        answer they stay, for the next save.

        Parameters
        ----------
        shards : sequence of Actor
        named : collection of str or None
            Names of the parts of all published checkpoints; None if that is not known.
        wait_s : float
            Seconds that the shards may take.

        Returns
        -------
        bool
            Whether all of it is done.

        Raises
        ------
        DisconnectedError
        """
        done = named is not None and self._removed(shards, named, wait_s)
        if done:
            self._room.remove()
        else:
            self._room.release()
        return done

    def _removed(self, shards: Sequence[Actor], named: Collection[str], wait_s: float) -> bool:
        of: dict[int, list[str]] = {}
        for number, path in self.parts:
            if Path(path).name not in named:  # of a name, since a link may lead to the directory
                of.setdefault(number % len(shards), []).append(path)  # there were more, perhaps
        calls = [shards[number].call("remove", paths, again=True) for number, paths in of.items()]
        wait(calls, wait_s)
        for call in calls:
            try:
                answer(call, 0.0)
            except LOST:
                return False
            except DiskReplayError as error:
                warnings.warn(
                    f"{self._room.place.parent}: parts of checkpoints that are not there any more "
                    f"could not be removed; the next save tries again: {error}",
                    RuntimeWarning,
                    stacklevel=6,
                )
                return False
        return True
