"""Numbers that somebody gives, single ones and arrays. A flag, a text and a complex one is none."""

import numbers
import sys
from decimal import Decimal
from typing import Any, Literal, overload

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import DtypeError, InvalidInputError, ShapeError

_REAL, _NOT_REAL = (int, float, np.integer, np.floating), (bool, np.timedelta64)
_FINITE = sys.float_info.max
_Masked = np.ma.MaskedArray
# By these names, since each update of priorities asks: that is what is measured of it.
_Array, _FLOAT64, _contiguous = np.ndarray, np.dtype(np.float64), np.ascontiguousarray


def is_real(value: Any) -> bool:
    """Whether it is a real number of Python or NumPy. True and False are flags, and a span of time
    is one of a unit, though NumPy has it among its integers."""
    return isinstance(value, _REAL) and not isinstance(value, _NOT_REAL)


def is_integer(value: Any) -> bool:
    """The same of an integer: no float, though it be a whole number."""
    return isinstance(value, int | np.integer) and not isinstance(value, _NOT_REAL)


@overload
def whole(
    name: str, value: Any, *, optional: Literal[False] = False, least: int = 1, most: int = 1 << 30
) -> int: ...
@overload
def whole(
    name: str, value: Any, *, optional: bool, least: int = 1, most: int = 1 << 30
) -> int | None: ...
def whole(
    name: str, value: Any, *, optional: bool = False, least: int = 1, most: int = 1 << 30
) -> int | None:
    """An option that has to be a whole number from `least` to `most`; None if it is `optional`.

    Floats that are whole numbers are taken too, as ``1e6`` is often written for a capacity.

    Raises
    ------
    InvalidInputError
    """
    if value is None and optional:
        return None
    is_whole = is_real(value)
    if is_whole and isinstance(value, float | np.floating):
        is_whole = float(value).is_integer()
    number = int(value) if is_whole else least - 1  # Python's: a float16 is below every `most`
    if number < least:
        what = "a positive integer" if least == 1 else f"a whole number from {least} on"
        raise InvalidInputError(f"{name}: {what} expected, found {brief(value)}")
    if number > most:
        raise InvalidInputError(f"{name}: at most {most} expected, found {brief(value)}")
    return number


def real(
    name: str, value: Any, least: float = 0.0, most: float = _FINITE, *, what: str = ""
) -> float:
    """An option that has to be a number from `least` to `most`, both included.

    Parameters
    ----------
    what : str
        What the message says was expected.

    Raises
    ------
    InvalidInputError
    """
    if is_real(value):
        try:
            number = float(value)
        except OverflowError:  # an int that no float can be
            number = np.nan
        if least <= number <= most:
            return number
    if not what and most == _FINITE:
        what = f"a finite number from {least:g} on"
    what = what or f"a number from {least:g} to {most:g}"
    raise InvalidInputError(f"{name}: {what} expected, found {brief(value)}")


def positive(name: str, value: Any) -> float:
    """An option that has to be a finite number above 0, or an `InvalidInputError`."""
    return real(name, value, least=sys.float_info.min, what="a finite number above 0")


def seconds(name: str, value: Any) -> float:
    """A time to wait, which may be infinite, or an `InvalidInputError`."""
    return real(name, value, most=np.inf, what="seconds from 0 on")


def exponent(beta: Any) -> float:
    """The exponent of importance weights, or an `InvalidInputError`."""
    return real("beta", beta)


def asked_exponent(beta: Any) -> None:
    """Refuse what is no exponent, no schedule that gives one later, and not None."""
    if beta is not None and not callable(beta):
        exponent(beta)


def as_array(
    name: str,
    value: Any,
    error: type[InvalidInputError] | None = None,
    *,
    among: np.ndarray | None = None,
) -> np.ndarray:
    """`value` as an array.

    Parameters
    ----------
    error : type, optional
        What is raised in place of the two below.
    among : ndarray of int64, optional
        Only these places of the first axis are looked at.

    Raises
    ------
    ShapeError
        Its parts differ in length.
    DtypeError
        Some of its values are masked: NumPy would take what is below the mask.
    """
    if isinstance(value, _Masked):
        mask = np.ma.getmaskarray(value)
        if among is not None and mask.ndim and len(mask) > among.max(initial=-1):
            mask = mask[among]
        if masked := np.count_nonzero(mask):
            raise (error or DtypeError)(
                f"{name}: a value for each expected, found {masked} masked ones; replace them "
                "first, by filled() say"
            )
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as found:
        raise (error or ShapeError)(f"{name}: not an array ({found})") from found


def as_reals(
    name: str,
    value: Any,
    error: type[InvalidInputError] | None = None,
    *,
    flags: bool = False,
    among: np.ndarray | None = None,
) -> np.ndarray:
    """The same as float64, C-contiguous; a `DtypeError` too where they are no real numbers.

    Parameters
    ----------
    flags : bool
        Take True and False for 1 and 0, as rewards may be.
    among : ndarray of int64, optional
        As for `as_array`.
    """
    if type(value) is not _Array:
        value = as_array(name, value, error, among=among)
    elif value.dtype.char in "fd" and value.ndim:  # what nearly all give
        return _contiguous(value, _FLOAT64)
    if value.dtype.kind == "O":
        value = _of_objects(name, value, error)
    kind = value.dtype.kind
    # JAX's bfloat16 is of the kind V, as plain bytes are: NumPy has no letter for it.
    if kind not in ("fiub" if flags else "fiu") and not (
        kind == "V" and np.can_cast(value.dtype, _FLOAT64)
    ):
        raise (error or DtypeError)(f"{name}: numbers expected, found dtype {value.dtype}")
    if not value.ndim:
        return value.astype(np.float64)
    return _contiguous(value, _FLOAT64)  # which would give a single one an axis


def _of_objects(
    name: str, array: np.ndarray, refused: type[InvalidInputError] | None
) -> np.ndarray:
    """As float64 where each object is a real number: a `Fraction`, a `Decimal`, an int that NumPy
    has no integer for. Else as it is; refused if it is a number that float64 has not."""
    for each in array.flat:
        if not isinstance(each, numbers.Real | Decimal) or isinstance(each, _NOT_REAL):
            return array
    try:
        return array.astype(np.float64)
    except (ValueError, OverflowError) as error:  # of an int that no float can be
        raise (refused or DtypeError)(
            f"{name}: numbers expected, found dtype object with one that no float64 is ({error})"
        ) from error
