"""The zero rows that precede each episode in rings of stacked frames."""

from collections.abc import Mapping

import numpy as np


class Padding:
    """Finds padding in rows that come in time order, in chunks.

    Of the first ``stack_size - 1`` rows of an episode those are padding that hold nothing but
    zeros, up to the first that does not.

    Parameters
    ----------
    stack_size : int
    known_start : bool
        Whether the first row is the first of an episode. Otherwise what came before it may be gone.
        With a whole padding at the very front an episode begins there. With fewer zero rows, or
        none, the first row is somewhere in an episode: these may be the rest of a padding, or rows
        that hold zeros, and those are left out.
    """

    def __init__(self, stack_size: int, *, known_start: bool) -> None:
        self._pads = stack_size - 1
        self._known = known_start
        self._front = 0  # zero rows, while nothing else was seen and more may be padding
        self._place = 0  # of the next row in its episode, padding included
        self._found = 0  # padding in the episode under way
        self._last = True  # whether the row before was padding, or there was none

    def find(
        self, columns: Mapping[str, np.ndarray], ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look at the next rows: all their columns, and with which of them an episode ends. Returns
        which are padding, and the steps of the others, from 0 in each episode. An episode whose
        start is not there counts from `stack_size` on: rows whose stack is not there are not
        sampled then."""
        rows = np.arange(len(ended))
        if not len(rows):
            return np.zeros(0, np.bool_), np.zeros(0, np.int32)
        if not self._known and not self._guess(columns, ended):
            return np.ones(len(rows), np.bool_), np.zeros(len(rows), np.int32)
        starts = np.concatenate([[False], ended[:-1]])
        start = np.maximum.accumulate(np.where(starts, rows, -1))
        place = np.where(start < 0, self._place + rows, rows - start)
        zero = np.zeros(len(rows), np.bool_)
        early = np.flatnonzero(place < self._pads)
        zero[early] = _all_zero(columns, early)
        is_padding = np.zeros(len(rows), np.bool_)
        for at in range(self._pads):
            here = np.flatnonzero((place == at) & zero)
            before = np.where(here > 0, is_padding[here - 1], self._last)
            is_padding[here] = before | (at == 0)
        so_far = np.cumsum(is_padding)
        of_episode: np.ndarray = so_far - np.where(
            start < 0, -self._found, (so_far - is_padding)[start]
        )
        step = np.where(is_padding, 0, place - of_episode)
        if ended[-1]:
            self._place, self._found, self._last = 0, 0, True
        else:
            self._place, self._found = int(place[-1]) + 1, int(of_episode[-1])
            self._last = bool(is_padding[-1])
        return is_padding, step.astype(np.int32)

    def _guess(self, columns: Mapping[str, np.ndarray], ended: np.ndarray) -> bool:
        """Where in its episode the next row is; False if these rows do not tell."""
        most = self._pads - self._front
        front = _all_zero(columns, np.arange(min(most, len(ended))))
        zeros = len(front) if front.all() else int(front.argmin())
        if zeros == len(ended) < most and not ended.any():
            self._front += zeros  # the ring's last slots: the padding may go on in its first
            return False
        self._known = True
        self._place = self._found = self._pads - zeros
        if self._front + zeros < self._pads or not self._pads:
            # A row of the middle, counted from `stack_size` on: it is not sampled, as its stack is
            # gone. Zeros in its place would be frames that the agent never saw.
            self._found = -1 - zeros
        return True


def _all_zero(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Whether these rows hold zeros only."""
    found = np.ones(len(rows), np.bool_)
    for column in columns.values():
        found &= ~column[rows].any(axis=tuple(range(1, column.ndim)))
    return found
