"""About when rows were recorded: a row has no time of its own, but the files of rows have."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskreplay.episodes import Episodes
from diskreplay.inspection.store_activity import last_write
from diskreplay.store import manifest
from diskreplay.store.field import Field, parse_chunk_key
from diskreplay.store.format import read_attributes
from diskreplay.store.system_errors import explained

_LATER = 2.0  # seconds by which a file's time may be behind what a checkpoint says of itself


@dataclass(frozen=True, eq=False)
class RecordedTimes:
    """About when each env had how many rows.

    Attributes
    ----------
    env_group : int
        Envs whose rows share files.
    counts, times : list of ndarray
        Of each group of envs: at ``times[g][i]``, in seconds since the epoch, its envs had about
        ``counts[g][i]`` rows each. Both rise. Empty where nothing is known.
    """

    env_group: int
    counts: list[np.ndarray]
    times: list[np.ndarray]

    def of(self, envs: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """About when some envs had so many rows.

        Parameters
        ----------
        envs, counts : ndarray of int64, shape (n,)

        Returns
        -------
        times : ndarray of float64, shape (n,)
            In seconds since the epoch; NaN where nothing is known. Between two files it is as if
            rows had come evenly.
        is_latest : ndarray of bool, shape (n,)
            Whether it is known only that it was not later: nothing older is there.
        """
        times = np.full(len(counts), np.nan)
        is_latest = np.zeros(len(counts), np.bool_)
        groups = envs // self.env_group
        for group in np.unique(groups).tolist():
            known = self.counts[group]
            if len(known):
                here = groups == group
                times[here] = np.interp(counts[here], known, self.times[group])
                is_latest[here] = counts[here] <= known[0]
        return times, is_latest


def recorded_times(path: Path, count: np.ndarray) -> RecordedTimes:
    """About when the rows of a store or a checkpoint were recorded.

    It goes by when each full file of the field with the shortest files was written to last, and,
    for the newest rows, by `last_write`. A copy whose files have the time of copying says that
    time; in a checkpoint that is seen, and left out.

    Parameters
    ----------
    path : Path
    count : ndarray of int64, shape (num_envs,)
        How many rows each env has had.

    Raises
    ------
    FormatError, StorageError
        There is no store, or its metadata cannot be read.

    Notes
    -----
    Lists one directory; no file is opened but the metadata.
    """
    fields = [Field.parse(entry) for entry in read_attributes(path)["fields"]]
    field = min((f for f in fields if not f.mutable), key=lambda f: f.segment_rows)
    newest, is_checkpoint = last_write(path), manifest.is_checkpoint(path)
    written = _written(path / field.name)
    found = RecordedTimes(field.env_group, [], [])
    for group in range(field.groups(len(count))):
        most = int(count[group * field.env_group :][: field.env_group].max())
        numbers = sorted(number for number, of in written if of == group)
        points = [((n + 1) * field.segment_rows, written[n, group]) for n in numbers]
        points = [point for point in points if point[0] <= most]
        if is_checkpoint and newest is not None:
            points = [point for point in points if point[1] <= newest + _LATER]
        if newest is not None and (not points or points[-1][0] < most):
            points.append((most, max([newest, *(when for _count, when in points)])))
        counts, times = np.array(points, np.float64).reshape(-1, 2).T
        found.counts.append(counts)
        # No row is newer than the next one of its env: what was copied later says nothing here.
        found.times.append(np.minimum.accumulate(times[::-1])[::-1])
    return found


def ends_of(episodes: Episodes, path: Path, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """About when the newest row of each episode was recorded.

    Parameters
    ----------
    episodes : Episodes
    path, count
        As for `recorded_times`.

    Returns
    -------
    times, is_latest : ndarray, shape (episodes,)
        As `RecordedTimes.of`.

    Raises
    ------
    FormatError, StorageError
    """
    rows = episodes._stop_id // episodes.num_envs
    return recorded_times(path, count).of(episodes.env, rows)


def _written(directory: Path) -> dict[tuple[int, int], float]:
    """When each segment in its place, by ``(number, group)``, was written to last."""
    found = {}
    with (
        explained(directory, "cannot list the directory"),
        contextlib.suppress(FileNotFoundError),  # just removed by the writer: what comes next shows
        os.scandir(directory) as entries,
    ):
        for entry in entries:
            if (key := parse_chunk_key(entry.name)) is not None:
                found[key] = entry.stat().st_mtime
    return found
