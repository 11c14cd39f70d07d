"""What a user notes about a store: any JSON object, in the group's attributes."""

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError

MOST_BYTES = 64 << 10
"""Of the JSON text: it is part of the attributes, which every record writes anew."""
_MOST_DEEP = 32


def checked(metadata: Any) -> dict[str, Any]:
    """A copy as plain JSON values.

    Tuples become lists, NumPy's numbers and arrays numbers and lists.

    Parameters
    ----------
    metadata : mapping of str to JSON values

    Raises
    ------
    InvalidInputError
        It is no mapping, something in it is no JSON, or it is larger than `MOST_BYTES`.
    """
    plain = as_json("metadata", metadata)
    size = len(json.dumps(plain, ensure_ascii=False).encode())
    if size > MOST_BYTES:
        raise InvalidInputError(
            f"metadata: {size} bytes as JSON, at most {MOST_BYTES} expected: keep what is large in "
            "a file of its own, and its path here"
        )
    return plain


def as_json(name: str, value: Any) -> dict[str, Any]:
    """The same of any size; `name` is what messages call it."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{name}: a dict expected, found {type(value).__name__} ({brief(value)})"
        )
    plain: dict[str, Any] = _plain(value, name, 0)
    return plain


def parse(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The metadata in a group's attributes, and what is wrong with them: then they are empty.

    They say nothing about the rows, so nobody should be kept from these by their damage.
    """
    try:
        return checked(attributes.get("metadata", {})), None
    except InvalidInputError as error:
        return {}, str(error)


def warn_of_damage(path: Path, attributes: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn where the metadata of the store at a path are damaged: `parse` leaves them out."""
    damage = parse(attributes)[1]
    if damage is not None:
        warnings.warn(
            f"{path}/zarr.json: damaged metadata left out: {damage}", stacklevel=stacklevel + 1
        )


def _plain(value: Any, where: str, deep: int) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"{where}: {brief(value)} is no text ({error})") from error
        return str(value)
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if deep >= _MOST_DEEP:
        raise InvalidInputError(f"{where:.60}: at most {_MOST_DEEP} levels expected")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInputError(f"{where}: the key {brief(key)} is no text")
        return {
            _plain(key, where, deep): _plain(inner, f"{where}[{brief(key)}]", deep + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{i}]", deep + 1) for i, inner in enumerate(value)]
    raise InvalidInputError(
        f"{where}: {brief(value)} ({type(value).__name__}) is no JSON value; dicts with text as "
        "keys, lists, texts, finite numbers of at most 64 bits, booleans and None are"
    )
