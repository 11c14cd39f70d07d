"""The files of a LeRobot data set, written episode by episode."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.convert.arrow import pyarrow_modules, to_arrow, type_of
from diskreplay.convert.lerobot_features import DONE, REWARD, TRUNCATED, Feature, describe
from diskreplay.convert.lerobot_reader import FINAL, VERSION
from diskreplay.convert.lerobot_stats import Figures, PictureSample, Totals, as_lists, figures_of
from diskreplay.convert.lerobot_videos import VideoWriter, png
from diskreplay.errors import InvalidInputError
from diskreplay.store import files

_CHUNK = 1000  # files in a directory
_DATA_BYTES, _VIDEO_BYTES = 100 << 20, 200 << 20  # of a file, before the next one begins
_EPISODES_AT_ONCE = 1000
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_ABOUT = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


class _Files:
    """Numbers of the files of one kind: a thousand in a directory."""

    def __init__(self, root: Path, pattern: str) -> None:
        self._root, self._pattern, self.number = root, pattern, -1

    def next(self) -> Path:
        self.number += 1
        chunk, file = self.place
        path = self._root / self._pattern.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def place(self) -> tuple[int, int]:
        return divmod(max(self.number, 0), _CHUNK)


class LeRobotWriter:
    """A data set that is being written into `root`, which is not there yet; `close` it whatever
    happens. `task` is what each episode tries to do, `pictures` as for `to_lerobot`."""

    def __init__(
        self, root: Path, features: Sequence[Feature], fps: int, task: str, pictures: str
    ) -> None:
        self._pa, self._pq = pyarrow_modules()
        files.make_dirs(root)
        self._root, self.features, self._fps, self._task = root, features, fps, task
        self._pictures = pictures
        self._filmed = [f for f in features if f.is_picture and pictures != "png"]
        self._data_files, self._data = _Files(root, _DATA), None
        self._videos: dict[str, VideoWriter] = {}
        self._video_files = {
            f.key: _Files(root, _VIDEO.replace("{video_key}", f.key)) for f in self._filmed
        }
        self._video_info: dict[str, dict[str, Any]] = {}
        self._about: list[dict[str, Any]] = []
        self._about_files = _Files(root, _ABOUT)
        self._finals: list[tuple[int, dict[str, np.ndarray]]] = []
        self._first_steps: dict[int, int] = {}
        self._totals: dict[str, Totals] = {}
        self._frames = self._episodes = 0

    # -- an episode

    def begin_episode(self, length: int, first_step: int) -> None:
        """Begin the next episode, of `length` transitions or less; a new file too, where the last
        one is large enough. `first_step` is not 0 where the episode's beginning is lacking."""
        if first_step:
            self._first_steps[self._episodes] = first_step
        if self._data is None or self._data_path.stat().st_size > _DATA_BYTES:
            self._close_data()
            self._data_path = self._data_files.next()
            self._data = self._pq.ParquetWriter(
                self._data_path, self._schema(), write_page_checksum=True
            )
        for feature in self._filmed:
            video = self._videos.get(feature.key)
            if video is None or video.size > _VIDEO_BYTES:
                if video is not None:
                    video.close()
                height, width = feature.feature_shape[:2]
                video = self._videos[feature.key] = VideoWriter(
                    self._video_files[feature.key].next(), self._fps, self._pictures, height, width
                )
                self._video_info.setdefault(feature.key, video.info())
        self._first = self._frames
        self._first_in_video = {key: video.frames for key, video in self._videos.items()}
        self._numbers: dict[str, list[np.ndarray]] = {}
        self._samples = {f.key: PictureSample(length) for f in self.features if f.is_picture}

    def _schema(self) -> Any:
        pa = self._pa
        types = {f.key: self._type(f.feature_shape, f.dtype) for f in self.features}
        for feature in self.features:
            if feature.is_picture and self._pictures == "png":
                types[feature.key] = pa.struct({"bytes": pa.binary(), "path": pa.string()})
            elif feature.is_picture:
                del types[feature.key]
        for name, about in describe([], "").items():
            types[name] = pa.from_numpy_dtype(np.dtype(about["dtype"]))
        return pa.schema(list(types.items()))

    def _type(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        type_ = self._pa.from_numpy_dtype(dtype)
        if shape == (1,):
            return type_
        if len(shape) == 1:
            return self._pa.list_(type_, shape[0])
        for _axis in shape:
            type_ = self._pa.list_(type_)
        return type_

    def write(self, columns: dict[str, np.ndarray]) -> None:
        """Add transitions to the episode: every feature's field, ``reward``, ``terminated`` and
        ``truncated``. An `InvalidInputError` if pictures of floats are not from 0 to 1."""
        rows = len(columns["reward"])
        frame = self._frames - self._first + np.arange(rows)
        made: dict[str, Any] = {}
        numbers = {
            REWARD: columns["reward"], DONE: columns["terminated"] | columns["truncated"],
            TRUNCATED: columns["truncated"] & ~columns["terminated"],
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame, "episode_index": np.full(rows, self._episodes),
            "index": self._frames + np.arange(rows), "task_index": np.zeros(rows, np.int64),
        }  # fmt: skip
        for feature in self.features:
            values = columns[feature.field]
            if not feature.is_picture:
                numbers[feature.key] = values
                continue
            pictures = feature.as_pictures(values)
            self._samples[feature.key].see(pictures)
            if self._pictures == "png":
                made[feature.key] = self._pa.array(
                    [{"bytes": png(picture), "path": None} for picture in pictures],
                )
            else:
                self._videos[feature.key].write(pictures)
        for key, values in numbers.items():
            shape = values.shape[1:] or (1,)
            self._numbers.setdefault(key, []).append(values.reshape(rows, *shape))
            made[key] = self._column(values.reshape(rows, *shape))
        assert self._data is not None
        schema = self._data.schema
        arrays = [made[name].cast(schema.field(name).type) for name in schema.names]
        self._data.write_table(self._pa.table(arrays, schema=schema))
        self._frames += rows

    def _column(self, values: np.ndarray) -> Any:
        """Values of shape ``(rows, *feature_shape)``."""
        pa, flat = self._pa, self._pa.array(np.ascontiguousarray(values).reshape(-1))
        if values.shape[1:] == (1,):
            return flat
        if values.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        for axis in range(values.ndim - 1, 0, -1):
            lists = int(np.prod(values.shape[:axis]))
            ends = np.arange(lists + 1, dtype=np.int32) * values.shape[axis]
            flat = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
        return flat

    def end_episode(self, final: dict[str, np.ndarray] | None = None) -> None:
        """End the episode. `final` is what the last transition led to, one row of each field of the
        observations, if that is known."""
        figures = {key: figures_of(np.concatenate(each)) for key, each in self._numbers.items()}
        figures |= {key: sample.figures() for key, sample in self._samples.items()}
        chunk, file = self._data_files.place
        about: dict[str, Any] = {
            "episode_index": self._episodes, "tasks": [self._task],
            "length": self._frames - self._first, "data/chunk_index": chunk,
            "data/file_index": file, "dataset_from_index": self._first,
            "dataset_to_index": self._frames,
        }  # fmt: skip
        for key, video in self._videos.items():
            chunk, file = self._video_files[key].place
            first = self._first_in_video[key]
            about |= {
                f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file,
                f"videos/{key}/from_timestamp": first / self._fps,
                f"videos/{key}/to_timestamp": video.frames / self._fps,
            }  # fmt: skip
        for key, each in figures.items():
            self._totals.setdefault(key, Totals()).add(each)
            about |= {f"stats/{key}/{name}": values.tolist() for name, values in each.items()}
        if final is not None:
            self._finals.append((self._episodes, final))
        self._about.append(about)
        self._episodes += 1
        if len(self._about) >= _EPISODES_AT_ONCE:
            self._write_about()

    # -- the rest

    def close(self) -> None:
        """Let go of all files, whole or not."""
        self._close_data()
        while self._videos:
            self._videos.popitem()[1].close()

    def _close_data(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None

    def _write_about(self) -> None:
        path = self._about_files.next()
        chunk, file = self._about_files.place
        place = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        table = self._pa.Table.from_pylist([{**each, **place} for each in self._about])
        self._pq.write_table(table, path, write_page_checksum=True)
        self._about = []

    def finish(self, options: dict[str, Any], robot_type: str | None, source: Path) -> None:
        """Write what is about all episodes, and close all files. `options` are those of the buffer,
        as `options_of` has them, and `source` is where it is: for an `InvalidInputError` if no
        episode was written."""
        self.close()
        if not self._episodes:
            raise InvalidInputError(f"{source}: no transition to write")
        if self._about:
            self._write_about()
        described = describe(self.features, "image" if self._pictures == "png" else "video")
        for key, info in self._video_info.items():
            described[key]["info"] = info
        info = {
            "codebase_version": "v3.0", "robot_type": robot_type,
            "total_episodes": self._episodes, "total_frames": self._frames, "total_tasks": 1,
            "chunks_size": _CHUNK, "data_files_size_in_mb": _DATA_BYTES >> 20,
            "video_files_size_in_mb": _VIDEO_BYTES >> 20, "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"}, "data_path": _DATA,
            "video_path": _VIDEO if self._filmed else None, "features": described,
        }  # fmt: skip
        totals: dict[str, Figures] = {key: each.figures() for key, each in self._totals.items()}
        for name, document in (("info", info), ("stats", as_lists(totals))):
            text = json.dumps(document, indent=4, ensure_ascii=False)
            (self._root / "meta" / f"{name}.json").write_text(text, encoding="utf-8")
        self._write_tasks()
        self._write_finals(options)

    def _write_tasks(self) -> None:
        """A table that pandas reads with the tasks as its index."""
        pa, name = self._pa, "__index_level_0__"
        kinds = {"task_index": ("int64", "int64"), name: ("unicode", "object")}
        about = {
            "index_columns": [name], "column_indexes": [], "pandas_version": "2.2.0",
            "columns": [
                {"name": None if column == name else column, "field_name": column,
                 "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
                for column, (kind, numpy_type) in kinds.items()
            ],
        }  # fmt: skip
        table = pa.table({"task_index": pa.array([0], pa.int64()), name: [self._task]})
        table = table.replace_schema_metadata({"pandas": json.dumps(about)})
        self._pq.write_table(table, self._root / "meta" / "tasks.parquet")

    def _write_finals(self, options: dict[str, Any]) -> None:
        pa = self._pa
        document = {
            "lerobot_version": VERSION, "buffer": options, "largest_priority": None,
            "pictures": self._pictures, "first_steps": self._first_steps,
        }  # fmt: skip
        seen = [f for f in self.features if f.field.partition("/")[0] == "observation"]
        types = {f.field: type_of(pa, f.shape, f.dtype) for f in seen}
        schema = pa.schema(
            [("episode_index", pa.int64()), *types.items()],
            metadata={"diskreplay": json.dumps(document)},
        )
        (self._root / FINAL).parent.mkdir()
        with self._pq.ParquetWriter(
            self._root / FINAL, schema, compression="zstd", write_page_checksum=True
        ) as writer:
            for episode, columns in self._finals:
                arrays = [to_arrow(pa, types[f.field], columns[f.field]) for f in seen]
                writer.write_table(pa.table([pa.array([episode]), *arrays], schema=schema))
