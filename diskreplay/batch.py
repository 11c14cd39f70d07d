"""What `sample` and `gather` return."""

from collections.abc import Iterator
from typing import Any

import numpy as np


class Batch:
    """Arrays of one batch of transitions, along the first axis.

    Nothing in it aliases the store: later adds and samples never change it. `observation` and
    `next_observation` usually are views of one gathered window, so they share memory with each
    other; write to them only if that does not matter.

    Attributes
    ----------
    observation, next_observation : ndarray, or dict or tuple of them
        ``(batch, stack, *shape)``, oldest frame first, without the stack axis for ``stack_size=1``.
        Frames before the episode's start are zeros, and so is `next_observation` where the episode
        terminated and no final observation was recorded.
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

    Extras are attributes too (``batch.log_prob``), and everything is an item
    (``batch["log_prob"]``).
    """

    __slots__ = ("_arrays", "_windows")

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

    def __reduce__(self) -> tuple:
        return Batch, (self._arrays, {})

    def keys(self) -> Any:
        """The names of all arrays."""
        return self._arrays.keys()

    def asdict(self) -> dict[str, Any]:
        """The arrays by name, not copied."""
        return dict(self._arrays)
