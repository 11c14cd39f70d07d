"""Loading: a store with a checkpoint's rows takes the place of a live one; all or nothing.

The new store is built beside the live one, and opened there, so that whatever can be wrong is found
while nothing has changed yet. Then the two directories are exchanged in one step, and only paths in
memory change after that.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import (
    CorruptCheckpointError,
    FormatError,
    IncompleteCheckpointError,
    StorageError,
)
from diskreplay.signals import undisturbed
from diskreplay.store import (
    file_locks,
    files,
    format,
    manifest,
    plain_file,
    priorities,
    private,
    tempfiles,
    zeros,
)
from diskreplay.store.catalog import segments_of
from diskreplay.store.column import Column
from diskreplay.store.commit_page import CommitPage
from diskreplay.store.field import Field
from diskreplay.store.linked_files import LinkedFiles
from diskreplay.store.manifest import Manifest
from diskreplay.store.mapping import Mapping as Memory
from diskreplay.store.plain_file import Unreadable
from diskreplay.store.seals import parse_seals, seal_entries
from diskreplay.store.store import Store


def open_checked(path: Path) -> tuple[Store, Manifest]:
    """A checkpoint, opened for reading, whose files are all there and have the bytes that its
    manifest says; and that manifest. The caller closes the store.

    Every file is read but the shards of packed fields: of those the index is checked, and each
    block whenever it is read. A gigabyte of raw fields takes half a second from memory.

    Raises
    ------
    IncompleteCheckpointError
        A file is missing (it is a ``FileNotFoundError`` too).
    CorruptCheckpointError, CorruptSegmentError, FormatError
        A file is damaged.
    """
    contents = manifest.read_whole(path)
    check_bytes(path, "zarr.json", contents)  # what it says is acted on from here on
    saved = Store(path, mode="r")
    try:
        needed, shards = _needed(saved)
        lacking = sorted(needed - contents.files.keys())
        if lacking:
            raise CorruptCheckpointError(
                f"{path / manifest.NAME}: damaged: {lacking[0]} is not in its list"
            )
        for key in contents.files:
            if key not in shards:
                check_bytes(path, key, contents)
        for column in saved.columns.values():
            _check_document(column, saved.count, contents)
    except BaseException:
        saved.close()
        raise
    return saved, contents


def _needed(saved: Store) -> tuple[set[str], set[str]]:
    """The keys of all files that a load reads, and of the shards among them."""
    needed, shards = {"zarr.json"}, set()
    for column in saved.columns.values():
        field = column.field
        needed.add(f"{field.name}/zarr.json")
        chunks = {f"{field.name}/{field.chunk_key(*key)}" for key in column.segments.mapped}
        needed |= chunks
        if field.packed:
            shards |= chunks
    needed.update(_priorities(saved.path))
    if not files.is_dir(saved.path / "priority") and saved.meta.get("kind") == "prioritized":
        raise IncompleteCheckpointError(
            f"{saved.path / 'priority'}: missing; nothing was loaded: restore it, or load another "
            "checkpoint"
        )
    return needed, shards


def _priorities(path: Path) -> Iterator[str]:
    """The keys of the files of all sets of priorities."""
    for name in priorities.sets(path):
        yield f"{name}/zarr.json"
        for number in format.priority_chunks(path / name):
            yield f"{name}/{format.priority_key(number)}"


def check_bytes(path: Path, key: str, contents: Manifest) -> None:
    """Hold a file of a checkpoint against the checksum that its manifest has."""
    try:
        found = plain_file.checksum(path / key)
    except Unreadable as error:
        raise CorruptCheckpointError(
            f"{path / key}: {error}; nothing was loaded: restore it, or load another checkpoint"
        ) from error
    if found != contents.files[key]:
        raise CorruptCheckpointError(
            f"{path / key}: its checksum is not the one that was saved, so it is rotten or was "
            "changed; nothing was loaded: restore it, or load another checkpoint"
        )


def _check_document(column: Column[Any], count: np.ndarray, contents: Manifest) -> None:
    """Refuse metadata of a field that are not those that a save writes of these rows."""
    path, field = column.files.paths.directory / "zarr.json", column.field
    document = format.read_document(path)
    try:
        attributes = document["attributes"]["diskreplay"]
        if document != format.array_document(field, int(count.max()), len(count), attributes):
            raise ValueError("it does not describe the field that the group names")
        column.segments.seals |= parse_seals(field, attributes["seals"], column.num_envs)
        if column.segments.seals.keys() - column.segments.mapped.keys():
            raise ValueError("a segment without rows is said to be sealed")
        for key, seal in column.segments.seals.items():
            if contents.files.get(f"{field.name}/{field.chunk_key(*key)}", seal) != seal:
                raise ValueError(f"the seal of segment {key[0]} is not that of the manifest")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: damaged ({error})") from error


class Replacement:
    """A store with the rows of a checkpoint, open beside the live one that it is to replace.

    With a smaller capacity it has the newest rows.

    Parameters
    ----------
    live : Store
        It is not touched.
    saved : Store
        What `open_checked` gave; or `live` itself, just recorded, to which nobody adds.
    meta : mapping
        Attributes of the new store.
    more : sequence of Field, optional
        Fields that `saved` does not have; their rows are zeros.

    Attributes
    ----------
    store : Store
        It has a lock of its own.
    """

    def __init__(
        self, live: Store, saved: Store, meta: Mapping[str, Any], more: Sequence[Field] = ()
    ) -> None:
        live.finish_clearing()
        live.place.check()
        Store.sweep(live.path)
        self._room = tempfiles.Workspace(live.path, "load")
        lock = None
        try:
            build = self._room.path / live.path.name
            _write(live, build, saved, meta, more)
            saved.place.check()  # else a save has replaced it, and some files are of another one
            lock = private.hold(build)
            self.store = Store(build, mode="a", lock=lock)
        except BaseException:
            if lock is not None:
                file_locks.unlock(lock)
            self._room.remove()
            raise

    def discard(self) -> None:
        """Remove it."""
        self.store.close()
        self._room.remove()

    def put_in_place(self, live: Store) -> StorageError | None:
        """Let the new store take the place of the live one, which is closed then.

        After an exception nothing has changed. The old store's lock is held until its files go: a
        writer that opened that file before sees that it is no longer in its place.

        Returns
        -------
        StorageError or None
            Why it is not known that the exchange outlasts a power cut, if so. The old files stay
            then, for the next opening to remove.
        """
        place, build, doubt = live.path, self.store.path, None
        assert live.page is not None
        with live.maintenance.lock:
            live.place.check()  # else another store is exchanged
            live.page.replaced[0] = 1  # first: a reader that opens the old one again looks again
            try:
                self._room.exchange(build)
                try:
                    files.sync_dirs([place.parent])
                except StorageError as error:
                    try:
                        self._room.exchange(build)
                    except StorageError:  # no way back: the new one stays
                        doubt = error
                    else:
                        raise
            except BaseException:
                live.page.replaced[0] = 0
                raise
            self.store.move(place)
            live.maintenance.stop()
        self.store.clear_away(live, self._room, keep=doubt is not None)
        return doubt


def _write(
    store: Store, build: Path, saved: Store, meta: Mapping[str, Any], more: Sequence[Field]
) -> None:
    """Write and sync a store that was closed in good order."""
    count, first = saved.count, saved.first
    if store.rows_per_env is not None:
        first = np.maximum(first, count - store.rows_per_env)
    group = saved.fields[0].env_group
    more = [field.sized(store.rows_per_env, store.num_envs, None, group) for field in more]
    attributes = saved.attributes(count, first)
    attributes["fields"] += [field.describe() for field in more]
    attributes |= {"capacity": store.capacity, **meta}
    copies = LinkedFiles()
    for column in saved.columns.values():
        _link_column(column, build, first, count, copies)
        format.write_documents(build, column.field, _document(column, first, count))
    for field in more:
        zeros.write(build, field, first, count)
    for key in _priorities(saved.path):
        files.make_dirs((build / key).parent)
        copies.link(saved.path / key, build / key)
    copies.run()
    private.take_place_of(store.path, build)
    packed = sum(field.packed for field in [*saved.fields, *more])
    CommitPage.create(private.commit_page(build), count, packed)
    files.write(build / "zarr.json", [format.encode(format.group_document(attributes))])
    files.sync_tree(build)


def extend(live: Store, more: Sequence[Field], meta: Mapping[str, Any]) -> Store:
    """Add fields to a store that was just opened, whose rows get zeros; all or nothing.

    Parameters
    ----------
    live : Store
        It is closed, unless there is an exception: then nothing has changed.
    meta : mapping
        Attributes that change.

    Returns
    -------
    Store
        The same rows at the same place, with these fields behind the others.
    """
    private.check_no_rings(live.path, more[0].name)
    live.record(live.meta)  # all rows are in files in their places
    replacement = Replacement(live, live, {**live.meta, **meta}, more)
    try:
        with undisturbed():
            doubt = replacement.put_in_place(live)
    except BaseException:
        replacement.discard()
        raise
    if doubt is not None:
        warnings.warn(
            f"{live.path}: has new fields, but a power cut may undo that ({doubt})",
            RuntimeWarning,
            stacklevel=5,
        )
    return replacement.store


def _document(column: Column[Any], first: np.ndarray, count: np.ndarray) -> dict[Any, Any]:
    """A field's ``zarr.json``: what was sealed when it was saved still is."""
    field = column.field
    keys = [key for key, _envs in segments_of(field, first, count) if key in column.segments.seals]
    attributes = {"seals": seal_entries({key: column.segments.seals[key] for key in keys})}
    return format.array_document(field, int(count.max()), column.num_envs, attributes)


def _link_column(
    column: Column[Any], build: Path, first: np.ndarray, count: np.ndarray, copies: LinkedFiles
) -> None:
    field = column.field
    files.make_dirs(build / field.name)
    for key, _envs in segments_of(field, first, count):
        source, target = column.files.paths.chunk(*key), build / field.name / field.chunk_key(*key)
        if field.packed or key in column.segments.seals:
            copies.link(source, target)
        else:  # allocated in full, not a file with holes: rows will be written to it
            memory = Memory.create(target, field.segment_bytes)
            memory.array[:] = column.segments.mapped[key].mapping.array
