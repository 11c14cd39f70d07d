"""An array of observations by slot and env, without memory: it reads what is asked for."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import is_integer
from diskreplay.slot_view import Unread

_ALL = slice(None)
Read = Callable[[np.ndarray, np.ndarray], np.ndarray]


class SlotArray(Unread):
    """Looks like a NumPy array of shape ``(slots, envs, *shape)``, to be read only.

    Indexing gives arrays whose memory is their own. Whatever has no transition yet is zeros.

    Parameters
    ----------
    slots, envs : int
    shape : tuple of int
    dtype : dtype
    read : callable
        Given slots and envs, int64 of shape (batch,), returns ``(batch, *shape)``.
    """

    def __init__(
        self, slots: int, envs: int, shape: tuple[int, ...], dtype: np.dtype, read: Read
    ) -> None:
        self._slots, self._envs, self._read = slots, envs, read
        self._row, self.dtype = (envs, *shape), np.dtype(dtype)

    def __len__(self) -> int:
        return self._slots

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[slot] for slot in range(self._slots))

    def __getitem__(self, key: Any) -> np.ndarray:
        if type(key) is tuple and len(key) == 3 and type(key[2]) is slice and key[2] == _ALL:
            slots, envs, _ = key
            if type(slots) is type(envs) is np.ndarray and slots.shape == envs.shape:
                if slots.dtype == envs.dtype == np.int64:  # as frameworks sample
                    return self._at(slots, envs)
        key = key if isinstance(key, tuple) else (key,)
        if sum(part is Ellipsis for part in key) > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        if len(key) >= 2 and _is_list(key[0]) and _is_list(key[1]) and _is_all(key[2:]):
            if key[0].shape == key[1].shape:
                return self._at(key[0], key[1])
        if any(part is Ellipsis or part is None for part in key[:2]):
            return self._by_axes(key) if all(map(_is_basic, key)) else self._by_elements(key)
        if not all(map(_is_slice, key[:2])) and _has_lists(key) and _picks(key[2:]):
            return self._by_elements(key)
        grid = self._slots, self._envs
        slots = np.broadcast_to(np.arange(self._slots)[:, None], grid)[key[:2]]
        envs = np.broadcast_to(np.arange(self._envs), grid)[key[:2]]
        read = self._at(slots, envs)
        return read if _is_all(key[2:]) else read[(_ALL,) * slots.ndim + key[2:]]

    def _by_axes(self, key: tuple[Any, ...]) -> np.ndarray:
        """Numbers and slices, among which are ``...`` or new axes: first without these."""
        np.broadcast_to(np.int8(0), self.shape)[key]  # takes no memory, and raises what NumPy does
        named, new = sum(part is not None and part is not Ellipsis for part in key), tuple[Any]()
        kept: list[Any] = []
        for part in key:
            if part is Ellipsis:
                kept += [_ALL] * (self.ndim - named)
                new += (_ALL,) * (self.ndim - named)
            elif part is None:
                new += (None,)
            else:
                kept.append(part)
                new += (_ALL,) * _is_slice(part)
        return self[tuple(kept)][(*new, ...) if Ellipsis in key else new]

    def _by_elements(self, key: tuple[Any, ...]) -> np.ndarray:
        """Lists and numbers within rows go side by side with lists of slots and envs, and axes may
        change their places: NumPy is asked which row, and which element of it, each value is."""
        inner, rows = self.shape[2:], np.arange(self._slots * self._envs)
        size = int(np.prod(inner))
        rows = rows.reshape(self._slots, self._envs, *(1,) * len(inner))
        row = np.broadcast_to(rows, self.shape)[key]
        element = np.broadcast_to(np.arange(size).reshape(inner), self.shape)[key]
        needed, which = np.unique(row, return_inverse=True)
        read = self._at(*np.divmod(needed, self._envs)).reshape(len(needed), size)
        return read[which.reshape(row.shape), element]

    def _at(self, slots: np.ndarray, envs: np.ndarray) -> np.ndarray:
        where = []
        for name, part, length in (("slot", slots, self._slots), ("env", envs, self._envs)):
            flat = np.asarray(part, np.int64).reshape(-1)
            # Seen without a sign, what is below 0 is too large as well.
            if flat.size and flat.view(np.uint64).max() >= length:
                if flat.min() < -length or flat.max() >= length:
                    raise IndexError(f"{name}: from 0 to {length - 1} expected")
                flat = np.where(flat < 0, flat + length, flat)
            where.append(flat)
        read = self._read(*where)
        return read if slots.ndim == 1 else read.reshape(*slots.shape, *self.shape[2:])

    def _part(self, start: int, stop: int) -> np.ndarray:
        return self[start:stop]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise InvalidInputError(
            "observations are on the disk and cannot be set one by one; use `add`"
        )


def _is_list(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype.kind in "iu"


def _has_lists(key: tuple[Any, ...]) -> bool:
    return any(isinstance(part, list | np.ndarray) for part in key)


def _picks(rest: tuple[Any, ...]) -> bool:
    """Whether a list or a number is among these."""
    return not all(part is Ellipsis or part is None or _is_slice(part) for part in rest)


def _is_basic(part: Any) -> bool:
    """Whether it is a part of a key with which NumPy makes a view."""
    return part is Ellipsis or part is None or is_integer(part) or _is_slice(part)


def _is_slice(part: Any) -> bool:
    return isinstance(part, slice)


def _is_all(rest: tuple[Any, ...]) -> bool:
    return all(part is Ellipsis or part == slice(None) for part in rest)


def reading(buffer: Any, leaf_at: int, following: bool) -> Read:
    """What a `SlotArray` reads of a buffer; no reference that would keep the buffer alive."""
    referred = weakref.ref(buffer)

    def read(slots: np.ndarray, envs: np.ndarray) -> np.ndarray:
        owner = referred()
        if owner is None:
            raise ReferenceError("the replay buffer that these observations are of is gone")
        owner._look()
        leaf = owner._leaves[leaf_at]
        if owner._ring is None:
            return np.zeros((len(slots), *leaf.shape), leaf.dtype)
        return owner._ring.observations(leaf_at, slots, envs, following=following)

    return read
