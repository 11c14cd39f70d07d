"""The charts as SVG for a page: colours and fonts are the page's, by class names."""

import itertools
import math
from collections.abc import Callable, Iterable
from html import escape

import numpy as np

from diskreplay.inspection.humanize import size_text
from diskreplay.pictures.figures import Bars, Chart, Sizes, Trend

_WIDTH, _NARROW, _HEIGHT = 500, 380, 240  # of trends and sizes; of bars; of both
_RIGHT, _TOP, _BOTTOM = 12, 12, 44
_LETTER = 6.6  # pixels of a character of an axis, about


def drawn(chart: Chart) -> str:
    """A chart as an ``<svg>`` element with a description for those who cannot see it."""
    drawers: dict[type, Callable[..., str]] = {Trend: _trend, Bars: _bars, Sizes: _sizes}
    return drawers[type(chart)](chart)


def number(value: float) -> str:
    """A number for an axis or a sentence: four digits that matter, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1e7 or abs(value) < 1e-3:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}"


class _Scale:
    """From values to pixels, linear or logarithmic, with ticks at round numbers."""

    def __init__(
        self, low: float, high: float, start: float, stop: float, *, log: bool = False,
        integers: bool = False, most: int = 6,
    ) -> None:  # fmt: skip
        self._log = log
        if low == high and not log:
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        self.low, self.high = self._place(low), self._place(high)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self._start, self._stop = start, stop
        self.ticks = self._round_numbers(integers, most)

    def _place(self, value: float) -> float:
        return math.log10(value) if self._log else float(value)

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._stop - self._start)

    def _round_numbers(self, integers: bool, most: int) -> list[float]:
        if self._log:
            powers = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            if len(powers) >= 2:
                step = -(-len(powers) // most)
                return [10.0**power for power in powers[::step]]
            return [10**self.low, 10**self.high]
        span = self.high - self.low
        step = 10 ** math.floor(math.log10(span / most))
        step *= next(f for f in (1, 2, 5, 10) if span / (step * f) <= most)
        step = max(step, 1) if integers else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [tick * step for tick in range(first, last + 1)]


def _trend(chart: Trend) -> str:
    edges = [chart.y, chart.line_y, *(chart.band if chart.band is not None else ())]
    y = np.concatenate(edges)
    x = np.concatenate([chart.x, chart.line_x])
    room = (y.max() - y.min()) * 0.05
    counted = not np.mod(chart.y if len(chart.y) else chart.line_y, 1).any()
    up = _Scale(y.min() - room, y.max() + room, _HEIGHT - _BOTTOM, _TOP, integers=counted)
    left = _left(up)
    across = _Scale(x.min(), x.max(), left + 8, _WIDTH - _RIGHT - 8, integers=True)
    ticks = [(across(tick), number(tick)) for tick in across.ticks]
    parts = [_frame(left, _WIDTH, ticks, up, chart.x_label, chart.y_label)]
    line = _points(across, up, chart.line_x, chart.line_y)
    if chart.band is not None:
        low, high = (_points(across, up, chart.line_x, edge) for edge in chart.band)
        parts.append(f'<polygon class="band" points="{" ".join([*low, *reversed(high)])}"/>')
    for dot_x, dot_y in zip(chart.x.tolist(), chart.y.tolist(), strict=True):
        parts.append(
            f'<circle class="dot" cx="{across(dot_x):.1f}" cy="{up(dot_y):.1f}" r="3.2">'
            f"<title>{chart.y_label} {number(dot_y)}, from row {number(dot_x)}</title></circle>"
        )
    parts.append(f'<polyline class="line" points="{" ".join(line)}"/>')
    figures = chart.y if len(chart.y) else chart.line_y
    described = (
        f"{chart.title}: {chart.note}. From {number(figures.min())} to {number(figures.max())} "
        f"{chart.y_label}; {chart.line_name} ends at {number(chart.line_y[-1])}."
    )
    return _svg(described, _WIDTH, _HEIGHT, parts)


def _points(across: _Scale, up: _Scale, x: np.ndarray, y: np.ndarray) -> list[str]:
    return [f"{across(a):.1f},{up(b):.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def _bars(chart: Bars) -> str:
    floor = _HEIGHT - _BOTTOM
    top = int(chart.counts.max())
    up = (
        _Scale(0.6, max(top, 2), floor, _TOP, log=True) if chart.log_counts
        else _Scale(0, top, floor, _TOP, integers=True)
    )  # fmt: skip
    left, right = _left(up) + 4, _NARROW - _RIGHT - 4
    if chart.labels:
        width = (right - left) / len(chart.labels)
        places = [(left + i * width, left + (i + 1) * width) for i in range(len(chart.labels))]
        thin = max(width * 0.28, width - 64)
        names = ticks = chart.labels
        if max(map(len, names)) * _LETTER > width:
            ticks = [name.split(" ")[0] for name in names]  # "2 RIGHT": the tooltip has the rest
        # As many labels as there is room for, evenly.
        every = math.ceil(max(map(len, ticks)) * _LETTER / width)
        across = [
            ((a + b) / 2, tick)
            for i, ((a, b), tick) in enumerate(zip(places, ticks, strict=True))
            if i % every == 0
        ]
    else:
        scale = _Scale(chart.edges[0], chart.edges[-1], left, right, log=chart.log_edges, most=7)
        edges = [scale(edge) for edge in chart.edges.tolist()]
        places, thin = list(itertools.pairwise(edges)), 1
        names = [
            f"{number(a)} to {number(b)}"
            for a, b in zip(chart.edges.tolist(), chart.edges[1:].tolist(), strict=False)
        ]
        across = [(scale(tick), number(tick)) for tick in scale.ticks]
    logarithmic = ", logarithmic" if chart.log_counts else ""
    parts = [_frame(left - 4, _NARROW, across, up, chart.x_label, f"{chart.y_label}{logarithmic}")]
    for (a, b), count, name in zip(places, chart.counts.tolist(), names, strict=True):
        if count:
            y = up(count)
            parts.append(
                f'<rect class="bar" x="{a + thin / 2:.1f}" y="{y:.1f}" '
                f'width="{max(b - a - thin, 0.5):.1f}" height="{floor - y:.1f}">'
                f"<title>{escape(f'{chart.x_label} {name}: {count:,} {chart.y_label}')}</title>"
                "</rect>"
            )
    most = names[int(chart.counts.argmax())]
    described = f"{chart.title}: {chart.note}. Most often {most}, {top:,} {chart.y_label}."
    return _svg(described, _NARROW, _HEIGHT, parts)


def _sizes(chart: Sizes) -> str:
    left = 24 + round(_LETTER * max(map(len, chart.names)))
    left = min(left, _WIDTH // 2)
    right, line = _WIDTH - 150, 30
    height = 8 + line * len(chart.names) + 4
    largest = max(int(chart.raw.max()), int(chart.disk.max()), 1)
    parts = []
    for i, (name, raw, disk) in enumerate(
        zip(chart.names, chart.raw.tolist(), chart.disk.tolist(), strict=True)
    ):
        y = 8 + i * line
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 14}">{escape(name)}</text>')
        for bytes_, kind, offset in ((raw, "raw", 0), (disk, "disk", 11)):
            width = max(1.5, bytes_ / largest * (right - left))
            parts.append(
                f'<rect class="{kind}" x="{left}" y="{y + offset}" width="{width:.1f}" '
                f'height="10"/>'
            )
        parts.append(
            f'<text class="figure" x="{_WIDTH - 4}" y="{y + 14}">'
            f"{size_text(raw)} → {size_text(disk)}</text>"
        )
    described = f"{chart.title}: " + "; ".join(
        f"{name} {size_text(raw)} as arrays, {size_text(disk)} on disk"
        for name, raw, disk in zip(
            chart.names, chart.raw.tolist(), chart.disk.tolist(), strict=True
        )
    )
    return _svg(described, _WIDTH, height, parts)


def _left(up: _Scale) -> float:
    """Where the vertical axis is: its numbers and its name need room."""
    return 34 + _LETTER * max(len(number(tick)) for tick in up.ticks)


def _frame(
    left: float, width: int, across: list[tuple[float, str]], up: _Scale, x_label: str, y_label: str
) -> str:
    """Grid lines, ticks and the names of both axes."""
    floor = _HEIGHT - _BOTTOM
    parts = []
    for tick in up.ticks:
        y = round(up(tick), 1)
        parts.append(
            f'<line class="grid" x1="{left:.1f}" x2="{width - _RIGHT}" y1="{y}" y2="{y}"/>'
        )
        parts.append(f'<text class="up" x="{left - 8:.1f}" y="{y + 4}">{number(tick)}</text>')
    for x, label in across:
        parts.append(f'<text class="across" x="{x:.1f}" y="{floor + 18}">{escape(label)}</text>')
    parts.append(
        f'<line class="axis" x1="{left:.1f}" x2="{width - _RIGHT}" y1="{floor}" y2="{floor}"/>'
    )
    middle = (left + width - _RIGHT) / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{_HEIGHT - 6}">{escape(x_label)}</text>')
    parts.append(
        f'<text class="label" transform="translate(13 {(floor + _TOP) / 2}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)


def _svg(described: str, width: int, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(described)}">'
        f"{''.join(parts)}</svg>"
    )
