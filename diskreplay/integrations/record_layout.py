"""How records become rows: a field for each leaf, and one for frames that several records share.

A record whose leaf ``("next", k)`` is the next record's `k`, or whose leaf stacks the newest
frames, is one row with one new frame: what it had before lies in the rows behind. Where a record
does not go on from the row before, rows that hold only frames come first. So each frame is there
once, and a record is whole when its row is there.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from diskreplay.errors import InvalidInputError
from diskreplay.naming import extra_name
from diskreplay.spaces import box

SLOT, BACK = "slot", "back"
NO_SLOT = -1  # of rows that hold only frames
_NOTHING = "observation/nothing"
Columns = Mapping[str, np.ndarray]


class Leaf(NamedTuple):
    """One leaf of a record.

    Attributes
    ----------
    key : tuple of str
        Where it is in a record.
    shape : tuple of int
        In the store.
    dtype : str
        As the framework calls it.
    stored : numpy.dtype
        Of the store: bytes, along one more axis, where NumPy has nothing like it.
    on_disk : bool
        Whether it is read from there, or is in memory, too.
    stack : int
        Frames along its first axis, of which each record has a new one.
    """

    key: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stored: np.dtype
    on_disk: bool
    stack: int = 1

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one of its frames."""
        return self.shape if self.stack == 1 else (self.shape[0] // self.stack, *self.shape[1:])


class Chain(NamedTuple):
    """A field of frames: those of the leaf `now`, and of what it led to, if that is a leaf."""

    field: str
    stack: int
    now: str
    following: str | None


class RecordLayout:
    """How records with these leaves become rows.

    Parameters
    ----------
    leaves : sequence of Leaf
    next_of : bool
        Whether ``("next", k)`` and `k` have their frames in common.

    Attributes
    ----------
    leaves : dict of str to Leaf
        By name.
    fields : dict of str to (shape, dtype)
        Of one row.
    most_rows : int
        That a record may need.
    reach : int
        So many rows before its own one a record may have frames in.
    """

    def __init__(self, leaves: Collection[Leaf], next_of: bool = False) -> None:
        taken = {SLOT, BACK, "nothing"}
        self.leaves: dict[str, Leaf] = {}
        for leaf in leaves:
            name = extra_name("_".join(leaf.key) or "value", taken)
            self.leaves[f"observation/{name}" if leaf.on_disk else name] = leaf
        self._next_of = next_of
        self._chains = self._made_chains()
        longest = max((chain.stack for chain in self._chains), default=1)
        self._has_next = any(chain.following for chain in self._chains)
        self.has_back = longest > 1 and self._has_next
        # Of a record that goes on from nothing, and of one whose two stacks have nothing in common.
        self._lead = longest - 1 + self._has_next
        self._apart = longest
        self.reach = 2 * longest - 1 if self.has_back else self._lead
        self.most_rows = 1 + self.reach
        shared = {chain.following for chain in self._chains}
        self.fields = {
            name: (leaf.frame_shape, leaf.stored)
            for name, leaf in self.leaves.items() if name not in shared
        }  # fmt: skip
        if not any(leaf.on_disk for leaf in self.leaves.values()):
            self.fields[_NOTHING] = (1,), np.dtype(np.int8)

    def _made_chains(self) -> list[Chain]:
        named = {leaf.key: name for name, leaf in self.leaves.items() if leaf.on_disk}
        chains = []
        for key, name in named.items():
            if key[:1] == ("next",) and self._next_of and key[1:] in named:
                continue
            leaf, following = self.leaves[name], named.get(("next", *key))
            if not self._next_of:
                following = None
            if following is not None and self.leaves[following]._replace(key=key) != leaf:
                raise InvalidInputError(
                    f"next_of: {('next', *key)} is {self.leaves[following]}, and {key} is {leaf}; "
                    "they have to be alike, leave next_of out"
                )
            if leaf.stack > 1 and leaf.shape[0] % leaf.stack:
                raise InvalidInputError(
                    f"stack: {key} of shape {leaf.shape} cannot be {leaf.stack} frames"
                )
            if leaf.stack > 1 or following is not None:
                chains.append(Chain(name, leaf.stack, name, following))
        return chains

    def described(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "next_of": self._next_of,
            "leaves": [
                [list(leaf.key), list(leaf.shape), leaf.dtype, leaf.stored.str, leaf.on_disk,
                 leaf.stack]
                for leaf in self.leaves.values()
            ],
        }  # fmt: skip

    @classmethod
    def parse(cls, described: Mapping[str, Any]) -> "RecordLayout":
        """The opposite of `described`."""
        leaves = [
            Leaf(tuple(key), tuple(shape), dtype, np.dtype(stored), on_disk, stack)
            for key, shape, dtype, stored, on_disk, stack in described["leaves"]
        ]
        return cls(leaves, described["next_of"])

    def options(self) -> dict[str, Any]:
        """What `ReplayBuffer` is given."""
        boxes: dict[str, spaces.Space] = {}
        extras: dict[str, tuple] = {SLOT: ((), np.dtype(np.int64))}
        if self.has_back:
            extras[BACK] = (), np.dtype(np.uint8)
        for name, (shape, dtype) in self.fields.items():
            _, is_observation, key = name.partition("observation/")
            if is_observation:
                boxes[key] = box(shape, dtype)
            else:
                extras[name] = shape, dtype
        return {
            "observation_space": spaces.Dict(boxes), "action_space": spaces.MultiBinary(1),
            "extras": extras,
        }  # fmt: skip

    # -- from records to rows

    def rows(
        self, slots: np.ndarray, columns: Columns, tip: Columns | None
    ) -> dict[str, np.ndarray]:
        """The columns for `ReplayBuffer.extend`.

        Parameters
        ----------
        slots : ndarray of int64, shape (records,)
        columns : dict of str to ndarray, shape (records, *shape)
            One for each leaf.
        tip : dict of str to ndarray, shape (1, *shape), optional
            The record whose row is the newest one, if it is one.
        """
        made = self._chained(slots, columns, tip) if self._chains else {**columns, SLOT: slots}
        rows = len(made[SLOT])
        if _NOTHING in self.fields:
            made[_NOTHING] = np.zeros((rows, 1), np.int8)
        no = np.zeros(rows, np.bool_)
        return {
            **made, "action": np.zeros((rows, 1), np.int8), "reward": np.zeros(rows, np.float32),
            "terminated": no, "truncated": no, "step": np.zeros(rows, np.int32), "is_final": no,
        }  # fmt: skip

    def _chained(
        self, slots: np.ndarray, columns: Columns, tip: Columns | None
    ) -> dict[str, np.ndarray]:
        slides = self._sliding(columns)
        goes_on = slides & self._continuing(columns, tip)
        goes_on[:1] &= tip is not None
        leads = np.where(goes_on, 0, np.where(slides, self._lead, self.reach))
        at = np.cumsum(leads + 1) - 1  # where the records' own rows are
        rows = int(at[-1]) + 1
        back = np.where(slides, 1, self._apart) if self._has_next else np.zeros_like(at)
        made = {SLOT: np.full(rows, NO_SLOT)}
        made[SLOT][at] = slots
        if self.has_back:
            made[BACK] = np.zeros(rows, np.uint8)
            made[BACK][at] = back
        chains = {chain.field: chain for chain in self._chains}
        for name, (shape, dtype) in self.fields.items():
            made[name] = np.zeros((rows, *shape), dtype)
            if name in chains:
                self._place(made[name], chains[name], columns, at, back, ~goes_on)
            else:
                made[name][at] = columns[name]
        return made

    def tip(self, columns: Columns) -> dict[str, np.ndarray] | None:
        """What of the newest record shows whether the next one goes on from it; a copy."""
        if not self._chains:
            return None
        return {
            name: columns[name][-1:].copy()
            for chain in self._chains for name in (chain.now, chain.following) if name
        }  # fmt: skip

    def _frames(self, chain: Chain, column: np.ndarray) -> np.ndarray:
        return column.reshape(len(column), chain.stack, *self.leaves[chain.now].frame_shape)

    def _sliding(self, columns: Columns) -> np.ndarray:
        """The records of which what they led to is their own stacks and one new frame each."""
        slides = np.ones(len(next(iter(columns.values()))), np.bool_)
        for chain in self._chains:
            if chain.following and chain.stack > 1:
                now = self._frames(chain, columns[chain.now])
                slides &= _same(now[:, 1:], self._frames(chain, columns[chain.following])[:, :-1])
        return slides

    def _continuing(self, columns: Columns, tip: Columns | None) -> np.ndarray:
        """The records whose stacks are those that the one before led to."""
        continuing = np.ones(len(next(iter(columns.values()))), np.bool_)
        for chain in self._chains:
            skip = 0 if chain.following else 1
            now = self._frames(chain, columns[chain.now])[:, : chain.stack - skip]
            led = self._frames(chain, columns[chain.following or chain.now])[:, skip:]
            continuing[1:] &= _same(now[1:], led[:-1])
            if tip is not None:
                before = self._frames(chain, tip[chain.following or chain.now])[:, skip:]
                continuing[:1] &= _same(now[:1], before)
        return continuing

    def _place(
        self, field: np.ndarray, chain: Chain, columns: Columns, at: np.ndarray, back: np.ndarray,
        begins: np.ndarray,
    ) -> None:  # fmt: skip
        """Put the frames of a chain into its field."""
        now = self._frames(chain, columns[chain.now])
        for older in range(chain.stack):
            field[at[begins] - back[begins] * bool(chain.following) - older] = now[
                begins, -1 - older
            ]
        newest = now
        if chain.following:
            newest = self._frames(chain, columns[chain.following])
            apart = back > 1
            for older in range(1, chain.stack):
                field[at[apart] - older] = newest[apart, -1 - older]
        field[at] = newest[:, -1]

    # -- from rows to records

    def window(
        self, name: str, rows: np.ndarray, back: np.ndarray | None
    ) -> tuple[str, np.ndarray]:
        """The field that has a leaf, and the rows of its frames.

        Parameters
        ----------
        name : str
        rows : ndarray of int64, any shape
            Those of records; -1 for none.
        back : ndarray of uint8, of the same shape
            How far behind these the frames of `Chain.now` end; None: one row.
        """
        for chain in self._chains:
            if name not in (chain.now, chain.following):
                continue
            nothing = rows < 0
            if name == chain.now and chain.following:
                rows = rows - (1 if back is None else back)
            if chain.stack > 1:
                rows = rows[..., None] + np.arange(1 - chain.stack, 1)
                nothing = nothing[..., None]
            return chain.field, np.where(nothing, -1, rows)
        return name, rows


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which records are the same bit for bit."""
    if not len(one):
        return np.ones(0, np.bool_)
    a, b = (
        np.ascontiguousarray(part).reshape(len(part), -1).view(np.uint8) for part in (one, other)
    )
    return (a == b).all(axis=1)
