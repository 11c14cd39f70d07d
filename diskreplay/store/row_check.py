"""Which rows hold values that no run can have recorded."""

from typing import NamedTuple

import numpy as np

from diskreplay.store.finding import ranges


class Rows(NamedTuple):
    """The small columns of consecutive rows of one env, flags as bytes."""

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


def faults(rows: Rows) -> dict[str, np.ndarray]:
    """For each rule that is broken, the places (from 0) of the rows concerned.

    Where two rows do not fit together, both are concerned: nothing says which one is wrong.
    """
    step = rows.step.astype(np.int64)
    terminated, truncated, final = rows.terminated != 0, rows.truncated != 0, rows.is_final != 0
    on = step[1:] == step[:-1] + 1
    found = {
        "reward": ~np.isfinite(rows.reward),
        "negative": step < 0,
        "final": final & (terminated | truncated | (rows.reward != 0)),
        "jump": _spread(~on & (step[1:] != 0), 2, len(step)),
    }
    for rule, ended in (("after termination", terminated), ("after truncation", truncated)):
        ended = ended & ~final
        after = ended[:-1] & on & ~final[1:]
        # An end, its final row, and a row that still counts on.
        later = ended[:-2] & on[:-1] & final[1:-1] & on[1:]
        found[rule] = _spread(after, 2, len(step)) | _spread(later, 3, len(step))
    return {rule: np.flatnonzero(where) for rule, where in found.items() if where.any()}


def _spread(where: np.ndarray, width: int, rows: int) -> np.ndarray:
    """Every one of the `width` neighbours that each place stands for."""
    out = np.zeros(rows, np.bool_)
    for shift in range(width):
        out[shift : shift + len(where)] |= where
    return out


def set_aside(rows: Rows, bad: np.ndarray, stack_size: int) -> None:
    """Turn `bad` rows into final rows, in place, and cut them off from what follows.

    Parameters
    ----------
    rows : Rows
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


def _make_final(rows: Rows, low: int, high: int) -> None:
    rows.step[low:high] = np.arange(high - low)
    rows.is_final[low:high] = 1
    for column in (rows.reward, rows.terminated, rows.truncated):
        column[low:high] = 0
