"""Records of torchrl: which leaves they have, and whether others have the same."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, is_non_tensor, is_tensor_collection
from torch.utils import _pytree as pytree
from torchrl.data import RoundRobinWriter

from diskreplay.errors import DtypeError, InvalidInputError, SchemaError, ShapeError
from diskreplay.frame_chains import MOST_FRAMES, stacks
from diskreplay.given_numbers import whole
from diskreplay.integrations.record_layout import Leaf, RecordLayout
from diskreplay.integrations.record_shelf import RecordShelf, stored_dtype
from diskreplay.metadata import parse as parse_metadata
from diskreplay.store.format import read_attributes

_LEAST_ON_DISK = 1024  # bytes of a leaf that a record cannot have from later on


def checked_stack(stack: Any) -> "int | Mapping[str, int]":
    if isinstance(stack, Mapping):
        return stacks(stack)
    return whole("stack", stack, most=MOST_FRAMES)


def stacked(data: list[Any]) -> Any:
    """As torchrl takes a list: of records."""
    try:
        if all(is_tensor_collection(item) for item in data):
            return torch.stack(data)
        return pytree.tree_map(lambda *parts: torch.stack(parts), *data)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuntimeError(
            "storage: Stacking the elements of the list resulted in an error: records that are "
            "alike expected; give a tuple where a record is a tree with lists"
        ) from error


def is_int(cursor: Any) -> bool:
    return isinstance(cursor, int | np.integer) or (
        isinstance(cursor, torch.Tensor) and cursor.ndim == 0
    )


def is_lazy(index: Any) -> bool:
    """Whether this index reads no leaf on disk yet: it has slices only, or is a leaf's key."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, slice | str) for part in parts)


def first(data: Any) -> Any:
    """One of several records."""
    return data[0] if is_tensor_collection(data) else pytree.tree_map(lambda x: x[0], data)


def once_each(cursor: Any, data: Any) -> tuple[Any, Any]:
    """Of several records that go to one slot only the last, as of those that are added one by one.
    Torch would set any of them, and of another leaf another one."""
    if is_int(cursor) or isinstance(cursor, slice | tuple):
        return cursor, data
    at = torch.as_tensor(cursor)
    if at.ndim != 1 or at.dtype == torch.bool:
        return cursor, data
    kept = len(at) - 1 - np.unique(at.numpy(force=True)[::-1], return_index=True)[1]
    parts = [data] if is_tensor_collection(data) else pytree.tree_leaves(data)
    if len(kept) == len(at) or any(part.shape[:1] != at.shape for part in parts):
        return cursor, data
    last = torch.from_numpy(np.sort(kept))
    if is_tensor_collection(data):
        return at[last], data[last]
    return at[last], pytree.tree_map(lambda part: part[last], data)


def items(data: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The leaves that can be rows: all but ragged ones and those that are no tensors."""
    if isinstance(data, LazyStackedTensorDict):
        return
    if not is_tensor_collection(data):
        for path, tensor in pytree.tree_leaves_with_path(data):
            yield tuple(pytree.keystr((part,)).strip("[]'.") for part in path), tensor
        return
    for key, value in data.items():
        if isinstance(value, torch.Tensor):
            if not value.is_nested and value.numel():  # a store has no fields of no bytes
                yield (*above, key), value
        elif not is_non_tensor(value):
            yield from items(value, (*above, key))


def key(leaf: Leaf) -> Any:
    return leaf.key if len(leaf.key) > 1 else leaf.key[0]


def others(data: Any, layout: RecordLayout) -> Any:
    """The leaves that are in memory only."""
    return data.exclude(*map(key, layout.leaves.values()))


def described(
    key: tuple[str, ...], tensor: torch.Tensor, axes: int, min_bytes: int,
    stack: "int | Mapping[str, int]",
) -> Leaf:  # fmt: skip
    """A leaf of the first record, of which `tensor` has so many record axes."""
    shape, dtype = tuple(tensor.shape[axes:]), tensor.dtype
    size = int(np.prod(shape)) * dtype.itemsize
    on_disk = bool(size) and size >= min_bytes
    stored = stored_dtype(dtype)
    if stored is None:
        shape, stored = (*shape, dtype.itemsize), np.dtype(np.uint8)
    frames = stack if isinstance(stack, int) else stack.get(key[-1], 1)
    return Leaf(
        key, shape, str(dtype).removeprefix("torch."), stored, on_disk,
        frames if on_disk and len(shape) else 1,
    )  # fmt: skip


def noted(source: Path, ndim: int, max_size: int) -> dict[str, Any]:
    """What a store or checkpoint says of its records.

    Raises
    ------
    SchemaError
        It has none, or not so many.
    """
    found = parse_metadata(read_attributes(source))[0].get("records")
    if not isinstance(found, dict):
        raise SchemaError(f"{source}: this was not made by a DiskStorage; choose another path")
    shape = tuple(found["shape"])
    if len(shape) != ndim or int(np.prod(shape)) != rounded(max_size, shape[1:]):
        raise SchemaError(
            f"{source}: made for records of shape {shape}, not for max_size={max_size} and "
            f"ndim={ndim}; give what it was made with, or choose another path"
        )
    return found


def whole_records(data: Any, shelf: RecordShelf, is_one: bool) -> dict[str, torch.Tensor] | None:
    """The leaves by name, with one record axis, where `data` has all of them and nothing else, as
    plain tensors; None where it is to be looked at more closely."""
    if type(data) is not TensorDict or data.ndim != 1 - is_one:
        return None
    found = {}
    for path, value in _plain_items(data):
        leaf = shelf.leaves.get(path)
        if leaf is None or type(value) is not torch.Tensor or value.is_nested:
            return None
        if value.dtype != leaf.dtype or tuple(value.shape[1 - is_one :]) != leaf.shape:
            return None
        found[leaf.name] = value[None] if is_one else value
    return found if len(found) == len(shelf.leaves) else None


def _plain_items(data: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if type(value) is TensorDict:
            yield from _plain_items(value, (*above, key))
        else:
            yield (*above, key), value


def check(data: Any, shelf: RecordShelf, storage: Any, axes: int) -> None:
    """Refuse leaves that are others than those of the first record; `data` has so many record
    axes."""
    if isinstance(data, LazyStackedTensorDict):
        for part in data.tensordicts:
            check(part, shelf, storage, axes - 1)
        return
    for key, value in items(data):
        leaf = shelf.leaves.get(key)
        if leaf is None:
            _check_new(key, value, storage, axes, shelf.leaves)
            continue
        if value.dtype != leaf.dtype:
            raise DtypeError(f"storage: {key}: {leaf.dtype} expected, found {value.dtype}")
        if tuple(value.shape[value.ndim - len(leaf.shape) :]) != leaf.shape:
            raise ShapeError(
                f"storage: {key}: records of shape {leaf.shape} expected, found an array of "
                f"shape {tuple(value.shape)}"
            )


def _check_new(
    key: tuple[str, ...], value: torch.Tensor, storage: Any, axes: int, known: Collection[Any]
) -> None:
    if (key if len(key) > 1 else key[0]) in storage.keys(True):
        return
    size = value.itemsize * int(np.prod(value.shape[axes:]))
    if size >= _LEAST_ON_DISK:
        raise InvalidInputError(
            f"storage: {key} is new, and large; records have the leaves of the first one: "
            f"{sorted(known)}. Leave it out, or give it from the beginning on"
        )
    warnings.warn(
        f"{key} was not among the leaves of the first record: it is in memory and in "
        "checkpoints, and gone after a kill; give it from the beginning on",
        stacklevel=5,
    )


def rounded(max_size: int, inner: tuple[int, ...]) -> int:
    """Records in all, for whole rows of the first axis."""
    each = int(np.prod(inner))
    return -(max_size // -each) * each


def put_back(storage: Any, cursor: Any, set_cursor: bool) -> None:
    """A writer moves on before it writes: after an error it is where it was."""
    if not set_cursor:
        return
    for buffer in storage._attached_entities:
        writer = getattr(buffer, "_writer", None)
        if isinstance(writer, RoundRobinWriter) and writer._storage is storage:
            slots = torch.as_tensor(cursor).reshape(-1)
            writer._cursor, writer._write_count = int(slots[0]), writer._write_count - len(slots)
