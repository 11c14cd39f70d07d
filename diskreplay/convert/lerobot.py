"""LeRobot data sets (version 3.0 of their format) from stores, and stores from LeRobot data sets.

A data set has one frame a step, and no frame for what the last step led to. `lerobot_features` says
which field is which feature. How episodes become LeRobot's:

=========================== ========================================================================
the episode                 what is written
=========================== ========================================================================
any                         its transitions, a frame each, with ``next.done`` in the last one where
                            it terminated or was truncated
has a final row             that observation goes, without loss, into ``diskreplay/final.parquet``,
                            which LeRobot does not look at and `from_lerobot` reads
has frames of its own       they end an episode: what comes behind them is the next one
its beginning is evicted    what is retained, as an episode. ``diskreplay/final.parquet`` says which
                            step is the first, so that `from_lerobot` makes no stacks of it that the
                            agent never saw
=========================== ========================================================================

The files are ``data/chunk-000/file-000.parquet`` and so on, ``videos/<feature>/chunk-000/...mp4``,
``meta/info.json``, ``stats.json``, ``tasks.parquet`` and ``episodes/``. Episodes lie one behind the
other in them, and none is in two files of a kind.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from diskreplay import given_numbers
from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.arrow import check_path
from diskreplay.convert.buffer_options import of_episodes, options_of
from diskreplay.convert.importer import Progress, importing
from diskreplay.convert.lerobot_features import features_of
from diskreplay.convert.lerobot_reader import FINAL, LeRobotFiles
from diskreplay.convert.lerobot_videos import Pictures, check
from diskreplay.convert.lerobot_writer import LeRobotWriter
from diskreplay.convert.output import (
    check_wanted,
    new_directory,
    not_replaced,
    written,
)
from diskreplay.convert.source_files import SourceFiles
from diskreplay.convert.timeline import rows_within, take_retained
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.episodes import episodes_of, unbroken
from diskreplay.opening import open as open_buffer
from diskreplay.store import files
from diskreplay.store.outside import check_holds_none
from diskreplay.store.paths import local, resolved
from diskreplay.stored_space import StoredSpace
from diskreplay.validation import one_of

__all__ = ["from_lerobot", "to_lerobot"]

_PIECE_BYTES = 16 << 20


def to_lerobot(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    fps: int = 30,
    task: str | None = None,
    pictures: Pictures = "av1",
    robot_type: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the episodes of a buffer as a LeRobot data set; the tables above say how.

    Parameters
    ----------
    buffer : ReplayBuffer
        Of any number of envs; episodes are in the order in which they began.
    path : path
        The data set's directory: LeRobot's ``root``. There whole or not at all.
    fps : int
        Steps a second, of which the timestamps are made. Videos of "av1" have at most 240.
    task : str, optional
        What all episodes try to do, in words. Default: the environment's id, if the buffer's
        metadata has one, else the name of the store's directory.
    pictures : {"av1", "h264", "lossless", "png"}
        "av1" is LeRobot's own choice of videos, and small; "h264" is faster, and read anywhere;
        these two lose some detail. "lossless" videos (H.264 in RGB) and "png", pictures in the
        Parquet files, do not.
    robot_type : str, optional
    overwrite : bool
        Replace a data set that is there.
    progress : callable, optional
        Called with how many transitions were written since and how many there are.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError
        There is something at `path`, there is no transition, or the pictures cannot be such videos,
        of this size or with so many frames a second.
    StorageError, CorruptSegmentError
    ModuleNotFoundError
        There is no pyarrow, or no PyAV where there are pictures.

    Notes
    -----
    Memory for 16 MiB of rows at a time, and for the numbers of one episode. Rows that the writer of
    a live store evicts meanwhile are left out.
    """
    fps = given_numbers.whole("fps", fps)
    if task is None:
        name = os.fsencode(buffer.path.name).decode("utf-8", "replace")
        task = str(buffer.metadata.get("env_id", name))
    try:
        task.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidInputError(f"task: a text expected, found {brief(task)}") from error
    one_of("pictures", pictures, get_args(Pictures))
    out = resolved(path)
    check_path(out)

    def may_replace() -> bool:
        if not files.is_there(out):
            return False
        check_wanted(out, overwrite)
        if not files.is_file(out / "meta" / "info.json"):
            raise not_replaced(out, "no LeRobot data set")
        check_holds_none(out)
        return True

    may_replace()  # before anything that takes long
    features = features_of(buffer)
    for feature in features:
        if feature.is_picture:
            check(pictures, fps, feature.key, *feature.feature_shape[:2])
    retained, advance = episodes_of(buffer), progress or (lambda amount, total: None)
    episodes = [piece for number in range(len(retained)) for piece in unbroken(retained, number)]
    total = sum(len(ids) for ids, _final in episodes)
    with new_directory(out, may_replace=may_replace) as root, written(out):
        with contextlib.closing(LeRobotWriter(root, features, fps, task, pictures)) as writer:
            for ids, final in episodes:
                _write_episode(writer, buffer, ids, final)
                advance(len(ids), total)
            writer.finish(options_of(buffer), robot_type, buffer.path)
        files.sync_tree(root)
    return out


def _write_episode(
    writer: LeRobotWriter, buffer: ReplayBuffer, ids: np.ndarray, final: int
) -> None:
    names = [f.field for f in writer.features] + ["reward", "terminated", "truncated", "step"]
    ids = take_retained(buffer, [], ids)[0]  # a writer evicts the oldest first
    size = rows_within(buffer, _PIECE_BYTES)
    started = False
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        kept, columns = take_retained(buffer, names, part)
        if started and len(kept) < len(part):  # those before are evicted, too
            writer.end_episode()
            started = False
        if len(kept):
            if not started:
                length = len(ids) - start - (len(part) - len(kept))
                writer.begin_episode(length, int(columns["step"][0]))
            writer.write(columns)
            started = True
    if not started:
        return
    seen = [f.field for f in writer.features if f.field.partition("/")[0] == "observation"]
    there, last = take_retained(buffer, seen, np.array([final] if final >= 0 else [], np.int64))
    writer.end_episode(last if len(there) else None)


def from_lerobot(
    path: str | os.PathLike[str],
    store_path: str | os.PathLike[str],
    *,
    episodes: Sequence[int] | None = None,
    prioritized: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ReplayBuffer:
    """Make a store of a LeRobot data set.

    Parameters
    ----------
    path : path
        The data set's directory, of version 3 of the format.
    store_path : path
        The new store's directory; there whole or not at all.
    episodes : sequence of int, optional
        Those that are wanted, in this order. Default: all.
    prioritized : bool
        Whether to make the store of a `PrioritizedReplayBuffer`. Only for a data set that others
        wrote: what `to_lerobot` wrote comes back as it was.
    overwrite : bool
        Replace a store that is there.
    progress : callable, optional
        Called with how many transitions were read since and how many there are.
    **options
        Of `ReplayBuffer` or `PrioritizedReplayBuffer`, instead of those of the buffer that was
        exported. By default everything is kept (``capacity=None``).

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        Open for writing, with one env and the episodes one after the other.

    Raises
    ------
    FormatError
        There is no such data set, or it is damaged.
    InvalidInputError
        There is something at `store_path`; an option makes no sense; there is no such episode.
    StorageError
    ModuleNotFoundError
        There is no pyarrow, or no PyAV where there are pictures.

    Notes
    -----
    What `to_lerobot` wrote comes back as the transitions that it wrote, pictures of the two lossy
    codecs nearly so. Of a data set that others wrote, observations are a Dict by the features'
    names, pictures are uint8 with the channels last, other features are extras where they are
    numbers, and a missing ``next.reward`` is 0. Its episodes that end without ``next.done`` are
    truncated, and nobody knows what their last step led to. Memory for the numbers of one episode,
    and for 16 MiB of pictures; where pictures are in the Parquet files, for one of these files.
    """
    place = local(path, "path")
    unreplaced = SourceFiles(
        place, lambda: {str(name): place / name for name in (Path("meta", "info.json"), FINAL)}
    )
    with unreplaced:
        source = LeRobotFiles(place)
    with source:
        wanted = list(range(source.num_episodes)) if episodes is None else _checked(episodes)
        total = sum(source.length(episode) for episode in wanted)
        described = of_episodes(source.options(prioritized))
        with (
            importing(
                described, store_path, path, overwrite=overwrite, progress=progress,
                options=options,
            ) as importer,
            unreplaced,
        ):  # fmt: skip
            rows = rows_within(importer.buffer, _PIECE_BYTES)
            for episode in wanted:
                importer.buffer.end_episode()  # of one that was cut, as the next may count on
                for columns in _rows(source, importer.buffer, episode, rows):
                    importer.buffer.extend(columns)
                importer.progress(source.length(episode), total)
    return open_buffer(store_path, mode="a")


def _checked(episodes: Sequence[int]) -> list[int]:
    if isinstance(episodes, str | bytes) or not isinstance(episodes, Iterable):
        raise InvalidInputError(f"episodes: a list of numbers expected, found {brief(episodes)}")
    numbers = list(episodes)
    for number in numbers:
        if not given_numbers.is_integer(number):
            raise InvalidInputError(f"episodes: integers expected, found {brief(number)}")
    return numbers


def _rows(
    source: LeRobotFiles, buffer: ReplayBuffer, episode: int, size: int
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of an episode, `size` at a time, and its final row."""
    length = source.length(episode)
    first_step = source.first_steps.get(episode % source.num_episodes, 0)
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        columns = source.read(episode, part.start, part.stop)
        step = first_step + np.arange(part.start, part.stop)
        yield columns | {"step": step, "is_final": np.zeros(len(step), np.bool_)}
    final = source.final(episode)
    if final is None:
        return
    columns = {name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in buffer.fields.items()}
    names = StoredSpace.of(buffer.observation_space, "observation").names
    columns |= {name: final[name] for name in names}
    yield columns | {"step": np.array([first_step + length]), "is_final": np.ones(1, np.bool_)}
