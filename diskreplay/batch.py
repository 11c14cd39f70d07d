"""What `sample` and `gather` return."""

import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskreplay import extensions
from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError

# Batches whose memory is kept: a loop holds one while it takes the next; some threads share these.
MOST_KEPT = 3

NEXT = "/next"
"""Behind a field's name: the window of next stacks that were read apart."""

Leaves = np.ndarray | dict[str, Any] | tuple[Any, ...]
"""A space's values in a batch: an array, or arrays in the dicts and tuples of the space."""


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of every leaf, in the same dicts and tuples."""
    if isinstance(value, dict):
        return {key: mapped(function, inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(function, inner) for inner in value)
    return function(value)


class WindowMemory:
    """Gathered windows that nobody looks at any more, to be filled again.

    Fresh memory takes time: of a large array the C library fetches its pages anew each time, which
    takes as long as a quarter of copying frames into it. An array is free again when the batch, and
    every view of it, is gone: when what is remembered here holds the only reference.
    """

    def __init__(self) -> None:
        self._most = MOST_KEPT
        self._kept: list[dict[str, np.ndarray]] = []

    def remember(self, more: int) -> None:
        """Remember the memory of so many more batches, or of fewer again. Where somebody holds more
        at a time than are remembered, none of them is found free."""
        self._most += more
        del self._kept[: -self._most]

    def take(self, size: int | None = None) -> dict[str, np.ndarray]:
        """Windows by field that may be overwritten; empty if there are none.

        Parameters
        ----------
        size : int, optional
            How many are wanted: then so many of each field that has as many, and at most twice as
            many. A shard's share of a batch has another size each time.
        """
        windows = self._free()
        if size is None:
            return dict(windows)
        return {
            name: window if len(window) == size else window[:size]
            for name, window in windows.items() if size <= len(window) <= 2 * size
        }  # fmt: skip

    def _free(self) -> dict[str, np.ndarray]:
        """Those of the newest batch that is gone, which the caches may have."""
        for _ in range(len(self._kept)):
            try:
                windows = self._kept.pop()  # atomic: no other thread gets them
            except IndexError:
                break
            if _references(windows) <= _NOBODY_ELSE:
                return windows
            self._kept.insert(0, windows)
        return {}

    def give(self, windows: dict[str, np.ndarray]) -> None:
        """Remember windows that a batch is about to show."""
        if not windows:
            return
        kept = {}
        for name, window in windows.items():
            kept[name] = window if window.base is None else _whole(window)
        self._kept.append(kept)
        del self._kept[: -self._most]


def _whole(window: np.ndarray) -> np.ndarray:
    """The windows that these are the first ones of."""
    base = window.base
    return base if isinstance(base, np.ndarray) and base.shape[1:] == window.shape[1:] else window


def _references(windows: dict[str, np.ndarray]) -> int:
    """The most that any of these arrays has."""
    return max(map(sys.getrefcount, windows.values()), default=0)


# What an array has that only such a dict refers to; interpreters count their own differently.
_NOBODY_ELSE = _references({"": np.empty(1)})


@dataclass(frozen=True, slots=True)
class WindowView:
    """Where in a window an array is."""

    window: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def find(cls, array: Any, windows: dict[str, np.ndarray]) -> "WindowView | None":
        """Where an array is; None if that is in no window."""
        if not isinstance(array, np.ndarray) or not array.size or min(array.strides, default=0) < 0:
            return None
        last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
        for name, window in windows.items():
            offset = array.ctypes.data - window.ctypes.data
            inside = 0 <= offset <= window.nbytes - last - array.itemsize
            if inside and window.flags.c_contiguous:
                return cls(name, offset, array.shape, array.strides, array.dtype)
        return None

    def of(self, windows: dict[str, np.ndarray]) -> np.ndarray:
        """The array."""
        window = windows[self.window]
        return np.ndarray(self.shape, self.dtype, window, self.offset, self.strides)


@dataclass(frozen=True, slots=True)
class FollowingStacks:
    """Next stacks that are the last frames of a window, but for some."""

    window: str
    apart: np.ndarray
    """The rows that are not in the window: their episode ended before."""
    stacks: np.ndarray
    """Theirs, (len(apart), stack, *shape)."""

    @property
    def nbytes(self) -> int:
        return self.stacks.nbytes

    def of(self, windows: dict[str, np.ndarray]) -> np.ndarray:
        """The array, a copy."""
        window = windows[self.window]
        array = window[:, window.shape[1] - self.stacks.shape[1] :].copy()
        array[self.apart] = self.stacks
        return array


def _unpickled(kind: "type[Batch]", arrays: Any, windows: dict[str, np.ndarray]) -> "Batch":
    """The opposite of `Batch.__reduce__`."""

    def made(leaf: Any) -> Any:
        return leaf.of(windows) if isinstance(leaf, WindowView | FollowingStacks) else leaf

    return kind(mapped(made, arrays), windows)


class Batch:
    """Arrays of one batch of transitions, along the first axis.

    Nothing in it aliases the store: later adds and samples never change it. `observation` and
    `next_observation` usually are views of one gathered window, so they share memory with each
    other; write to them only if that does not matter.

    Attributes
    ----------
    observation, next_observation : ndarray, or dict or tuple of them
        ``(batch, stack, *shape)``, oldest frame first, without the stack axis for ``stack_size=1``.
        Before the episode's start stand zeros, or its first frame again, as the buffer's
        `stack_padding` says; `next_observation` is zeros where the episode terminated and no final
        observation was recorded.
    action : ndarray, or dict or tuple of them
        ``(batch, *shape)``.
    reward : ndarray of float32
        The n-step return ``sum_i gamma^i r[t+i]``.
    discount : ndarray of float32
        What to multiply the value of `next_observation` by: 0 after a termination, else
        ``gamma ** steps``.
    terminated, truncated : ndarray of bool
        Of the last row of the n-step window.
    steps : ndarray of int32
        Rows in the n-step window.
    id : ndarray of int64
        For `update_priorities` and `gather`.
    weight : ndarray of float32
        Importance-sampling weights.
    probability : ndarray of float64
        Of each row in one draw.

    Parameters
    ----------
    arrays : dict of str to ndarray, dict or tuple
        The attributes by name.
    windows : dict of str to ndarray
        What `window` gives, by field.

    Notes
    -----
    Extras are attributes too (``batch.log_prob``), and everything is an item
    (``batch["log_prob"]``). `sample` and `gather` make batches; programs seldom do.
    """

    __slots__ = ("_arrays", "_windows")

    # For type checkers and editors; `__getattr__` finds them.
    observation: Leaves
    action: Leaves
    reward: npt.NDArray[np.float32]
    next_observation: Leaves
    discount: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.int32]
    id: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32]
    probability: npt.NDArray[np.float64]

    def __init__(self, arrays: dict[str, Any], windows: dict[str, np.ndarray]) -> None:
        self._arrays, self._windows = arrays, windows

    def __getattr__(self, name: str) -> Any:
        if name in Batch.__slots__:  # while being unpickled or copied
            raise AttributeError(name)
        try:
            return self._arrays[name]
        except KeyError:
            has = ", ".join(self._arrays)
            raise AttributeError(f"the batch has no {name!r}; it has {has}") from None

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """Transitions in the batch."""
        return len(self._arrays["id"])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._arrays]

    def __repr__(self) -> str:
        return f"Batch({len(self)} transitions: {', '.join(self._arrays)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A window that the observations are views of travels once, and they are views of it again:
        5 frames instead of 8 with a stack of 4."""
        views: dict[int, WindowView | FollowingStacks] = {}

        def look(array: Any) -> None:
            if (view := WindowView.find(array, self._windows)) is not None:
                views[id(array)] = self._following(array, view) or view

        mapped(look, self._arrays)
        windows = {view.window: self._windows[view.window] for view in views.values()}
        apart = sum(view.nbytes for view in views.values() if isinstance(view, FollowingStacks))
        shown = [array for array in _leaves(self._arrays) if id(array) in views]
        if sum(w.nbytes for w in windows.values()) + apart > sum(array.nbytes for array in shown):
            views, windows = {}, {}  # they show a small part of it
        arrays = mapped(lambda array: views.get(id(array), array), self._arrays)
        return _unpickled, (type(self), arrays, windows)

    def __copy__(self) -> "Batch":
        """Its arrays are copied too, as those of a NumPy array are: to read into one batch, by
        ``out=``, has to leave the other as it is."""
        return copy.deepcopy(self)

    def _following(self, array: np.ndarray, view: WindowView) -> FollowingStacks | None:
        """Next stacks that were read apart from the window, since some are not in it."""
        name = view.window.removesuffix(NEXT)
        window = self._windows.get(name)
        if name == view.window or window is None or array.ndim < 2:
            return None
        horizon = window.shape[1] - array.shape[1]
        if not 0 < horizon <= array.shape[1] or window.shape[2:] != array.shape[2:]:
            return None
        # Both stacks are shown without these frames of the window, which nobody has written.
        window[:, -horizon:] = array[:, -horizon:]
        apart = np.flatnonzero(self.terminated | (self.steps < horizon))
        return FollowingStacks(name, apart, array[apart])

    def keys(self) -> Any:
        """The names of all arrays."""
        return self._arrays.keys()

    def asdict(self) -> dict[str, Any]:
        """The arrays by name, not copied."""
        return dict(self._arrays)

    def separate_stacks(self) -> None:
        """Have `observation` and `next_observation` be C-contiguous arrays that share nothing, as
        ``sample(contiguous=True)`` reads them: what is not yet is copied. A `SequenceBatch` has
        only `observation`."""
        arrays = self._arrays
        for name in ("observation", "next_observation"):
            if name in arrays:
                arrays[name] = mapped(_separate, arrays[name])

    def to_torch(self, device: Any = "cpu", *, non_blocking: bool = False) -> dict[str, Any]:
        """The arrays by name as tensors on a device; see `integrations.torch.to_torch`.

        On the CPU they share their memory with this batch. Needs ``diskreplay[torch]``.

        Parameters
        ----------
        device : torch.device or str
        non_blocking : bool
            Whether this returns before a copy to a GPU has ended, as for `torch.Tensor.to`.

        Returns
        -------
        dict of str to torch.Tensor, or dicts and tuples of them
        """
        return extensions.find("to_torch")(self, device, non_blocking=non_blocking)

    def to_jax(self, device: Any = None) -> dict[str, Any]:
        """The arrays by name as JAX's; see `integrations.jax.to_jax`. Needs ``diskreplay[jax]``.

        Parameters
        ----------
        device : jax.Device, optional
            JAX's default device if it is not given.

        Returns
        -------
        dict of str to jax.Array, or dicts and tuples of them
        """
        return extensions.find("to_jax")(self, device)

    def window(self, name: str = "observation") -> np.ndarray | None:
        """The contiguous array that both stacks of an observation are views of, not copied.

        Parameters
        ----------
        name : str
            The field: ``"observation"``, or that of a leaf such as ``"observation/camera"``.

        Returns
        -------
        ndarray or None
            ``(batch, stack + n, *shape)``: `observation` is ``[:, :stack]`` of it and
            `next_observation` ``[:, n:]``. Of a `SequenceBatch` each frame once, in order. None
            where they are no views of one array: the episode of some transition ended before its
            `n` steps, and its two stacks do not fit; or the batch was read with
            ``contiguous=True``.
        """
        kind, *path = name.split("/") if isinstance(name, str) else [""]
        following = self._arrays.get(f"next_{kind}")
        shown = self._arrays.get(kind)
        try:
            for key in path:
                shown, following = (
                    part and part[int(key) if isinstance(part, tuple) else key]
                    for part in (shown, following)
                )
            window = self._windows.get(name)
        except (KeyError, ValueError, IndexError, TypeError):
            shown = None
        if kind != "observation" or not isinstance(shown, np.ndarray):
            raise InvalidInputError(
                f"name: a field such as 'observation' expected, found {brief(name)}"
            )
        views = [shown] if following is None else [shown, following]
        if window is None or not all(np.may_share_memory(window, view) for view in views):
            return None
        return window[:]  # its shape and flags may be set, and the memory is used again


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    mapped(found.append, value)
    return found


def _separate(leaf: np.ndarray) -> np.ndarray:
    """A C-contiguous array that is no part of a larger one. Of a single transition both stacks are
    contiguous within the window, and have frames in common."""
    whole = leaf if leaf.base is None else leaf.base
    is_part = isinstance(whole, np.ndarray) and whole.size > leaf.size
    return leaf.copy() if is_part or not leaf.flags.c_contiguous else leaf
