"""Each component of a vector: how its values are spread, and how that changes over time."""

from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.histogram import histogram, scale_of
from diskreplay.inspection.plain import plain
from diskreplay.inspection.retained import ids_at
from diskreplay.pictures.channels import Channel, channels_of, values_of
from diskreplay.pictures.frame_field import retained

_ROWS = 20_000  # of a sample
_BINS = 40
_GROUPS = 60  # of time
_QUANTILES = (0.1, 0.5, 0.9)


def vectors_of(buffer: ReplayBuffer, *, rows: int = _ROWS) -> list[dict[str, Any]]:
    """The components of observations, actions and extras that are no pictures.

    Parameters
    ----------
    rows : int
        So many rows are looked at, spread evenly over all that are retained; final rows, which have
        neither action nor extras, count for observations only.

    Returns
    -------
    list of dict
        For each field ``name``, ``group``, ``size``, ``rows``, and ``components``: of each its
        ``name``, ``min``, ``max``, ``mean``, ``std``, ``not_finite``, a ``histogram`` of ``edges``
        and ``counts``, and ``time``: ``x``, the rows recorded, and ``low``, ``middle`` and
        ``high``, its quantiles of 10, 50 and 90 percent there.

    Notes
    -----
    Costs a read of each of the rows that are looked at.
    """
    bounds = buffer.bounds
    total = int((bounds[:, 1] - bounds[:, 0]).sum())
    if not total:
        return []
    places = np.unique(np.linspace(0, total - 1, min(total, rows)).astype(np.int64))
    ids = np.sort(ids_at(bounds, places))
    return [_field(buffer, channel, ids) for channel in channels_of(buffer)]


def _field(buffer: ReplayBuffer, channel: Channel, ids: np.ndarray) -> dict[str, Any]:
    def read(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values_of(buffer, channel, ids), buffer.take("is_final", ids)

    kept, (values, is_final) = retained(buffer, ids, read)
    if channel.group != "observation":
        kept, values = kept[~is_final], values[~is_final]
    return plain(
        {
            "name": channel.name,
            "group": channel.group,
            "size": channel.size,
            "rows": len(kept),
            "components": [
                {"name": name, **_component(kept // buffer.num_envs, values[:, at])}
                for at, name in enumerate(channel.names)
            ],
        }
    )


def _component(rows: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    finite = np.isfinite(values)
    rows, kept = rows[finite], values[finite]
    if not len(kept):
        return {"not_finite": len(values), "histogram": None, "time": None}
    counts, edges = histogram(kept, _BINS)
    least, most = kept.min(), kept.max()
    scale = scale_of(least, most)
    kept = kept if scale == 1.0 else kept * scale
    groups = np.array_split(np.arange(len(kept)), min(_GROUPS, len(kept)))
    low, middle, high = np.array([np.quantile(kept[g], _QUANTILES) for g in groups]).T / scale
    return {
        "min": least,
        "max": most,
        "mean": kept.mean() / scale,
        "std": kept.std() / scale,
        "not_finite": int((~finite).sum()),
        "histogram": {"edges": edges, "counts": counts},
        "time": {
            "x": [rows[g].mean() for g in groups],
            "low": low,
            "middle": middle,
            "high": high,
        },
    }
