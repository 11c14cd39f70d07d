"""Two stores or checkpoints side by side."""

from collections.abc import Callable
from typing import Any

import numpy as np

from diskreplay.episodes import Episodes
from diskreplay.inspection.plain import plain
from diskreplay.view.store_look import StoreLook

_BINS = 32
_POINTS = 100  # of a line
_FEW = 24  # distinct values that get a bar each


def compared(left: StoreLook, right: StoreLook, names: list[str]) -> dict[str, Any]:
    """Figures and charts of both.

    Returns
    -------
    dict
        ``figures``: rows of a name and two numbers; ``charts``: of both in one, as the page draws
        them. Spreads are shares, since one may have more than the other.
    """
    looks = (left, right)
    returns = [_of_whole(look.episodes, look.episodes.returns) for look in looks]
    lengths = [_of_whole(look.episodes, look.episodes.rows) for look in looks]
    charts = [
        _lines("Return of each episode", "return", returns, names),
        _lines("Length of each episode", "transitions", lengths, names),
        _spread("Returns", "return", "whole episodes", [y for _x, y in returns], names),
        _spread("Lengths", "transitions", "whole episodes", [y for _x, y in lengths], names),
        _spread("Rewards", "reward", "transitions", [look.rewards for look in looks], names),
    ]  # fmt: skip
    charts += [_counts(field, looks, names) for field in left.actions if field in right.actions]
    for component, (label, values) in left.spreads.items():
        if component in right.spreads:
            both = [values, right.spreads[component][1]]
            charts.append(_spread(f"Values of {label}", label, "transitions", both, names))
    if all(len(look.priorities) for look in looks):
        priorities = [look.priorities for look in looks]
        charts.append(_spread("Priorities", "priority", "transitions", priorities, names))
    return plain(
        {
            "figures": [
                [name, *(figure(look) for look in looks)] for name, figure in _FIGURES.items()
            ],
            "charts": [chart for chart in charts if chart is not None],
        }
    )


def _of_whole(episodes: Episodes, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each whole episode starts, and its value."""
    return episodes.start_id[episodes.whole], values[episodes.whole].astype(np.float64)


_FIGURES: dict[str, Callable[[StoreLook], Any]] = {
    "transitions kept": lambda look: look.overview.retained,
    "transitions ever": lambda look: look.overview.transitions,
    "episodes": lambda look: len(look.episodes),
    "mean return of the last 100": lambda look: look.of_episodes["mean_return"],
    "best return": lambda look: look.of_episodes["best_return"],
    "median length": lambda look: look.of_episodes["median_length"],
    "mean priority": lambda look: look.priorities.mean() if len(look.priorities) else None,
    "bytes on disk": lambda look: look.overview.disk_bytes,
}


def _lines(
    title: str, label: str, series: list[tuple[np.ndarray, np.ndarray]], names: list[str]
) -> dict[str, Any] | None:
    """Medians over runs of episodes, and their 10 to 90 percent."""
    lines, is_empty = [], True
    for (x, y), name in zip(series, names, strict=True):
        groups = np.array_split(np.arange(len(x)), max(1, min(_POINTS, len(x) // 5)))
        groups = [group for group in groups if len(group)]
        edges = [np.quantile(y[group], (0.1, 0.5, 0.9)) for group in groups]
        is_empty &= not groups
        low, middle, high = np.array(edges).reshape(-1, 3).T
        lines.append(
            {"name": name, "x": [x[g].mean() for g in groups], "y": middle, "band": [low, high]}
        )
    if is_empty:
        return None
    return {
        "kind": "lines", "title": title, "note": "medians, and 10% to 90%",
        "x_label": "rows recorded", "y_label": label, "lines": lines, "names_of_series": names,
    }  # fmt: skip


def _spread(
    title: str, label: str, what: str, series: list[np.ndarray], names: list[str]
) -> dict[str, Any] | None:
    """Percentages in the same bins, or of the same values where they are few."""
    series = [values[np.isfinite(values)] for values in series]
    if not all(map(len, series)):
        return None
    every = np.concatenate(series)
    distinct, low, high = np.unique(every), float(every.min()), float(every.max())
    is_wide = low > 0 and high > 100 * low
    labels, edges = [f"{value:.5g}" for value in distinct.tolist()], np.empty(0)
    if len(distinct) > _FEW:
        labels, edges = [], (np.geomspace if is_wide else np.linspace)(low, high, _BINS + 1)
    shares = []
    for values in series:
        if len(edges):
            counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        else:
            counts = np.bincount(np.searchsorted(distinct, values), minlength=len(distinct))
        shares.append(100 * counts / len(values))
    numbers = " and ".join(f"{len(values):,}" for values in series)
    return _bars(title, f"of {numbers} {what}", label, labels, shares, names) | {
        "edges": edges, "log_edges": bool(len(edges) and is_wide),
    }  # fmt: skip


def _counts(field: str, looks: tuple[StoreLook, StoreLook], names: list[str]) -> dict[str, Any]:
    counted = [look.actions[field] for look in looks]
    values = sorted(counted[0].keys() | counted[1].keys())
    called = looks[0].labels | looks[1].labels if field == "action" else {}
    shares = [
        [100 * counts.get(value, 0) / max(1, sum(counts.values())) for value in values]
        for counts in counted
    ]
    title = "Actions chosen" if field == "action" else f"Values of {field}"
    labels = [called.get(value, str(value)) for value in values]
    return _bars(title, "share of all transitions", field, labels, shares, names)


def _bars(
    title: str, note: str, label: str, labels: list[str], shares: list[Any], names: list[str]
) -> dict[str, Any]:
    return {
        "kind": "bars", "title": title, "note": note, "x_label": label, "y_label": "percent",
        "labels": labels, "edges": [], "series": shares, "names_of_series": names,
        "log_counts": False, "log_edges": False,
    }  # fmt: skip
