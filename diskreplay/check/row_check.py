"""Which rows hold values that no run can have recorded."""

from typing import NamedTuple

import numpy as np

from diskreplay.check.report import ranges


class SmallColumns(NamedTuple):
    """The small columns of consecutive rows, flags as bytes; the axis of rows comes first."""

    step: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    is_final: np.ndarray


RULES = {
    "reward": "a reward is not finite",
    "negative": "a step is negative",
    "final": "a final row, which holds only an observation, has a reward or flags",
    "jump": "a step neither counts on by one nor starts again at 0",
    "after termination": "an episode goes on after the row that terminated it",
    "after truncation": "an episode goes on after the row that truncated it",
}
# Where to look first. Several fields take part in most rules, and nothing says which is rotten.
FIELD_OF = {
    "reward": "reward",
    "negative": "step",
    "final": "is_final",
    "jump": "step",
    "after termination": "terminated",
    "after truncation": "truncated",
}


def faults(rows: SmallColumns, known: np.ndarray, parts: np.ndarray) -> dict[str, np.ndarray]:
    """Which rows break a rule, for each rule that is broken: bool, shaped like the columns.

    Where two rows do not fit together, both are concerned: nothing says which one is wrong.

    Parameters
    ----------
    rows : SmallColumns
        Of one env, or of several side by side.
    known : ndarray of bool
        Rows that are there; nothing is said of the others.
    parts : ndarray of bool
        Rows that may begin an episode whatever their step is, and hold more than an observation
        where they are final ones, see `Parts`.
    """
    step = rows.step.astype(np.int64)
    terminated, truncated, final = rows.terminated != 0, rows.truncated != 0, rows.is_final != 0
    on = step[1:] == step[:-1] + 1
    pair = known[1:] & known[:-1] & ~parts[1:]
    found = {
        "reward": known & ~np.isfinite(rows.reward),
        "negative": known & (step < 0),
        "final": known & ~parts & final & (terminated | truncated | (rows.reward != 0)),
        "jump": _spread(pair & ~on & (step[1:] != 0), 2, known),
    }
    for rule, ended in (("after termination", terminated), ("after truncation", truncated)):
        ended = ended & ~final
        after = ended[:-1] & on & ~final[1:] & pair
        # An end, its final row, and a row that still counts on.
        later = ended[:-2] & on[:-1] & final[1:-1] & on[1:] & pair[:-1] & pair[1:]
        found[rule] = _spread(after, 2, known) | _spread(later, 3, known)
    return {rule: where for rule, where in found.items() if where.any()}


def odd_rows(rows: SmallColumns, known: np.ndarray) -> np.ndarray:
    """The rows that only a part of an episode may have, see `faults`: they begin an episode at
    another step than 0, or are final rows that hold more than an observation. Bool."""
    step = rows.step.astype(np.int64)
    ended, final = (rows.terminated != 0) | (rows.truncated != 0), rows.is_final != 0
    odd = known & final & (ended | (rows.reward != 0))
    on, pair = step[1:] == step[:-1] + 1, known[1:] & known[:-1]
    ended = ended & ~final
    odd[1:] |= pair & np.where(on, ended[:-1] & ~final[1:], step[1:] != 0)
    odd[2:] |= ended[:-2] & on[:-1] & final[1:-1] & on[1:] & pair[:-1] & pair[1:]
    return odd


def holes(rows: SmallColumns, known: np.ndarray) -> np.ndarray:
    """Rows whose step is none of the episode that goes on behind them as if they were of it, and
    the rows behind them. Bool."""
    step = rows.step.astype(np.int64)
    found = np.zeros_like(known)
    hole = (step[2:] == step[:-2] + 2) & (step[1:-1] != step[:-2] + 1)
    hole &= known[2:] & known[1:-1] & known[:-2]
    found[1:-1] |= hole
    found[2:] |= hole
    return found


def _spread(where: np.ndarray, width: int, like: np.ndarray) -> np.ndarray:
    """Every one of the `width` neighbours that each place stands for."""
    out = np.zeros_like(like)
    for shift in range(width):
        out[shift : shift + len(where)] |= where
    return out


def set_aside(rows: SmallColumns, bad: np.ndarray, stack_size: int) -> None:
    """Turn `bad` rows into final rows, in place, and cut them off from what follows.

    Parameters
    ----------
    rows : SmallColumns
        Consecutive rows of one env.
    bad : ndarray of bool
    stack_size : int
        Frames in a sampled observation.
    """
    step = rows.step.copy()
    starts_anew = np.ones(len(step) + 1, np.bool_)
    starts_anew[1:-1] = step[1:] != step[:-1] + 1
    starts_anew[:-1] |= bad
    for low, high in ranges(np.flatnonzero(bad)):
        _make_final(rows, low, high)
        if high < len(step) and step[high] != 0:
            end = high + 1 + int(np.argmax(starts_anew[high + 1 :]))
            rows.step[high:end] = np.arange(end - high)
            _make_final(rows, high, min(high + stack_size - 1, end))


def _make_final(rows: SmallColumns, low: int, high: int) -> None:
    rows.step[low:high] = np.arange(high - low)
    rows.is_final[low:high] = 1
    for column in (rows.reward, rows.terminated, rows.truncated):
        column[low:high] = 0
