"""The rows of one segment, wherever they are."""

import numpy as np

from diskreplay.check import segment_check
from diskreplay.check.verify import Check
from diskreplay.store import codec
from diskreplay.store.catalog import SegmentEntry
from diskreplay.store.plain_file import Unreadable


class Content:
    """The rows of one segment, as far as they can be relied on.

    Attributes
    ----------
    values : ndarray of uint8, shape (segment_rows, env_group, row_bytes)
        Of rows that are not known, what a raw file has there, or zeros.
    known : ndarray of bool, shape (segment_rows, env_group)
        Retained rows that are whole.
    """

    def __init__(self, check: Check, entry: SegmentEntry, lost: np.ndarray) -> None:
        field = entry.field
        shape = field.segment_rows, field.env_group, field.row_bytes
        self.known = entry.retained & ~lost
        restored = check.restored.get(entry.key)
        self.values = np.zeros(shape, np.uint8) if restored is None else restored
        if restored is None:
            try:
                self.known &= self._read(check, entry)
            except Unreadable:
                self.known[:] = False

    def _read(self, check: Check, entry: SegmentEntry) -> np.ndarray | bool:
        """Fill `values`; which rows were found."""
        field, catalog = entry.field, check.catalog
        if not field.packed:
            path = check.sources.get(entry.key) or catalog.chunk(*entry[:3])
            self.values[:] = segment_check.raw_rows(field, path)
            return True
        in_tail = catalog.in_tail(entry)
        found = self._read_blocks(check, entry, entry.counted & ~in_tail) & ~in_tail
        if (self.known & in_tail).any():
            path, places = catalog.paths(field).tail, field.tail_rows(catalog.num_envs)
            envs = catalog.envs(entry.group)
            segment_check.copy_tail(field, path, in_tail, entry.start, envs, places, self.values)
            found |= in_tail
        return found

    def _read_blocks(self, check: Check, entry: SegmentEntry, wanted: np.ndarray) -> np.ndarray:
        field, shards, source = entry.field, check.catalog.shards(entry), None
        if entry.key in check.sources:
            shards = [source := check.sources[entry.key]]
        found = segment_check.nothing(field)
        for path in reversed(shards):  # what the first one has counts
            index = check.indexes.get(entry.key)
            if index is None:
                is_open = path not in (source, check.catalog.chunk(*entry[:3]))
                try:
                    index = segment_check.check_shard(field, path, wanted, is_open=is_open).index
                except Unreadable:
                    continue
            segment_check.read_blocks(field, path, index, self.values)
            found |= segment_check.rows_of_blocks(field, index[:, 0] != codec.MISSING)
        return found
