"""Parquet files of transitions, and stores made from them.

One row a transition, in the order of time: by `row`, then by `env`, as in `convert.pandas`.

======================  ==================================  ========================================
column                  type                                note
======================  ==================================  ========================================
``env``, ``step``       int32
``row``, ``episode``    int64
``action``              as stored                           a vector: a list of fixed size, flat
``reward``              float
``terminated``          bool                                and ``truncated``
``return_to_go``        double                              as in `convert.pandas`, not discounted
extras                  as stored                           those named like a column get a ``_``
``priority``            double                              of a prioritized buffer; null for rows
                                                            that cannot be sampled
``observation``         a picture: binary of fixed size     uint8 of two axes or more; the bytes in
                        other arrays: a list, flat          C order
``final_observation``   as ``observation``, but lists of    what the episode ended with, on its last
                        any size in place of fixed ones     transition; null elsewhere, and where it
                                                            was not recorded
======================  ==================================  ========================================

Leaves of nested spaces have columns of their own, such as ``final_observation/camera``.

Final rows are thus no rows of the table, and whoever counts or sums gets it right. The exception
are frames that were recorded on their own (`add_frame`): only of a buffer that has some, the table
has a column ``is_final``, true in rows that hold nothing but an observation. A final row whose
episode has left is left out.

The schema's metadata holds under ``diskreplay`` what the buffer was made with, as JSON: spaces with
their shapes, extras, capacity and all options, so that `from_parquet` makes an equal store.
"""

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.arrow import (
    check_path,
    from_arrow,
    parquet_file,
    pyarrow_modules,
    to_arrow,
    type_of,
    type_with_nulls,
)
from diskreplay.convert.buffer_options import options_of, parse_description
from diskreplay.convert.importer import Importer, Progress, importing
from diskreplay.convert.output import new_file, new_files
from diskreplay.convert.source_files import SourceFiles
from diskreplay.convert.timeline import (
    Chunk,
    Priorities,
    Timeline,
    chunks,
    rows_within,
    timeline_of,
)
from diskreplay.errors import FormatError
from diskreplay.given_numbers import whole
from diskreplay.opening import open as open_buffer
from diskreplay.store import files
from diskreplay.store.paths import local
from diskreplay.stored_space import StoredSpace
from diskreplay.validation import one_of

__all__ = ["from_parquet", "to_parquet"]

Compression = Literal["zstd", "lz4", "snappy", "gzip", "none"]

_KEY = b"diskreplay"
_VERSION = 1
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 131_072
_KEYS = (("env", np.int32), ("row", np.int64), ("episode", np.int64))


def to_parquet(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    partition: Literal["env", "episodes"] | None = None,
    episodes_per_file: int = 1000,
    compression: Compression = "zstd",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the transitions of a buffer as Parquet, as the module describes.

    Parameters
    ----------
    buffer : ReplayBuffer
        A reader of a live store, too, or of a checkpoint.
    path : path
        A file, or with `partition` a directory. There whole or not at all.
    partition : {"env", "episodes"}, optional
        A file for each env, or for so many episodes: ``env-00003.parquet``,
        ``episodes-00002000.parquet`` with those from number 2000 on. Every file has all columns.
    episodes_per_file : int
    compression : {"zstd", "lz4", "snappy", "gzip", "none"}
    overwrite : bool
        Replace what is there: a file, or a directory of .parquet files.
    progress : callable, optional
        Called with how many rows were written since and how many there are.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError
        There is something at `path`; an argument makes no sense.
    StorageError, CorruptSegmentError
    ModuleNotFoundError
        There is no pyarrow.

    Notes
    -----
    Row groups of about 16 MiB before compression, written one after the other, so a few hundred
    megabytes of memory and 60 bytes a row whatever the store's size. Rows that the writer of a live
    store evicts meanwhile are left out.
    """
    episodes_per_file = whole("episodes_per_file", episodes_per_file)
    one_of("partition", partition, (None, "env", "episodes"))
    one_of("compression", compression, get_args(Compression))
    check_path(local(path, "path"))
    rows = timeline_of(buffer).finals_apart()
    parts = [] if partition is None else _parts(rows, partition, episodes_per_file, buffer.num_envs)
    table = _Table(buffer, compression, bool(rows.is_final.any()), files=len(parts) or 1)
    advance = progress or (lambda amount, total: None)
    if partition is None:
        with new_file(path, overwrite=overwrite) as beside:
            table.write(beside, rows, lambda amount: advance(amount, len(rows)))
        return Path(path)
    with new_files(path, ".parquet", overwrite=overwrite) as beside:
        for name, part in parts:
            table.write(beside / name, rows.only(part), lambda amount: advance(amount, len(rows)))
    return Path(path)


def _parts(
    rows: Timeline, partition: str, episodes_per_file: int, num_envs: int
) -> list[tuple[str, np.ndarray]]:
    """The files' names, and which of the rows go into each."""
    if partition == "env":
        group, numbers = rows.id % num_envs, np.arange(num_envs)
    else:
        group = rows.episode // episodes_per_file
        numbers = np.unique(group) if len(rows) else np.zeros(1, np.int64)
    order = np.argsort(group, kind="stable")  # once: there may be thousands of files
    starts, stops = (np.searchsorted(group[order], numbers, side) for side in ("left", "right"))
    parts = []
    for number, start, stop in zip(numbers.tolist(), starts, stops, strict=True):
        name = (
            f"env-{number:05d}.parquet" if partition == "env"
            else f"episodes-{number * episodes_per_file:08d}.parquet"
        )  # fmt: skip
        parts.append((name, order[start:stop]))
    return parts


class _Table:
    """The schema of a buffer's table, and how it is filled."""

    def __init__(
        self, buffer: ReplayBuffer, compression: str, has_frames: bool, *, files: int
    ) -> None:
        self._pa, self._pq = pyarrow_modules()
        self._buffer, self._compression = buffer, compression
        self._names = _Names(buffer)
        self._types = {name: type_of(self._pa, *spec) for name, spec in buffer.fields.items()}
        self._types_of_finals = {
            name: type_with_nulls(self._pa, *spec) for name, spec in buffer.fields.items()
        }
        self._has_frames = has_frames  # rows that hold only an observation
        self._priorities = Priorities(buffer)
        self._metadata = {
            _KEY: json.dumps({
                "parquet_version": _VERSION,
                "buffer": options_of(buffer),
                "largest_priority": self._priorities.largest,
                "files": files,
            })
        }  # fmt: skip

    @property
    def schema(self) -> Any:
        pa, names = self._pa, self._names
        columns = [(name, pa.from_numpy_dtype(dtype)) for name, dtype in _KEYS]
        columns += [(names[field], self._types[field]) for field in names.before(self._has_frames)]
        columns.append(("return_to_go", pa.float64()))
        columns += [(names[field], self._types[field]) for field in names.extras]
        if self._priorities.known:
            columns.append(("priority", pa.float64()))
        columns += [(field, self._types[field]) for field in names.observations]
        columns += [
            (f"final_{field}", self._types_of_finals[field]) for field in names.observations
        ]
        return pa.schema(columns, metadata=self._metadata)

    def write(self, path: Path, rows: Timeline, advance: Callable[[int], None]) -> None:
        """Write some rows into a file, row group after row group."""
        schema, frames = self.schema, set()
        for field in self._names.observations:
            frames |= {field, f"final_{field}"}
        writer = self._pq.ParquetWriter(
            path, schema, compression=self._compression, write_page_checksum=True,
            # A dictionary of frames would only be memory, and their least and greatest no news.
            use_dictionary=[name for name in schema.names if name not in frames],
            write_statistics=[name for name in schema.names if name not in frames],
        )  # fmt: skip
        with writer:
            size = min(_GROUP_ROWS, rows_within(self._buffer, _GROUP_BYTES))
            for chunk in chunks(self._buffer, rows, size, self._priorities):
                writer.write_table(self._table(schema, chunk), row_group_size=size)
                advance(len(chunk.rows))

    def _table(self, schema: Any, chunk: Chunk) -> Any:
        pa, rows, num_envs = self._pa, chunk.rows, self._buffer.num_envs
        made = {
            "env": pa.array((rows.id % num_envs).astype(np.int32)),
            "row": pa.array(rows.id // num_envs),
            "episode": pa.array(rows.episode),
            "return_to_go": pa.array(rows.return_to_go),
        }
        for field, values in chunk.columns.items():
            made[self._names[field]] = to_arrow(pa, self._types[field], values)
        if chunk.priority is not None:
            made["priority"] = pa.array(chunk.priority, from_pandas=True)
        has_final = rows.final_id >= 0
        at = pa.array(np.cumsum(has_final) - 1, mask=~has_final)
        for field, values in chunk.finals.items():
            made[f"final_{field}"] = to_arrow(pa, self._types_of_finals[field], values).take(at)
        return pa.table([made[name] for name in schema.names], schema=schema)


class _Names:
    """Fields by their place in the table, and the columns of fields."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.observations = StoredSpace.of(buffer.observation_space, "observation").names
        self._actions = StoredSpace.of(buffer.action_space, "action").names
        self.extras = list(buffer.extras)
        self._of = {field: field for field in buffer.fields}
        taken = {*self._of} - {*self.extras} | {name for name, _dtype in _KEYS} | {"return_to_go"}
        taken |= {f"final_{name}" for name in self.observations}
        for extra in self.extras:
            while self._of[extra] in taken:
                self._of[extra] += "_"
            taken.add(self._of[extra])

    def __getitem__(self, field: str) -> str:
        return self._of[field]

    def before(self, has_frames: bool) -> list[str]:
        """The fields between the keys and the extras."""
        return ["step", *self._actions, "reward", "terminated", "truncated",
                *(["is_final"] if has_frames else [])]  # fmt: skip


def from_parquet(
    path: str | os.PathLike[str],
    store_path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ReplayBuffer:
    """A store with the transitions and the options of what `to_parquet` wrote.

    Parameters
    ----------
    path : path
        A file, or a directory of .parquet files, whose rows are taken in the order of the names.
    store_path : path
        The new store's directory; there whole or not at all.
    overwrite : bool
        Replace a store that is there.
    progress : callable, optional
        Called with how many rows were read since and how many there are.
    **options
        Of `ReplayBuffer` or `PrioritizedReplayBuffer`, instead of those of the buffer that was
        exported: ``capacity=``, ``compressor=`` and so on.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        Open for writing.

    Raises
    ------
    FormatError
        There are no such files, or `to_parquet` did not write them.
    InvalidInputError
        There is something at `store_path`; an option makes no sense.
    StorageError
        Also if another export replaces the files meanwhile.
    ModuleNotFoundError
        There is no pyarrow.

    Warns
    -----
    RuntimeWarning
        The directory has fewer files than `to_parquet` wrote. Those that are there are taken.

    Notes
    -----
    Reads one row group after the other: a few hundred megabytes of memory for what `to_parquet`
    wrote, however large or many the files are.

    Every env's rows are numbered from 0 again, and its generator begins anew. Rows may have been
    filtered out meanwhile, but not put into another order; where some are missing inside an env,
    those up to the next beginning of an episode are left out, since the stacks of their frames
    would not be theirs. A ``RuntimeWarning`` says how many.
    """
    place = local(path, "path")
    check_path(place)
    paths = _paths(place)
    source = SourceFiles(place, lambda: {path.name: path for path in paths})
    with source:
        document, total = _described(paths)
    written = document.get("files")
    if paths != [place] and type(written) is int and len(paths) < written:
        warnings.warn(
            f"{place}: {len(paths)} of the {written} files that to_parquet wrote are there; the "
            "transitions of the others are not taken",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    with (
        importing(
            document, store_path, path, overwrite=overwrite, progress=progress, options=options
        ) as importer,
        source if paths != [place] else contextlib.nullcontext(),
    ):
        size = min(_GROUP_ROWS, rows_within(importer.buffer, _GROUP_BYTES))
        for each in paths:
            with contextlib.closing(_batches(each, size)) as batches:
                for number, batch in enumerate(batches):
                    if paths == [place] and not number:
                        source.check()  # it stays open, whatever takes its place from here on
                    _take_in(each, batch, importer)
                    importer.progress(batch.num_rows, total)
    return open_buffer(store_path, mode="a")


def _take_in(path: Path, batch: Any, importer: Importer) -> None:
    buffer = importer.buffer
    pa, names = pyarrow_modules()[0], _Names(buffer)

    def column(name: str) -> Any:
        if name not in batch.schema.names:
            raise FormatError(f"{path}: the column {name!r} is missing; export all of them")
        if batch.schema.names.count(name) > 1:
            raise FormatError(f"{path}: more than one column is called {name!r}")
        return batch.column(name)

    def values(field: str, array: Any, type_of: Callable[..., Any] = type_of) -> np.ndarray:
        spec = buffer.fields[field]
        return from_arrow(path, field, array, type_of(pa, *spec), spec)

    has_frames = "is_final" in batch.schema.names
    columns = {
        field: values(field, column(names[field]))
        for field in buffer.fields
        if field != "is_final" or has_frames
    }
    if not has_frames:
        columns["is_final"] = np.zeros(batch.num_rows, np.bool_)
    has_final, finals = np.zeros(batch.num_rows, np.bool_), {}
    for field in names.observations:
        final = column(f"final_{field}")
        has_final = np.asarray(final.is_valid())
        finals[field] = values(field, final.drop_null(), type_with_nulls)
    env, row, episode = (np.asarray(column(name)) for name in ("env", "row", "episode"))
    priorities = None
    if "priority" in batch.schema.names:
        try:
            priorities = np.asarray(column("priority").cast("float64").fill_null(np.nan))
        except pa.ArrowException as error:
            raise FormatError(f"{path}: 'priority': numbers expected ({error})") from error
    try:
        importer.add_mixed(env, row, columns, has_final, finals, priorities, episode)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _paths(path: Path) -> list[Path]:
    found = files.listed(path, "*.parquet") if files.is_dir(path) else [path]
    if not found:
        raise FormatError(f"{path}: no .parquet file in it")
    for each in found:
        if not files.is_file(each):  # a pipe would be waited for
            raise FormatError(f"{each}: {'no file' if files.is_there(each) else 'no such file'}")
    return found


def _described(paths: Sequence[Path]) -> tuple[Mapping[str, Any], int]:
    """What files say that they came from, all the same, and how many rows they have. There may be
    more of them than a process can have open."""
    documents, total = [], 0
    for path in paths:
        with parquet_file(path) as file:
            documents.append(_document(path, file))
            total += file.metadata.num_rows
        if documents[-1]["buffer"] != documents[0]["buffer"]:
            raise FormatError(f"{path}: of another buffer than {paths[0].name} beside it")
    return documents[0], total


def _batches(path: Path, size: int) -> Generator[Any]:
    """The rows of a file in pieces."""
    with parquet_file(path) as file:
        # Asked for several row groups pyarrow keeps all that it has read of them to the end.
        for group in range(file.metadata.num_row_groups):
            yield from file.iter_batches(size, row_groups=[group])


def _document(path: Path, file: Any) -> Mapping[str, Any]:
    text = (file.schema_arrow.metadata or {}).get(_KEY)
    if text is None:
        raise FormatError(
            f"{path}: its metadata does not say what buffer it came from, so to_parquet did not "
            "write it (or another program wrote it anew)"
        )
    return parse_description(path, text, "parquet_version", _VERSION)
