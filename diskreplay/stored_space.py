"""A space as a store has it: described as JSON, with its values in flat lists of fields.

Opening a store needs no more of a space than that. Gymnasium takes longer to import than a store
takes to open, so it is imported where somebody asks for the space itself.
"""

import base64
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay import naming
from diskreplay.brief import brief
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError, ShapeError

if TYPE_CHECKING:
    import gymnasium

_BOUNDS = ("low", "high")


class StoredSpace:
    """The description of a Gymnasium space, and how its values are put together.

    Parameters
    ----------
    document : dict
        What `diskreplay.spaces.describe` made of the space. It is checked as Gymnasium checks what
        it makes a space of.
    name : str
        Of the space: ``observation`` or ``action``.

    Attributes
    ----------
    document, name
    kind : str
        ``Box``, ``Discrete``, ``MultiDiscrete``, ``MultiBinary``, ``Dict`` or ``Tuple``.
    parts : dict
        The spaces in a Dict by key, and those in a Tuple by position. Others have none.
    leaves : list of (str, tuple, dtype)
        The name of each field, and shape and dtype of its rows; ``/`` joins the parts of a nested
        name.

    Raises
    ------
    FormatError
        The document is damaged.
    InvalidInputError
        A Dict or a Tuple is empty, or a key of a Dict can be no part of a field's name.
    """

    def __init__(self, document: Mapping[str, Any], name: str) -> None:
        self.document, self.name = document, name
        self.parts: dict[Any, StoredSpace] = {}
        self._space: gymnasium.Space[Any] | None = None
        with _telling_damage():
            self.kind: str = document["type"]
            if self.kind in _LEAVES:
                self.leaves = [(name, *_LEAVES[self.kind](document))]
                return
            if self.kind not in ("Dict", "Tuple"):
                raise ValueError(f"unknown type {self.kind!r:.60}")
            inside = _inside(document)
        if self.kind == "Dict":
            naming.check_keys(inside, name)
        if not inside:
            raise InvalidInputError(
                f"{name}: an empty {self.kind} space has no field to store; leave it out, or put a "
                "space into it"
            )
        with _telling_damage():
            self.parts = {key: StoredSpace(part, f"{name}/{key}") for key, part in inside.items()}
        self.leaves = [leaf for part in self.parts.values() for leaf in part.leaves]
        self._is_shallow = not any(part.parts for part in self.parts.values())

    @classmethod
    def of(cls, space: "gymnasium.Space[Any]", name: str) -> "StoredSpace":
        """That of a space, or an `InvalidInputError` if it cannot be stored."""
        from diskreplay import spaces

        try:
            found = cls(spaces.describe(space, name), name)
        except (FormatError, RecursionError) as error:  # what was made of it since, or too deep
            raise InvalidInputError(f"{name}: no space that can be stored ({error})") from error
        found._space = space
        return found

    @property
    def space(self) -> "gymnasium.Space[Any]":
        """The space itself, made when it is first asked for.

        Raises
        ------
        FormatError
            The version of Gymnasium that is installed has no such space.
        """
        if self._space is None:
            with _telling_damage():
                self._space = self._made()
        return self._space

    def _made(self) -> "gymnasium.Space[Any]":
        from gymnasium import spaces

        document = self.document
        if self.kind == "Dict":
            return spaces.Dict([(key, part.space) for key, part in self.parts.items()])
        if self.kind == "Tuple":
            return spaces.Tuple([part.space for part in self.parts.values()])
        if self.kind == "MultiBinary":
            return spaces.MultiBinary(document["n"])
        [(_name, shape, dtype)] = self.leaves
        if self.kind == "Box":
            low, high = (np.full(shape, _bound(document[end], shape, dtype)) for end in _BOUNDS)
            return spaces.Box(low, high, shape, dtype.type)
        if self.kind == "Discrete":
            return _discrete_space(document["n"], document["start"], dtype)
        return _multi_discrete_space(document["nvec"], document["start"], dtype)

    @property
    def names(self) -> list[str]:
        """Of the fields."""
        return [name for name, _shape, _dtype in self.leaves]

    def flatten(self, value: Any, prefix: str = "") -> list[Any]:
        """The parts of a value in the order of `leaves`. Messages name it with the prefix."""
        if self.kind == "Dict":
            if not isinstance(value, dict) or value.keys() != self.parts.keys():
                found = sorted(value) if isinstance(value, dict) else type(value).__name__
                raise ShapeError(
                    f"{prefix}{self.name}: a dict with keys {sorted(self.parts)} expected, found "
                    f"{found}"
                )
        elif self.kind == "Tuple":
            if not isinstance(value, tuple | list) or len(value) != len(self.parts):
                raise ShapeError(
                    f"{prefix}{self.name}: a tuple of {len(self.parts)} expected, found "
                    f"{brief(value)}"
                )
        else:
            return [value]
        if self._is_shallow:  # as nearly always, and a call for each part would take longer
            return [value[key] for key in self.parts]
        return [
            leaf for key, part in self.parts.items() for leaf in part.flatten(value[key], prefix)
        ]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The opposite of `flatten`: a dict, a tuple or a single array."""
        assert len(leaves) == len(self.leaves)
        return self._unflattened(iter(leaves))

    def _unflattened(self, leaves: Iterator[Any]) -> Any:
        if self.kind == "Dict":
            return {key: part._unflattened(leaves) for key, part in self.parts.items()}
        if self.kind == "Tuple":
            return tuple(part._unflattened(leaves) for part in self.parts.values())
        return next(leaves)

    def is_alike(self, other: Any) -> bool:
        """Whether a description is of this space, but for the bounds of boxes, which may be known
        better another day. It is looked at no deeper than that."""
        return _are_alike(self.document, other)


def _are_alike(document: Any, other: Any) -> bool:
    if isinstance(document, dict):
        bounds = _BOUNDS if document.get("type") == "Box" else ()
        return (
            isinstance(other, dict)
            and document.keys() == other.keys()
            and all(_are_alike(v, other[k]) for k, v in document.items() if k not in bounds)
        )
    if isinstance(document, list):
        return (
            isinstance(other, list)
            and len(document) == len(other)
            and all(map(_are_alike, document, other))
        )
    return document == other


@contextmanager
def _telling_damage() -> Iterator[None]:
    """Raise a `FormatError` for what Python, NumPy and Gymnasium raise on nonsense, a space of a
    terabyte included."""
    try:
        yield
    except DiskReplayError:
        raise
    except (
        LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError,
        MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise FormatError(f"the description of a space is damaged ({error})") from error


# -- what each kind of description has to be, and the shape and dtype of its values


def _inside(document: Mapping[str, Any]) -> dict[Any, Mapping[str, Any]]:
    """The descriptions in that of a Dict or a Tuple."""
    inside = document["spaces"]
    if document["type"] == "Tuple":
        return dict(enumerate(inside))
    order = document.get("order", list(inside))
    if len(order) != len(inside) or set(order) != set(inside):
        raise ValueError(f"the order of {list(inside)} is {order}")
    return {key: inside[key] for key in order}


def _box(document: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype]:
    shape, dtype = tuple(map(_whole, document["shape"])), _dtype(document, "iufb")
    low, high = (_bound(document[end], shape, dtype) for end in _BOUNDS)
    if not (low <= high).all():  # nor where one is no number
        raise ValueError("a lower bound is above the upper one")
    return shape, dtype


def _discrete(document: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype]:
    dtype = _dtype(document, "iu")
    _integers([_whole(document["n"], 1), _whole(document["start"], None)], dtype)
    return (), dtype


def _multi_discrete(document: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype]:
    dtype = _dtype(document, "iu")
    nvec, start = (_integers(document[name], dtype) for name in ("nvec", "start"))
    if start.shape != nvec.shape or not (nvec > 0).all():
        raise ValueError(f"from {start.tolist()} so many: {nvec.tolist()}")
    return nvec.shape, dtype


def _multi_binary(document: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype]:
    n = document["n"]
    return tuple(_whole(each, 1) for each in (n if isinstance(n, list) else [n])), np.dtype("int8")


_LEAVES = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
}


def _dtype(document: Mapping[str, Any], kinds: str) -> np.dtype:
    dtype = np.dtype(document["dtype"])
    if dtype.name != document["dtype"] or dtype.kind not in kinds:
        raise ValueError(f"dtype {document['dtype']!r:.60}")
    return dtype


def _integers(values: Any, dtype: np.dtype) -> np.ndarray:
    """These in the dtype; NumPy 1 would let those that do not fit into it come round."""
    given = np.array(values)
    if given.dtype.kind not in "iu" or (given.astype(dtype) != given).any():
        raise ValueError(f"integers that fit into {dtype} expected, found {values!r:.60}")
    return given.astype(dtype)


def _whole(value: Any, least: int | None = 0) -> int:
    if type(value) is not int or (least is not None and value < least):
        raise ValueError(f"a whole number expected, found {value!r:.60}")
    return value


def _bound(document: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The lower or upper bounds of a Box: one for all values, or an array of `shape`."""
    data = base64.b64decode(document["base64"], validate=True)
    flat = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
    if len(flat) != document["count"]:
        raise ValueError("a bound has the wrong length")
    return flat[0] if len(flat) == 1 else flat.reshape(shape)


# -- spaces that older versions of Gymnasium lack


def _discrete_space(n: int, start: int, dtype: np.dtype) -> "gymnasium.spaces.Discrete":
    """A Discrete space. Before Gymnasium 1.2.2 all of them were of int64, and `dtype` was no
    argument."""
    import gymnasium

    make = gymnasium.spaces.Discrete
    if dtype == np.int64:
        return make(n, start=start)
    if "dtype" not in inspect.signature(make).parameters:
        raise FormatError(
            f"a Discrete space of {dtype}, which takes gymnasium 1.2.2 or later; "
            f"{gymnasium.__version__} is installed"
        )
    return make(n, start=start, dtype=dtype.type)


def _multi_discrete_space(
    nvec: Any, start: Any, dtype: np.dtype
) -> "gymnasium.spaces.MultiDiscrete":
    """A MultiDiscrete space. Before Gymnasium 0.29 all of them began at 0, and `start` was no
    argument."""
    import gymnasium

    make = gymnasium.spaces.MultiDiscrete
    if "start" in inspect.signature(make).parameters:
        return make(nvec, dtype=dtype.type, start=start)
    if np.any(start):
        raise FormatError(
            f"a MultiDiscrete space that starts at {start}, which takes gymnasium 0.29 or later; "
            f"{gymnasium.__version__} is installed"
        )
    return make(nvec, dtype=dtype.type)
