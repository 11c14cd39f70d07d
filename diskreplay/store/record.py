"""The record: the durable metadata of a store, which are true after a power cut."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.store import files, format, priorities, private
from diskreplay.store.column import Column
from diskreplay.store.open_store import OpenStore
from diskreplay.store.seals import seal_entries


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
        documents, written = {}, {}
        for name, column in store.columns.items():
            found = self._seals_of(column, closing=closing)
            document = format.array_document(column.field, rows, store.num_envs, found)
            written[name] = format.encode(document["attributes"])
            if written[name] != self._seals.get(name) or closing:
                documents[column.files.paths.directory / "zarr.json"] = format.encode(document)
        self._seals = {}  # where this fails, any of them may have been replaced
        files.replace(documents)
        self._seals = {} if closing else written
        attributes = store.attributes(count, first)
        store.place.check()
        write_group(store.path, attributes)
        store.durable_transitions = np.array(attributes["transitions"], np.int64)
        store.durable_count, store.durable_first = count, first

    def _seals_of(self, column: Column[Any], *, closing: bool) -> dict[str, dict[Any, Any]]:
        """The seals of what does not change. If `closing`, of all that is there, which does not
        change while the store is closed; costs reading the open segments of raw columns."""
        segments, mapped = column.segments, dict(column.segments.mapped)
        sealed = {key: segments.seal_of(s) for key, s in mapped.items() if s.seal is not None}
        if not closing:
            return {"seals": seal_entries(sealed)}
        if column.field.packed:  # what a flush wrote is in its place
            flushed = {key[1:] for key in self._flushed if key[0] == column.field.name}
            known = segments.seals
            open_ = {key: known[key] for key in flushed & known.keys() - sealed}
        else:
            open_ = {key: s.sum() for key, s in mapped.items() if key not in sealed}
        return {"seals": seal_entries(sealed), "open": seal_entries(open_)}

    def forget_documents(self) -> None:
        """Have `write` write all of them anew: a plain reader goes by their shapes."""
        self._seals = {}

    @contextlib.contextmanager
    def replacing_priorities(self, names: Collection[str]) -> Iterator[None]:
        """While these are replaced, and then the record, which has the largest one. Readers take
        them over behind it; where it fails they keep those that they have until it is done again.
        """
        page = self._store.page
        flushes = page.flushes if page and priorities.MAIN in names else np.zeros(1, np.uint64)
        flushes |= 1
        yield
        flushes += 1

    def keep_priorities(self, names: Iterable[str], meta: Mapping[str, Any]) -> None:
        """Take over the priorities of a checkpoint, which were shared with it (`priorities.share`),
        so that a kill costs those since then only. What `meta` says of them the next record has.

        Nothing else of `meta` than what belongs to them: a power cut may go back to rows before it.
        """
        store = self._store
        store.place.check()
        for name in names:
            priorities.put_in_place(store.path, name)
        store.meta |= of_priorities(meta)

    def repeat(self) -> None:
        """Say of the same rows as the last time what `meta` says now."""
        store = self._store
        store.place.check()
        write_group(
            store.path,
            store.attributes(store.durable_count, store.durable_first, store.durable_transitions),
        )

    # -- shards in their places

    def write_partial_shards(self, count: np.ndarray) -> tuple[dict[Path, Path], dict[Any, Any]]:
        """Shards of segments not sealed yet, with the place of each, and what `note_flushed` takes
        when they are in them."""
        written, flushed = {}, {}
        for column in self._store.packed_columns:
            for key in column.unfinished(count):
                used, name = column.field.used(*key, count), (column.field.name, *key)
                if not used.any():
                    continue
                flushed[name] = used.tobytes()
                if self._flushed.get(name) != flushed[name]:
                    column.reopen_sealed(key)
                    with column.files.changing:
                        place = column.files.make_way(column.files.paths.chunk(*key))
                    made = column.files.paths.flushed(*key)
                    column.segments.seals[key] = column.partial(key, count).write(made)
                    written[made] = place
        return written, flushed

    def note_flushed(self, flushed: dict[Any, Any]) -> None:
        """What `write_partial_shards` has written is in its places."""
        self._flushed = flushed

    def note_all_flushed(self, count: np.ndarray) -> None:
        """The shards in their places have all these rows."""
        for column in self._store.packed_columns:
            for key in column.unfinished(count):
                self._flushed[column.field.name, *key] = column.field.used(*key, count).tobytes()


def of_priorities(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the group's attributes that belong to the saved priorities."""
    belongs = priorities.LARGEST, priorities.VIEWS
    return {name: meta[name] for name in belongs if name in meta}


def write_group(path: Path, attributes: dict[str, Any]) -> None:
    """Replace the group's ``zarr.json``: built among the private files, since Zarr warns of any
    other name in a group."""
    document = format.encode(format.group_document(attributes))
    files.replace({path / "zarr.json": document}, build=private.directory(path))
