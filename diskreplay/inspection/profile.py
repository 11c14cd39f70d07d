"""Figures of each field: its range, its mean, how much of it is zeros."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.inspection.histogram import scale_of
from diskreplay.inspection.retained import read_rows

_PART_BYTES = 4 << 20
SAMPLE_BYTES = 64 << 20
_MOST_VALUES = 1024  # that are counted one by one
_LEAST_ROWS = 64  # in one part: a packed field decodes whole blocks of rows anyway
_OF_ALL_ROWS = ("step", "is_final")  # fields that final rows have a meaningful value of


@dataclass(frozen=True)
class FieldProfile:
    """What the values of one field are like.

    Of observations those of final rows count too, of actions, rewards, flags and extras only those
    of transitions: a final row has none. Rows that a repair set aside do not count.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: int
    """How many rows were looked at: all of them, or a sample spread evenly over time."""
    min: float | None
    """Of the finite values; None where there are none."""
    max: float | None
    mean: float | None
    zeros: float | None
    """Share of the values that are 0."""
    not_finite: int
    """Values that are NaN or infinite."""


def profile_of(
    buffer: ReplayBuffer, *, most_bytes: int | None = SAMPLE_BYTES
) -> dict[str, FieldProfile]:
    """The figures of every field.

    Parameters
    ----------
    most_bytes : int or None
        Of a larger field so many raw bytes are read, in runs of rows spread evenly over time. None
        reads everything.

    Raises
    ------
    CorruptSegmentError
        Rows cannot be read.
    """
    return {name: _profile(buffer, name, most_bytes) for name in buffer.fields}


def action_counts(buffer: ReplayBuffer) -> dict[str, dict[int, int] | None]:
    """How often each value of each action that is a single integer was recorded, by field and
    value; None of a field that has too many of them. Final rows do not count."""
    return {
        name: _counts(buffer, name)
        for name, (shape, dtype) in buffer.fields.items()
        if name.split("/")[0] == "action" and not shape and dtype.kind in "iu"
    }


def _counts(buffer: ReplayBuffer, field: str) -> dict[int, int] | None:
    counts: dict[int, int] = {}
    for part in values_of(buffer, field):
        for value, count in zip(*np.unique(part, return_counts=True), strict=True):
            counts[int(value)] = counts.get(int(value), 0) + int(count)
        if len(counts) > _MOST_VALUES:
            return None
    return dict(sorted(counts.items()))


def values_of(
    buffer: ReplayBuffer, field: str, *, finals: bool = False, most_bytes: int | None = None
) -> Iterator[np.ndarray]:
    """The values of one field in all transitions, env by env, oldest first, part by part.

    Parameters
    ----------
    finals : bool
        Final rows too, but those that a repair set aside.
    most_bytes : int, optional
        Read only parts that are spread evenly over time, of so many bytes in all.

    Yields
    ------
    ndarray, shape (rows, *shape)
        At least one row, and about 4 MiB; a copy.

    Notes
    -----
    Rows that a writer evicts meanwhile are left out.
    """
    shape, dtype = buffer.fields[field]
    row_bytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    size = max(_LEAST_ROWS, _PART_BYTES // row_bytes)
    bounds = buffer.bounds
    total = int((bounds[:, 1] - bounds[:, 0]).sum())
    if most_bytes is not None and total * row_bytes <= most_bytes:
        most_bytes = None
    if most_bytes is not None:
        size = min(size, max(_LEAST_ROWS, most_bytes // row_bytes // 64))
    starts = [
        (env, start)
        for env, (first, stop) in enumerate(bounds.tolist())
        for start in range(first, stop, size)
    ]
    if most_bytes is not None:  # an env's rows may be fewer than `size`: their mean counts
        wanted = max(1, len(starts) * most_bytes // (total * row_bytes))
        chosen = np.linspace(0, len(starts) - 1, wanted).round().astype(int)
        starts = [starts[at] for at in chosen]
    for env, start in starts:
        stop = min(start + size, int(bounds[env, 1]))
        # One more, so that it is known what the first one stands behind.
        begin = max(start - 1, int(bounds[env, 0]))
        first, (values, is_final, step) = read_rows(
            buffer, env, begin, stop, (field, "is_final", "step")
        )
        chosen = ~_without_value(values, is_final, step) if finals else ~is_final
        chosen[: max(start - first, 0)] = False
        if chosen.any():
            yield values[chosen]


def _without_value(values: np.ndarray, is_final: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Which rows a repair may have set aside, in a field that it had no values of: zeros in final
    rows that end no episode, as a frame of padding is, too."""
    found = is_final & (step == 0)
    found[1:] |= is_final[1:] & is_final[:-1]
    where = np.flatnonzero(found)
    found[where] = ~values[where].any(axis=tuple(range(1, values.ndim)))
    return found


def _profile(buffer: ReplayBuffer, field: str, most_bytes: int | None) -> FieldProfile:
    shape, dtype = buffer.fields[field]
    finals = field in _OF_ALL_ROWS or field.split("/")[0] == "observation"
    rows = values = zeros = not_finite = 0
    total, scale, low, high = 0.0, 1.0, np.inf, -np.inf
    for part in values_of(buffer, field, finals=finals, most_bytes=most_bytes):
        rows += len(part)
        values += part.size
        zeros += part.size - int(np.count_nonzero(part))
        if dtype.kind == "f":
            finite = part[np.isfinite(part)]
            not_finite += part.size - finite.size
            part = finite
        if part.size:
            low, high = min(low, part.min().item()), max(high, part.max().item())
            if scale == 1.0 and (scale := scale_of(low, high)) != 1.0:
                total *= scale
            total += float((part if scale == 1.0 else part * scale).sum(dtype=np.float64))
    seen = values - not_finite
    return FieldProfile(
        shape=shape,
        dtype=dtype.name,
        rows=rows,
        min=low + 0 if seen else None,  # a bool counts as a number
        max=high + 0 if seen else None,
        mean=min(max(total / seen / scale, low), high) if seen else None,
        zeros=zeros / values if values else None,
        not_finite=not_finite,
    )
