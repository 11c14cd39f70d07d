"""The charts as one picture, drawn with Matplotlib."""

import io
import math
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import InvalidInputError
from diskreplay.extensions import needed
from diskreplay.inspection.humanize import size_text
from diskreplay.pictures.figures import Bars, Chart, Sizes, Trend
from diskreplay.store import files
from diskreplay.store.paths import local

_ENDINGS = (".pdf", ".png", ".svg")
_INK, _SOFT, _LINE = "#1c1c1e", "#6b6b70", "#d8d8dc"
_BLUE, _ORANGE = "#2463c4", "#c8590a"
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_NOT_XML = dict.fromkeys(
    {*range(0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF} - {ord("\t"), ord("\n")},
    "\N{REPLACEMENT CHARACTER}",
)
_STYLE: dict[Any, Any] = {
    "font.size": 9, "text.color": _INK, "svg.fonttype": "none", "legend.frameon": False,
    "legend.fontsize": 8, "axes.titlesize": 11, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.edgecolor": _LINE, "axes.labelcolor": _SOFT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#ededf0", "xtick.color": _SOFT, "ytick.color": _SOFT,
    "xtick.major.size": 0, "ytick.major.size": 0,
    "text.parse_math": False,  # names may have dollars
}  # fmt: skip


def save_plot(charts: list[Chart], path: str | os.PathLike[str], title: str, subtitle: str) -> Path:
    """Draw charts beside each other, two or three a line.

    Parameters
    ----------
    charts : list of Trend, Bars or Sizes
        At least one.
    path : path
        Its ending says the format: .png, .svg or .pdf. Replaced as a whole.
    title, subtitle : str
        Two lines on top.

    Returns
    -------
    Path

    Raises
    ------
    InvalidInputError
        Another ending.
    StorageError
        The file cannot be written.
    ImportError
        Matplotlib is missing.
    """
    path = local(path, "path")
    if path.suffix.lower() not in _ENDINGS:
        raise InvalidInputError(f"{path}: a name that ends with {', '.join(_ENDINGS)} expected")
    with needed("charts are drawn with Matplotlib", "plot"):
        import matplotlib
        from matplotlib.figure import Figure
    columns = 3 if len(charts) > 4 else min(2, len(charts))
    lines = math.ceil(len(charts) / columns)
    height = 0.9 + 3.5 * lines  # inches
    data = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * columns, height))
        figure.text(0.3 / (5.2 * columns), 1 - 0.32 / height, _plain(title), size=16, weight="bold")
        figure.text(0.3 / (5.2 * columns), 1 - 0.6 / height, _plain(subtitle), color=_SOFT)
        for at, chart in enumerate(charts, 1):
            axes = figure.add_subplot(lines, columns, at)
            _DRAWERS[type(chart)](axes, chart)
            note = textwrap.wrap(_plain(chart.note), 72, max_lines=2)
            axes.set_title(_plain(chart.title), pad=10 + 11 * len(note))
            axes.text(
                0, 1.03, "\n".join(note), transform=axes.transAxes, color=_SOFT, size=8,
                in_layout=False,
            )  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.75 / height), h_pad=2, w_pad=2)
        figure.savefig(data, format=path.suffix[1:].lower(), dpi=130)
    files.replace({path: data.getvalue()})
    return path


def _trend(axes: Any, chart: Trend) -> None:
    if chart.band is not None:
        axes.fill_between(chart.line_x, *chart.band, color=_BLUE, alpha=0.18, linewidth=0)
    if len(chart.x):
        axes.plot(chart.x, chart.y, ".", color=_BLUE, alpha=0.45, markersize=5, markeredgewidth=0)
    axes.plot(chart.line_x, chart.line_y, color=_BLUE, linewidth=1.8, label=chart.line_name)
    axes.legend(loc="best", handlelength=1.4)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.xaxis.set_major_formatter(lambda value, _at: f"{value:,.0f}")
    axes.xaxis.get_major_locator().set_params(nbins=6, integer=True)


def _bars(axes: Any, chart: Bars) -> None:
    if chart.labels:
        axes.bar(np.arange(len(chart.labels)), chart.counts, width=0.72, color=_BLUE)
        turned = 60 if sum(map(len, chart.labels)) > 40 else 0
        labels = [_plain(label) for label in chart.labels]
        axes.set_xticks(np.arange(len(labels)), labels, rotation=turned)
    else:
        axes.bar(
            chart.edges[:-1], chart.counts, width=np.diff(chart.edges), align="edge", color=_BLUE,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        if chart.log_edges:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _at: f"{value:g}")
    axes.grid(axis="x", visible=False)
    if chart.log_counts:
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.6)
    axes.yaxis.set_major_formatter(lambda value, _at: f"{value:,.10g}")
    axes.minorticks_off()
    logarithmic = ", logarithmic" if chart.log_counts else ""
    axes.set(xlabel=chart.x_label, ylabel=f"{chart.y_label}{logarithmic}")


def _sizes(axes: Any, chart: Sizes) -> None:
    largest = max(int(chart.raw.max()), int(chart.disk.max()), 1)
    factor, unit = next((f, u) for f, u in _UNITS if largest >= f)
    at = np.arange(len(chart.names))
    axes.barh(at - 0.19, chart.raw / factor, 0.36, color=_LINE, label="as arrays in memory")
    axes.barh(at + 0.19, chart.disk / factor, 0.36, color=_ORANGE, label="on disk")
    for y, raw, disk in zip(at.tolist(), chart.raw.tolist(), chart.disk.tolist(), strict=True):
        axes.text(
            max(raw, disk) / factor + 0.01 * largest / factor, y,
            f"{size_text(raw)} → {size_text(disk)}", color=_SOFT, size=8, va="center",
        )  # fmt: skip
    axes.set_xlim(0, 1.42 * largest / factor)
    axes.set_yticks(at, [_plain(name) for name in chart.names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    axes.set(xlabel=unit)


_DRAWERS: dict[type, Callable[..., None]] = {Trend: _trend, Bars: _bars, Sizes: _sizes}


def _plain(text: str) -> str:
    """Text without what XML, and so SVG, cannot hold."""
    return text.translate(_NOT_XML)
