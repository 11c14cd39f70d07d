"""Gymnasium spaces as flat lists of fields, and as JSON."""

import base64
import inspect
from collections.abc import Iterator, KeysView, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from diskreplay import naming
from diskreplay.brief import brief
from diskreplay.errors import FormatError, InvalidInputError, ShapeError

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def leaves(space: spaces.Space, name: str) -> Iterator[tuple[str, tuple[int, ...], np.dtype]]:
    """``(field name, row shape, dtype)`` of each leaf; ``/`` joins the parts of a nested name."""
    if isinstance(space, spaces.Dict):
        naming.check_keys(space.spaces, name)
        _check_filled(space, name)
        for key, inner in space.spaces.items():
            yield from leaves(inner, f"{name}/{key}")
    elif isinstance(space, spaces.Tuple):
        _check_filled(space, name)
        for i, inner in enumerate(space.spaces):
            yield from leaves(inner, f"{name}/{i}")
    elif isinstance(space, _PLAIN):
        yield name, tuple(space.shape or ()), np.dtype(space.dtype)
    else:
        raise InvalidInputError(
            f"{name}: {type(space).__name__} spaces cannot be stored; expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict or Tuple of them"
        )


def _check_filled(space: spaces.Dict | spaces.Tuple, name: str) -> None:
    if not len(space.spaces):
        raise InvalidInputError(
            f"{name}: an empty {type(space).__name__} space has no field to store; leave it out, "
            "or put a space into it"
        )


def box(shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    """The space of all arrays of this shape and dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, shape, dtype.type)


def keys_of_leaves(space: spaces.Space) -> KeysView[str] | None:
    """The keys of a Dict none of whose spaces is a Dict or a Tuple: the values of such a one are
    its parts. None for another space."""
    if not isinstance(space, spaces.Dict) or any(
        isinstance(inner, spaces.Dict | spaces.Tuple) for inner in space.spaces.values()
    ):
        return None
    return space.spaces.keys()


def flatten(space: spaces.Space, value: Any, name: str) -> list[Any]:
    """The parts of `value` in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ShapeError(
                f"{name}: a dict with keys {sorted(space.spaces)} expected, found {found}"
            )
        return [
            part
            for key, inner in space.spaces.items()
            for part in flatten(inner, value[key], f"{name}/{key}")
        ]
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ShapeError(
                f"{name}: a tuple of {len(space.spaces)} expected, found {brief(value)}"
            )
        return [
            part
            for i, inner in enumerate(space.spaces)
            for part in flatten(inner, value[i], f"{name}/{i}")
        ]
    return [value]


def unflatten(space: spaces.Space, parts: Sequence[Any]) -> Any:
    """The opposite of `flatten`: a dict, a tuple or a single array."""
    value, rest = _unflatten(space, list(parts))
    assert not rest
    return value


def _unflatten(space: spaces.Space, parts: list[Any]) -> tuple[Any, list[Any]]:
    if isinstance(space, spaces.Dict):
        nested = {}
        for key, inner in space.spaces.items():
            nested[key], parts = _unflatten(inner, parts)
        return nested, parts
    if isinstance(space, spaces.Tuple):
        items = []
        for inner in space.spaces:
            item, parts = _unflatten(inner, parts)
            items.append(item)
        return tuple(items), parts
    return parts[0], parts[1:]


def describe(space: spaces.Space) -> dict[str, Any]:
    """A space as JSON."""
    if isinstance(space, spaces.Dict):
        inside = {key: describe(inner) for key, inner in space.spaces.items()}
        return {"type": "Dict", "spaces": inside, "order": list(inside)}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe(inner) for inner in space.spaces]}
    dtype = np.dtype(space.dtype).name
    if isinstance(space, spaces.Box):
        return {
            "type": "Box", "shape": list(space.shape), "dtype": dtype,
            "low": _describe_array(space.low), "high": _describe_array(space.high),
        }  # fmt: skip
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        nvec = np.asarray(space.nvec)
        start = np.asarray(getattr(space, "start", np.zeros_like(nvec)))
        return {
            "type": "MultiDiscrete", "nvec": nvec.tolist(), "start": start.tolist(), "dtype": dtype,
        }  # fmt: skip
    assert isinstance(space, spaces.MultiBinary)
    return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}


def alike(document: Any, other: Any) -> bool:
    """Whether what `describe` returned and `other` are of one space, but for the bounds of boxes,
    which may be known better another day. `other` is looked at no deeper than that."""
    if isinstance(document, dict):
        bounds = ("low", "high") if document.get("type") == "Box" else ()
        return (
            isinstance(other, dict)
            and document.keys() == other.keys()
            and all(alike(v, other[k]) for k, v in document.items() if k not in bounds)
        )
    if isinstance(document, list):
        return (
            isinstance(other, list)
            and len(document) == len(other)
            and all(map(alike, document, other))
        )
    return document == other


def parse(document: dict[str, Any]) -> spaces.Space:
    """The opposite of `describe`."""
    try:
        kind = document["type"]
        if kind == "Dict":
            inside = document["spaces"]
            order = document.get("order", list(inside))
            return spaces.Dict([(key, parse(inside[key])) for key in order])
        if kind == "Tuple":
            return spaces.Tuple([parse(inner) for inner in document["spaces"]])
        if kind == "Box":
            shape, dtype = tuple(document["shape"]), np.dtype(document["dtype"])
            low, high = (_parse_array(document[end], shape, dtype) for end in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        if kind == "Discrete":
            return _discrete(document["n"], document["start"], np.dtype(document["dtype"]))
        if kind == "MultiDiscrete":
            dtype = np.dtype(document["dtype"])
            return _multi_discrete(document["nvec"], document["start"], dtype)
        if kind == "MultiBinary":
            return spaces.MultiBinary(document["n"])
        raise ValueError(f"unknown type {kind!r}")
    except (
        LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError,
        MemoryError, RecursionError,
    ) as error:  # fmt: skip
        # What gymnasium and NumPy raise on nonsense, a space of a terabyte included.
        raise FormatError(f"the description of a space is damaged ({error})") from error


def _discrete(n: Any, start: Any, dtype: np.dtype) -> spaces.Discrete:
    """A Discrete space. Before gymnasium 1.2.2 all of them were of int64, and `dtype` was no
    argument."""
    if dtype == np.int64:
        return spaces.Discrete(n, start=start)
    if "dtype" not in inspect.signature(spaces.Discrete).parameters:
        raise FormatError(
            f"a Discrete space of {dtype}, which takes gymnasium 1.2.2 or later; "
            f"{gymnasium.__version__} is installed"
        )
    return spaces.Discrete(n, start=start, dtype=dtype.type)


def _multi_discrete(nvec: Any, start: Any, dtype: np.dtype) -> spaces.MultiDiscrete:
    """A MultiDiscrete space. Before gymnasium 0.29 all of them began at 0, and `start` was no
    argument."""
    if "start" in inspect.signature(spaces.MultiDiscrete).parameters:
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if np.shape(start) != np.shape(nvec):
        raise ValueError(f"start has shape {np.shape(start)}, nvec has {np.shape(nvec)}")
    if np.any(start):
        raise FormatError(
            f"a MultiDiscrete space that starts at {start}, which takes gymnasium 0.29 or later; "
            f"{gymnasium.__version__} is installed"
        )
    return spaces.MultiDiscrete(nvec, dtype=dtype.type)


def _describe_array(values: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(values).ravel()
    if (flat == flat[0]).all():
        flat = flat[:1]  # one bound for all, as nearly always
    little = flat.astype(flat.dtype.newbyteorder("<"))
    return {"base64": base64.b64encode(little.tobytes()).decode(), "count": len(flat)}


def _parse_array(document: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    data = base64.b64decode(document["base64"], validate=True)
    flat = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
    if len(flat) != document["count"]:
        raise ValueError("a bound has the wrong length")
    return np.full(shape, flat[0]) if len(flat) == 1 else flat.reshape(shape)
