"""Which rows are as they were given: parts of episodes, which begin at any step."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from diskreplay.store import numbers

PARTS = "parts"  # among the attributes of the group


@dataclass
class _Range:
    """Rows of one env, and how many of them are no ordinary ones: `before` at most of those before
    row `known`, None where that is not known; and `odd`, which are they."""

    first: int
    stop: int
    before: int | None = 0
    known: int = 0
    odd: list[int] = field(default_factory=list)

    @property
    def most(self) -> int | None:
        return None if self.before is None else self.before + len(self.odd)


class Parts:
    """Ranges of rows of each env among which parts of episodes are.

    In all other rows an episode begins with step 0, and a step that jumps is rotten; and a final
    row has neither a reward nor an end. A range says how many of its rows are such odd ones at
    most. The record names a range before its rows are there, and may name more rows than come.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[_Range]] = {}  # of each env, from the oldest on

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @classmethod
    def parse(cls, attributes: Mapping[str, Any], num_envs: int) -> Self:
        """Those in the attributes of a store, or a ``ValueError``."""
        found, saved = cls(), attributes.get(PARTS, [])
        if not isinstance(saved, list):
            raise ValueError(f"{PARTS}: a list expected, found {saved!r:.60}")
        for range_ in saved:
            if not isinstance(range_, list) or len(range_) not in (3, 4):
                raise ValueError(
                    f"{PARTS}: an env, two rows and a number expected, found {range_!r:.60}"
                )
            env = numbers.integer(PARTS, range_[0], 0, num_envs - 1)
            first = numbers.integer(PARTS, range_[1], 0, numbers.MOST_ROWS)
            stop = numbers.integer(PARTS, range_[2], first + 1, numbers.MOST_ROWS + 1)
            most = None
            if len(range_) == 4:
                most = numbers.integer(PARTS, range_[3], 0, numbers.MOST_ROWS + 1)
            found._ranges.setdefault(env, []).append(_Range(first, stop, most, stop))
        return found

    @classmethod
    def everything(cls, num_envs: int) -> Self:
        """All rows that may ever be."""
        found = cls()
        found._ranges = {env: [_Range(0, numbers.MOST_ROWS, None)] for env in range(num_envs)}
        return found

    def describe(self, *, ahead: bool = False) -> list[list[int]]:
        """What the attributes hold of them; `ahead`: the last range of each env twice as long, with
        twice as many odd rows, so that they need not be written for each part of many."""
        found = []
        for env, ranges in self._ranges.items():
            for its in ranges:
                found.append([env, its.first, its.stop])
                if its.most is not None:
                    found[-1].append(its.most)
            if ahead:
                found[-1][2] += its.stop - its.first
                found[-1][3:] = [2 * most for most in found[-1][3:]]
        return found

    def attribute(self) -> dict[str, list[list[int]]]:
        """`describe` as the attributes have it, without a key where there is none."""
        return {PARTS: self.describe()} if self else {}

    def ranges(self, env: int) -> list[tuple[int, int, int | None]]:
        """First row, the row behind the last one, and the most odd rows of each range of an env;
        None where that is not known."""
        return [(its.first, its.stop, its.most) for its in self._ranges.get(env, ())]

    def last(self, env: int) -> tuple[int, int, int | None]:
        """The last one of `ranges`, (0, 0, 0) without one."""
        if env not in self._ranges:
            return 0, 0, 0
        its = self._ranges[env][-1]
        return its.first, its.stop, its.most

    def most_from(self, env: int, start: int) -> int | None:
        """The most odd rows of all ranges of an env that end behind a row; None where that is not
        known."""
        found = 0
        for its in reversed(self._ranges.get(env, ())):
            if its.stop <= start:
                break
            if its.most is None:
                return None
            found += its.most
        return found

    def add(self, env: int, first: int, stop: int, odd: Iterable[int]) -> None:
        """A range behind the others of its env, with the last of which it may be one, and which
        rows of it are odd."""
        ranges = self._ranges.setdefault(env, [])
        if ranges and ranges[-1].stop == first and ranges[-1].before is not None:
            ranges[-1].stop = stop
            ranges[-1].odd += odd
        else:
            ranges.append(_Range(first, stop, odd=list(odd)))

    def cut(self, first: np.ndarray, count: np.ndarray | None) -> None:
        """Leave out rows of each env that are not there any more, or not yet; without `count`
        those that are yet to come stay."""
        before, self._ranges = self._ranges, {}
        for env, ranges in before.items():
            low, high = int(first[env]), numbers.MOST_ROWS if count is None else int(count[env])
            there = [its for its in ranges if its.first < high and its.stop > low]
            for its in there:
                its.stop = min(its.stop, high)
                its.odd = its.odd[bisect_left(its.odd, low) : bisect_left(its.odd, high)]
                if its.before is not None and low >= its.known:
                    its.before = 0
            if there:
                self._ranges[env] = there

    def limit(self, count_odd: Callable[[int, int, int], int]) -> None:
        """Of ranges that a record has named ahead of their rows: no more rows are odd than are
        there. `count_odd` is given an env and two rows."""
        for env, ranges in self._ranges.items():
            for its in ranges:
                if its.before:
                    its.before = min(its.before, count_odd(env, its.first, its.stop))

    def mask(self, envs: Sequence[int] | np.ndarray, start: int, stop: int) -> np.ndarray:
        """Which of the rows ``start`` up to ``stop`` of some envs are in a range, bool of shape
        (rows, envs)."""
        found = np.zeros((stop - start, len(envs)), np.bool_)
        for place, env in enumerate(envs):
            for first, end, _most in self.ranges(int(env)):
                found[max(first - start, 0) : max(end - start, 0), place] = True
        return found
