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
from diskreplay.frame_chains import Chain, Columns, FrameChains
from diskreplay.naming import extra_name
from diskreplay.spaces import box

SLOT, BACK = "slot", "back"
NO_SLOT = -1  # of rows that hold only frames
_NOTHING = "observation/nothing"


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
        self._chains = FrameChains(self._made_chains())
        pairs = [(chain.now, chain.following) for chain in self._chains.chains if chain.following]
        self._pairs = {name: pair for pair in pairs for name in pair}
        self.has_back, self.reach = self._chains.has_back, self._chains.reach
        self.most_rows = 1 + self.reach
        shared = {chain.following for chain in self._chains.chains}
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
                chains.append(Chain(name, following, leaf.stack, leaf.frame_shape))
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
        boxes: dict[str, spaces.Space[Any]] = {}
        extras: dict[str, tuple[Any, ...]] = {SLOT: ((), np.dtype(np.int64))}
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
        """The columns for `ReplayBuffer.extend`, made of one of shape (records, *shape) for each
        leaf. `tip` is the record whose row is the newest one, if it is one."""
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
        placed = self._chains.place(columns, tip)
        made = {SLOT: np.full(placed.rows, NO_SLOT), **placed.frames}
        made[SLOT][placed.at] = slots
        if self.has_back:
            made[BACK] = np.zeros(placed.rows, np.uint8)
            made[BACK][placed.at] = placed.back
        for name, (shape, dtype) in self.fields.items():
            if name not in made:
                made[name] = np.zeros((placed.rows, *shape), dtype)
                made[name][placed.at] = columns[name]
        return made

    def tip(self, columns: Columns) -> dict[str, np.ndarray] | None:
        """What of the newest record shows whether the next one goes on from it; a copy."""
        if not self._chains:
            return None
        newest = {name: column[-1:] for name, column in columns.items()}
        return {name: column.copy() for name, column in self._chains.tip(newest).items()}

    # -- from rows to records

    def pair(self, name: str) -> tuple[str, str] | None:
        """Of a leaf that shares frames with another: that of what was seen, and of what it
        led to."""
        return self._pairs.get(name)

    def both(self, name: str, rows: np.ndarray, back: np.ndarray | None) -> np.ndarray | None:
        """Rows of frames of which both leaves of a `pair` consist, as `take_both` reads them: of
        shape (n, width), or None where records do not slide. `name` is the first leaf's; `rows` and
        `back` are as for `window`, of one axis."""
        stack, nothing = self.leaves[name].stack, rows < 0
        if back is not None and not ((back == 1) | nothing).all():
            return None
        if stack > 1:
            windows = rows[:, None] + np.arange(-stack, 1)
        else:
            # Records that follow each other have their frames in common, too: in pieces of one
            # length, since windows are.
            begins = np.flatnonzero(rows[1:] != rows[:-1] + 1) + 1
            length = int(np.gcd.reduce(begins, initial=len(rows)))
            windows = rows[::length, None] + np.arange(-1, length)
            nothing = nothing[::length]
        windows[nothing] = -1
        return windows

    def window(
        self, name: str, rows: np.ndarray, back: np.ndarray | None
    ) -> tuple[str, np.ndarray]:
        """The field that has a leaf, and the rows of its frames in records with these rows, -1 for
        none; `back` is as for `FrameChains.window`."""
        return self._chains.window(name, rows, back) or (name, rows)
