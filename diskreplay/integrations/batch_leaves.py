"""The leaves of a Tianshou `Batch`: their paths, and the fields of `Slots` that they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBuffer

from diskreplay.naming import check_keys, extra_name
from diskreplay.slot_view import SlotView
from diskreplay.store.field import DTYPES, is_part

_LONGEST = 500  # letters of a name
_DTYPES = frozenset(map(np.dtype, DTYPES))  # a dtype takes long to say its name
_OWN_NAMES = {"obs": "observation", "act": "action"}
REWARD, NUMBER = "reward", "sequence_number"
_TAKEN = frozenset((*_OWN_NAMES.values(), REWARD, NUMBER))  # a leaf of such a name has another


def leaves(batch: Batch, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The paths and values of a batch that are no batches, ``"obs/camera"``.

    A ``/`` or ``~`` in a key is written ``~1`` or ``~0``, as in a JSON pointer (RFC 6901).
    """
    for key, value in batch.items():
        path = prefix + path_of(key)
        if isinstance(value, Batch):
            yield from leaves(value, f"{path}/")
        else:
            yield path, value


def path_of(key: str) -> str:
    """The path of a leaf that is in no other batch."""
    return key.replace("~", "~0").replace("/", "~1")


def keys_of(path: str) -> list[str]:
    """The keys of a path that `leaves` gave."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")]


def set_leaf(batch: Batch, path: str, value: Any) -> None:
    """Set the leaf of a path, in batches that are made where there are none."""
    *parents, key = keys_of(path)
    for parent in parents:
        batch = batch.__dict__.setdefault(parent, Batch())
    batch.__dict__[key] = value


def is_storable(value: Any) -> bool:
    """Whether the values of a leaf can be on disk."""
    if not isinstance(value, (np.ndarray, SlotView)):
        return False
    return value.dtype in _DTYPES or value.dtype.name in DTYPES


def field_names(template: Batch) -> dict[str, str]:
    """The field of `Slots` for each leaf that can be on disk.

    Observations and actions get the names that a `ReplayBuffer` has for them, where they can. The
    same leaves get the same names, whatever their order: Tianshou's is that of a set.
    """
    names: dict[str, str] = {}
    taken = {NUMBER}  # `extra_name` does not give the names of a store
    there = dict(leaves(template))
    for path in sorted(there, key=_rank):
        value = there[path]
        if is_storable(value) and value.size:
            first, _, rest = path.partition("/")
            own = _OWN_NAMES.get(first)
            name = f"{own}/{rest}" if own and rest else own or path
            if own and rest and not _is_key(rest):
                name = path
            is_free = first not in _TAKEN and name.lower() not in taken
            if not is_free or len(name) > _LONGEST or not all(map(is_part, name.split("/"))):
                name = extra_name(path, taken)
            taken.add(name.lower())
            names[path] = name
    return names


def _rank(path: str) -> tuple[bool, str]:
    """Tianshou's own keys have the first choice of names."""
    return keys_of(path)[0] not in ReplayBuffer._reserved_keys, path


def _is_key(name: str) -> bool:
    try:
        check_keys([name], "obs")
    except ValueError:
        return False
    return "/" not in name


def fields_of(template: Batch, names: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Shape and dtype of each field, of a batch with one row; and the reward as a store has it."""
    there = dict(leaves(template))
    fields = {name: (there[path].shape[1:], there[path].dtype) for path, name in names.items()}
    if "rew" in names and not fields["rew"][0]:
        fields[REWARD] = ((), np.dtype(np.float32))
    return fields | {NUMBER: ((), np.dtype(np.int64))}
