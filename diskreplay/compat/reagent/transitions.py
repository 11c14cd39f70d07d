"""Stacks, n-step windows and what follows them, read from a ring by slot."""

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch

from diskreplay.compat.reagent.kernels import follow
from diskreplay.compat.slot_buffer import SlotBuffer

_LARGE = 256  # numbers in a row that are dearer to copy than another read is


class Transitions:
    """The transitions of a batch of slots.

    Parameters
    ----------
    ring : SlotBuffer
    columns : dict of str to str
        The ring's field for each of the API's names.
    small : dict of str to ndarray, each of shape (capacity, *shape)
        Those of the API's names whose rows are in memory, by slot.
    terminal : ndarray of uint8, shape (capacity,)
        The terminal flag of each slot.
    stack_size, horizon : int
    indices : Tensor of int64, shape (batch,)
        Slots, taken modulo the capacity.
    timeline : bool
        Whether what follows is a list of all steps, and not the last one.

    Attributes
    ----------
    slots : ndarray of int64, shape (batch,)
    indices, step, terminal : Tensor, shape (batch, 1)
        As given; the steps of the n-step windows; whether an episode ends there.
    """

    def __init__(
        self,
        ring: SlotBuffer,
        columns: dict[str, str],
        small: dict[str, np.ndarray],
        terminal: np.ndarray,
        stack_size: int,
        horizon: int,
        indices: torch.Tensor,
        *,
        timeline: bool,
    ) -> None:
        self._ring, self._columns, self._small = ring, columns, small
        self._stack, self._horizon, self._timeline = stack_size, horizon, timeline
        given = indices.numpy()
        # The slots, and those that follow; the ids of the rows that are in them.
        self._both, self._ids = np.empty((2, 2, len(given)), np.int64)
        self._steps, ended = np.empty(len(given), np.int64), np.empty(len(given), np.bool_)
        follow(
            given, terminal, horizon, ring.count, ring.base, ring.stored, self._both, self._ids,
            self._steps, ended,
        )  # fmt: skip
        self.slots = self._both[0]
        self.indices, self.step = _column(given), _column(self._steps)
        self.terminal = _column(ended)
        self._pairs: dict[str, tuple[Any, ...]] = {}
        self._windows: dict[str, np.ndarray] = {}
        self._rooms: dict[str, np.ndarray] = {}

    @cached_property
    def _around(self) -> np.ndarray:
        """The slots of each window."""
        window = np.arange(1 - self._stack, self._horizon + 1)
        return (self.slots[:, None] + window) % self._ring.capacity

    @cached_property
    def _after(self) -> np.ndarray:
        """The places, in all windows one after the other, of the stacks that follow."""
        starts = np.arange(len(self.slots)) * (self._stack + self._horizon) + self._steps
        return starts[:, None] + np.arange(self._stack)

    def now(self, name: str) -> torch.Tensor:
        """A column at the slots, stacked: (batch, *shape) or (batch, *shape, stack)."""
        return self._pair(name)[0]

    def next(self, name: str) -> torch.Tensor | list[torch.Tensor]:
        """A column where the n-step windows end; of a timeline, at each step after the first."""
        return self._pair(name)[1]

    def along(self, name: str) -> list[torch.Tensor]:
        """A column at each step of each window, stacked."""
        window = self._window(name)
        return [self._walk(window[i], 0, steps) for i, steps in enumerate(self._steps.tolist())]

    def discounted(self, name: str, decays: torch.Tensor) -> torch.Tensor:
        """The sum over each window, component by component, in the precision of torch."""
        if self._horizon == 1:  # one step, and its factor is 1
            if name in self._small:
                rows = self._small[name].take(self.slots, axis=0)
            else:
                rows = self._window(name)[:, self._stack - 1].copy()
            if rows.dtype == np.float32:
                return _column(rows)
            rows = torch.from_numpy(rows)
            kind = torch.result_type(rows, decays)
            return _column(rows.to(kind if kind.is_floating_point else torch.int64).numpy())
        rows = self._window(name)[:, self._stack - 1 : self._stack - 1 + self._horizon]
        rows = torch.from_numpy(np.ascontiguousarray(rows))
        whole = (-1, self._horizon, *(1 for _ in rows.shape[2:]))
        inside = torch.arange(self._horizon) < torch.from_numpy(self._steps)[:, None]
        return _column((rows * decays.view(whole) * inside.view(whole)).sum(dim=1).numpy())

    def _pair(self, name: str) -> tuple[Any, ...]:
        if name not in self._pairs:
            self._pairs[name] = self._read_pair(name)
        return self._pairs[name]

    def _read_pair(self, name: str) -> tuple[Any, ...]:
        stack, steps = self._stack, self._steps
        if stack == 1 and not self._timeline:
            if name in self._small:
                found = self._small[name].take(self._both, axis=0)
            else:
                found = self._ring.take(self._columns[name], self._ids)
            return _column(found[0]), _column(found[1])
        if not self._timeline and self._horizon >= stack and self._is_large(name):
            # The window that holds both stacks would be longer than the two.
            back, both = np.arange(1 - stack, 1), np.stack([np.zeros_like(steps), steps])
            found = self._read(name, both[..., None] + back)
            return _stacked(found[0]), _stacked(found[1])
        # Both stacks lie in one window, which is read once. What follows is copied out of it, so
        # that nobody who works in place on the one finds the other changed.
        window = self._window(name)
        now = window[:, :stack]
        if self._timeline:
            later = [self._walk(window[i], 1, n) for i, n in enumerate(steps.tolist())]
            return _column(_stacked(now.copy()).numpy()), later
        frames = window.reshape(window.shape[0] * window.shape[1], *window.shape[2:])
        room = self._rooms[name]
        np.take(frames, self._after, axis=0, out=room, mode="clip")  # "raise" would copy it twice
        return _stacked(now), _stacked(room)

    def _window(self, name: str) -> np.ndarray:
        """The rows from each slot's stack to the end of its n steps; read once."""
        if name not in self._windows:
            slots = self._around
            if name in self._small:
                window = self._small[name].take(slots, axis=0)
                self._rooms[name] = np.empty_like(window[:, self._horizon :])
                self._windows[name] = window
                return window
            # One block, which has room for the stacks that follow too.
            shape, dtype = self._ring.fields[self._columns[name]]
            block = np.empty((slots.size + len(slots) * self._stack, *shape), dtype)
            window = block[: slots.size].reshape(*slots.shape, *shape)
            self._ring.take(self._columns[name], self._ring.ids(slots), out=window)
            self._windows[name] = window
            self._rooms[name] = block[slots.size :].reshape(len(slots), self._stack, *shape)
        return self._windows[name]

    def _walk(self, window: np.ndarray, first: int, steps: int) -> torch.Tensor:
        places = np.arange(first, first + steps)[:, None] + np.arange(self._stack)
        return _stacked(window[places])

    def _read(self, name: str, offsets: np.ndarray) -> np.ndarray:
        """(..., batch, stack, *shape) of offsets (..., batch, stack)."""
        slots = (self.slots[:, None] + offsets) % self._ring.capacity
        if name in self._small:
            return self._small[name].take(slots, axis=0)
        return self._ring.read(self._columns[name], slots)

    def _is_large(self, name: str) -> bool:
        shape, _dtype = self._ring.fields[self._columns[name]]
        return math.prod(shape) >= _LARGE


def _column(values: np.ndarray) -> torch.Tensor:
    """Values of a batch: of numbers ``(batch, 1)``."""
    return torch.from_numpy(values if values.ndim > 1 else values[:, None])


def _stacked(rows: np.ndarray) -> torch.Tensor:
    """(batch, stack, *shape) as the API has it: the stack last, and none of one frame."""
    if rows.shape[1] == 1:
        return torch.from_numpy(np.ascontiguousarray(rows[:, 0]))
    if rows.ndim == 2:
        return torch.from_numpy(np.ascontiguousarray(rows))
    return torch.from_numpy(rows.transpose(0, *range(2, rows.ndim), 1))
