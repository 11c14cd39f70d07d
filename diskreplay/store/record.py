"""The record: the durable metadata of a store, which are true after a power cut."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.store import files, format, priorities, private
from diskreplay.store.open_store import OpenStore
from diskreplay.store.packed_column import PackedColumn


class Record:
    """Writes the metadata documents of a store, and, for plain Zarr readers, the shards of segments
    that are not full yet."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._seals: dict[str, bytes] = {}  # in the documents of fields
        self._flushed: dict[tuple[str, int, int], bytes] = {}

    def write(self, count: np.ndarray, first: np.ndarray, *, closing: bool = False) -> None:
        """Name `count` rows as durable. Their data and names are synced already."""
        store = self._store
        store.place.check()
        rows = int(count.max(initial=0))
        documents = {}
        for name, column in store.columns.items():
            document = column.document(rows, closing=closing)
            seals = format.encode(document["attributes"])
            if seals != self._seals.get(name) or closing:
                documents[column.directory / "zarr.json"] = format.encode(document)
                self._seals[name] = seals
        self._seals = {} if closing else self._seals
        files.replace(documents)
        attributes = store.attributes(count, first)
        store.place.check()
        write_group(store.path, attributes)
        store.durable_transitions = np.array(attributes["transitions"], np.int64)
        store.durable_count, store.durable_first = count, first

    def forget_documents(self) -> None:
        """Have `write` write all of them anew: a plain reader goes by their shapes."""
        self._seals = {}

    def keep_priorities(self, names: Iterable[str], meta: Mapping[str, Any]) -> None:
        """Take over the priorities of a checkpoint, which were shared with it (`priorities.share`),
        so that a kill costs those since then only. What `meta` says of them the next record has.

        Nothing else of `meta` than what belongs to them: a power cut may go back to rows before it.
        """
        store = self._store
        store.place.check()
        for name in names:
            priorities.put_in_place(store.path, name)
        belongs = priorities.LARGEST, priorities.VIEWS
        store.meta |= {name: meta[name] for name in belongs if name in meta}

    def repeat(self) -> None:
        """Say of the same rows as the last time what `meta` says now."""
        store = self._store
        store.place.check()
        write_group(
            store.path,
            store.attributes(store.durable_count, store.durable_first, store.durable_transitions),
        )

    # -- shards in their places

    def write_partial_shards(self, count: np.ndarray) -> tuple[list[Path], dict]:
        """Shards of segments not sealed yet, beside their places, and what `note_flushed` takes
        when they are in them."""
        written, flushed = [], {}
        for column in self._store.packed_columns:
            for key in column.unfinished(count):
                used, name = _used(column, key, count), (column.field.name, *key)
                if not used.any():
                    continue
                flushed[name] = used.tobytes()
                if self._flushed.get(name) != flushed[name]:
                    column.reopen_sealed(key)
                    with column.changing:
                        path = column.new_path(column.path(*key))
                    beside = path.with_name(path.name + ".tmp")
                    column.copies[key] = column.partial(key, count).write(beside)
                    written.append(beside)
        return written, flushed

    def note_flushed(self, flushed: dict) -> None:
        """What `write_partial_shards` has written is in its places."""
        self._flushed = flushed

    def note_all_flushed(self, count: np.ndarray) -> None:
        """The shards in their places have all these rows."""
        for column in self._store.packed_columns:
            for key in column.unfinished(count):
                self._flushed[column.field.name, *key] = _used(column, key, count).tobytes()


def write_group(path: Path, attributes: dict[str, Any]) -> None:
    """Replace the group's ``zarr.json``: built among the private files, since Zarr warns of any
    other name in a group."""
    document = format.encode(format.group_document(attributes))
    files.replace({path / "zarr.json": document}, build=private.directory(path))


def _used(column: PackedColumn, key: tuple[int, int], count: np.ndarray) -> np.ndarray:
    """Rows of each env of a group in a segment."""
    field, (number, group) = column.field, key
    envs = slice(group * field.env_group, (group + 1) * field.env_group)
    return np.clip(count[envs] - number * field.segment_rows, 0, field.segment_rows)
