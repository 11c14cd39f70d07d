"""Columns of a store as Arrow arrays, and back."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import FormatError


def type_of(pa: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """The type of a column: a number, the bytes of a picture, or a flat list of fixed size."""
    if shape == ():
        return pa.from_numpy_dtype(dtype)
    if dtype == np.uint8 and len(shape) > 1:
        return pa.binary(math.prod(shape))
    return pa.list_(pa.from_numpy_dtype(dtype), math.prod(shape))


def to_arrow(pa: Any, type_: Any, values: np.ndarray) -> Any:
    """Values of shape ``(rows, *shape)`` as an array of `type_of`; a view where Arrow can."""
    values = np.ascontiguousarray(values)
    if pa.types.is_fixed_size_binary(type_):
        return pa.FixedSizeBinaryArray.from_buffers(
            type_, len(values), [None, pa.py_buffer(values)]
        )
    flat = pa.array(values.reshape(-1))
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(flat, type=type_)
    return flat


def from_arrow(
    path: Path, field: str, array: Any, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """The opposite of `to_arrow`, a copy or a read-only view.

    Raises
    ------
    FormatError
        There are nulls, or it is of another type than the field asks for.
    """
    import pyarrow as pa

    if array.null_count:
        raise FormatError(f"{path}: {field!r} has nulls; every row needs a value")
    if not array.type.equals(type_of(pa, shape, dtype)):
        raise FormatError(
            f"{path}: {field!r} is of type {array.type}, {type_of(pa, shape, dtype)} expected"
        )
    if pa.types.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.empty(0, np.uint8)
        flat = data[array.offset * size : (array.offset + len(array)) * size]
    elif pa.types.is_fixed_size_list(array.type):
        flat = array.flatten().to_numpy(zero_copy_only=False)
    else:
        flat = array.to_numpy(zero_copy_only=False)
    return flat.reshape(len(array), *shape)


def pyarrow_modules() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``, or an error that says how to get them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ModuleNotFoundError(
            'Parquet is written with pyarrow: pip install "diskreplay[pandas]"', name="pyarrow"
        ) from error
    return pyarrow, pyarrow.parquet
