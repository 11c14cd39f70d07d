"""The rows of one segment, wherever they are."""

import numpy as np

from diskreplay.check import segment_check
from diskreplay.check.verify import Check
from diskreplay.store.catalog import Entry
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

    def __init__(self, check: Check, entry: Entry, lost: np.ndarray) -> None:
        field = entry.field
        shape = field.segment_rows, field.env_group, field.row_bytes
        self.values = np.zeros(shape, np.uint8)
        self.known = entry.retained & ~lost
        try:
            self._read(check, entry)
        except Unreadable:
            self.known[:] = False

    def _read(self, check: Check, entry: Entry) -> None:
        field, catalog = entry.field, check.catalog
        if not field.packed:
            path = check.sources.get(entry.key) or catalog.chunk(*entry[:3])
            self.values[:] = segment_check.raw_rows(field, path)
            return
        in_tail = catalog.in_tail(entry)
        if (self.known & ~in_tail).any():
            self._read_blocks(check, entry, entry.counted & ~in_tail)
        if (self.known & in_tail).any():
            path, places = catalog.tail(field), field.tail_rows(catalog.num_envs)
            envs = catalog.envs(entry.group)
            segment_check.copy_tail(
                field, path, in_tail, entry.start, envs, places, self.values
            )  # fmt: skip

    def _read_blocks(self, check: Check, entry: Entry, wanted: np.ndarray) -> None:
        field, shards = entry.field, check.catalog.shards(entry)
        if entry.key in check.indexes:
            index = check.indexes[entry.key]
            segment_check.read_blocks(field, shards[-1], index, self.values)
            return
        if entry.key in check.sources:
            shards = [check.sources[entry.key]]
        chunk = check.catalog.chunk(*entry[:3])
        for path in reversed(shards):  # what the first one has counts
            is_open = path not in (chunk, check.sources.get(entry.key))
            try:
                checked = segment_check.check_shard(field, path, wanted, is_open=is_open)
            except Unreadable:
                continue
            segment_check.read_blocks(field, path, checked.index, self.values)
