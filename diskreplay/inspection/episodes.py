"""Finding the episodes of a buffer."""

from collections.abc import Iterable

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.inspection.retained import read_rows

_COLUMNS = ("step", "is_final", "terminated", "truncated", "reward")


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
