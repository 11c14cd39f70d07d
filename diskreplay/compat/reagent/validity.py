"""Which slots of a ring can be sampled, by ReAgent's rules."""

import numpy as np

from diskreplay.sampling.sum_tree import SumTree
from diskreplay.sampling.sum_tree_kernels import tree_find


class Validity:
    """Valid are rows that are no padding, whose stack is stored, and whose n-step window is whole:
    an episode ends in it, or the row after it is there.

    Parameters
    ----------
    capacity, stack_size, horizon : int
    count : int
        Rows ever added.
    terminal : ndarray of uint8, shape (stored,)
        Of the stored rows, oldest first.
    is_padding : ndarray of bool, shape (stored,)

    Attributes
    ----------
    valid : ndarray of bool, shape (capacity,)
    terminal : ndarray of uint8, shape (capacity,)
        By slot.
    size : int
        Valid slots.
    padding_due : int
        Rows of padding that come before the next row.

    Notes
    -----
    Each row costs O(stack_size), and the last of an episode O(horizon). A `SumTree` of ones counts
    the valid slots for `at`; it is brought up to date when it is asked.
    """

    def __init__(
        self,
        capacity: int,
        stack_size: int,
        horizon: int,
        count: int,
        terminal: np.ndarray,
        is_padding: np.ndarray,
    ) -> None:
        self._capacity, self._stack, self._horizon = capacity, stack_size, horizon
        stored = len(terminal)
        slots = np.arange(count - stored, count) % capacity
        place = np.arange(stored)
        terminal = np.where(is_padding, 0, terminal)  # a row that was set aside may have ended it
        ends, padding = np.flatnonzero(terminal), np.flatnonzero(is_padding)
        next_end = np.append(ends, stored + horizon)[np.searchsorted(ends, place)]
        # Before an episode's end there is padding only where a repair has set rows aside.
        next_padding = np.append(padding, stored)[np.searchsorted(padding, place)]
        whole = (next_end - place < horizon) & (next_end < next_padding)
        whole |= place + horizon < next_padding
        valid = ~is_padding & whole & (place >= stack_size - 1)
        self.valid, self.terminal = np.zeros(capacity, np.bool_), np.zeros(capacity, np.uint8)
        self.valid[slots], self.terminal[slots] = valid, terminal
        self._flags = self.valid.view(np.uint8).data  # one place costs a fifth of NumPy's
        self.size = int(valid.sum())
        # The episode under way: its rows, and the padding that it has or still gets.
        since = is_padding[ends[-1] + 1 :] if len(ends) else is_padding
        self._rows = int(len(since) - 1 - np.flatnonzero(since).max(initial=-1))
        is_begun = since.all() and len(since) < stack_size
        self.padding_due = 0 if self._rows else stack_size - 1 - len(since) * is_begun
        self._ranks = SumTree(capacity)
        self._changed = slots[valid].tolist()

    def set(self, slot: int, valid: bool) -> None:
        """Make a slot valid or not."""
        if self._flags[slot] != valid:
            self._flags[slot] = valid
            self.size += 1 if valid else -1
            self._changed.append(slot)

    def pad(self, slot: int) -> None:
        """A row of padding was written."""
        self.terminal[slot] = 0
        self.padding_due -= 1

    def add(self, slot: int, terminal: int) -> None:
        """A row was written."""
        capacity, horizon = self._capacity, self._horizon
        self.terminal[slot] = terminal
        self.set(slot, False)
        if self._rows >= horizon:
            self.set((slot - horizon) % capacity, True)
        self._rows += 1
        for ahead in range(1, self._stack):
            self.set((slot + ahead) % capacity, False)
        if terminal:
            for back in range(min(self._rows, horizon)):
                self.set((slot - back) % capacity, True)
            self._rows, self.padding_due = 0, self._stack - 1

    def at(self, ranks: np.ndarray) -> np.ndarray:
        """The valid slots at these places, from 0 to `size`, in ascending order; int64."""
        changed = self._changed
        if len(changed) > self._capacity // 8:
            self._ranks.leaves[:] = self.valid
            self._ranks.rebuild()
        elif changed:
            slots = np.array(changed)
            self._ranks.set(slots, self.valid[slots].astype(np.float64))
        changed.clear()
        slots = np.empty(len(ranks), np.int64)
        tree_find(self._ranks.nodes, self._ranks.starts, ranks.astype(np.float64), slots)
        return slots
