"""Columns of a store as Arrow arrays, and back."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError
from diskreplay.extensions import needed
from diskreplay.store.system_errors import check_lost


def type_of(pa: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """The type of a column: a number, the bytes of a picture, or a flat list of fixed size."""
    if shape == ():
        return pa.from_numpy_dtype(dtype)
    if dtype == np.uint8 and len(shape) > 1:
        return pa.binary(math.prod(shape))
    return pa.list_(pa.from_numpy_dtype(dtype), math.prod(shape))


def type_with_nulls(pa: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """`type_of`, but for lists: pyarrow before 26 writes nulls among lists of fixed size in a way
    that no pyarrow reads, so these are of any size."""
    type_ = type_of(pa, shape, dtype)
    return pa.list_(type_.value_type) if pa.types.is_fixed_size_list(type_) else type_


def to_arrow(pa: Any, type_: Any, values: np.ndarray) -> Any:
    """Values of shape ``(rows, *shape)`` as an array of `type_of` or `type_with_nulls`; a view
    where Arrow can."""
    values = np.ascontiguousarray(values)
    if pa.types.is_fixed_size_binary(type_):
        return pa.FixedSizeBinaryArray.from_buffers(
            type_, len(values), [None, pa.py_buffer(values)]
        )
    flat = pa.array(values.reshape(-1))
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(flat, type=type_)
    if pa.types.is_list(type_):
        ends = np.arange(len(values) + 1, dtype=np.int32) * math.prod(values.shape[1:])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
    return flat


def from_arrow(path: Path, field: str, array: Any, type_: Any, spec: tuple[Any, ...]) -> np.ndarray:
    """The opposite of `to_arrow`: values of `spec`, a shape and a dtype, as a copy or a read-only
    view. A `FormatError` if there are nulls, it is of another type, or a list is not as long as the
    field asks for."""
    import pyarrow as pa

    shape, _dtype = spec
    check_no_nulls(path, field, array)
    if not array.type.equals(type_):
        raise FormatError(f"{path}: {field!r} is of type {array.type}, {type_} expected")
    if pa.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.empty(0, np.uint8)
        flat = data[array.offset * size : (array.offset + len(array)) * size]
    elif pa.types.is_fixed_size_list(array.type):
        flat = _flattened(path, field, array)
    elif pa.types.is_list(array.type):
        lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
        if not set(lengths) <= {math.prod(shape)}:
            raise FormatError(
                f"{path}: {field!r} has lists of {lengths.tolist()} values, "
                f"{math.prod(shape)} expected in each"
            )
        flat = _flattened(path, field, array)
    else:
        flat = array.to_numpy(zero_copy_only=False)
    return flat.reshape(len(array), *shape)


def _flattened(path: Path, field: str, array: Any) -> np.ndarray:
    values = array.flatten()
    check_no_nulls(path, field, values)  # those in lists are counted nowhere else
    return values.to_numpy(zero_copy_only=False)


def check_no_nulls(path: Path, field: str, array: Any) -> None:
    """Refuse an array with nulls, which NumPy would have other numbers for."""
    if array.null_count:
        raise FormatError(f"{path}: {field!r} has nulls; every row needs a value")


def check_path(path: Path) -> None:
    """Refuse a path that pyarrow has no name for."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{path!r}: pyarrow opens only names in UTF-8") from error


def pyarrow_modules() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``, or an error that says how to get them."""
    with needed("Parquet is written with pyarrow", "pandas"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


@contextlib.contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """An open file. What pyarrow says of a damaged one, also in the block, is a `FormatError`, and
    what the system says of the process, that too many files are open, is a `StorageError`."""
    pa, pq = pyarrow_modules()
    doing = "no Parquet file"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            doing = "a damaged Parquet file"
            yield file
    except DiskReplayError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        check_lost(error, path, "cannot read it")
        raise FormatError(f"{path}: {doing} ({error})") from error
