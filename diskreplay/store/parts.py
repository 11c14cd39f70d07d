"""Which rows are as they were given: parts of episodes, which begin at any step."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from diskreplay.store import numbers

PARTS = "parts"  # among the attributes of the group


class Parts:
    """Ranges of rows of each env among which parts of episodes are.

    In all other rows an episode begins with step 0, and a step that jumps is rotten; and a final
    row has neither a reward nor an end. The record names a range before its rows are there, and may
    name more rows than come.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[list[int]]] = {}  # of each env, from the oldest on

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @classmethod
    def parse(cls, attributes: Mapping[str, Any], num_envs: int) -> Self:
        """Those in the attributes of a store, or a ``ValueError``."""
        found, saved = cls(), attributes.get(PARTS, [])
        if not isinstance(saved, list):
            raise ValueError(f"{PARTS}: a list expected, found {saved!r:.60}")
        for range_ in saved:
            if not isinstance(range_, list) or len(range_) != 3:
                raise ValueError(f"{PARTS}: an env and two rows expected, found {range_!r:.60}")
            env = numbers.integer(PARTS, range_[0], 0, num_envs - 1)
            first = numbers.integer(PARTS, range_[1], 0, numbers.MOST_ROWS)
            stop = numbers.integer(PARTS, range_[2], first + 1, numbers.MOST_ROWS + 1)
            found._ranges.setdefault(env, []).append([first, stop])
        return found

    @classmethod
    def everything(cls, num_envs: int) -> Self:
        """All rows that may ever be."""
        found = cls()
        found._ranges = {env: [[0, numbers.MOST_ROWS]] for env in range(num_envs)}
        return found

    def describe(self, *, ahead: bool = False) -> list[list[int]]:
        """What the attributes hold of them; `ahead`: the last range of each env twice as long, so
        that they need not be written for each part of many."""
        found = []
        for env, ranges in self._ranges.items():
            found += [[env, first, stop] for first, stop in ranges]
            if ahead:
                found[-1][2] += ranges[-1][1] - ranges[-1][0]
        return found

    def attribute(self) -> dict[str, list[list[int]]]:
        """`describe` as the attributes have it, without a key where there is none."""
        return {PARTS: self.describe()} if self else {}

    def last(self, env: int) -> tuple[int, int]:
        """The last range of an env, (0, 0) without one."""
        ranges = self._ranges.get(env)
        return (ranges[-1][0], ranges[-1][1]) if ranges else (0, 0)

    def add(self, env: int, first: int, stop: int) -> None:
        """A range behind the others of its env, with the last of which it may be one."""
        ranges = self._ranges.setdefault(env, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = stop
        else:
            ranges.append([first, stop])

    def cut(self, first: np.ndarray, count: np.ndarray | None) -> None:
        """Leave out rows of each env that are not there any more, or not yet; without `count`
        those that are yet to come stay."""
        before, self._ranges = self._ranges, {}
        for env, ranges in before.items():
            low, high = int(first[env]), numbers.MOST_ROWS if count is None else int(count[env])
            there = [[a, min(b, high)] for a, b in ranges if a < high and b > low]
            if there:
                self._ranges[env] = there

    def mask(self, envs: Sequence[int] | np.ndarray, start: int, stop: int) -> np.ndarray:
        """Which of the rows ``start`` up to ``stop`` of some envs are in a range, bool of shape
        (rows, envs)."""
        found = np.zeros((stop - start, len(envs)), np.bool_)
        for place, env in enumerate(envs):
            for first, end in self._ranges.get(int(env), ()):
                found[max(first - start, 0) : max(end - start, 0), place] = True
        return found
