"""Finding the episodes of a buffer."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.inspection.plain import plain
from diskreplay.inspection.retained import ids_at

ORDERS = ("newest", "oldest", "return", "length")
_COLUMNS = ("step", "is_final", "terminated", "truncated", "reward")


def episodes_of(buffer: ReplayBuffer) -> Episodes:
    """The episodes of a buffer, of all its envs.

    What `ReplayBuffer.episodes` returns. Reads ``step``, ``is_final``, ``terminated``,
    ``truncated`` and ``reward`` of every retained row: 11 bytes a row, no frames. While another
    process writes to the store, it is that of one moment.

    Raises
    ------
    CorruptSegmentError
        Rows cannot be read.
    """
    num_envs = buffer.num_envs
    bounds, marked, read = buffer._retained(_COLUMNS)
    step, is_final, terminated, truncated, reward = read
    starts = starts_of(step, is_final, terminated | truncated, bounds, marked)
    stops = np.r_[starts[1:], len(step)][: len(starts)]
    lasts = stops - 1
    ends = np.cumsum(bounds[:, 1] - bounds[:, 0])  # behind each env's newest row
    env = np.searchsorted(ends, starts, side="right")

    def over(combine: np.ufunc, values: np.ndarray) -> np.ndarray:
        return combine.reduceat(values, starts) if len(starts) else values[:0]

    rows = over(np.add, (~is_final).astype(np.int64))
    ended_well = over(np.logical_or, terminated), over(np.logical_or, truncated)
    unended = ~(ended_well[0] | ended_well[1])
    newest = stops == ends[env]
    # A frame recorded on its own is flagged like a final row, and may be inside an episode.
    is_closed = is_final[lasts] & ~(newest & unended)
    inner = is_final.copy()
    inner[lasts[is_closed]] = False
    last_ids = ids_at(bounds, lasts)
    # Rows that were set aside are a piece without a transition. With stacks, the first rows behind
    # them are final ones, unless the next episode begins there.
    beginning_lost = np.zeros(len(starts), np.bool_)
    beginning_lost[1:] = (rows[:-1] == 0) & (env[1:] == env[:-1])
    if buffer.stack_size > 1:
        beginning_lost &= is_final[starts]
    columns = {
        "env": env,
        "start_id": ids_at(bounds, starts),
        "first_step": step[starts].astype(np.int64),
        "beginning_lost": beginning_lost,
        "rows": rows,
        "final_id": np.where(is_closed, last_ids, -1),
        "returns": over(np.add, np.where(is_final, 0, reward.astype(np.float64))),
        "terminated": ended_well[0],
        "truncated": ended_well[1],
        "cut": unended & ~newest,
        "unfinished": unended & newest,
        "_stop_id": last_ids + num_envs,
    }
    kept = np.flatnonzero(rows)
    order = kept[np.argsort(columns["start_id"][kept], kind="stable")]
    return Episodes(
        number=np.arange(len(order)),
        num_envs=num_envs,
        _inner_frames=np.sort(ids_at(bounds, np.flatnonzero(inner))),
        **{name: values[order] for name, values in columns.items()},
    )


def starts_of(
    step: np.ndarray,
    is_final: np.ndarray,
    ended: np.ndarray,
    bounds: np.ndarray,
    begins: Iterable[int],
) -> np.ndarray:
    """Where an episode starts, by the rule of the row index: at an env's oldest row, with step 0,
    where the steps do not count on by one, behind an end and its final row, and where the store
    says so.

    Parameters
    ----------
    step : ndarray of int32, shape (rows,)
    is_final, ended : ndarray of bool, shape (rows,)
        Of all retained rows, env by env; `ended`: terminated or truncated.
    bounds : ndarray of int64, shape (num_envs, 2)
        As `ReplayBuffer.bounds`.
    begins : iterable of int
        As `ReplayBuffer.begins`.

    Returns
    -------
    ndarray of int64
        Places in `step`.
    """
    num_envs, sizes = len(bounds), bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(sizes)
    marked, envs = np.divmod(np.fromiter(begins, np.int64), num_envs)
    there = (marked >= bounds[envs, 0]) & (marked < bounds[envs, 1])
    starts = np.empty(len(step), np.bool_)
    starts[:1] = True
    starts[1:] = (step[1:] == 0) | (step[1:] != step[:-1] + 1)
    starts[(ends - sizes)[sizes > 0]] = True
    starts[(marked - bounds[envs, 1] + ends[envs])[there]] = True
    starts[1:] |= ended[:-1] & ~is_final[1:]
    closes = np.zeros(len(step), np.bool_)
    closes[1:] = ended[:-1] & is_final[1:] & ~starts[1:]
    starts[1:] |= closes[:-1]
    return np.flatnonzero(starts)


def unbroken(episodes: Episodes, number: int) -> list[tuple[np.ndarray, int]]:
    """The transitions of an episode in pieces that follow each other row by row.

    Returns
    -------
    list of (ids, last)
        `last` is the id of the row with the observation that a piece led to: a frame that was
        recorded on its own, or the final row; -1 if there is none.
    """
    ids = episodes.ids(number)
    pieces = np.split(ids, np.flatnonzero(np.diff(ids) != episodes.num_envs) + 1)
    lasts = [int(piece[-1]) + episodes.num_envs for piece in pieces]
    if lasts[-1] >= episodes._stop_id[number] or lasts[-1] not in episodes._inner_frames:
        lasts[-1] = int(episodes.final_id[number])
    return list(zip(pieces, lasts, strict=True))


def in_order(episodes: Episodes, order: str, *, reverse: bool = False) -> np.ndarray:
    """The numbers of all episodes in an order of `ORDERS`: those with the highest return come
    first, and so do the longest. Of an unfinished episode neither is known yet: these come last."""
    key = {
        "newest": -episodes.number, "oldest": episodes.number, "return": -episodes.returns,
        "length": -episodes.rows,
    }[order]  # fmt: skip
    key = -key if reverse else key
    if order in ("return", "length"):
        return np.lexsort([key, episodes.unfinished])
    return np.argsort(key, kind="stable")


def with_final(episodes: Episodes, number: int) -> np.ndarray:
    """The ids of an episode's transitions, and of its final row if there is one."""
    ids, final = episodes.ids(number), episodes.final_id[episodes.position(number)]
    return np.append(ids, final) if final >= 0 else ids


def about(episodes: Episodes, number: int) -> dict[str, Any]:
    """What there is to say of an episode in a line."""
    final = int(episodes.final_id[number])
    return plain(
        {
            "number": number,
            "env": episodes.env[number],
            "start_id": episodes.start_id[number],
            "first_step": episodes.first_step[number],
            "beginning_lost": episodes.beginning_lost[number],
            "rows": episodes.rows[number],
            "return": episodes.returns[number],
            "end": " and ".join(how for how in episodes.ENDS if getattr(episodes, how)[number]),
            "final_id": final if final >= 0 else None,
        }
    )
