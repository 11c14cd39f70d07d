"""Which rows parts of episodes excuse from the rules: no more of them than were given."""

from collections.abc import Iterator, Sequence

import numpy as np

from diskreplay.check.row_check import SmallColumns, holes, odd_rows
from diskreplay.episode_parts import Parts


class Excused:
    """Rows of some envs that may begin an episode whatever their step is.

    A range of `Parts` says how many such rows it has at most. Where more are found some are rotten:
    rows that interrupt an episode which goes on behind them are no part, and if there are still too
    many without these, nothing in the range is excused.
    """

    def __init__(self, parts: Parts, envs: Sequence[int]) -> None:
        self._parts, self._envs = parts, envs
        self._found: dict[tuple[int, int, int, int], np.ndarray] = {}  # odd rows, those of holes

    def _ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """Those that say how many: the place of the env, the range, and the number."""
        for place, env in enumerate(self._envs):
            for first, stop, most in self._parts.ranges(int(env)):
                if most is not None:
                    yield place, first, stop, most

    def count(self, rows: SmallColumns, known: np.ndarray, begin: int, low: int) -> None:
        """Look at the rows from `low` on, of those that begin with row `begin`; one or two before
        `low` and behind the last one are those that the rules need."""
        ranges = list(self._ranges())
        if not ranges:
            return
        odd, hole = odd_rows(rows, known), holes(rows, known)
        for key in ranges:
            place, first, stop, _most = key
            here = slice(max(first, low) - begin, max(stop - begin, 0))
            own, torn = odd[here, place], hole[here, place]
            numbers = np.count_nonzero(own), np.count_nonzero(own & torn)
            self._found[key] = self._found.get(key, np.zeros(2, np.int64)) + numbers

    def mask(self, rows: SmallColumns, known: np.ndarray, begin: int) -> np.ndarray:
        """Which of these rows, the first of which is row `begin`, are excused; bool."""
        late = self._parts.mask(self._envs, begin, begin + len(known))
        for (place, first, stop, most), (odd, torn) in self._found.items():
            if odd > most:
                here = slice(max(first - begin, 0), max(stop - begin, 0))
                kept = ~holes(rows, known)[here, place] if odd - torn <= most else False
                late[here, place] &= kept
        return late


def excused_rows(
    parts: Parts, env: int, rows: SmallColumns, known: np.ndarray, first: int
) -> np.ndarray:
    """Which of all retained rows of one env, from row `first` on, are excused; bool."""
    of_env = SmallColumns(*(column[:, None] for column in rows)), known[:, None], first
    excused = Excused(parts, [env])
    excused.count(*of_env, first)
    return excused.mask(*of_env)[:, 0]
