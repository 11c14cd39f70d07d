"""A tensor without memory: what is looked at is read from the disk, what is assigned goes there."""

import copy
import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Leaf(Protocol):
    """Where the records of a `DiskTensor` are."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def read(self, slots: np.ndarray) -> torch.Tensor:
        """Of shape ``(*slots.shape, *shape)``; a copy."""

    def write(self, slots: np.ndarray, values: torch.Tensor) -> None:
        """The opposite."""


class DiskTensor(torch.Tensor):
    """One leaf of a storage's records, of shape ``(*records, *shape)``, on the disk.

    Indexing with tensors, lists or masks reads. Slices, single records and other views of the
    record axes are lazy: they read when they are computed with, as often as that happens, and what
    is assigned to them is written. Any other operation reads first and gives a plain tensor, whose
    memory is its own.

    Parameters
    ----------
    leaf : Leaf
    slots : Tensor of int64
        The slot of each record, of the shape of the record axes.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _leaf: Leaf
    _slots: torch.Tensor

    @staticmethod
    def __new__(cls, leaf: Leaf, slots: torch.Tensor) -> "DiskTensor":
        made: DiskTensor = torch.Tensor._make_wrapper_subclass(
            cls, (*slots.shape, *leaf.shape), dtype=leaf.dtype, device=leaf.device
        )
        made._leaf, made._slots = leaf, slots
        return made

    def read(self) -> torch.Tensor:
        """All of it, as a plain tensor."""
        return self._leaf.read(self._slots.numpy())

    def write(self, values: torch.Tensor) -> None:
        """Write values of this shape and dtype."""
        self._leaf.write(self._slots.numpy(), values)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """As `torch.Tensor.numpy`, of what was read."""
        return self.read().numpy(force=force)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """As NumPy asks for it."""
        return np.asarray(self.read().cpu(), dtype)

    def tolist(self) -> Any:
        """As `torch.Tensor.tolist`."""
        return self.read().tolist()

    def is_shared(self) -> bool:
        """Yes: other processes read the same files."""
        return True

    def share_memory_(self) -> "DiskTensor":
        """Nothing is to be done."""
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype}, on disk)"

    def __deepcopy__(self, memo: Any) -> "DiskTensor":
        return DiskTensor(copy.deepcopy(self._leaf, memo), self._slots)

    def __setitem__(self, index: Any, value: Any) -> None:
        """As of a tensor in memory, into the leaf's own axes too."""
        parts = index if isinstance(index, tuple) else (index,)
        axes = sum(_axes(part) for part in parts)
        if axes <= self._slots.ndim and not any(part is Ellipsis or part is None for part in parts):
            super().__setitem__(index, value)
            return
        whole = self.read()
        whole[index] = plain(value)
        self.write(whole)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """By the path of its store."""
        return DiskTensor, (self._leaf, self._slots)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None and isinstance(args[0], DiskTensor):
            result = special(func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return _on_plain(func, args, kwargs)


def _on_plain(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read what is on disk, compute, and write back what was changed in place."""
    read: dict[int, tuple[DiskTensor, torch.Tensor]] = {}

    def plain_once(value: Any) -> Any:
        if isinstance(value, DiskTensor):
            return read.setdefault(id(value), (value, value.read()))[1]
        return value

    given = pytree.tree_map(plain_once, args)
    result = func(*given, **pytree.tree_map(plain_once, kwargs))
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        there = args[at] if at < len(args) else kwargs.get(argument.name)
        # Several of torch._foreach_copy_ and its like.
        for changed in there if isinstance(there, list | tuple) else [there]:
            if isinstance(changed, DiskTensor):
                after = read[id(changed)][1]
                changed.write(after)
                if result is after:
                    result = changed
    return result


def _record_dim(tensor: DiskTensor, dim: int, more: int = 0) -> int | None:
    """`dim` from 0 on, if it is one of the record axes (of which a view has `more`)."""
    dim = dim + tensor.ndim + more if dim < 0 else dim
    return dim if dim < tensor._slots.ndim + more else None


def _along(
    func: Any, tensor: DiskTensor, dim: int = 0, *args: Any, more: int = 0, **kwargs: Any
) -> Any:
    """Views along one record axis, of which they have `more`: the same of its slots."""
    found = _record_dim(tensor, dim, more)
    if found is None:
        return NotImplemented
    return _wrap(tensor, func(tensor._slots, found, *args, **kwargs))


def _split(func: Any, tensor: DiskTensor, size: Any, dim: int = 0) -> Any:
    found = _record_dim(tensor, dim)
    return NotImplemented if found is None else _wrap(tensor, func(tensor._slots, size, found))


def _transpose(func: Any, tensor: DiskTensor, one: int, other: int) -> Any:
    first, second = _record_dim(tensor, one), _record_dim(tensor, other)
    if first is None or second is None:
        return NotImplemented
    return _wrap(tensor, func(tensor._slots, first, second))


def _permute(func: Any, tensor: DiskTensor, dims: list[int]) -> Any:
    records = tensor._slots.ndim
    dims = [dim + tensor.ndim if dim < 0 else dim for dim in dims]
    if dims[records:] != list(range(records, tensor.ndim)):
        return NotImplemented
    return _wrap(tensor, func(tensor._slots, dims[:records]))


def _view(func: Any, tensor: DiskTensor, size: Any, *_more: Any) -> Any:
    wanted = _records(tensor, torch.empty(tensor.shape, device="meta").view(size).shape)
    return NotImplemented if wanted is None else _wrap(tensor, tensor._slots.reshape(wanted))


def _expand(func: Any, tensor: DiskTensor, size: Any, **_more: Any) -> Any:
    wanted = _records(tensor, torch.empty(tensor.shape, device="meta").expand(size).shape)
    return NotImplemented if wanted is None else _wrap(tensor, tensor._slots.expand(wanted))


def _records(tensor: DiskTensor, shape: torch.Size) -> torch.Size | None:
    """The record axes of a shape that has the leaf's own behind them."""
    own = tuple(tensor._leaf.shape)
    records = len(shape) - len(own)
    return shape[:records] if records >= 0 and tuple(shape[records:]) == own else None


def _same(func: Any, tensor: DiskTensor, *_more: Any) -> Any:
    return _wrap(tensor, tensor._slots)


def _index(func: Any, tensor: DiskTensor, indices: list[Any]) -> Any:
    """Read what tensors and masks name."""
    slots = _indexed(tensor, indices)
    return NotImplemented if slots is None else tensor._leaf.read(slots.numpy())


def _index_select(func: Any, tensor: DiskTensor, dim: int, index: torch.Tensor) -> Any:
    found = _record_dim(tensor, dim)
    if found is None:
        return NotImplemented
    slots = torch.index_select(tensor._slots, found, index.cpu())
    return tensor._leaf.read(slots.numpy())


def _axes(index: Any) -> int:
    """How many axes an index is for."""
    is_mask = isinstance(index, torch.Tensor | np.ndarray) and index.dtype in (torch.bool, np.bool_)
    return index.ndim if is_mask else 1


def _indexed(tensor: DiskTensor, indices: list[Any]) -> torch.Tensor | None:
    """The slots that indices name, unless they go into the leaf's own axes."""
    at, chosen = 0, []
    for index in indices:
        if index is None:
            at += 1
            continue
        at += _axes(index)
        if at > tensor._slots.ndim:
            return None
    for index in indices[: tensor._slots.ndim]:
        chosen.append(slice(None) if index is None else index.cpu())
    return tensor._slots[tuple(chosen)]


def _index_put(
    func: Any, tensor: DiskTensor, indices: list[Any], values: torch.Tensor,
    accumulate: bool = False, *_unsafe: Any,
) -> Any:  # fmt: skip
    slots = None if accumulate else _indexed(tensor, indices)
    if slots is None:
        return NotImplemented
    if values.dtype != tensor.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{tensor.dtype} for the destination and {values.dtype} for the source."
        )
    shape = (*slots.shape, *tensor._leaf.shape)
    tensor._leaf.write(slots.numpy(), plain(values).expand(shape))
    return tensor


def _copy(func: Any, tensor: DiskTensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    tensor.write(plain(source).to(tensor.dtype).expand(tensor.shape))
    return tensor


def _fill(func: Any, tensor: DiskTensor, value: Any = 0) -> Any:
    value = torch.as_tensor(plain(value)).to(tensor.dtype)
    tensor.write(value.expand(tensor.shape))
    return tensor


def _empty_like(func: Any, tensor: DiskTensor, **kwargs: Any) -> Any:
    """A tensor like one on disk has memory."""
    one = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    return func(one.expand(tensor.shape), **kwargs)


def plain(value: Any) -> Any:
    """A tensor, read if it is on disk."""
    return value.read() if isinstance(value, DiskTensor) else value


def _wrap(tensor: DiskTensor, slots: Any) -> Any:
    if isinstance(slots, torch.Tensor):
        return DiskTensor(tensor._leaf, slots)
    return type(slots)(DiskTensor(tensor._leaf, part) for part in slots)


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.slice.Tensor: _along,
    aten.select.int: _along,
    aten.unbind.int: _along,
    aten.squeeze.dim: _along,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unsqueeze.default: functools.partial(_along, more=1),
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten._reshape_alias.default: _view,
    aten.expand.default: _expand,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten.copy_.default: _copy,
    aten.fill_.Scalar: _fill,
    aten.fill_.Tensor: _fill,
    aten.zero_.default: _fill,
    aten.empty_like.default: _empty_like,
}
