"""Checkpoints: immutable directories that share their full segments with the live store."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import StorageError
from diskreplay.locks import holding
from diskreplay.store import (
    attachments,
    checkpoint_names,
    files,
    format,
    manifest,
    plain_file,
    priorities,
    tempfiles,
)
from diskreplay.store.attachments import Source
from diskreplay.store.catalog import keys_of
from diskreplay.store.column import Column
from diskreplay.store.field import Field
from diskreplay.store.linked_files import LinkedFiles
from diskreplay.store.maintenance import DueRecord
from diskreplay.store.outside import check_outside
from diskreplay.store.partial import Partial
from diskreplay.store.seals import seal_entries
from diskreplay.store.segment import Seal, Segment
from diskreplay.store.store import Store


class Construction(NamedTuple):
    """A checkpoint under construction: where it is, and what of it is there.

    Attributes
    ----------
    parents : set of Path
        Directories that the checkpoint's name depends on.
    linked : dict of str to (dict of (number, group) to Segment)
        Of each field, segments that were sealed when they were linked; some may have left since, or
        be none that is sealed.
    copied : set of Path
        Of which of them there is a copy, which may not be durable.
    """

    room: tempfiles.Workspace
    build: Path
    parents: set[Path]
    attached: dict[str, Seal]
    linked: dict[str, dict[tuple[int, int], Segment]]
    copied: set[Path]


@contextlib.contextmanager
def begun(
    directory: Path, name: str, suffix: int | str, wanted: Mapping[str, Source]
) -> Iterator[Construction]:
    """A directory for a checkpoint, with its attachments in it.

    It is removed at the end unless `finish` has put it in place. No lock is needed, and none that
    the writers of attachments may want.
    """
    target = checkpoint_names.path_of(directory, name, suffix)
    check_outside(target)
    parents = files.make_named_dirs(directory)
    tempfiles.sweep(directory, checkpoint_names.pattern_of(name))
    with tempfiles.Workspace(target, "tmp") as room:
        build = room.path / target.name
        files.make_dirs(build)
        yield Construction(room, build, parents, attachments.write(wanted, build), {}, set())


def prepare(begun: Construction, store: Store) -> None:
    """Seal what is full, and link what is sealed. Rows may come meanwhile, and no lock is needed:
    what comes to be full later costs a copy, and `take` looks which of these are still there."""
    store.maintenance.run()
    copies = LinkedFiles()
    with store.maintenance.lock:  # nothing is deleted
        for column in store.columns.values():
            files.make_dirs(begun.build / column.field.name)
            linked = begun.linked[column.field.name] = {}
            for segment in list(column.segments.mapped.values()):
                if _link(column, segment, store.count, copies, begun.build):
                    linked[segment.key] = segment
        begun.copied.update(copies.run())
    store.maintenance.run()  # what came meanwhile: the less is in tails, the less is copied


def _link(
    column: Column[Any], segment: Segment, count: np.ndarray, copies: LinkedFiles, build: Path
) -> bool:
    """Link a segment if it is sealed."""
    if segment.seal is None:
        return False

    def link() -> bool:
        if column.segments.mapped.get(segment.key) is not segment:
            return False
        copies.link(segment.path, build / _name_of(column.field, segment.key))
        column.segments.seal_of(segment)
        return True

    # An env may come back to it, and have another file made by that name.
    may_change = count[segment.envs].min() < segment.stop
    return holding([column.files.changing] if may_change else [], link)


def _name_of(field: Field, key: tuple[int, int]) -> str:
    return f"{field.name}/{field.chunk_key(*key)}"


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint has of a store, of one moment.

    Attributes
    ----------
    sealed : dict of str to (list of Segment)
        Of each field those that are linked.
    partial : dict of str to Partial
        Copies of those that are not, by the names that the manifest has.
    fresh : set of Path
        Files of the live store that are not known to be durable.
    copied : set of Path
        The same of the checkpoint, where no link was possible.
    due : DueRecord or None
        Of the live store.
    meta : mapping
        Attributes of the group, besides the store's own.
    """

    count: np.ndarray
    first: np.ndarray
    sealed: dict[str, list[Segment]]
    partial: dict[str, Partial]
    fresh: set[Path]
    copied: set[Path]
    due: DueRecord | None
    meta: Mapping[str, Any]

    def copy(self) -> None:
        """Copy what may not stay where it is. Call it with `rwlock` held for reading."""
        for partial in self.partial.values():
            partial.copy()


def take(begun: Construction, store: Store, meta: Mapping[str, Any]) -> Contents:
    """Take all rows of a store into a checkpoint that was begun.

    Call it while nobody writes, and keep the lock of `maintenance` until `finish` has returned: it
    deletes, seals and puts in its place nothing meanwhile. Full segments are hard-linked (copied
    where the file system cannot), most of them by `prepare`, so the cost follows the rows since the
    last full segment. Each `add` waits for this: what can be done later is done by `finish`.
    Nothing waits for the disk here, unless there are mutable fields.
    """
    store.maintenance.freeze()
    fresh = set(store.maintenance.unsynced())
    count, first, copies = store.count.copy(), store.first.copy(), LinkedFiles()
    sealed: dict[str, list[Segment]] = {}
    partial: dict[str, Partial] = {}
    for name, column in store.columns.items():
        field, linked, is_linkable = column.field, begun.linked.get(name), column.linkable(count)
        if linked is None:  # of another store than was prepared
            linked = begun.linked[name] = {}
            files.make_dirs(begun.build / name)
        sealed[name] = []
        for key in keys_of(field, first, count):
            segment, before = column.segments.mapped.get(key), linked.pop(key, None)
            if segment is None or not is_linkable(segment):
                segment, partial[_name_of(field, key)] = None, column.partial(key, count)
            else:
                sealed[name].append(segment)
            if segment is not before:
                place = begun.build / _name_of(field, key)
                if before is not None:
                    files.remove(place)  # before it is written to: it is the live store's
                if segment is not None:  # an env that comes back to it has another file made
                    copies.link(segment.path, place)
                    column.segments.seal_of(segment)
    copied = begun.copied.union(copies.run())  # now, for the same reason
    due = store.maintenance.due_record(count)
    return Contents(count, first, sealed, partial, fresh, copied, due, meta)


def finish(
    begun: Construction,
    store: Store,
    name: str,
    taken: Contents,
    leaves: priorities.Sets,
    keep: int | None,
) -> Path:
    """Make a checkpoint durable, of which the rows are taken, put it in place, and remove the
    numbered ones beyond the `keep` highest. Rows may come meanwhile."""
    room, target = begun.room, begun.room.place
    for field, left in begun.linked.items():
        for key in left:
            files.remove(begun.build / _name_of(store.columns[field].field, key))
    _complete(begun, store, taken, leaves)
    if leaves:
        store.maintenance.keep_priorities(leaves, taken.meta, taken.due)
    elif taken.due is not None:
        store.maintenance.write_record(taken.due)
    store.place.check()  # else what was linked may be another store's
    room.put_in_place(begun.build)
    try:
        if keep is not None:
            retired = checkpoint_names.retired(target.parent, name, keep)
            tempfiles.discard(path for path in retired if path != target)
    except StorageError as error:  # an error would say that there is no new one
        warnings.warn(
            f"{target}: saved, but older ones could not be removed, which the next save tries "
            f"again ({error})",
            RuntimeWarning,
            stacklevel=7,
        )
    return target


def _complete(begun: Construction, store: Store, taken: Contents, leaves: priorities.Sets) -> None:
    """Write what belongs to the rows, and sync it with what the live store's record needs."""
    build, contents = begun.build, dict(begun.attached)
    written, shared = [], []
    for name, partial in taken.partial.items():
        contents[name] = partial.write(build / name)
        written.append(build / name)
    for column in store.columns.values():
        field, seals = column.field, {}
        for segment in taken.sealed[field.name]:
            name, seal = _name_of(field, segment.key), column.segments.seal_of(segment)
            contents[name] = seals[segment.key] = seal
            if segment.path in taken.fresh or (taken.copied and build / name in taken.copied):
                written.append(build / name)  # not by the other name: see `take`
        document = format.array_document(
            field, int(taken.count.max()), store.num_envs, {"seals": seal_entries(seals)}
        )
        written += format.write_documents(build, field, document)
    start = int(taken.first.min())
    for name, unsaved in leaves.items():
        set_ = priorities.write(build / name, unsaved, start, store.path / name)
        written += set_
        contents |= {path.relative_to(build).as_posix(): seal for path, seal in set_.items()}
        shared += priorities.share(store.path, build / name)
    group = build / "zarr.json"
    attributes = {**store.attributes(taken.count, taken.first), **taken.meta}
    files.write(group, [format.encode(format.group_document(attributes))])
    written.append(group)
    for path in written:
        name = path.relative_to(build).as_posix()
        if name not in contents:
            contents[name] = plain_file.checksum_of_new(path)
    listing = manifest.write(build, contents)
    if not files.is_synced(store.path):  # what is linked was never synced where it comes from
        written = [build / name for name in contents]
    due = [] if taken.due is None else [*taken.due.sealed, *taken.due.open]
    directories = [Path(base) for base, _dirs, _names in os.walk(build)]
    files.sync([*written, listing, *due, *shared, *directories, *begun.parents])
