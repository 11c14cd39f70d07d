"""Figures as people read them."""

import datetime
import math
import re
import time

# Rows of an array are set apart by line ends, and its end by a comma.
_BOUNDS = re.compile(r"Box\((?:\[.*?\], .*?|[^,\[]+, \[.*?\]), (?=\()", re.DOTALL)
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(size: float) -> str:
    """A number of bytes: ``1.5 MiB``."""
    if size < 1024:
        return f"{size:,.0f} B"
    for unit in _UNITS:
        size /= 1024
        if round(size, 1) < 1024 or unit == _UNITS[-1]:
            break
    return f"{size:,.1f} {unit}"


def space_text(space: str) -> str:
    """A printed Gymnasium space in one line; of bounds that are arrays, that they differ."""
    return " ".join(_BOUNDS.sub("Box(bounds differ by entry, ", space).split())


def number_text(value: float | None) -> str:
    """Four significant digits and all those before the point, integers in full, a dash for none."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 1e15 and (float(value).is_integer() or abs(value) >= 999.95):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def count_text(count: int, noun: str) -> str:
    """``1 env``, ``16 envs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def when_text(seconds: float | None, *, now: float | None = None) -> str:
    """A moment: ``2026-05-04 12:00:00 (3 minutes ago)``.

    Parameters
    ----------
    seconds, now : float, optional
        Since the epoch; by default it is now.
    """
    if seconds is None:
        return "unknown"
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S} ({ago_text((now or time.time()) - seconds)})"


def ago_text(seconds: float) -> str:
    """How long ago something was: ``just now``, ``1 second ago``, ``3 minutes ago``.

    What lies ahead, since two clocks differ, is now.
    """
    unit, count = "day", int(seconds / 86400)
    for smaller, length in (("hour", 3600), ("minute", 60), ("second", 1)):
        if not count:
            unit, count = smaller, int(seconds / length)
    return f"{count_text(count, unit)} ago" if count > 0 else "just now"
