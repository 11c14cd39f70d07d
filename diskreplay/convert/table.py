"""CSV files of transitions, and stores made from them.

One row a transition, in the order and with the columns of `convert.pandas`, every vector spread:
``observation_0``, ``observation_1`` and so on; where ``has_final`` is true ``final_observation_0``
and so on, what the episode ended with; ``priority`` of a prioritized buffer, empty for rows that
cannot be sampled. Rows of frames that stand on their own are marked by ``is_final``, as in
`convert.parquet`. Observations of more than 1024 numbers are left out.

Beside ``x.csv`` lies ``x.csv.json``, which says what the buffer was made with; `from_csv` needs it,
and the observations.
"""

import contextlib
import json
import math
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.buffer_options import options_of, parse_description
from diskreplay.convert.importer import Importer, Progress, importing
from diskreplay.convert.output import alone, check_wanted, making, new_file
from diskreplay.convert.source_files import SourceFiles
from diskreplay.convert.timeline import Chunk, Priorities, chunks, flat, timeline_of
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError
from diskreplay.extensions import needed
from diskreplay.opening import open as open_buffer
from diskreplay.signals import undisturbed
from diskreplay.store import files
from diskreplay.store.outside import check_outside
from diskreplay.store.paths import local, resolved
from diskreplay.store.system_errors import check_lost, explained
from diskreplay.stored_space import StoredSpace

__all__ = ["from_csv", "to_csv"]

_VERSION = 1
_MOST_NUMBERS = 1024
_CSV_ROWS, _CSV_NUMBERS = 20_000, 2_000_000  # in memory at once, the fewer of both
_COMPRESSED = {".gz", ".bz2", ".zip", ".xz", ".zst", ".tar"}  # what pandas reads by its name
_WIDEST = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}  # by kinds of dtypes
Columns = dict[str, list[str]]


def to_csv(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the transitions of a buffer as CSV, as the module describes.

    Parameters
    ----------
    buffer, path, overwrite, progress
        As for `diskreplay.convert.parquet.to_parquet`; `path` is a file. It and its description
        are there whole or not at all; after a kill while they take their places, the file may be
        there without its description, and cannot be imported.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError, StorageError, CorruptSegmentError
        As `to_parquet`.
    LockedError
        Another export to this file is under way.
    ModuleNotFoundError
        There is no pandas.

    Notes
    -----
    Floats are written with as many digits as give the same value again. Some ten thousand rows a
    second and column; a few hundred megabytes of memory, however many rows and columns there are.
    """
    _pandas()
    given = _with_name(path)
    path = resolved(given)  # behind a link, the description lies beside the table, not the link
    rows = timeline_of(buffer).finals_apart()
    observations = StoredSpace.of(buffer.observation_space, "observation").names
    numbers = sum(math.prod(buffer.fields[name][0]) for name in observations)
    if numbers > _MOST_NUMBERS:
        observations = []
    priorities = Priorities(buffer)
    columns, finals = _csv_columns(buffer, observations)
    document = {
        "csv_version": _VERSION,
        "buffer": options_of(buffer),
        "largest_priority": priorities.largest,
        "has_observations": bool(observations),
        "columns": columns,
        "finals": finals,
    }
    check_outside(path)
    check_wanted(path, overwrite)
    # The new files take their places one after the other. A kill in between must not leave the old
    # description to the new file, nor another export its own: there is one at a time.
    lock = path.with_name(f".{path.name}.lock")
    refusal = f"{path}: another export to this file is under way; wait for its end"
    with (
        making(path.parent), alone(lock, refusal), contextlib.ExitStack() as outputs,
    ):  # fmt: skip
        described = outputs.enter_context(new_file(_description_of(path), overwrite=overwrite))
        beside = outputs.enter_context(new_file(path, overwrite=overwrite))
        with beside.open("w", newline="") as file:
            is_first, written = True, 0
            size = _rows_at_once(sum(map(len, [*columns.values(), *finals.values()])))
            for chunk in chunks(buffer, rows, size, priorities, columns):
                frame = _csv_frame(buffer, chunk, columns, finals, bool(rows.is_final.any()))
                frame.to_csv(file, index=False, header=is_first)
                is_first = False
                written += len(frame)
                if progress is not None:
                    progress(len(frame), len(rows))
        described.write_text(json.dumps({**document, "rows": written}, indent=1))
        files.sync([beside, described])  # before anything goes: a disk may be full
        with undisturbed():
            if overwrite:
                files.remove(_description_of(path))
                files.sync_dirs([path.parent])
            outputs.close()
    return given


def from_csv(
    path: str | os.PathLike[str],
    store_path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ReplayBuffer:
    """A store with the transitions and the options of what `to_csv` wrote.

    Parameters
    ----------
    path : path
        Of the .csv file; its .csv.json beside it. Of a link, that beside what it leads to, or else
        that beside the link.
    store_path, overwrite, progress, **options
        As for `diskreplay.convert.parquet.from_parquet`; `progress` does not know how many rows
        there are, and is told 0.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        Open for writing.

    Raises
    ------
    FormatError
        There are no such files, `to_csv` did not write them, or without observations.
    InvalidInputError
        There is something at `store_path`; an option makes no sense.
    StorageError
    ModuleNotFoundError
        There is no pandas.

    Notes
    -----
    Rows may have been filtered out meanwhile, as of Parquet files. Nothing else tells such a table
    from one of which a copy was cut off, so a ``RuntimeWarning`` says how many rows are missing.
    """
    pandas = _pandas()
    path = _with_name(path)
    source, taken = SourceFiles(path, lambda: {"table": path, "description": _described(path)}), 0
    with source:
        document = _csv_document(path)
    with (
        importing(
            document, store_path, path, overwrite=overwrite, progress=progress, options=options
        ) as importer,
        source,
    ):
        try:
            names = document["columns"], document["finals"]
            dtypes = _csv_dtypes(importer.buffer, *names)
            # pandas would take the first of two columns, and give the other another name.
            with _reading(path):
                header = pandas.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna()
            if header.duplicated().any():
                name = header[header.duplicated()].iloc[0]
                raise FormatError(f"more than one column is called {name!r}")
            size = _rows_at_once(len(header))
            for frame in _frames(pandas, path, size, dtypes):
                _take_in(frame, *names, importer)
                taken += len(frame)
                importer.progress(len(frame), 0)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        except DiskReplayError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"{path}: not as to_csv wrote it ({error})") from error
        if taken < document["rows"]:
            warnings.warn(
                f"{path}: {taken} rows found, and {document['rows']} were written: the others were "
                "filtered out, or the file was cut off when it was copied",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
    return open_buffer(store_path, mode="a")


def _frames(pandas: Any, path: Path, size: int, dtypes: Any) -> Iterator[Any]:
    """The table in pieces."""
    with _reading(path), pandas.read_csv(path, chunksize=size, dtype=dtypes) as frames:
        yield from frames


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tells what the system refuses from what is damaged."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        check_lost(error, path, "cannot read it")
        raise FormatError(f"cut off, or damaged ({error})") from error


def _with_name(path: str | os.PathLike[str]) -> Path:
    path = local(path, "path")
    if not path.name:
        raise InvalidInputError(f"path: a file expected, found {str(path)!r}")
    return path


def _rows_at_once(columns: int) -> int:
    return max(1, min(_CSV_ROWS, _CSV_NUMBERS // max(1, columns)))


def _description_of(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _described(path: Path) -> Path:
    """Where the description of a table is."""
    if files.is_file(path) and files.is_file(beside := _description_of(resolved(path))):
        return beside  # where `to_csv` writes it, also if it is given a link
    return _description_of(path)


def _csv_document(path: Path) -> dict[str, Any]:
    described = _described(path)
    for file in (path, described):
        if not files.is_file(file):
            what = "a directory" if files.is_dir(file) else "no such file"
            raise FormatError(f"{file}: {what}; `to_csv` writes a table and its description")
    with explained(described, "cannot read it"):
        text = described.read_bytes()
    document = parse_description(
        described, text, "csv_version", _VERSION,
        {"has_observations": bool, "columns": dict, "finals": dict},
    )  # fmt: skip
    rows = document.setdefault("rows", 0)  # 0: of before it was noted
    if type(rows) is not int:
        raise FormatError(f"{described}: damaged: 'rows' is {rows!r:.60}; export it again")
    if not document["has_observations"]:
        raise FormatError(
            f"{path}: was written without observations, so it makes no store; export as parquet "
            "or npz instead"
        )
    if path.suffix.lower() not in _COMPRESSED:
        _check_end(path)
    return document


def _check_end(path: Path) -> None:
    """Refuse a table that ends amid a line: half a number is a number, too."""
    with explained(path, "cannot read it"), path.open("rb") as file:
        file.seek(-min(1, os.fstat(file.fileno()).st_size), os.SEEK_END)
        if file.read(1) not in b"\r\n":
            raise FormatError(
                f"{path}: its last line has no end, so the file was cut off; copy it anew"
            )


def _csv_columns(buffer: ReplayBuffer, observations: list[str]) -> tuple[Columns, Columns]:
    """The columns of each field, and of the final observation of each field that has one."""
    taken = {"env", "row", "episode", "step", "return_to_go", "has_final", "is_final", "priority"}

    def named(field: str, name: str) -> list[str]:
        shape, _dtype = buffer.fields[field]
        parts = [name] if shape == () else [f"{name}_{i}" for i in range(math.prod(shape))]
        while taken & set(parts):
            parts = [f"{part}_" for part in parts]
        taken.update(parts)
        return parts

    names = [name for name in buffer.fields if name not in {"step", "is_final", *buffer.extras}]
    names = [n for n in names if n in observations or not n.startswith("observation")]
    columns = {name: named(name, name) for name in names}
    finals = {name: named(name, f"final_{name}") for name in observations}
    return columns | {name: named(name, name) for name in buffer.extras}, finals


def _csv_frame(
    buffer: ReplayBuffer, chunk: Chunk, columns: Columns, finals: Columns, has_frames: bool
) -> Any:
    rows, extras, seen = chunk.rows, set(buffer.extras), list(finals)
    made: dict[str, Any] = {
        "env": rows.id % buffer.num_envs,
        "row": rows.id // buffer.num_envs,
        "episode": rows.episode,
        "step": rows.step,
    }

    def spread(fields: Iterable[str]) -> None:
        for field in fields:
            made.update(zip(columns[field], flat(chunk.columns[field]).T, strict=True))

    spread(field for field in columns if field not in {*seen, *extras})
    made["return_to_go"] = rows.return_to_go
    spread(field for field in columns if field in extras)
    if chunk.priority is not None:
        made["priority"] = chunk.priority
    if has_frames:
        made["is_final"] = rows.is_final
    spread(seen)
    has_final = made["has_final"] = rows.final_id >= 0
    for field in seen:
        for name, part in zip(finals[field], flat(chunk.finals[field]).T, strict=True):
            made[name] = np.full(len(rows), None)
            made[name][has_final] = part
    return _pandas().DataFrame(made)


def _csv_dtypes(buffer: ReplayBuffer, columns: Columns, finals: Columns) -> dict[str, str]:
    """What pandas reads each column as: exact, and able to say that a final one is empty.

    Floats are read as text first: older versions of pandas round them by default, and newer ones
    do not like to be told not to.
    """
    dtypes = dict.fromkeys(("env", "row", "episode", "step"), "int64")
    dtypes |= {"is_final": "bool", "has_final": "bool", "priority": "object"}
    always = {"b": "bool", "i": "int64", "u": "uint64", "f": "object"}
    at_ends = {"b": "boolean", "i": "Int64", "u": "UInt64", "f": "object"}
    for named, read_as in ((columns, always), (finals, at_ends)):
        for field, names in named.items():
            dtypes |= dict.fromkeys(names, read_as[buffer.fields[field][1].kind])
    return dtypes


def _take_in(frame: Any, names: Columns, final_names: Columns, importer: Importer) -> None:
    buffer = importer.buffer

    def values(field: str, columns: list[str], which: np.ndarray) -> np.ndarray:
        shape, dtype = buffer.fields[field]
        made = np.empty((int(np.count_nonzero(which)), len(columns)), dtype)
        for part, column in enumerate(columns):
            given = frame[column][which].to_numpy(_WIDEST[dtype.kind])
            with np.errstate(over="ignore"):
                made[:, part] = given
            if ((made[:, part] != given) & (np.isinf(made[:, part]) | (dtype.kind != "f"))).any():
                raise FormatError(f"{column}: a number that does not fit into {dtype}")
        return made.reshape(len(made), *shape)

    everywhere = np.ones(len(frame), np.bool_)
    columns = {field: values(field, names[field], everywhere) for field in buffer.fields
               if field in names}  # fmt: skip
    columns["step"] = frame["step"].to_numpy()
    columns["is_final"] = frame["is_final"].to_numpy() if "is_final" in frame else ~everywhere
    has_final = frame["has_final"].to_numpy()
    finals = {
        field: values(field, final_names[field], has_final)
        for field in StoredSpace.of(buffer.observation_space, "observation").names
    }
    importer.add_mixed(
        frame["env"].to_numpy(), frame["row"].to_numpy(), columns, has_final, finals,
        frame["priority"].to_numpy(np.float64) if "priority" in frame else None,
        frame["episode"].to_numpy(),
    )  # fmt: skip


def _pandas() -> Any:
    with needed("CSV files are made with pandas", "pandas"):
        import pandas
    return pandas
