"""What a check of a store found, and what can be done about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Finding", "Loss", "Report", "Span"]

_SHOWN = 5  # ranges of rows, or groups of envs, that are listed in a sentence


class Span(NamedTuple):
    """Rows ``start`` up to ``stop`` of an env, which is excluded."""

    env: int
    start: int
    stop: int


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes
    ----------
    kind : str
        ``missing``, ``unreadable``, ``length``, ``checksum`` (a whole file's), ``index``,
        ``block``, ``metadata``, ``state``, ``rows`` (values that cannot be), ``priority``,
        ``manifest`` or ``orphan``.
    path : Path
        The file.
    meaning, remedy : str
        What it means, and what can be done.
    field, env : optional
        Where it belongs to one.
    rows : tuple of Span
        Rows that cannot be relied on, in order of their envs.
    """

    kind: str
    path: Path
    meaning: str
    remedy: str
    field: str | None = None
    env: int | None = None
    rows: tuple[Span, ...] = ()

    @property
    def count(self) -> int:
        """Rows concerned."""
        return sum(stop - start for _env, start, stop in self.rows)

    @property
    def where(self) -> str:
        """The file, and the rows in it."""
        return f"{self.path}{f' ({shown(self.rows)})' * bool(self.rows)}"

    def __str__(self) -> str:
        return f"{self.where}: {self.meaning}; {self.remedy}"


@dataclass(frozen=True)
class Loss:
    """Rows that a repair has set aside, and why.

    Attributes
    ----------
    rows : tuple of Span
        In order of their envs.
    field : str or None
        Whose bytes are lost; None where a row is set aside for another one.
    reason : str
        What is wrong with them, and why no checkpoint could give them.
    """

    rows: tuple[Span, ...]
    field: str | None
    reason: str

    def __str__(self) -> str:
        what = "" if self.field is None else f"{self.field}: "
        return f"{shown(self.rows)}: {what}{self.reason}"


def spans(lost: np.ndarray, start: int, first_env: int) -> tuple[Span, ...]:
    """Rows as ranges.

    Parameters
    ----------
    lost : ndarray of bool, shape (rows, envs)
    start, first_env : int
        Which row and env its first element is.
    """
    return tuple(
        Span(first_env + env, start + low, start + high)
        for env in np.flatnonzero(lost.any(axis=0)).tolist()
        for low, high in ranges(np.flatnonzero(lost[:, env]))
    )


def shown(rows: Iterable[Span]) -> str:
    """Rows in a sentence, envs that have the same ones together."""
    of_env: dict[int, list[tuple[int, int]]] = {}
    for env, start, stop in rows:
        of_env.setdefault(env, []).append((start, stop))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for env, its in of_env.items():
        alike.setdefault(tuple(its), []).append(env)
    parts = [
        f"env{'s' * (len(envs) > 1)} {_listed(ranges(np.array(envs)))}, rows {_listed(its)}"
        for its, envs in list(alike.items())[:_SHOWN]
    ]
    rest = sum(map(len, list(alike.values())[_SHOWN:]))
    return "; ".join(parts) + f"; and rows of {rest} more env{'s' * (rest > 1)}" * (rest > 0)


def _listed(its: tuple[tuple[int, int], ...]) -> str:
    listed = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in its[:_SHOWN]
    )
    more = len(its) - _SHOWN
    return f"{listed}{f' and {more} more ranges' * (more > 0)}"


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes
    ----------
    path : Path
    kind : {"store", "checkpoint"}
    findings : tuple of Finding
    files, bytes, blocks, rows : int
        What was looked at; bytes as they are on disk, rows as far as they are retained.
    seconds : float
    aside : Path or None
        Where a repair put the files that it replaced.
    set_aside : tuple of int
        How many rows of each env a repair has set aside; empty if there was none.
    losses : tuple of Loss
        Which ones, and why each.
    """

    path: Path
    kind: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    blocks: int
    rows: int
    seconds: float
    aside: Path | None = None
    set_aside: tuple[int, ...] = ()
    losses: tuple[Loss, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def ranges(rows: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Sorted, distinct numbers as ranges.

    >>> ranges(np.array([3, 4, 5, 9]))
    ((3, 6), (9, 10))
    """
    if not len(rows):
        return ()
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate([[0], breaks + 1])]
    stops = rows[np.concatenate([breaks, [len(rows) - 1]])] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))
