"""Priorities that rows were added with, until these rows can be sampled."""

from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import PriorityError, ShapeError
from diskreplay.given_numbers import as_reals
from diskreplay.sampling.row_index import RowIndex


class Given(NamedTuple):
    """Priorities of rows that are about to be added, checked.

    Attributes
    ----------
    leaves : ndarray of float64, shape (rows,)
        NaN where a row has none of its own.
    largest : float
        The largest priority of them, 0 without any.
    """

    leaves: np.ndarray
    largest: float

    def and_none(self, rows: int) -> "Given":
        """The same, and behind these so many rows without one."""
        return self._replace(leaves=np.append(self.leaves, np.full(rows, np.nan)))


def checked(
    kernels: Any, priorities: Any, shape: tuple[int, ...], alpha: float, *, partly: bool = False,
    among: np.ndarray | None = None,
) -> Given:  # fmt: skip
    """What was given as ``priority``, of this shape, as leaves.

    Parameters
    ----------
    kernels : module
        `prioritized_kernels`, which is not imported before it is needed.
    partly : bool
        Whether NaN stands for a row without one.
    among : ndarray of int64, optional
        Only these are looked at.

    Raises
    ------
    PriorityError, ShapeError
    """
    numbers = as_reals("priority", priorities, PriorityError, among=among)
    if numbers.shape != shape:
        raise ShapeError(f"priority: shape {shape} expected, found {numbers.shape}")
    numbers = numbers.reshape(-1) if among is None else numbers[among]
    numbers = np.ascontiguousarray(numbers)
    leaves = np.empty(len(numbers))
    bad, largest = kernels.leaves_of(numbers, alpha, leaves)
    if bad < 0 and not partly and np.isnan(numbers).any():
        bad = int(np.isnan(numbers).argmax())
    if bad >= 0:
        at = f" at position {bad if among is None else among[bad]}" * (shape != ())
        raise PriorityError(
            f"priority {numbers[bad]}{at}: finite, not negative and, raised to alpha, at most "
            "1e297 expected (|td_error| plus a small constant, say)"
        )
    return Given(leaves, largest)


class InitialPriorities:
    """The leaves that the newest rows of each env were added with.

    A row can be sampled when its n-step window is whole, a horizon of rows later at most: so many
    of each env are kept, besides those that one call adds.

    Parameters
    ----------
    index : RowIndex

    Attributes
    ----------
    waiting : int
        So many rows of an env, the newest ones, may come to be sampleable.
    until : ndarray of int64, shape (num_envs,)
        The first row of each env that nothing is known of; behind its count if an `add` was noted
        and stopped short.
    """

    def __init__(self, index: RowIndex) -> None:
        self._index = index
        self.waiting, self.until = index.horizon + 1, index.count.copy()
        self._leaves = np.full((index.num_envs, self.waiting + 1), np.nan)

    def note(self, envs: np.ndarray, leaves: np.ndarray | float) -> None:
        """The next row of each of these envs is about to be added with this leaf, NaN for none; an
        env may be there several times."""
        before = _occurrences(envs)
        wanted = self.waiting + 1 + int(before.max(initial=0))
        if wanted > self._leaves.shape[1]:
            self._widen(wanted)
        rows = self._index.count[envs] + before
        self._leaves[envs, rows % self._leaves.shape[1]] = leaves
        self.until[envs] = rows + 1

    def _widen(self, wanted: int) -> None:
        envs, rows, leaves = self.known(self._index.count)
        self._leaves = np.full((self._index.num_envs, 1 << wanted.bit_length()), np.nan)
        self.put(envs, rows, leaves)

    def put(self, envs: np.ndarray, rows: np.ndarray, leaves: np.ndarray) -> None:
        """These rows, among the newest of their envs, were added with these leaves."""
        self._leaves[envs, rows % self._leaves.shape[1]] = leaves

    def known(self, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Env, number and leaf of the rows before ``stop[e]`` of each env that have one, and may
        come to be sampled, or just have."""
        index, width = self._index, self._leaves.shape[1]
        rows = (index.count - self.waiting)[:, None] + np.arange(width)
        envs = np.broadcast_to(np.arange(index.num_envs)[:, None], rows.shape)
        leaves = self._leaves[envs, rows % width]
        there = (rows >= index.first[:, None]) & (rows < stop[:, None]) & ~np.isnan(leaves)
        return envs[there], rows[there], leaves[there]

    def at(self, places: np.ndarray) -> np.ndarray:
        """The leaves of the rows in these places of the index, which began to be sampleable with
        the newest call; NaN where there is none."""
        envs, rows = self._index.newest_at(places)
        return self._leaves[envs, rows % self._leaves.shape[1]]


def _occurrences(envs: np.ndarray) -> np.ndarray:
    """How often each of these is there before it."""
    order = np.argsort(envs, kind="stable")
    ordered = envs[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(begins, append=len(envs))
    found = np.empty(len(envs), np.int64)
    found[order] = np.arange(len(envs)) - np.repeat(begins, lengths)
    return found
