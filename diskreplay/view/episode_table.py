"""Episodes by their figures: filtered, in an order, page by page."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.episodes import ORDERS, about, in_order

_MOST = 500  # of a page
_ANY = float("inf")


@dataclass(frozen=True)
class EpisodeQuery:
    """Which episodes, and in which order."""

    # One of `ORDERS`: what comes first. "return" and "length": the largest; unfinished episodes, of
    # which neither is known yet, come last.
    order: str = "newest"
    reverse: bool = False
    # Both ends are meant.
    least_return: float = -_ANY
    most_return: float = _ANY
    least_length: float = -_ANY
    most_length: float = _ANY
    # Of the id that an episode begins with: later ones were recorded later.
    since: float = -_ANY
    until: float = _ANY
    # About when it ended, in seconds since the epoch.
    after: float = -_ANY
    before: float = _ANY
    end: str = ""  # one of `Episodes.ENDS`, or "whole"; empty for any
    env: int | None = None
    # Of the page, in episodes.
    start: int = 0
    size: int = 50

    def __post_init__(self) -> None:
        for name, value, wanted in (
            ("order", self.order, ORDERS),
            ("end", self.end, ("", "whole", *Episodes.ENDS)),
        ):
            if value not in wanted:
                known = ", ".join(filter(None, wanted))
                raise InvalidInputError(f"{name}: one of {known} expected, found {value!r:.40}")
        if not 0 < self.size <= _MOST or self.start < 0:
            raise InvalidInputError(f"size: 1 to {_MOST} expected, and start from 0")

    def select(self, episodes: Episodes, ended: np.ndarray) -> np.ndarray:
        """The numbers of all episodes that are meant, in their order. O(episodes log episodes).

        Parameters
        ----------
        episodes : Episodes
        ended : ndarray of float64, shape (episodes,)
            When each one did; NaN where that is not known, which no `after` or `before` lets
            through.
        """
        returns, rows = episodes.returns, episodes.rows
        kept = (returns >= self.least_return) & (returns <= self.most_return)
        kept &= (rows >= self.least_length) & (rows <= self.most_length)
        kept &= (episodes.start_id >= self.since) & (episodes.start_id <= self.until)
        if self.after > -_ANY or self.before < _ANY:
            kept &= (ended >= self.after) & (ended <= self.before)
        if self.end:
            kept &= getattr(episodes, self.end)
        if self.env is not None:
            kept &= episodes.env == self.env
        numbers = in_order(episodes, self.order, reverse=self.reverse)
        return numbers[kept[numbers]]

    def page(self, episodes: Episodes, ended: np.ndarray, is_latest: np.ndarray) -> dict[str, Any]:
        """A page, and how many there are.

        Parameters
        ----------
        episodes, ended
            As for `select`.
        is_latest : ndarray of bool, shape (episodes,)
            Whether it ended then at the latest.

        Returns
        -------
        dict
            ``total``, ``found``: all episodes, and those that are meant; ``episodes``: documents of
            `about`, with ``ended`` and ``is_latest``.
        """
        found = self.select(episodes, ended)
        shown = found[self.start : self.start + self.size]
        return {
            "total": len(episodes),
            "found": len(found),
            "start": self.start,
            "episodes": [
                about(episodes, at) | {"ended": ended[at], "is_latest": is_latest[at]}
                for at in shown.tolist()
            ],
        }
