"""The episodes of a buffer, as arrays."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.retained import read_rows

_COLUMNS = ("step", "is_final", "terminated", "truncated", "reward")


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
        return ~(self.cut | self.unfinished) & (self.first_step == 0)

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
        if not -len(self) <= episode < len(self):
            there = f"there are 0 to {len(self) - 1}" if len(self) else "there is none at all"
            raise InvalidInputError(f"episode {episode}: no such episode; {there}")
        return int(episode) % len(self)

    def find(self, id: int) -> int:
        """The number of the episode that a row, a final one too, belongs to; -1 without one."""
        of_env = np.flatnonzero(self.env == id % self.num_envs)
        before = int(np.searchsorted(self.start_id[of_env], id, side="right"))
        if not before or id >= self._stop_id[of_env[before - 1]]:
            return -1
        return int(of_env[before - 1])


def episodes_of(buffer: ReplayBuffer) -> Episodes:
    """The episodes of a buffer, of all its envs.

    What `ReplayBuffer.episodes` returns. Reads ``step``, ``is_final``, ``terminated``,
    ``truncated`` and ``reward`` of every retained row: 11 bytes a row, no frames. While another
    process writes to the store, rows that leave meanwhile are left out.

    Raises
    ------
    CorruptSegmentError
        Rows cannot be read.
    """
    parts = [_episodes_of_env(buffer, env) for env in range(buffer.num_envs)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    inner = np.sort(columns.pop("_inner_frames"))
    order = np.argsort(columns["start_id"], kind="stable")
    return Episodes(
        number=np.arange(len(order)),
        num_envs=buffer.num_envs,
        _inner_frames=inner,
        **{name: values[order] for name, values in columns.items()},
    )


def _episodes_of_env(buffer: ReplayBuffer, env: int) -> dict[str, np.ndarray]:
    low, high = buffer.bounds[env].tolist()
    first, read = read_rows(buffer, env, low, high, _COLUMNS)
    step, is_final, terminated, truncated, reward = read
    ids = (first + np.arange(len(step))) * buffer.num_envs + env
    begins = begins_within(buffer.begins, env, buffer.num_envs, first, first + len(step))
    starts = _starts(step, is_final, terminated | truncated, begins)
    stops = np.r_[starts[1:], len(step)][: len(starts)]
    lasts = stops - 1

    def over(combine: np.ufunc, values: np.ndarray) -> np.ndarray:
        return combine.reduceat(values, starts) if len(starts) else values[:0]

    rows = over(np.add, (~is_final).astype(np.int64))
    ended_well = over(np.logical_or, terminated), over(np.logical_or, truncated)
    unended = ~(ended_well[0] | ended_well[1])
    newest = stops == len(step)
    # A frame recorded on its own is flagged like a final row, and may be inside an episode.
    final = np.where(is_final[lasts] & ~(newest & unended), ids[lasts], -1)
    inner = is_final.copy()
    inner[lasts[final >= 0]] = False
    columns = {
        "env": np.full(len(starts), env),
        "start_id": ids[starts],
        "first_step": step[starts].astype(np.int64),
        "rows": rows,
        "final_id": final,
        "returns": over(np.add, np.where(is_final, 0, reward.astype(np.float64))),
        "terminated": ended_well[0],
        "truncated": ended_well[1],
        "cut": unended & ~newest,
        "unfinished": unended & newest,
        "_stop_id": ids[lasts] + buffer.num_envs,
    }
    kept = {name: values[rows > 0] for name, values in columns.items()}
    return kept | {"_inner_frames": ids[inner]}


def count_episodes(
    step: np.ndarray, is_final: np.ndarray, ended: np.ndarray, begins: np.ndarray
) -> int:
    """How many episodes with a transition there are in consecutive rows of one env, all of them
    retained ones: the number that `episodes_of` finds.

    Parameters
    ----------
    step : ndarray of int32, shape (rows,)
    is_final, ended : ndarray of bool, shape (rows,)
        `ended`: terminated or truncated.
    begins : ndarray of int64
        Places of rows that begin an episode whatever their step, as `begins_within` gives them.
    """
    if not len(step):
        return 0
    starts = _starts(step, is_final, ended, begins)
    transitions = np.add.reduceat(~is_final, starts, dtype=np.int64)
    return int(np.count_nonzero(transitions))


def begins_within(ids: Iterable[int], env: int, num_envs: int, first: int, stop: int) -> np.ndarray:
    """Of the rows ``first..stop`` of an env, the places from 0 of those whose ids these are."""
    rows = (id_ // num_envs for id_ in ids if id_ % num_envs == env)
    return np.array(sorted(row - first for row in rows if first <= row < stop), np.int64)


def _starts(
    step: np.ndarray, is_final: np.ndarray, ended: np.ndarray, marked: np.ndarray
) -> np.ndarray:
    """Where an episode starts, by the rule of the row index: with step 0, where the steps do not
    count on by one, behind an end and its final row, and where the store says so."""
    begins = np.empty(len(step), np.bool_)
    begins[:1] = True
    begins[1:] = (step[1:] == 0) | (step[1:] != step[:-1] + 1)
    begins[marked] = True
    begins[1:] |= ended[:-1] & ~is_final[1:]
    closes = np.zeros(len(step), np.bool_)
    closes[1:] = ended[:-1] & is_final[1:] & ~begins[1:]
    begins[1:] |= closes[:-1]
    return np.flatnonzero(begins)
