"""The small columns of a store: rewards, steps and flags, of which rows can be told impossible."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskreplay.check.excused import Excused
from diskreplay.check.row_check import FIELD_OF, SmallColumns, faults
from diskreplay.episode_parts import Parts
from diskreplay.store.catalog import Catalog, Key
from diskreplay.store.field import Field
from diskreplay.store.plain_file import Unreadable, plain_file, read_at

_ROWS_AT_ONCE = 1 << 20  # of all envs of a group


@dataclass
class Walk:
    """What going through a group's rows has found.

    Attributes
    ----------
    wrong : dict of (rule, number) to ndarray of bool, shape (segment_rows, envs)
        Rows that break a rule, by the segment of the field that is to be looked at first.
    finals : ndarray of int64, shape (envs,)
        Final rows among those that are recorded and retained.
    whole : ndarray of bool, shape (envs,)
        Whether all retained rows are known.
    """

    wrong: dict[tuple[str, int], np.ndarray]
    finals: np.ndarray
    whole: np.ndarray


class Bookkeeping:
    """Reads the small columns as far as they can be relied on. See `Check` for the parameters."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        damaged: Mapping[Key, np.ndarray],
        sources: Mapping[Key, Path],
        restored: Mapping[Key, np.ndarray],
    ) -> None:
        self.fields, self.damaged = fields, damaged
        self.sources, self.restored = sources, restored

    def walk(self, catalog: Catalog, group: int, parts: Parts) -> Walk:
        """Go through all rows of a group, in which episodes begin with step 0 but in `parts`."""
        durable_count = catalog.durable_count[catalog.envs(group)]
        walk = Walk({}, np.zeros_like(durable_count), np.ones(len(durable_count), np.bool_))
        excused = Excused(parts, range(len(catalog.count))[catalog.envs(group)])
        for low, high in self.windows(catalog, group) if parts else ():
            begin = max(low - 2, 0)
            rows, known, _counted = self.read(catalog, group, begin, high)
            excused.count(rows, known, begin, low)
        for low, high in self.windows(catalog, group):
            begin = max(low - 2, 0)  # a rule is of three rows at most
            rows, known, counted = self.read(catalog, group, begin, high)
            walk.whole &= (known == counted).all(axis=0)
            durable = known & (np.arange(begin, high)[:, None] < durable_count)
            walk.finals += np.count_nonzero((durable & (rows.is_final != 0))[low - begin :], axis=0)
            late = excused.mask(rows, known, begin)
            for rule, where in faults(rows, known, late).items():
                size = self.fields[FIELD_OF[rule]].segment_rows
                at, env = np.nonzero(where)
                numbers, places = np.divmod(begin + at, size)
                for number in np.unique(numbers).tolist():
                    nothing = np.zeros((size, len(durable_count)), np.bool_)
                    mask = walk.wrong.setdefault((rule, number), nothing)
                    mask[places[numbers == number], env[numbers == number]] = True
        return walk

    def windows(self, catalog: Catalog, group: int) -> Iterator[tuple[int, int]]:
        """Ranges of row numbers, not too long, that together have all retained rows of a group."""
        envs = catalog.envs(group)
        first, count = catalog.first[envs], catalog.count[envs]
        rows = max(_ROWS_AT_ONCE // len(first), 1)
        for low in range(int(first.min()), int(count.max()), rows):
            if ((first < low + rows) & (count > max(low, 1) - 1) & (first < count)).any():
                yield low, min(low + rows, int(count.max()))

    def read(
        self, catalog: Catalog, group: int, start: int, stop: int
    ) -> tuple[SmallColumns, np.ndarray, np.ndarray]:
        """The small columns of some rows of a group, shape (rows, envs), as far as their files can
        be relied on; which these are; and which are retained."""
        envs = catalog.envs(group)
        numbers, size = np.arange(start, stop)[:, None], envs.stop - envs.start
        counted = (numbers >= catalog.first[envs]) & (numbers < catalog.count[envs])
        known, columns = counted.copy(), {}
        for name in SmallColumns._fields:
            field = self.fields[name]
            kind = np.dtype(np.uint8) if field.dtype == np.bool_ else field.dtype
            values = columns[name] = np.zeros((stop - start, size), kind)
            row = start
            while row < stop:
                number, at = divmod(row, field.segment_rows)
                rows = min(stop - row, field.segment_rows - at)
                here = slice(row - start, row - start + rows)
                if counted[here].any():
                    key = name, number, group
                    if key not in self.sources and key in self.damaged:
                        known[here] &= ~self.damaged[key][at : at + rows, :size]
                    found = self._few(catalog, field, key, at, rows)
                    if found is None:
                        known[here] = False
                    else:
                        values[here] = found.view(kind)[:, :size, 0]
                row += rows
        return SmallColumns(**columns), known, counted

    def _few(
        self, catalog: Catalog, field: Field, key: Key, at: int, rows: int
    ) -> np.ndarray | None:
        """Some rows of a small raw segment, uint8 of shape (rows, env_group, row_bytes); zeros
        behind the end of a file that was cut."""
        if key in self.restored:
            return self.restored[key][at : at + rows].copy()
        path = self.sources.get(key) or catalog.chunk(field, *key[1:])
        part = np.zeros((rows, field.env_group, field.row_bytes), np.uint8)
        try:
            with plain_file(path) as (fd, size):
                start = at * field.stride
                read_at(fd, start, part.reshape(-1)[: max(size - start, 0)])
        except Unreadable:
            return None
        return part
