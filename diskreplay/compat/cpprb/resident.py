"""What of the rows is in memory too."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diskreplay.compat.cpprb.columns import PRIORITIES, Arrays
from diskreplay.compat.cpprb.layout import Layout
from diskreplay.compat.slot_buffer import SlotBuffer

Weigh = Callable[[int, int, np.ndarray | None], None]


class Resident:
    """The rows of a ring in slots by the original's numbers. The small columns, and the links of
    large ones, are read from memory."""

    def __init__(self, layout: Layout, ring: SlotBuffer, size: int) -> None:
        self._layout, self._ring, self._size = layout, ring, size
        self._small = {
            column.name: np.zeros((size, *column.shape), column.dtype) for column in layout.small
        }
        self._links = {field: np.zeros(ring.capacity, np.int32) for field in layout.links}
        self._link_views = {field: values.data for field, values in self._links.items()}
        retained = ring.retained
        for field, values in self._links.items():
            values[retained % ring.capacity] = ring.column(field)
        slots = np.arange(min(ring.count, size))
        for name, values in layout.decode_small(ring.take, self.rows(slots)).items():
            self._small[name][slots] = values

    def rows(self, slots: np.ndarray) -> np.ndarray:
        """The number of the row in each slot, -1 for none."""
        last = self._ring.count - 1
        return np.maximum(last - (last - slots) % self._size, -1)

    def read(self, slots: np.ndarray) -> Arrays:
        """All columns of the rows in these slots; zeros where there is none."""
        self._ring.check_open()
        # Slots that no row is in are zeros in memory too.
        small = {name: column.take(slots, axis=0) for name, column in self._small.items()}
        if self._layout.is_small:
            return small
        return self._layout.decode(self._take, self.rows(slots), small)

    def _take(
        self, field: str | list[str], ids: np.ndarray, *, out: np.ndarray | None = None
    ) -> Any:
        """As `SlotBuffer.take`; what is in memory anyway is taken from there."""
        if isinstance(field, str) and field in self._links:
            return self._links[field][ids % self._ring.capacity]
        return self._ring.take(field, ids, out=out)

    def took(
        self,
        first: int,
        count: int,
        rows: Arrays,
        stored: Arrays,
        states: list[Any],
        weigh: Weigh | None,
    ) -> None:
        """The ring has the first `count` of these, numbered from `first` on. Interrupted, it may
        run again. `weigh` is told of them: the first number, how many, and their priorities."""
        for columns, capacity, given in (
            (self._small, self._size, rows), (self._links, self._ring.capacity, stored),
        ):  # fmt: skip
            newest = slice(max(count - capacity, 0), count)
            slots = np.arange(first, first + count)[newest] % capacity
            for name, column in columns.items():
                column[slots] = given[name][newest]
        if states:
            self._layout.keep(states)
        if weigh is not None:
            weigh(first, count, rows.get(PRIORITIES))

    def took_row(
        self,
        number: int,
        row: Arrays,
        stored: Mapping[str, Any],
        states: list[Any],
        priority: np.ndarray | None,
        weigh: Weigh | None,
    ) -> None:
        """As `took`, for one row without a leading axis."""
        for field, links in self._link_views.items():
            links[number % len(links)] = stored[field]
        slot = number % self._size
        for name, column in self._small.items():
            column[slot] = row[name]
        if states:
            self._layout.keep(states)
        if weigh is not None:
            weigh(number, 1, priority)
