"""Gymnasium spaces: as JSON, and for arrays of a shape."""

import base64
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.errors import InvalidInputError


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


def describe(space: spaces.Space[Any], name: str) -> dict[str, Any]:
    """A space as JSON, which `StoredSpace` reads, or an `InvalidInputError` if it cannot be stored.
    Messages call it by the name."""
    if isinstance(space, spaces.Dict):
        inside = {key: describe(inner, f"{name}/{key}") for key, inner in space.spaces.items()}
        return {"type": "Dict", "spaces": inside, "order": list(inside)}
    if isinstance(space, spaces.Tuple):
        inner = [describe(each, f"{name}/{i}") for i, each in enumerate(space.spaces)]
        return {"type": "Tuple", "spaces": inner}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
        raise InvalidInputError(
            f"{name}: {type(space).__name__} spaces cannot be stored; expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict or Tuple of them"
        )
    dtype = np.dtype(space.dtype).name
    if isinstance(space, spaces.Box):
        return {
            "type": "Box", "shape": list(space.shape), "dtype": dtype,
            "low": _describe_array(space.low), "high": _describe_array(space.high),
        }  # fmt: skip
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    nvec = np.asarray(space.nvec)
    start = np.asarray(getattr(space, "start", np.zeros_like(nvec)))
    return {
        "type": "MultiDiscrete", "nvec": nvec.tolist(), "start": start.tolist(), "dtype": dtype,
    }  # fmt: skip


def _describe_array(values: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(values).ravel()
    if (flat == flat[:1]).all():
        flat = flat[:1]  # one bound for all, as nearly always
    little = flat.astype(flat.dtype.newbyteorder("<"))
    return {"base64": base64.b64encode(little.tobytes()).decode(), "count": len(flat)}
