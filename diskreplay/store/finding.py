"""What a check of a store found, and what can be done about it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SHOWN = 5  # ranges of rows that are listed in a sentence


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
        Where the file belongs to one.
    rows : tuple of (int, int)
        Ranges of row numbers, the second excluded, that cannot be relied on.
    """

    kind: str
    path: Path
    meaning: str
    remedy: str
    field: str | None = None
    env: int | None = None
    rows: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """Rows concerned."""
        return sum(stop - start for start, stop in self.rows)

    @property
    def where(self) -> str:
        """The file, and the rows in it."""
        rows = f" (env {self.env}, rows {shown(self.rows)})" if self.rows else ""
        return f"{self.path}{rows}"

    def __str__(self) -> str:
        return f"{self.where}: {self.meaning}; {self.remedy}"


@dataclass(frozen=True)
class Loss:
    """Rows that a repair has set aside, and why.

    Attributes
    ----------
    env : int
    rows : tuple of (int, int)
        Ranges of row numbers, the second excluded.
    field : str or None
        Whose bytes are lost; None where a row is set aside for another one.
    reason : str
        What is wrong with them, and why no checkpoint could give them.
    """

    env: int
    rows: tuple[tuple[int, int], ...]
    field: str | None
    reason: str

    def __str__(self) -> str:
        what = "" if self.field is None else f"{self.field}: "
        return f"env {self.env}, rows {shown(self.rows)}: {what}{self.reason}"


def shown(rows: tuple[tuple[int, int], ...]) -> str:
    """Ranges of rows in a sentence."""
    listed = ", ".join(
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in rows[:_SHOWN]
    )
    more = len(rows) - _SHOWN
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
    """Sorted, distinct row numbers as ranges.

    >>> ranges(np.array([3, 4, 5, 9]))
    ((3, 6), (9, 10))
    """
    if not len(rows):
        return ()
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate([[0], breaks + 1])]
    stops = rows[np.concatenate([breaks, [len(rows) - 1]])] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))
