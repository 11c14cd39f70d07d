"""Figures of all that is in a buffer: fields, episodes, actions, rewards, ages, priorities."""

from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.histogram import histogram
from diskreplay.inspection.priorities import priorities_of
from diskreplay.inspection.profile import SAMPLE_BYTES, action_counts, profile_of, values_of
from diskreplay.inspection.store_activity import oldest_write
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.store.field import Field
from diskreplay.store.format import read_attributes

_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_BINS = 12


def summary_of(buffer: ReplayBuffer, *, most_bytes: int | None = SAMPLE_BYTES) -> dict[str, Any]:
    """Figures of a buffer as a nested dict.

    Parameters
    ----------
    most_bytes : int or None
        As for `profile_of`.

    Returns
    -------
    dict
        ``fields``: a `FieldProfile` each. ``episodes``: how many, how they ended, and of whole ones
        ``returns`` and ``lengths``: mean, quantiles and histogram, or None. ``actions``: how often
        each value was chosen, of every integer leaf. ``rewards``: their signs. ``age``: of the
        oldest row, in rows, and when its segment was last written to, in seconds since the epoch.
        ``priorities``: a `PriorityProfile` or None.
    """
    episodes = episodes_of(buffer)
    whole = episodes.whole
    return {
        "path": buffer.path,
        "fields": profile_of(buffer, most_bytes=most_bytes),
        "episodes": {
            "retained": len(episodes),
            "whole": int(whole.sum()),
            **{end: int(getattr(episodes, end).sum()) for end in episodes.ENDS},
            "returns": _distribution(episodes.returns[whole]),
            "lengths": _distribution(episodes.rows[whole]),
        },
        "actions": action_counts(buffer),
        "rewards": _signs(buffer),
        "age": {
            "oldest_rows": int(np.ptp(buffer.bounds, axis=1).max()),
            "oldest_written": _oldest_written(buffer),
        },
        "priorities": (
            priorities_of(buffer) if isinstance(buffer, PrioritizedReplayBuffer) else None
        ),
    }


def _signs(buffer: ReplayBuffer) -> dict[str, int]:
    counts = np.zeros(3, np.int64)
    for part in values_of(buffer, "reward"):
        counts += np.bincount(np.sign(part).astype(np.int64) + 1, minlength=3)
    return dict(zip(("negative", "zero", "positive"), counts.tolist(), strict=True))


def _distribution(values: np.ndarray) -> dict[str, Any] | None:
    if not len(values):
        return None
    counts, edges = histogram(values, _BINS)
    quantiles = np.quantile(values, _QUANTILES).tolist()
    return {
        "mean": float(values.mean()),
        "quantiles": dict(zip(_QUANTILES, quantiles, strict=True)),
        "histogram": {"edges": edges, "counts": counts},
    }


def _oldest_written(buffer: ReplayBuffer) -> float | None:
    fields = map(Field.parse, read_attributes(buffer.path)["fields"])
    step = next(field for field in fields if field.name == "step")
    numbers = (buffer.bounds[:, 0] // step.segment_rows).tolist()
    keys = {(number, env // step.env_group) for env, number in enumerate(numbers)}
    return oldest_write(buffer.path, step, keys)
