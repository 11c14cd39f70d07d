"""What happens in a store, told from one look at it to the next."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskreplay.episodes import Episodes
from diskreplay.inspection.overview import Overview

_NEWEST = 5  # episodes whose returns are given one by one
_RECENT = 100  # of the mean


@dataclass(frozen=True)
class Pulse:
    """What two looks say together. Times are seconds since the epoch.

    Attributes
    ----------
    rows_per_second : float or None
        Rows that came, over all envs, per second since the look before; None for the first look at
        a store.
    last_write : float or None
        When a row came at the latest, as far as the looks can tell: between two of them.
    exact : bool
        Whether that was seen, or the store is closed. Else it may have been later, see
        `store_activity.last_write`.
    returns : list of float
        Of the newest whole episodes, the newest last.
    mean_return : float or None
        Of the newest hundred, or of all there are.
    replaced : bool
        Whether another store is in the place of the one before.
    """

    rows_per_second: float | None
    last_write: float | None
    exact: bool
    returns: list[float]
    mean_return: float | None
    replaced: bool


class Watch:
    """Remembers the last look at the store of a path."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None
        self._came: float | None = None

    def look(self, found: Overview, episodes: Episodes, *, now: float) -> Pulse:
        """The figures of this look, which is the one before the next.

        Parameters
        ----------
        found : Overview
        episodes : Episodes
        now : float
            When this look began.
        """
        rows = sum(count for _first, count in found.bounds)
        which, rate, replaced = Path(found.path).stat().st_ino, None, False
        if self._before is not None:
            then, rows_then, which_then = self._before
            # With fewer rows it is another one too: a number may be given again.
            replaced = which != which_then or rows < rows_then
            if replaced:
                self._came = None
            elif now > then:
                rate = (rows - rows_then) / (now - then)
                if rows > rows_then:
                    self._came = now
        self._before = now, rows, which
        returns = episodes.returns[episodes.whole]
        return Pulse(
            rows_per_second=rate,
            last_write=found.last_write if self._came is None else self._came,
            exact=self._came is not None or found.closed,
            returns=returns[-_NEWEST:].tolist(),
            mean_return=float(np.mean(returns[-_RECENT:])) if len(returns) else None,
            replaced=replaced,
        )
