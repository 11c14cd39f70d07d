"""What an `env_dict` says: named columns, and where the store keeps each."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.store.field import DTYPES

Arrays = dict[str, np.ndarray]

NOTHING = spaces.Box(0, 255, (1,), np.uint8)  # observation of a store without a native one
NO_ACTION = spaces.Discrete(1)
PRIORITIES = "(priorities)"  # travels with the columns of a step; no keyword looks like it
_NUMBERS = (float, int, np.number, np.bool_)


class Column:
    """One column of the API."""

    def __init__(self, name: str, shape: Any, dtype: Any) -> None:
        try:
            whole = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
            # Of one row; (1,) for scalars.
            self.shape = tuple(int(n) for n in whole)
            self.dtype = np.dtype(dtype)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"env_dict: {name!r} has shape {shape!r} and dtype {dtype!r}; a number or a "
                "sequence of them and a NumPy dtype expected"
            ) from error
        if self.dtype.hasobject or not self.dtype.itemsize:
            raise InvalidInputError(
                f"env_dict: {name!r} is of dtype {self.dtype}, which has no bytes to store"
            )
        self.name = name
        # Whether the store has this dtype; others are kept as bytes.
        self.is_native = self.dtype.name in DTYPES and self.dtype.isnative
        self.row_bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self._many = (-1, *self.shape)

    def rows(self, value: Any) -> np.ndarray:
        """`value` as ``(rows, *shape)``, cast as assignment does.

        Raises
        ------
        ShapeError, InvalidInputError
        """
        try:
            array = np.asarray(value)
            if array.dtype != self.dtype:
                array = array.astype(self.dtype)
            return array.reshape(self._many)
        except (TypeError, ValueError) as error:
            kind = InvalidInputError if "convert" in str(error) else ShapeError
            raise kind(
                f"{self.name}: rows of shape {self.shape} and dtype {self.dtype} expected ({error})"
            ) from error


class Columns:
    """The columns of one buffer that a caller gives.

    Parameters
    ----------
    env_dict : dict or None
        Name to ``{"shape": ..., "dtype": ...}``, both optional; it is not changed.
    next_of : iterable of str
        Names whose ``next_`` columns are given too.
    default_dtype : dtype, optional
        float32 if None.
    """

    def __init__(
        self,
        env_dict: Mapping[str, Mapping[str, Any]] | None,
        next_of: Iterable[str] = (),
        default_dtype: Any = None,
    ) -> None:
        default = np.float32 if default_dtype is None else default_dtype
        self.by_name: dict[str, Column] = {}
        for name, spec in (env_dict or {}).items():
            if not isinstance(spec, Mapping):
                raise InvalidInputError(
                    f"env_dict: a dict expected for {name!r}, found {brief(spec)}"
                )
            self.by_name[name] = Column(name, spec.get("shape", 1), spec.get("dtype", default))
        for name in next_of:
            of = self.by_name[name]
            self.by_name.setdefault(f"next_{name}", Column(f"next_{name}", of.shape, of.dtype))
        self._rows = []
        for name, column in self.by_name.items():
            # Where one number becomes a row, used again each time; None if a row is no number.
            is_number = column.shape == (1,) and column.dtype.kind in "biuf"
            place = np.zeros(1, column.dtype) if is_number else None
            self._rows.append((name, column.shape, column.dtype, place))

    def row(self, values: Mapping[str, Any]) -> Arrays | None:
        """All columns of one row without a leading axis, if that is easily seen; else None, for
        `rows` to look closer. Views of the values, and scalars that are valid until the next call.
        """
        found = {}
        for name, shape, dtype, place in self._rows:
            value = values.get(name)
            if type(value) is np.ndarray:
                if value.shape != shape or value.dtype != dtype:
                    return None
                found[name] = value
            elif place is not None and isinstance(value, _NUMBERS):
                try:
                    place[0] = value
                except (OverflowError, ValueError):  # a large int or NaN, for `rows` to cast
                    return None
                found[name] = place
            else:
                return None
        return found or None

    def rows(self, values: Mapping[str, Any]) -> Arrays:
        """All columns of one or more rows, of equal length; what else is in `values` is ignored.

        Raises
        ------
        KeyError
            A column is missing.
        InvalidInputError
            One does not fit, or they differ in length.
        """
        if not self.by_name:
            raise KeyError("add: env_dict is empty, so there is nothing to add")
        found = {}
        for name, column in self.by_name.items():
            if name not in values:
                raise KeyError(f"add: {name!r} is missing; all of {list(self.by_name)} expected")
            found[name] = column.rows(values[name])
        lengths = {len(rows) for rows in found.values()}
        if len(lengths) > 1:
            shown = ", ".join(f"{name}: {len(rows)}" for name, rows in found.items())
            raise ShapeError(f"add: columns of one length expected, found {shown}")
        return found


def names(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names in an option that takes one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(str(name) for name in value)
