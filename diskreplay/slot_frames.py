"""What memory knows of the frames that rows in slots share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.frame_chains import FrameChains, Placed
from diskreplay.slot_fields import BACK, SLOT, SlotFields

FRAMES_ONLY = -2  # in the field `SLOT`: a row that holds only frames, of the next row of a slot
Values = Mapping[str, np.ndarray]


class SlotFrames:
    """Where the frames of each slot are, and what the newest row of each lane led to.

    Attributes
    ----------
    chains : FrameChains
    names : list of str
        The fields that share frames.
    leads : ndarray of int64, shape (lanes,)
        The rows of each lane that hold only frames, of slots that show what they are for.
    """

    def __init__(self, fields: SlotFields) -> None:
        self.chains: FrameChains = fields.chains
        chains, lanes = self.chains.chains, len(fields.sizes)
        self.names = [name for chain in chains for name in (chain.now, chain.following) if name]
        self.leads = np.zeros(lanes, np.int64)
        self._offsets, self._sizes = fields.offsets, fields.sizes
        self._leads_of = np.zeros(fields.total, np.uint8)
        self._back = np.zeros(fields.total, np.uint8) if self.chains.has_back else None
        specs = {chain.newest: fields.specs[chain.newest] for chain in chains}
        self._tips = {name: np.empty((lanes, *s), dtype) for name, (s, dtype) in specs.items()}
        self._tip_rows = np.full(lanes, -1)  # which rows these are of; -1 for none
        self._lanes = np.arange(lanes)
        names = fields.schema.names
        self._slot_at, self._reward_at = names.index(SLOT), names.index("reward")
        self._back_at = names.index(BACK) if self.chains.has_back else None
        self._at = {chain.now: names.index(fields.stored[chain.now]) for chain in chains}

    def take_in(
        self, lane: int, slots: np.ndarray, back: np.ndarray | None, aside: np.ndarray
    ) -> np.ndarray:
        """Know of rows of a lane that are in the store; returns which of them are a slot's.

        Parameters
        ----------
        lane : int
        slots, back : ndarray, shape (rows,)
            As the rows have them. Without rows that emptied the lane.
        aside : ndarray of bool, shape (rows,)
            The rows of slots that a repair set aside: these slots show nothing, and need nothing.
        """
        own = np.flatnonzero(slots >= 0)
        leads = np.where(aside[own], 0, np.diff(own, prepend=-1) - 1)
        # More of them are left where a disk was full between these and their row. Where their row
        # is taken in later they do not count, which lets some rows go a little earlier.
        self._note(lane, slots[own], np.minimum(leads, self.chains.reach), back, own)
        return own

    def forget(self, lane: int, slots: slice) -> None:
        """A lane was emptied."""
        self.leads[lane] = self._leads_of[slots] = 0

    def recount(self) -> None:
        """Count the leads of each lane anew: what changes them may have stopped short."""
        counts = np.concatenate([[0], np.cumsum(self._leads_of, dtype=np.int64)])
        self.leads[:] = counts[self._offsets + self._sizes] - counts[self._offsets]

    def _note(
        self, lane: int, slots: np.ndarray, leads: np.ndarray, back: np.ndarray | None,
        own: np.ndarray,
    ) -> None:  # fmt: skip
        named = np.unique(slots)
        self.leads[lane] -= self._leads_of[named].sum(dtype=np.int64)
        self._leads_of[slots] = leads
        self.leads[lane] += self._leads_of[named].sum(dtype=np.int64)
        if self._back is not None and back is not None:
            self._back[slots] = back[own]

    # -- reading

    def ids(self, name: str, slots: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The ids of the rows that have the frames of a field in slots.

        Parameters
        ----------
        name : str
        slots : ndarray of int64, shape (n,)
        ids : ndarray of int64, shape (n,)
            Those of the slots' own rows; negative for none. Returned if the field shares nothing.
        """
        lanes = len(self._lanes)
        rows = np.where(ids < 0, -1, ids // lanes)
        found = self.chains.window(name, rows, None if self._back is None else self._back[slots])
        if found is None:
            return ids
        rows, lane = found[1], (ids % lanes).reshape(-1, *(1,) * (found[1].ndim - 1))
        return np.where(rows < 0, -1, rows * lanes + lane).reshape(-1)

    # -- adding

    def goes_on(self, lanes: np.ndarray, values: Values, count: np.ndarray) -> np.ndarray:
        """Of a row for each of some lanes, whether it shares all its older frames with what is
        there: it needs no leads.

        Parameters
        ----------
        lanes : ndarray of int64, shape (n,)
        values : mapping of str to ndarray, each of shape (n, *shape)
        count : ndarray of int64, shape (all lanes,)
            How many rows each has.
        """
        known = (self._tip_rows == count - 1)[lanes] & (count[lanes] > 0)
        if not known.any():
            return known
        tips = self._tips
        if not np.array_equal(lanes, self._lanes):
            tips = {name: tip[lanes] for name, tip in tips.items()}
        return known & self.chains.sliding(values) & self.chains.continuing(values, tips)

    def went_on(
        self, lanes: np.ndarray, slots: np.ndarray, values: Values, rows: np.ndarray
    ) -> None:
        """Rows of slots, of as many lanes, were added that go on so."""
        self.leads[lanes] -= self._leads_of[slots]
        self._leads_of[slots] = 0
        if self._back is not None:
            self._back[slots] = self.chains.least_back
        for name, tip in self._tips.items():
            tip[lanes] = values[name]
        self._tip_rows[lanes] = rows

    def set_newest(self, columns: list[np.ndarray], values: Values) -> None:
        """In the columns of rows that go on so, have the frames that they add."""
        self._set(columns, self.chains.newest(values), self.chains.least_back)

    def _set(self, columns: list[np.ndarray], frames: Values, back: Any) -> None:
        for now, column in frames.items():
            columns[self._at[now]] = column
        if self._back_at is not None:
            columns[self._back_at][:] = back

    def place(
        self, lane: int, columns: list[np.ndarray], values: Values, count: int
    ) -> tuple[list[np.ndarray], Placed]:
        """Rows for slots of one lane, one behind the other, with their leads.

        Parameters
        ----------
        lane : int
        columns : list of ndarray, each of shape (n, *shape)
            An array for each of the store's fields. Those of frames are replaced.
        values : mapping of str to ndarray, each of shape (n, *shape)
        count : int
            How many rows the lane has.

        Returns
        -------
        list of ndarray
            The columns of all rows.
        Placed
        """
        tip = None
        if count and self._tip_rows[lane] == count - 1:
            tip = {name: tip[lane : lane + 1] for name, tip in self._tips.items()}
        placed = self.chains.place(values, tip)
        self._set(columns, placed.frames, placed.back)
        if placed.rows > len(placed.at):
            columns = self._between(columns, placed)
        return columns, placed

    def _between(self, columns: list[np.ndarray], placed: Placed) -> list[np.ndarray]:
        """Columns of rows with those of their leads. As others read them, leads are episodes
        without a transition, and another one begins behind them."""
        made = []
        for at, column in enumerate(columns):
            if at not in self._at.values():
                spread = np.zeros((placed.rows, *column.shape[1:]), column.dtype)
                spread[placed.at] = column
                column = spread
            made.append(column)
        rows, is_lead = np.arange(placed.rows), np.ones(placed.rows, np.bool_)
        is_lead[placed.at] = False
        made[self._slot_at][is_lead] = FRAMES_ONLY
        made[self._reward_at + 4][is_lead] = True  # is_final
        since = rows - 1 - np.maximum.accumulate(np.where(is_lead, rows, -(1 << 40)))
        step = made[self._reward_at + 3]
        step[:] = np.minimum(step, np.maximum(since, 0))
        return made

    def placed(
        self, lane: int, slots: np.ndarray, values: Values, placed: Placed, first: int
    ) -> None:
        """These rows were added, from this row on."""
        leads = np.diff(placed.at, prepend=-1) - 1
        self._note(lane, slots, leads, placed.back, np.arange(len(slots)))
        for name, tip in self._tips.items():
            tip[lane] = values[name][-1]
        self._tip_rows[lane] = first + placed.at[-1]
