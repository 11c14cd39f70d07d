"""What `torch.load` takes with ``weights_only=True``: looked for before anything is written, and
copied.

Reading the file back after it was written would find the same, but for 50 MB of tensors it takes
45 ms beside the 160 of writing them. It would name no place, and on the device meta, where it costs
least, it refuses quantized and nested tensors, which can be loaded.
"""

import copy
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError

_PLAIN = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_TENSORS = {torch.Tensor, torch.nn.Parameter}
_MAPPINGS, _SEQUENCES = {dict, OrderedDict, Counter}, {list, tuple, set}
_BITS = 2039  # of the largest int that PyTorch reads: 255 bytes with its sign
_DEPTH = 100  # of what is nested; Python's pickler has an end, which depends on who calls it


def check_plain(where: str, value: Any) -> None:
    """Refuse what `torch.load` would not take with ``weights_only=True``; `where` says what it is.

    Raises
    ------
    InvalidInputError
        Something in it is of another kind, too large an int, a tensor without values, or nested too
        deep; it is named.
    """
    _check(where, value, _DEPTH, set())


def _check(where: str, value: Any, depth: int, done: set[int]) -> None:
    """As `check_plain`; `done` are the containers that were looked at, by their ids."""
    kind = type(value)
    if kind is int and value.bit_length() > _BITS:
        raise InvalidInputError(
            f"{where}: an int of {value.bit_length()} bits found, and PyTorch reads at most "
            f"{_BITS}: say hex(...), and int(..., 16) after the load"
        )
    if kind in _PLAIN or id(value) in done:
        return
    if kind not in _MAPPINGS and kind not in _SEQUENCES and kind not in _TENSORS:
        hint = {np.ndarray: ": say torch.from_numpy(...)"}.get(kind, "")
        if isinstance(value, np.generic):
            hint = ": say .item()"
        raise InvalidInputError(
            f"{where}: numbers, strings and tensors, and dicts, lists, tuples and sets of them can "
            f"be saved, found {kind.__module__}.{kind.__qualname__}{hint}"
        )
    if not depth:
        raise InvalidInputError(
            f"{where[:80]}...: it is nested more than {_DEPTH} deep, or within itself; make it "
            "flatter"
        )
    if kind in _TENSORS and value.is_meta:
        raise InvalidInputError(
            f"{where}: a tensor on the device meta found, which has no values; leave it out, or "
            "move its module by to_empty(device=...)"
        )
    if kind in _MAPPINGS:
        for key, inner in value.items():
            named = brief(key, 80)
            _check(f"{where}: the key {named}", key, depth - 1, done)
            _check(f"{where}[{named}]", inner, depth - 1, done)
    elif kind in _SEQUENCES:
        for place, inner in enumerate(value):
            _check(f"{where}[{place}]", inner, depth - 1, done)
    if kind in _TENSORS or kind is OrderedDict:  # their attributes are saved, too
        for name, inner in vars(value).items():
            _check(f"{where}.{name}", inner, depth - 1, done)
    done.add(id(value))  # at the end: else one that holds itself would be done


def copied(value: Any) -> Any:
    """A state as it is now, its tensors on the CPU: what it is of may be changed."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        found = {key: copied(inner) for key, inner in value.items()}
        return found if type(value) is dict else OrderedDict(found)
    if type(value) in (list, tuple):
        return type(value)(copied(inner) for inner in value)
    return copy.deepcopy(value)
