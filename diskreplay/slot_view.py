"""An array of rows by slot, without memory: it reads what is asked for, and writes what is set."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from diskreplay.errors import ReadOnlyError
from diskreplay.given_numbers import as_array

_AT_ONCE = 64 << 20  # bytes that `__array__` reads at a time
# What arrays have that reads, and whose result is no view: it could be written to in vain.
_READING = (
    "all", "any", "argmax", "argmin", "argsort", "clip", "cumprod", "cumsum", "dot", "flatten",
    "item", "max", "mean", "min", "nonzero", "prod", "repeat", "round", "searchsorted", "std",
    "sum", "take", "tobytes", "tolist", "var",
)  # fmt: skip
Read = Callable[[np.ndarray], np.ndarray]
Write = Callable[[np.ndarray, np.ndarray], None]


class Unread:
    """Looks like a NumPy array of shape ``(len, *_row)``, without memory."""

    dtype: np.dtype
    _row: tuple[int, ...]

    def __len__(self) -> int:
        raise NotImplementedError

    def _part(self, start: int, stop: int) -> np.ndarray:
        """So much of the first axis, read."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return (len(self), *self._row)

    @property
    def ndim(self) -> int:
        """Axes."""
        return 1 + len(self._row)

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """What it would take in memory."""
        return self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on disk cannot be had without a copy")
        whole = np.empty(self.shape, self.dtype)
        rows = max(1, _AT_ONCE // max(self.nbytes // max(len(self), 1), 1))
        for start in range(0, len(self), rows):
            whole[start : start + rows] = self._part(start, start + rows)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, on disk)"


class SlotView(Unread, np.lib.mixins.NDArrayOperatorsMixin):
    """Looks like a NumPy array of shape ``(slots, *shape)``.

    A slice is a view of the same kind, which reads nothing. Every other index reads, and gives an
    array whose memory is its own; what is set is written. Arithmetic reads all of it, and so do the
    methods of arrays that change nothing, like ``mean``.

    Parameters
    ----------
    slots : range
        The slots that the first axis has.
    shape : tuple of int
        Of one row.
    dtype : dtype
    read : callable
        Given slots, int64 of shape (n,), returns ``(n, *shape)``.
    write : callable, optional
        Given slots and ``(n, *shape)``; None: it can only be read.
    """

    def __init__(
        self, slots: range, shape: tuple[int, ...], dtype: np.dtype, read: Read,
        write: Write | None = None,
    ) -> None:  # fmt: skip
        self.slots, self._row, self.dtype = slots, tuple(shape), np.dtype(dtype)
        self._read, self._write = read, write

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        if name in _READING:
            return getattr(np.asarray(self), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self.slots)))

    def __getitem__(self, key: Any) -> "np.ndarray | Self":
        first, rest = _split(key, self._row)
        if isinstance(first, slice) and not rest:
            return type(self)(self.slots[first], self._row, self.dtype, self._read, self._write)
        slots = slots_at(self.slots, first)
        found = self._read(slots.reshape(-1))
        if slots.ndim > 1 and not np.asarray(first).flags.c_contiguous:
            # To lie in memory as NumPy has it, which what is set from it goes by.
            found = found[_as_it_lies(first, np.arange(slots.size).reshape(slots.shape))]
        else:
            found = found.reshape((*slots.shape, *self._row))
        # A number, and no array, where one element is asked for.
        return found[(slice(None),) * slots.ndim + rest] if rest or not found.ndim else found

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._write is None:
            raise ReadOnlyError("these rows can only be read")
        first, rest = _split(key, self._row)
        slots = slots_at(self.slots, first)
        value = 0 if value is None else as_array("value", value)
        if not rest and slots.ndim == 1 and (slots[1:] > slots[:-1]).all():
            self._write(slots, _whole(value, (len(slots), *self._row), self.dtype))
            return
        named, inverse = np.unique(slots, return_inverse=True)
        if len(named) < slots.size:
            # Of a slot's values one stays. Which one depends on how the index lies in memory, so
            # that NumPy itself sets them, by an index that lies as this one does.
            at, slots = _as_it_lies(first, inverse.reshape(slots.shape)), named
        else:
            at = np.arange(slots.size).reshape(slots.shape)
        shape = (slots.size, *self._row)
        whole = self._read(slots.reshape(-1)) if rest else np.empty(shape, self.dtype)
        whole[(at, *rest)] = value
        self._write(slots.reshape(-1), whole)

    def _part(self, start: int, stop: int) -> np.ndarray:
        return self._read(slots_at(self.slots, slice(start, stop)))

    def reshape(self, *shape: Any) -> np.ndarray:
        """As of an array, all of which is read.

        Parameters
        ----------
        *shape : int, or one tuple of them

        Returns
        -------
        ndarray
            A copy.
        """
        return np.asarray(self).reshape(*shape)

    def copy(self) -> np.ndarray:
        """All of it, in memory."""
        return np.asarray(self)

    def astype(self, dtype: Any) -> np.ndarray:
        """All of it, in memory, cast.

        Parameters
        ----------
        dtype : dtype_like

        Returns
        -------
        ndarray
            A copy.
        """
        return np.asarray(self, dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        read = [np.asarray(each) if isinstance(each, SlotView) else each for each in inputs]
        return getattr(ufunc, method)(*read, **options)


def slots_at(slots: range, key: Any) -> np.ndarray:
    """Which of these slots an index of the first axis names, int64."""
    length = len(slots)
    if isinstance(key, slice):
        named = slots[key]
        return np.arange(named.start, named.stop, named.step, dtype=np.int64)
    at = np.asarray(key)
    if at.dtype.kind == "b":
        if at.shape != (length,):
            raise IndexError(f"a mask of shape ({length},) expected, found {at.shape}")
        at = np.flatnonzero(at)
    elif at.dtype.kind not in "iu" and at.size:
        raise IndexError(f"integers, slices or a mask expected, found dtype {at.dtype}")
    at = at.astype(np.int64)
    if at.size:
        least, most = at.min(), at.max()
        if least < -length or most >= length:
            raise IndexError(f"from {-length} to {length - 1} expected, found {least} to {most}")
        if least < 0:
            at = np.where(at < 0, at + length, at)
    return at if slots.step == 1 and not slots.start else at * slots.step + slots.start


def _whole(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What NumPy would set in an array of this shape: the value itself if it is such an array."""
    if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
        return value
    made = np.empty(shape, dtype)
    made[...] = value
    return made


def _as_it_lies(index: Any, values: np.ndarray) -> np.ndarray:
    """These integers in an array that lies in memory as an index does."""
    made = np.empty_like(np.asarray(index), np.intp)
    made[...] = values
    return made


def _split(key: Any, row: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    """An index as that of the first axis, and those of the others, none for all of a row."""
    if not isinstance(key, tuple):
        key = (key,)
    if any(part is None for part in key):
        raise IndexError("no new axes expected, in an index of an array on disk")
    if Ellipsis in [part for part in key if not isinstance(part, np.ndarray)]:
        at = next(i for i, part in enumerate(key) if part is Ellipsis)
        all_of = (slice(None),) * (1 + len(row) - (len(key) - 1))
        key = key[:at] + all_of + key[at + 1 :]
    first, rest = (key[0], key[1:]) if key else (slice(None), ())
    if all(isinstance(part, slice) and part == slice(None) for part in rest):
        rest = ()
    return first, rest
