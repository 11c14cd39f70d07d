"""Arrays of batches as tensors of PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from diskreplay.batch import Batch, mapped

Tensors = dict[str, Any]  # tensors by name; an observation or action may be a dict or tuple of them


def to_torch(
    batch: Batch, device: str | torch.device = "cpu", *, non_blocking: bool = False
) -> Tensors:
    """The arrays of a batch as tensors.

    Parameters
    ----------
    batch : Batch
    device : str or torch.device
    non_blocking : bool
        Copy to a CUDA device by way of pinned memory, without waiting for it; work that is queued
        on the same CUDA stream sees the whole batch. The batch itself may be used again at once.
        No effect on the CPU.

    Returns
    -------
    dict of str to Tensor, or a dict or tuple of them
        Names, shapes and dtypes are those of the batch. On the CPU nothing is copied: a tensor
        shares its array's memory and keeps it alive. Elsewhere `observation` and
        `next_observation` share memory with each other where they do in the batch, so that their
        common frames are copied once.

    Notes
    -----
    On the CPU the tensors of a batch that will be filled again (``sample(out=...)``, or one taken
    from ``prefetch()``) change with it. PyTorch knows unsigned integers wider than 8 bits, but
    calculates with them only after a cast.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return mapped(torch.from_numpy, batch.asdict())

    def move(array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if non_blocking and device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=non_blocking)

    return placed(batch.asdict(), move)


def placed(arrays: Any, move: Callable[[np.ndarray], torch.Tensor]) -> Any:
    """Arrays in dicts and tuples as tensors elsewhere, where `move` takes them; what several of
    them show is moved once."""
    bases: dict[int, tuple[np.ndarray, int]] = {}
    for array in arrays_in(arrays):
        base = _base(array)
        bases[id(base)] = base, bases.get(id(base), (base, 0))[1] + array.nbytes
    shared = {key for key, (base, shown) in bases.items() if base.nbytes <= shown}
    moved: dict[int, torch.Tensor] = {}

    def tensor(array: np.ndarray) -> torch.Tensor:
        base = _base(array)
        if id(base) not in shared:  # a small part of something
            return move(array)
        if id(base) not in moved:
            moved[id(base)] = move(base)
        size = array.itemsize
        offset = (array.ctypes.data - base.ctypes.data) // size
        return moved[id(base)].as_strided(array.shape, [s // size for s in array.strides], offset)

    return mapped(tensor, arrays)


def _base(array: np.ndarray) -> np.ndarray:
    """The contiguous array that `array` is a view of, or itself."""
    base = array.base
    while base is not None and not isinstance(base, np.ndarray):
        base = getattr(base, "base", None)  # of what as_strided made
    if base is None or base.dtype != array.dtype or not base.flags.c_contiguous:
        return array
    return base


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
        return
    for inner in value.values() if isinstance(value, dict) else value:
        yield from arrays_in(inner)
