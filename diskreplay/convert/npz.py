"""NumPy's .npz files of a whole store, and stores made from them, without pickle.

The rows are as they are stored, env by env: an array with one element a row for ``env``, for
``row`` and for every field, among them ``is_final``: rows where it is true hold only an observation
and are no transitions; and ``begins``: true for rows that begin an episode though their steps count
on. ``priority``, of a prioritized buffer, is NaN for rows that cannot be sampled. ``diskreplay``, a
string, says in JSON what the buffer was made with. An extra that is called like another array gets
a ``_`` behind its name. `numpy.load` reads all of it.
"""

import contextlib
import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.buffer_options import options_of, parse_description
from diskreplay.convert.importer import Importer, Progress, importing
from diskreplay.convert.output import new_file
from diskreplay.convert.timeline import Priorities, pieces, rows_within
from diskreplay.errors import FormatError, NotSampleableError, StorageError
from diskreplay.opening import open as open_buffer
from diskreplay.store import files
from diskreplay.store.paths import local
from diskreplay.store.system_errors import check_lost

__all__ = ["from_npz", "to_npz"]

_VERSION = 1
_KEYS = ("env", "row")
_OTHERS = ("diskreplay", "priority", "begins")
_FLAG = (), np.dtype(np.bool_)
_PIECE_BYTES = 16 << 20
_MOST_DESCRIPTION = 64 << 20
# Of NumPy, which parses a header as Python.
_NO_ARRAY = (
    ValueError, SyntaxError, tokenize.TokenError, OverflowError, MemoryError, RecursionError,
)  # fmt: skip
_MARGINS = (0, 1 / 64, 1 / 16, 1 / 4, 1 / 2)  # of the rows: for a writer that evicts meanwhile


def to_npz(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write all retained rows of a buffer into one .npz file, as the module describes.

    Parameters
    ----------
    buffer, path, overwrite
        As for `diskreplay.convert.parquet.to_parquet`; `path` is a file.
    progress : callable, optional
        Called with how many values were written since and how many there are.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError, StorageError, CorruptSegmentError
        As `to_parquet`.
    NotSampleableError
        A writer evicted half of the rows of an env before they were written.

    Notes
    -----
    Compressed, a piece of 16 MiB at a time. Of a live store the writer may evict rows meanwhile:
    then the file is begun anew, without the oldest rows: at most half of them are left out.
    """
    with new_file(path, overwrite=overwrite) as beside:
        for margin in _MARGINS:
            bounds = buffer.bounds
            bounds[:, 0] += np.ceil(np.diff(bounds)[:, 0] * margin).astype(np.int64)
            try:
                _write_npz(buffer, beside, bounds, progress or (lambda amount, total: None))
                break
            except NotSampleableError:
                if margin == _MARGINS[-1]:
                    raise
    return Path(path)


def _write_npz(buffer: ReplayBuffer, path: Path, bounds: np.ndarray, progress: Progress) -> None:
    rows = int(np.diff(bounds).sum())
    priorities = Priorities(buffer)
    members = {field: field for field in buffer.fields}
    taken = {*_KEYS, *_OTHERS, *(buffer.fields.keys() - buffer.extras.keys())}
    for extra in buffer.extras:
        while members[extra] in taken:
            members[extra] += "_"
        taken.add(members[extra])
    document = {
        "npz_version": _VERSION,
        "buffer": options_of(buffer),
        "largest_priority": priorities.largest,
        "members": members,
    }
    begins = np.array(buffer.begins, np.int64)
    read: dict[str, Callable[[np.ndarray], Any]] = {
        "env": lambda ids: ids % buffer.num_envs,
        "row": lambda ids: ids // buffer.num_envs,
        "begins": lambda ids: np.isin(ids, begins),
        **{name: partial(buffer.take, field) for field, name in members.items()},
    }
    specs: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        name: ((), np.dtype(np.int64)) for name in _KEYS
    }
    specs |= {"begins": _FLAG, **{name: buffer.fields[of] for of, name in members.items()}}
    if priorities.known:
        read["priority"], specs["priority"] = priorities.of, ((), np.dtype(np.float64))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("diskreplay.npy", "w") as member:
            np.lib.format.write_array(member, np.array(json.dumps(document)), allow_pickle=False)
        for name, (shape, dtype) in specs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False,
                          "shape": (rows, *shape)}  # fmt: skip
                np.lib.format.write_array_header_2_0(member, header)
                size = max(1, _PIECE_BYTES // (math.prod(shape) * dtype.itemsize))
                for env, numbers in pieces(bounds, size):
                    ids = numbers * buffer.num_envs + env
                    member.write(np.ascontiguousarray(read[name](ids)).data)
                    progress(len(ids), rows * len(specs))


def from_npz(
    path: str | os.PathLike[str],
    store_path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ReplayBuffer:
    """A store with the rows and the options of what `to_npz` wrote.

    Parameters
    ----------
    path : path
    store_path, overwrite, progress, **options
        As for `diskreplay.convert.parquet.from_parquet`.

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        Open for writing.

    Raises
    ------
    FormatError
        There is no such file, `to_npz` did not write it, or it is damaged.
    InvalidInputError
        There is something at `store_path`; an option makes no sense.
    StorageError

    Notes
    -----
    The arrays are read side by side, a piece of 16 MiB at a time.
    """
    path = local(path, "path")
    if not files.is_file(path):
        what = "a directory; a file expected" if files.is_dir(path) else "no such file"
        raise FormatError(f"{path}: {what}")
    try:
        with zipfile.ZipFile(path) as archive:
            document = _document(path, archive)
            with importing(
                document, store_path, path, overwrite=overwrite, progress=progress, options=options
            ) as importer:
                _read_npz(archive, document["members"], importer)
    except StorageError:
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, zlib.error, OSError) as error:
        # EINVAL says of a file that a member is to be read from before its beginning.
        check_lost(error, path, "cannot read it")
        raise FormatError(f"{path}: no .npz file, or a damaged one ({error})") from error
    return open_buffer(store_path, mode="a")


def _document(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        if archive.getinfo("diskreplay.npy").file_size > _MOST_DESCRIPTION:
            raise ValueError("it is longer than any such text")
        with _opened(archive, "diskreplay") as member:
            text = str(np.lib.format.read_array(member, allow_pickle=False))
    except (KeyError, *_NO_ARRAY) as error:
        raise FormatError(
            f"{path}: does not say what buffer it came from, so to_npz did not write it ({error})"
        ) from error
    return parse_description(path, text, "npz_version", _VERSION, {"members": dict})


def _opened(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(f"{name}.npy")
    except RuntimeError as error:  # it is encrypted, or packed in another way
        raise FormatError(
            f"{archive.filename}: no .npz file, or a damaged one ({error})"
        ) from error


def _read_npz(archive: zipfile.ZipFile, members: dict[str, str], importer: Importer) -> None:
    buffer = importer.buffer
    with contextlib.ExitStack() as opened:

        def member(name: str, shape: tuple[int, ...], dtype: np.dtype) -> "_Member":
            try:
                file = opened.enter_context(_opened(archive, name))
            except KeyError as error:
                raise FormatError(f"{archive.filename}: the array {name!r} is missing") from error
            return _Member(f"{archive.filename}: {name}", file, shape, dtype)

        key = np.dtype(np.int64)
        env, row = (member(name, (), key) for name in _KEYS)
        fields = {
            field: member(members.get(field, field), *spec) for field, spec in buffer.fields.items()
        }
        priority = None
        if "priority.npy" in archive.namelist():
            priority = member("priority", (), np.dtype(np.float64))
        begins = member("begins", *_FLAG)
        all_members = [env, row, begins, *fields.values(), *([priority] if priority else [])]
        for other in all_members:
            if other.rows != env.rows:
                raise FormatError(
                    f"{other.name}: {other.rows} rows found, {env.rows} expected, as "
                    "many as there are in 'env'"
                )
        size = rows_within(buffer, _PIECE_BYTES)
        for start in range(0, env.rows, size):
            count = min(size, env.rows - start)
            envs, rows = env.read(count), row.read(count)
            columns = {field: member.read(count) for field, member in fields.items()}
            given = None if priority is None else priority.read(count)
            is_first = begins.read(count)
            for each in np.unique(envs).tolist():
                which = envs == each
                part = {field: values[which] for field, values in columns.items()}
                importer.add(
                    each, rows[which], part, None if given is None else given[which],
                    is_first[which],
                )  # fmt: skip
            importer.progress(count, env.rows)
        for other in all_members:
            other.check_end()


class _Member:
    """An array of the archive, read from its beginning piece by piece."""

    def __init__(self, name: str, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.name, self._file, self._shape, self._dtype = name, file, shape, dtype
        try:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            found, is_fortran, stored = read(file)
        except _NO_ARRAY as error:
            raise FormatError(f"{name}: no array ({error})") from error
        if found[1:] != shape or not found or found[0] < 0 or stored != dtype or is_fortran:
            raise FormatError(
                f"{name}: {stored} of shape {found} found, {dtype} of shape {('rows', *shape)} "
                "in C order expected"
            )
        self.rows = int(found[0])

    def read(self, count: int) -> np.ndarray:
        """The next rows."""
        values = np.empty((count, *self._shape), self._dtype)
        view = values.reshape(-1).view(np.uint8).data
        while len(view):
            got = self._file.readinto(view)  # type: ignore[attr-defined]
            if not got:
                raise FormatError(f"{self.name}: ends before its {self.rows} rows do")
            view = view[got:]
        # NumPy takes any other byte for true here, and for something else there.
        if self._dtype == np.bool_ and (values.view(np.uint8) > 1).any():
            raise FormatError(f"{self.name}: a bool that is neither 0 nor 1")
        return values

    def check_end(self) -> None:
        """Refuse values behind the last row. zipfile compares the checksum only at the end."""
        if self._file.read(1):
            raise FormatError(f"{self.name}: goes on behind its {self.rows} rows")
