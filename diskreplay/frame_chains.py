"""Frames that several records share, each stored once: how records lie in rows.

A record may have a stack of frames, and what it led to: the same stack, moved on by one frame,
which the next record begins with. Its row has one frame, the newest of all. The others lie in the
rows behind, where the records before put them. Where a record does not go on from the row before,
rows that hold only frames come first, its *leads*. So a record depends on no later row: it is whole
when its own row is there.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from diskreplay.given_numbers import whole

Columns = Mapping[str, np.ndarray]

MOST_FRAMES = 100  # of a stack


def stacks(asked: Mapping[str, Any]) -> dict[str, int]:
    """The frames of each stack that somebody, or a file, asks for, or an `InvalidInputError`."""
    return {name: whole(f"stack[{name!r}]", k, most=MOST_FRAMES) for name, k in asked.items()}


def reach(longest: int, *, is_followed: bool) -> int:
    """So many rows before its own one a record may have frames in, of which the longest stack has
    so many; `is_followed` if there is a column of what some led to."""
    return 2 * longest - 1 if is_followed and longest > 1 else longest - 1 + is_followed


def reach_in(attributes: Mapping[str, Any]) -> int:
    """The same by the attributes of the group of a store; 0 of one that is no store of `Slots`. A
    ``ValueError`` or ``TypeError`` where they are damaged."""
    slots = {**attributes.get("slots", {})}
    next_of, asked = ({**slots.get(name, {})} for name in ("next_of", "stack"))
    return reach(max(stacks(asked).values(), default=1), is_followed=bool(next_of))


class Chain(NamedTuple):
    """A column of frames.

    Attributes
    ----------
    now : str
        The column, whose frames are those that rows have under this name.
    following : str or None
        What it led to, if that is a column too.
    stack : int
        Frames along the first axis of both.
    frame_shape : tuple of int
    """

    now: str
    following: str | None
    stack: int
    frame_shape: tuple[int, ...]

    @property
    def newest(self) -> str:
        """The column that has the newest frame of a record."""
        return self.following or self.now

    def frames(self, column: np.ndarray) -> np.ndarray:
        """A column of either name, with an axis for the frames of a stack."""
        return column.reshape(len(column), self.stack, *self.frame_shape)

    def moves_on(self, older: np.ndarray, newer: np.ndarray) -> np.ndarray:
        """Of each pair of stacks, whether the second one is the first and one more frame."""
        one, other = _flat(older), _flat(newer)
        frame = one.shape[1] // self.stack
        return _same(one[:, frame:], other[:, : one.shape[1] - frame])


class Placed(NamedTuple):
    """Records of one env in rows.

    Attributes
    ----------
    rows : int
        How many there are.
    at : ndarray of int64, shape (records,)
        The records' own ones. The leads of each are those between.
    back : ndarray of int64, shape (records,)
        How far behind its own row the frames of `Chain.now` end.
    frames : dict of str to ndarray, each of shape (rows, *frame_shape)
        By `Chain.now`.
    """

    rows: int
    at: np.ndarray
    back: np.ndarray
    frames: dict[str, np.ndarray]


class FrameChains:
    """Columns of frames that all have their rows in common.

    Attributes
    ----------
    chains : tuple of Chain
    has_back : bool
        Whether `back` may be another number than `least_back`: rows have to say it.
    least_back : int
    reach : int
        So many rows before its own one a record may have frames in; also the most leads.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = tuple(chains)
        self._of = {name: chain for chain in chains for name in (chain.now, chain.following)}
        longest = max((chain.stack for chain in chains), default=1)
        self.least_back = int(any(chain.following for chain in chains))
        self.has_back = longest > 1 and bool(self.least_back)
        # Of a record that goes on from nothing, and of one whose two stacks have nothing in common.
        self._leads, self._apart = longest - 1 + self.least_back, longest
        self.reach = reach(longest, is_followed=bool(self.least_back))

    def __bool__(self) -> bool:
        return bool(self.chains)

    # -- from records to rows

    def tip(self, columns: Columns) -> dict[str, np.ndarray]:
        """What of records shows whether another one goes on from them; views."""
        return {chain.newest: columns[chain.newest] for chain in self.chains}

    def sliding(self, columns: Columns) -> np.ndarray:
        """The records of which what they led to is their own stacks and one new frame each."""
        slides = np.ones(_length(columns), np.bool_)
        for chain in self.chains:
            if chain.following and chain.stack > 1:
                now, led = columns[chain.now], columns[chain.following]
                slides &= chain.moves_on(now, led)
        return slides

    def continuing(self, columns: Columns, tips: Columns) -> np.ndarray:
        """The records whose stacks are those that other ones, as many, led to.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (records, *shape)
        tips : dict of str to ndarray, each of shape (records, *shape)
            See `tip`.
        """
        continuing = np.ones(_length(columns), np.bool_)
        for chain in self.chains:
            now, tip = columns[chain.now], tips[chain.newest]
            continuing &= _same(now, tip) if chain.following else chain.moves_on(tip, now)
        return continuing

    def place(self, columns: Columns, tip: Columns | None) -> Placed:
        """Records of one env, one behind the other.

        Parameters
        ----------
        columns : dict of str to ndarray, each of shape (records, *shape)
            With both columns of each chain.
        tip : dict of str to ndarray, each of shape (1, *shape), optional
            Of the record whose row is the newest one, if it is one.
        """
        slides = self.sliding(columns)
        goes_on = slides.copy()
        goes_on[1:] &= self.continuing(
            {chain.now: columns[chain.now][1:] for chain in self.chains},
            {name: column[:-1] for name, column in self.tip(columns).items()},
        )
        goes_on[:1] &= tip is not None and self.continuing(
            {chain.now: columns[chain.now][:1] for chain in self.chains}, tip
        )
        leads = np.where(goes_on, 0, np.where(slides, self._leads, self.reach))
        at = np.cumsum(leads + 1) - 1
        rows = int(at[-1]) + 1
        back = np.where(slides, self.least_back, self._apart)
        frames = {c.now: self._placed(c, columns, rows, at, back, ~goes_on) for c in self.chains}
        return Placed(rows, at, back, frames)

    def newest(self, columns: Columns) -> dict[str, np.ndarray]:
        """The frames for the own rows of records, by `Chain.now`."""
        return {
            chain.now: np.ascontiguousarray(chain.frames(columns[chain.newest])[:, -1])
            for chain in self.chains
        }

    def _placed(
        self, chain: Chain, columns: Columns, rows: int, at: np.ndarray, back: np.ndarray,
        begins: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        now, newest = chain.frames(columns[chain.now]), chain.frames(columns[chain.newest])
        made = np.zeros((rows, *chain.frame_shape), now.dtype)
        if begins.any():
            ends = at[begins] - back[begins] * bool(chain.following)
            for older in range(chain.stack):
                made[ends - older] = now[begins, -1 - older]
        if chain.following and (apart := back > self.least_back).any():
            for older in range(1, chain.stack):
                made[at[apart] - older] = newest[apart, -1 - older]
        made[at] = newest[:, -1]
        return made

    # -- from rows to records

    def window(
        self, name: str, rows: np.ndarray, back: np.ndarray | None
    ) -> tuple[str, np.ndarray] | None:
        """Where the frames of a column are; None for one that is in no chain.

        Parameters
        ----------
        name : str
        rows : ndarray of int64, any shape
            The records' own ones; negative for none.
        back : ndarray of int, of the same shape, optional
            As `place` gave it; None where it is the least.

        Returns
        -------
        str
            `Chain.now`.
        ndarray of int64, shape (*rows.shape, stack), or that of `rows` without stacks
            The rows of the frames, oldest first; -1 for none.
        """
        chain = self._of.get(name)
        if chain is None:
            return None
        nothing = rows < 0
        if name == chain.now and chain.following:
            rows = rows - (self.least_back if back is None else back)
        if chain.stack > 1:
            rows = rows[..., None] + np.arange(1 - chain.stack, 1)
            nothing = nothing[..., None]
        return chain.now, np.where(nothing, -1, rows)


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _flat(column: np.ndarray) -> np.ndarray:
    return column.reshape(len(column), math.prod(column.shape[1:]))


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which records are the same bit for bit."""
    a, b = _flat(one), _flat(other)
    words = next(n for n in (8, 4, 2, 1) if not a.shape[1] * a.itemsize % n)
    return (a.view(f"u{words}") == b.view(f"u{words}")).all(axis=1)
