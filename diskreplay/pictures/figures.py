"""What the charts show, reduced to a few hundred numbers; drawn by `plots` and by `report`."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.inspection.identity import action_components, action_labels
from diskreplay.inspection.plain import plain
from diskreplay.inspection.priorities import PriorityRows, priority_rows
from diskreplay.inspection.profile import values_of
from diskreplay.prioritized import PrioritizedReplayBuffer
from diskreplay.statistics import Statistics

_DOTS = 400  # episodes that are drawn one by one; of more, bins of them
_BINS = 120
_BARS = 24  # distinct values that get a bar each; of more, a histogram
COMPONENTS = 8  # of an action that get a chart
_AGES = 60  # bins


@dataclass(frozen=True)
class Trend:
    """Something over time: dots with a moving mean, or a median within a band."""

    title: str
    note: str
    x_label: str
    y_label: str
    x: np.ndarray  # of the dots; empty where there are too many
    y: np.ndarray
    line_x: np.ndarray
    line_y: np.ndarray
    line_name: str
    band: np.ndarray | None = None  # lower and upper edge around the line, shape (2, points)


@dataclass(frozen=True)
class Bars:
    """Counts: of named values, or between edges."""

    title: str
    note: str
    x_label: str
    y_label: str
    counts: np.ndarray
    labels: list[str]  # one a bar; empty for a histogram
    edges: np.ndarray  # one more than bars; empty for named values
    log_counts: bool = False  # whether the axis is better drawn logarithmically
    log_edges: bool = False


@dataclass(frozen=True)
class Sizes:
    """Bytes of each field, largest first: as plain arrays in memory, and on disk."""

    title: str
    note: str
    names: list[str]
    raw: np.ndarray
    disk: np.ndarray


Chart = Trend | Bars | Sizes


def section_documents(charts: dict[str, list[Chart]]) -> list[dict[str, Any]]:
    """The sections that have charts, as the scripts take them: of each chart its fields, and
    ``kind``, the name of its class."""
    return [
        {
            "name": name,
            "charts": [
                plain({"kind": type(chart).__name__.lower(), **dataclasses.asdict(chart)})
                for chart in found
            ],
        }
        for name, found in charts.items()
        if found
    ]


def charts_of(
    buffer: ReplayBuffer,
    episodes: Episodes,
    statistics: Statistics,
    priorities: PriorityRows | None = None,
) -> dict[str, list[Chart]]:
    """The charts by section, in the order of a page.

    Priorities of the buffer that are at hand need not be sorted again.

    Reads rewards and actions part by part, and the priorities; no observations. Memory: a few
    dozen bytes a row for the index that a prioritized buffer needs, else a few megabytes.
    """
    if priorities is None and isinstance(buffer, PrioritizedReplayBuffer):
        priorities = priority_rows(buffer)
    sections: dict[str, Sequence[Chart | None]] = {
        "Episodes": _episode_charts(episodes),
        "Transitions": [_rewards(buffer), *_actions(buffer)],
        "Priorities": [] if priorities is None else [_priorities(priorities), *_by_age(priorities)],
        "Memory and disk": [_sizes(statistics)],
    }
    return {
        name: [chart for chart in charts if chart is not None] for name, charts in sections.items()
    }


def _episode_charts(episodes: Episodes) -> list[Chart | None]:
    kept = episodes.whole
    left_out = int((~kept).sum())
    note = f"{kept.sum():,} whole episodes"
    if left_out:
        note += f"; {left_out:,} cut, unfinished or half evicted, left out"
    x = episodes.start_id[kept].astype(np.float64)
    return [
        _trend("Return of each episode", note, "return", x, episodes.returns[kept]),
        _trend("Length of each episode", note, "transitions", x,
               episodes.rows[kept].astype(np.float64)),
    ]  # fmt: skip


def _trend(title: str, note: str, y_label: str, x: np.ndarray, y: np.ndarray) -> Trend | None:
    count, x_label, empty = len(x), "rows recorded", np.empty(0)
    if not count:
        return None
    if count <= _DOTS:
        half = max(1, count // 24)
        sums = np.r_[0, np.cumsum(y)]
        low = np.maximum(np.arange(count) - half, 0)
        high = np.minimum(np.arange(count) + half + 1, count)
        mean = (sums[high] - sums[low]) / (high - low)
        name = f"mean of {min(2 * half + 1, count)} episodes"
        return Trend(title, note, x_label, y_label, x, y, x, mean, name)
    groups = np.array_split(np.arange(count), _BINS)
    low, middle, high = np.array([np.quantile(y[g], (0.1, 0.5, 0.9)) for g in groups]).T
    centre = np.array([x[g].mean() for g in groups])
    name = f"median of {len(groups[0]):,} episodes, and their 10% to 90%"
    return Trend(
        title, note, x_label, y_label, empty, empty, centre, middle, name, np.stack([low, high])
    )


def _rewards(buffer: ReplayBuffer) -> Bars | None:
    return _distribution(lambda: values_of(buffer, "reward"), "Reward of each transition", "reward")


def _actions(buffer: ReplayBuffer) -> list[Bars | None]:
    charts, named = [], action_labels(buffer)
    for name in buffer.fields:
        if name.split("/")[0] != "action":
            continue
        for component, label in enumerate(action_components(buffer, name)[:COMPONENTS]):

            def parts(name: str = name, component: int = component) -> Iterator[np.ndarray]:
                for values in values_of(buffer, name):
                    yield values.reshape(len(values), -1)[:, component]

            title = "Actions chosen" if label == "action" else f"Values of {label}"
            charts.append(_distribution(parts, title, label, named))
    return charts


def _distribution(
    parts: Callable[[], Iterator[np.ndarray]],
    title: str,
    x_label: str,
    named: Callable[[float], str] | None = None,
) -> Bars | None:
    """Bars of the distinct values if they are few, else a histogram. Reads the parts twice."""
    distinct: dict[float, int] | None = {}
    low, high, total = np.inf, -np.inf, 0
    for part in parts():
        part = part[np.isfinite(part)]
        if not len(part):
            continue
        low, high = min(low, float(part.min())), max(high, float(part.max()))
        total += len(part)
        if distinct is not None:
            for value, count in zip(*np.unique(part, return_counts=True), strict=True):
                distinct[value.item()] = distinct.get(value.item(), 0) + int(count)
            distinct = distinct if len(distinct) <= _BARS else None
    if not total:
        return None
    if distinct is not None:
        values = sorted(distinct)
        counts = np.array([distinct[value] for value in values])
        labels = list(map(named or "{:.5g}".format, values))
        edges = np.empty(0)
    else:
        edges = np.linspace(low, high, 2 * _BARS + 1)
        counts = np.zeros(2 * _BARS, np.int64)
        for part in parts():  # a live store may have new extremes by now
            counts += np.histogram(np.clip(part[np.isfinite(part)], low, high), edges)[0]
        labels = []
    note = f"{total:,} transitions, {low:.4g} to {high:.4g}"
    return Bars(
        title, note, x_label, "transitions", counts, labels, edges, log_counts=_uneven(counts)
    )


def _priorities(rows: PriorityRows) -> Bars:
    profile, values = rows.profile(), rows.priorities
    low, high = float(values.min()), float(values.max())
    log = high > 100 * low
    labels, edges, counts = [f"{low:.4g}"], np.empty(0), np.array([len(values)])
    if low < high:
        labels, edges = [], (np.geomspace if log else np.linspace)(low, high, 2 * _BARS + 1)
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    note = (
        f"{profile.drawable:,} that can be sampled, about {profile.never_updated:.0%} never "
        f"updated; effective sample size {profile.effective:,.0f}"
    )
    return Bars(
        "Priority of each transition", note, "priority", "transitions", counts, labels, edges,
        log_counts=_uneven(counts), log_edges=log,
    )  # fmt: skip


def _by_age(rows: PriorityRows) -> list[Chart]:
    """Priorities, the share never updated and how often is drawn, over the age of a row."""
    order = np.argsort(rows.ages, kind="stable")
    groups = np.array_split(order, min(_AGES, len(order)))
    ages = np.array([rows.ages[group].mean() for group in groups])
    low, middle, high = np.array(
        [np.quantile(rows.priorities[group], (0.1, 0.5, 0.9)) for group in groups]
    ).T
    untouched = np.array([rows.untouched[group].mean() for group in groups]) * 100
    mean = rows.leaves.mean()
    drawn = np.array([rows.leaves[group].mean() for group in groups]) / mean
    profile, empty, label = rows.profile(), np.empty(0), "age in rows"
    of_draws = f"mean age of a draw {profile.mean_drawn_age:,.0f} rows"
    return [
        Trend(
            "Priority by age", "of the newest rows on the left to the oldest", label, "priority",
            empty, empty, ages, middle, "median, and 10% to 90%", np.stack([low, high]),
        ),
        Trend(
            "Never updated, by age", f"about {profile.never_updated:.0%} of all; an estimate",
            label, "percent", empty, empty, ages, untouched, "never updated",
        ),
        Trend(
            "How often rows of an age are drawn",
            f"{of_draws}, of all that can be {profile.mean_age:,.0f}",
            label, "times as often as evenly", empty, empty, ages, drawn,
            "draws, beside an even draw",
        ),
    ]  # fmt: skip


def _uneven(counts: np.ndarray) -> bool:
    return bool(counts.max() > 50 * counts[counts > 0].min())


def _sizes(statistics: Statistics) -> Sizes:
    order = sorted(statistics.fields, key=lambda name: -statistics.fields[name].raw_bytes)
    if statistics.ratio >= 1:
        note = f"{statistics.ratio:.1f} times smaller on disk, room for coming rows included"
    else:
        note = "files have room for coming rows: a store that is not full takes more than its rows"
    return Sizes(
        "Bytes of each field",
        note,
        order,
        np.array([statistics.fields[name].raw_bytes for name in order]),
        np.array([statistics.fields[name].disk_bytes for name in order]),
    )
