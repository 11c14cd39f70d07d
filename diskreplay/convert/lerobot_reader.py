"""The files of a LeRobot data set, read episode by episode."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay import naming, spaces
from diskreplay.closing import Closing
from diskreplay.convert.arrow import (
    check_no_nulls,
    from_arrow,
    parquet_file,
    pyarrow_modules,
    type_of,
)
from diskreplay.convert.buffer_options import foreign_options, parse_description
from diskreplay.convert.lerobot_features import (
    ACTION,
    DONE,
    MORE,
    REWARD,
    TRUNCATED,
    Feature,
    foreign,
    own_features,
)
from diskreplay.convert.lerobot_videos import VideoReader, from_png
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError
from diskreplay.store import files, numbers
from diskreplay.store.paths import local
from diskreplay.store.system_errors import check_lost, translated
from diskreplay.stored_space import StoredSpace

FINAL = Path("diskreplay", "final.parquet")
VERSION = 1
# What reading its JSON raises where it is none, or says something else.
_DAMAGED = (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError)


class LeRobotFiles(Closing):
    """A LeRobot data set on this machine; a context manager.

    `features` are what there is besides rewards, ends and counters, as fields of a store.
    `first_steps` says by the episode's number which step of it the first frame is, where that is
    not 0: its beginning is lacking. A `FormatError` if there is no data set, it is of another
    version, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._pa = pyarrow_modules()[0]
        self.path = local(path, "path")
        self._info = info = self._read_info()
        self._described: Mapping[str, Mapping[str, Any]] = info["features"]
        self._episodes = self._read_episodes()
        self.num_episodes = len(self._episodes)
        self._document, self._finals = self._read_finals()
        self.first_steps = _first_steps(self.path / FINAL, self._document or {})
        self.features = self._own_features() if self._document else self._foreign_features()
        self._videos: dict[str, VideoReader] = {}
        self._table: tuple[Path | None, Any] = (None, None)
        self._episode: tuple[int | None, Any] = (None, None)

    def _read_info(self) -> dict[str, Any]:
        path = self.path / "meta" / "info.json"
        try:
            info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            version, fps = info["codebase_version"], info["fps"]
            if not version.startswith("v3."):
                raise FormatError(f"{path}: version {version!r}; this diskreplay reads v3.0")
            if not fps > 0 or not isinstance(info["features"], dict) or not info["data_path"]:
                raise ValueError("fps, features or data_path")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FormatError(f"{self.path}: no LeRobot data set: {path} is missing") from error
        except PermissionError as error:
            raise translated(error, path, "cannot read the file") from error
        except _DAMAGED as error:
            raise FormatError(f"{path}: damaged ({error})") from error
        return info

    def _read_episodes(self) -> list[dict[str, Any]]:
        place = self.path / "meta" / "episodes"
        chunks = filter(files.is_dir, files.listed(place) if files.is_dir(place) else [])
        found: list[dict[str, Any]] = []
        for path in (path for chunk in chunks for path in files.listed(chunk, "*.parquet")):
            with parquet_file(path) as file:
                names = file.schema_arrow.names
                table = file.read([name for name in names if not name.startswith("stats/")])
            found += table.to_pylist()
        if [episode.get("episode_index") for episode in found] != list(range(len(found))):
            raise FormatError(f"{self.path}/meta/episodes: not every episode is there, in order")
        if not found:
            raise FormatError(f"{self.path}/meta/episodes: no episode is there")
        return found

    def _read_finals(self) -> tuple[dict[str, Any] | None, Any]:
        """What `to_lerobot` noted, if it wrote the data set."""
        path = self.path / FINAL
        if not files.is_there(path):
            return None, None
        table = _read_parquet(path)
        text = (table.schema.metadata or {}).get(b"diskreplay", b"")
        return parse_description(path, text, "lerobot_version", VERSION), table

    def _own_features(self) -> list[Feature]:
        assert self._document is not None
        options = self._document["buffer"]
        observation = StoredSpace(options["observation_space"], "observation")
        action = StoredSpace(options["action_space"], "action")
        made = own_features(observation, action, options["extras"])
        if lacking := {feature.key for feature in made} - self._described.keys():
            raise FormatError(f"{self.path}: the feature {sorted(lacking)[0]!r} is missing")
        return made

    def _foreign_features(self) -> list[Feature]:
        try:
            found = foreign(self._described)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path}/meta/info.json: damaged features ({error})") from error
        if ACTION not in (feature.key for feature in found):
            raise FormatError(f"{self.path}: the feature {ACTION!r} is missing")
        taken = set(naming.RESERVED)
        named = []
        for feature in found:
            if feature.field != ACTION and not feature.field.startswith("observation/"):
                wanted = feature.key.removeprefix(MORE)
                feature = feature._replace(field=naming.extra_name(wanted, taken))
            named.append(feature)
        if not any(feature.field.startswith("observation/") for feature in named):
            raise FormatError(f"{self.path}: there is no feature 'observation...'")
        return named

    # -- what there is

    @property
    def has_ends(self) -> bool:
        """Whether it says which frames end an episode."""
        return DONE in self._described

    def options(self, prioritized: bool) -> dict[str, Any]:
        """The options of a buffer for it, as `options_of` has them. Of a data set that others wrote
        `prioritized` says which kind."""
        if self._document is not None:
            return dict(self._document["buffer"])
        seen: dict[str, gym_spaces.Space[Any]] = {}
        extras, action = {}, None
        for feature in self.features:
            space = spaces.box(feature.shape, feature.dtype)
            if feature.field == ACTION:
                action = space
            elif feature.field.startswith("observation/"):
                seen[feature.field.removeprefix("observation/")] = space
            else:
                extras[feature.field] = [list(feature.shape), feature.dtype.name]
        assert action is not None
        return foreign_options(gym_spaces.Dict(seen), action, extras, prioritized)

    def _about(self, episode: int) -> dict[str, Any]:
        if not -self.num_episodes <= episode < self.num_episodes:
            raise InvalidInputError(
                f"episode {episode}: no such episode; there are 0 to {self.num_episodes - 1}"
            )
        return self._episodes[episode]

    def length(self, episode: int) -> int:
        """How many transitions an episode has. An `InvalidInputError` if there is no such
        episode."""
        about = self._about(episode)
        with self._telling_damage():
            return numbers.integer("length", about["length"], 1, numbers.MOST_ROWS)

    @contextlib.contextmanager
    def _telling_damage(self) -> Iterator[None]:
        """Raise a `FormatError` where a file has not what is expected of it."""
        try:
            yield
        except DiskReplayError:
            raise
        except (*_DAMAGED, IndexError, self._pa.ArrowException) as error:
            check_lost(error, self.path, "cannot read it")
            raise FormatError(f"{self.path}: damaged ({error!r})") from error

    def _path(self, pattern: str, about: Mapping[str, Any], of: str, **names: str) -> Path:
        place = {name: about[f"{of}/{name}"] for name in ("chunk_index", "file_index")}
        return self.path / pattern.format(**place, **names)

    def _numbers(self, episode: int) -> Any:
        """The rows of an episode in its Parquet file."""
        if self._episode[0] == episode:
            return self._episode[1]
        about = self._about(episode)
        path = self._path(self._info["data_path"], about, "data")
        if self._table[0] != path:
            self._table = path, _read_parquet(path)
        table = self._table[1]
        mine = np.flatnonzero(table["episode_index"].to_numpy() == about["episode_index"])
        length = self.length(episode)
        if len(mine) != length or mine[-1] - mine[0] != length - 1:
            raise FormatError(
                f"{path}: episode {episode} has {len(mine)} frames, {length} expected"
            )
        self._episode = episode, table.slice(int(mine[0]), length)
        return self._episode[1]

    def read(self, episode: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """Transitions `start` to `stop` of an episode: all fields but ``step`` and ``is_final``.
        Negative episodes count from the last. A `FormatError` if a file is missing or damaged, or
        has nulls.

        The Parquet file of the last episode that was read, and one open video of each camera, are
        kept. Videos are read fastest in their order.
        """
        with self._telling_damage():
            return self._read(episode, start, stop)

    def _read(self, episode: int, start: int, stop: int) -> dict[str, np.ndarray]:
        table, rows = self._numbers(episode), stop - start
        last = self.length(episode) - 1
        columns: dict[str, np.ndarray] = {}
        for feature in self.features:
            if feature.is_picture:
                pictures = self._pictures(feature.key, table, episode, start, stop)
                columns[feature.field] = feature.of_pictures(pictures)
            else:
                columns[feature.field] = self._values(table, feature, start, rows)
        there = set(table.column_names)
        for name in (REWARD, DONE, TRUNCATED):
            if name in self._described and name not in there:
                raise FormatError(f"{self.path}: episode {episode} has no {name!r}")
        flags: dict[str, np.ndarray] = {
            name: self._values(table, Feature(name, name, (), np.dtype(dtype), False), start, rows)
            if name in there
            else np.zeros(rows, dtype)
            for name, dtype in ((REWARD, np.float32), (DONE, np.bool_), (TRUNCATED, np.bool_))
        }
        columns["reward"], columns["truncated"] = flags[REWARD], flags[TRUNCATED]
        columns["terminated"] = flags[DONE] & ~flags[TRUNCATED]
        if self._document is None and stop - 1 == last and not flags[DONE][-1:].all():
            columns["truncated"][-1] = True
        return columns

    def _values(self, table: Any, feature: Feature, start: int, rows: int) -> np.ndarray:
        array = table[feature.key].slice(start, rows).combine_chunks()
        check_no_nulls(self.path, feature.key, array)
        while not self._pa.types.is_primitive(array.type):
            array = array.flatten()
            check_no_nulls(self.path, feature.key, array)  # those in lists are counted only there
        flat = array.to_numpy(zero_copy_only=False)
        try:
            return flat.reshape(rows, *feature.shape).astype(feature.dtype)
        except ValueError as error:
            raise FormatError(
                f"{self.path}: {feature.key!r} of shape {feature.shape} expected ({error})"
            ) from error

    def _pictures(self, key: str, table: Any, episode: int, start: int, stop: int) -> np.ndarray:
        if self._described[key]["dtype"] == "image":
            rows = table[key].slice(start, stop - start).to_pylist()
            return np.stack([from_png(row["bytes"]) for row in rows])
        about, fps = self._about(episode), self._info["fps"]
        path = self._path(self._info["video_path"], about, f"videos/{key}", video_key=key)
        video = self._videos.get(key)
        if video is None or video.path != path:
            if video is not None:
                video.close()
            video = self._videos[key] = VideoReader(path, fps)
        first = round(about[f"videos/{key}/from_timestamp"] * fps)
        return video.read(first + start, stop - start)

    def final(self, episode: int) -> dict[str, np.ndarray] | None:
        """The observation that an episode ended with, one row of each field of the observations;
        None if it is not known."""
        if self._finals is None:
            return None
        with self._telling_damage():
            number = self._about(episode)["episode_index"]
            (at,) = np.nonzero(self._finals["episode_index"].to_numpy() == number)
            if not len(at):
                return None
            row, path, found = self._finals.slice(int(at[0]), 1), self.path / FINAL, {}
            for field, _key, shape, dtype, _is_picture in self.features:
                if field.partition("/")[0] == "observation":
                    array, type_ = row[field].combine_chunks(), type_of(self._pa, shape, dtype)
                    found[field] = from_arrow(path, field, array, type_, (shape, dtype))
            return found

    def close(self) -> None:
        """Let go of the videos."""
        for video in self._videos.values():
            video.close()
        self._videos.clear()


def _read_parquet(path: Path) -> Any:
    with parquet_file(path) as file:
        return file.read()


def _first_steps(path: Path, document: Mapping[str, Any]) -> dict[int, int]:
    try:
        return {
            int(episode): numbers.integer("first_steps", step, 1, numbers.LAST_STEP)
            for episode, step in document.get("first_steps", {}).items()
        }
    except _DAMAGED as error:
        raise FormatError(f"{path}: damaged ({error})") from error
