"""The episodes of a buffer, as arrays."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError
from diskreplay.given_numbers import is_integer


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes with at least one retained transition, oldest first, one element of each array each.

    Every array has shape ``(episodes,)``.

    Attributes
    ----------
    number : ndarray of int64
        0, 1, 2 ...: of the retained ones, so a number moves down when older episodes are evicted.
        `start_id` is for ever.
    env : ndarray of int64
    start_id : ndarray of int64
        The id of the oldest retained row. Episodes are in its order.
    first_step : ndarray of int64
        The step of that row; above 0 when the episode's beginning is evicted.
    beginning_lost : ndarray of bool
        A repair has set aside the rows before that one, which may be its beginning: its steps count
        from 0 all the same.
    rows : ndarray of int64
        Transitions that are retained.
    final_id : ndarray of int64
        The final row, which holds the observation that the episode ended with; -1 without one.
    returns : ndarray of float64
        The sum of the retained rewards, not discounted.
    terminated, truncated : ndarray of bool
        How it ended.
    cut : ndarray of bool
        It ended with neither: the environment was reset early, or the buffer opened again.
    unfinished : ndarray of bool
        It has not ended, and is the newest of its env: a writer may go on with it, unless the
        buffer was closed since.
    """

    ENDS: ClassVar = ("terminated", "truncated", "cut", "unfinished")

    number: np.ndarray
    env: np.ndarray
    start_id: np.ndarray
    first_step: np.ndarray
    beginning_lost: np.ndarray
    rows: np.ndarray
    final_id: np.ndarray
    returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    unfinished: np.ndarray
    num_envs: int
    _stop_id: np.ndarray  # past the last row, the final one included
    _inner_frames: np.ndarray  # sorted ids of rows inside episodes that are no transitions

    def __len__(self) -> int:
        return len(self.number)

    @property
    def whole(self) -> np.ndarray:
        """Which have ended and are retained from their first step on, as bools."""
        ended = ~(self.cut | self.unfinished)
        return ended & (self.first_step == 0) & ~self.beginning_lost

    def ids(self, episode: int) -> np.ndarray:
        """The ids of an episode's transitions, oldest first; the final row is not among them.

        Parameters
        ----------
        episode : int
            Its `number`; negative ones count from the newest.

        Returns
        -------
        ndarray of int64, shape (rows,)

        Raises
        ------
        InvalidInputError
            There is no such episode.
        """
        at = self.position(episode)
        last = self.final_id[at] if self.final_id[at] >= 0 else self._stop_id[at]
        ids = np.arange(self.start_id[at], last, self.num_envs)
        if len(ids) == self.rows[at]:
            return ids
        return ids[~np.isin(ids, self._inner_frames)]

    def position(self, episode: int) -> int:
        """The place of episode `episode` in the arrays, or an `InvalidInputError`."""
        if not is_integer(episode):
            raise InvalidInputError(f"episode: an integer expected, found {brief(episode)}")
        if not -len(self) <= episode < len(self):
            there = f"there are 0 to {len(self) - 1}" if len(self) else "there is none at all"
            raise InvalidInputError(f"episode {episode}: no such episode; {there}")
        return int(episode) % len(self)

    def find(self, id: int) -> int:
        """The number of the episode that a row, a final one too, belongs to; -1 without one.

        Raises
        ------
        InvalidInputError
            It is no integer.
        """
        if not is_integer(id):
            raise InvalidInputError(f"id: an integer expected, found {brief(id)}")
        of_env = np.flatnonzero(self.env == id % self.num_envs)
        before = int(np.searchsorted(self.start_id[of_env], id, side="right"))
        if not before or id >= self._stop_id[of_env[before - 1]]:
            return -1
        return int(of_env[before - 1])
