"""Values that come in, checked against their field and cast without loss."""

from typing import Any

import numpy as np

from diskreplay.errors import DtypeError, InvalidInputError, NotFiniteError, ShapeError
from diskreplay.store.format import Field

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INTEGERS = {np.dtype(np.int64): 2**63, np.dtype(np.int32): 2**31}


def whole(name: str, value: Any, *, optional: bool = False, most: int = 1 << 30) -> int | None:
    """An option that has to be a whole number from 1 to `most`; None if it is `optional`.

    Floats that are whole numbers are taken too, as ``1e6`` is often written for a capacity.

    Raises
    ------
    InvalidInputError
    """
    if value is None and optional:
        return None
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if isinstance(value, float | np.floating):
        is_whole = float(value).is_integer()
    if not is_whole or value < 1:
        raise InvalidInputError(f"{name}: a positive integer expected, found {value!r:.60}")
    if value > most:
        raise InvalidInputError(f"{name}: at most {most} expected, found {value!r:.60}")
    return int(value)


def fit(field: Field, value: Any, lead: tuple[int, ...] = ()) -> np.ndarray | int:
    """`value` as an array of the field's dtype and of shape ``lead + field.shape``.

    Casting follows NumPy's ``same_kind``; integers also go into narrower integers and into floats
    when every value fits.

    Raises
    ------
    ShapeError, DtypeError
    """
    if type(value) is not np.ndarray:
        if type(value) is int and not lead and field.shape == ():
            most = _INTEGERS.get(field.dtype, 0)
            if -most <= value < most:
                return value  # a Discrete action: an array would only be taken apart again
        try:
            value = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise ShapeError(f"{field.name}: not an array ({error})") from error
    if value.shape != lead + field.shape:
        hint = ""
        if field.name.startswith("observation") and value.shape[1:] == lead + field.shape:
            hint = " (give one frame: stacks are made when sampling)"
        raise ShapeError(
            f"{field.name}: shape {lead + field.shape} expected, found {value.shape}{hint}"
        )
    if value.dtype == field.dtype:
        return value
    return cast(field, value)


def cast(field: Field, value: np.ndarray) -> np.ndarray:
    """`value` in the field's dtype, or a `DtypeError`."""
    source, target = value.dtype, field.dtype
    if source.kind in "iu" and target.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            result = value.astype(target)
            # Back and compare; a float that rounds up past the integers' range would wrap around.
            same = (result == value).all() if target.kind != "f" else (
                result.astype(np.float64) == value.astype(np.float64)
            ).all() and ((value >= -(2**53)) & (value <= 2**53)).all()  # fmt: skip
        if target.kind in "iu" and value.size and same:
            same = (result < 0).any() == (value < 0).any()
        if same:
            return result
        raise DtypeError(
            f"{field.name}: a value of dtype {source} does not fit into {target} (found "
            f"{value.min()} to {value.max()})"
        )
    if source.kind in "biufc" and np.can_cast(source, target, "same_kind"):
        with np.errstate(over="ignore"):
            return value.astype(target)
    raise DtypeError(
        f"{field.name}: dtype {source} cannot be cast to {target} without loss; convert it first"
    )


def fit_reward(value: Any) -> float:
    """A reward of one step, finite as float32."""
    if type(value) is not float:
        if not isinstance(value, np.floating):
            array = np.asarray(value)
            if array.shape != ():
                hint = ""
                if array.ndim == 1 and len(array) > 1:
                    hint = (
                        f"; for {len(array)} envs give num_envs={len(array)} and the spaces of "
                        "one: single_observation_space and single_action_space of a vector env"
                    )
                raise ShapeError(f"reward: a number expected, found shape {array.shape}{hint}")
            if array.dtype.kind not in "biuf":
                raise DtypeError(f"reward: a number expected, found dtype {array.dtype}")
            value = array
        value = float(value)
    if not -_FLOAT32_MAX <= value <= _FLOAT32_MAX:
        raise NotFiniteError(f"reward: {value} found, a finite float32 expected")
    return value


def fit_flag(name: str, value: Any) -> bool:
    """`terminated` or `truncated` of one step."""
    if type(value) in (bool, np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.shape != ():
        raise ShapeError(f"{name}: a bool expected, found shape {array.shape}")
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and array in (0, 1)):
        return bool(array)
    raise DtypeError(f"{name}: a bool expected, found {value!r:.60}")


def fit_flags(name: str, value: Any, num_envs: int) -> np.ndarray:
    """`terminated` or `truncated` of a vector step, or a mask."""
    array = np.asarray(value)
    if array.shape != (num_envs,):
        raise ShapeError(f"{name}: shape ({num_envs},) expected, found {array.shape}")
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
        return array.astype(np.bool_)
    raise DtypeError(f"{name}: bools expected, found dtype {array.dtype}")


def fit_rows(field: Field, value: Any, num_envs: int, envs: np.ndarray) -> np.ndarray:
    """A value for each env, C-contiguous; only those of `envs` are looked at."""
    if type(value) is not np.ndarray:
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ShapeError(f"{field.name}: not an array ({error})") from error
    if value.shape != (num_envs, *field.shape):
        hint, space = "", field.name.split("/")[0]
        is_batched = value.shape == field.shape and field.shape[:1] == (num_envs,)
        if is_batched and space in ("observation", "action"):
            hint = (
                f"; the buffer's {space}_space is the one of {num_envs} envs together: make the "
                f"buffer with that of one, which a vector env has as single_{space}_space"
            )
        raise ShapeError(
            f"{field.name}: shape {(num_envs, *field.shape)} expected, found {value.shape}{hint}"
        )
    if value.dtype == field.dtype:
        return np.ascontiguousarray(value)
    result = np.zeros(value.shape, field.dtype)
    result[envs] = cast(field, value[envs])
    return result
