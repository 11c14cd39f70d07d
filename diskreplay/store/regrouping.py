"""Checkpoints whose envs come from others: files of groups of envs are linked, no row is read.

A segment is a file of the rows of one group of envs, see design/0011, and the number of the group
is in its name. So a group that moves whole, to another place among the envs of another checkpoint,
is its files under other names. What is written anew are metadata, and the priorities, whose files
have all envs side by side.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import CorruptCheckpointError, FormatError
from diskreplay.store import files, format, loading, manifest, plain_file, priorities, tempfiles
from diskreplay.store.catalog import segments_of
from diskreplay.store.field import Field
from diskreplay.store.linked_files import LinkedFiles
from diskreplay.store.open_store import OWN_KEYS, group_attributes
from diskreplay.store.place import Place
from diskreplay.store.priorities import Saved, Unsaved
from diskreplay.store.segment import Seal


class SourceCheckpoint:
    """A checkpoint whose groups of envs are to be linked. Close it.

    Its metadata are held against their checksums. Segments are not read: whoever loads what they
    are linked to checks them.

    Attributes
    ----------
    first, count, transitions : ndarray of int64, shape (num_envs,)
    meta : dict
        What the buffer keeps in the group's attributes.

    Raises
    ------
    IncompleteCheckpointError, CorruptCheckpointError, FormatError
    """

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, Place(path)
        try:
            self.contents = manifest.read_whole(path)
            loading.check_bytes(path, "zarr.json", self.contents)
            attributes = format.read_attributes(path)
            try:
                self.num_envs, self.capacity, self.fields = format.parse_head(attributes)
                self.count, self.first = format.parse_rows(attributes, self.num_envs)
                self.transitions = format.parse_transitions(attributes, self.count)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise FormatError(f"{path / 'zarr.json'}: damaged attributes ({error})") from error
            self.meta = {key: attributes[key] for key in attributes.keys() - OWN_KEYS}
            self.env_group = self.fields[0].env_group
        except BaseException:
            self.place.close()
            raise

    @property
    def rows_per_env(self) -> int | None:
        """Rows that each env keeps; None for all."""
        return None if self.capacity is None else self.capacity // self.num_envs

    def seal_of(self, key: str) -> Seal:
        """What the manifest says of a file."""
        try:
            return self.contents.files[key]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.path / manifest.NAME}: damaged: {key} is not in its list"
            ) from None

    def seals(self, field: Field) -> dict[str, Any]:
        """The seals of a field, as its ``zarr.json`` has them."""
        key = f"{field.name}/zarr.json"
        self.seal_of(key)
        loading.check_bytes(self.path, key, self.contents)
        document = format.read_document(self.path / key)
        try:
            attributes = document["attributes"]["diskreplay"]
            rows = int(self.count.max())
            if document != format.array_document(field, rows, self.num_envs, attributes):
                raise ValueError("it does not describe the field that the group names")
            return dict(attributes["seals"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path / key}: damaged ({error})") from error

    def leaves(self, name: str) -> Saved | None:
        """A set of priorities; None if there is none of that name."""
        for key in self.contents.files:
            if key.startswith(f"{name}/"):
                loading.check_bytes(self.path, key, self.contents)
        return priorities.read(self.path / name, self.num_envs)

    def close(self) -> None:
        self.place.close()


class Piece(NamedTuple):
    """Some envs of a source, one behind the other: whole groups."""

    source: SourceCheckpoint
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def envs(self) -> slice:
        return slice(self.start, self.stop)


def concatenated(pieces: Sequence[Piece], name: str) -> np.ndarray:
    """An array of a value for each env, of the envs of all pieces."""
    return np.concatenate([getattr(piece.source, name)[piece.envs] for piece in pieces])


def write(
    target: Path, pieces: Sequence[Piece], meta: dict[str, Any],
    attached: Sequence[SourceCheckpoint],
) -> None:  # fmt: skip
    """Make a checkpoint of some envs, in this order; it is there whole, or not at all.

    Parameters
    ----------
    target : Path
        Nothing is there; what is put there meanwhile is replaced.
    pieces : sequence of Piece
        Of sources with the same fields.
    meta : dict
        What the buffer keeps in the group's attributes.
    attached : sequence of SourceCheckpoint
        Whose attachments it gets; no two of one name.

    Raises
    ------
    StoreMovedError
        A source was replaced or retired meanwhile.
    FormatError, CorruptCheckpointError, StorageError
        In all cases there is nothing at `target`.
    """
    files.make_lasting_dirs(target.parent)
    tempfiles.sweep(target.parent, re.escape(target.name))
    with tempfiles.Workspace(target, "tmp") as room:
        build = room.path / target.name
        files.make_dirs(build)
        _Build(build, pieces).finish(meta, attached)
        for source in dict.fromkeys(piece.source for piece in pieces):
            source.place.check()  # else what was linked may be of two checkpoints
        room.put_in_place(build)


class _Build:
    """A checkpoint under construction."""

    def __init__(self, build: Path, pieces: Sequence[Piece]) -> None:
        self._build, self._pieces = build, pieces
        self._first, self._count = concatenated(pieces, "first"), concatenated(pieces, "count")
        self._files: dict[str, Seal] = {}
        self._written: list[Path] = []
        self._copies = LinkedFiles()

    def finish(self, meta: dict[str, Any], attached: Sequence[SourceCheckpoint]) -> None:
        """Write all of it, durably."""
        build, source = self._build, self._pieces[0].source
        for field in source.fields:
            self._link_field(field)
        self._write_priorities()
        for each in attached:
            for name in each.contents.attachments:
                self._link(each, (key := (manifest.ATTACHMENTS / name).as_posix()), key)
        rows = {piece.source.rows_per_env for piece in self._pieces}
        most = None if None in rows else max(rows)  # type: ignore[type-var]
        capacity = None if most is None else most * len(self._count)
        transitions = concatenated(self._pieces, "transitions")
        attributes = group_attributes(
            source.fields, capacity, self._first, self._count, transitions, meta
        )
        group = build / "zarr.json"
        files.write(group, [format.encode(format.group_document(attributes))])
        self._add(group, plain_file.checksum_of_new(group))
        copied = self._copies.run()
        listing = manifest.write(build, self._files)
        files.sync([*self._written, *copied, listing])
        files.sync_dirs(Path(base) for base, _dirs, _names in os.walk(build))

    def _add(self, path: Path, seal: Seal) -> None:
        """Note a file that was written."""
        self._files[path.relative_to(self._build).as_posix()] = seal
        self._written.append(path)

    def _link(self, source: SourceCheckpoint, theirs: str, key: str) -> None:
        self._files[key] = source.seal_of(theirs)
        files.make_dirs((self._build / key).parent)
        self._copies.link(source.path / theirs, self._build / key)

    def _link_field(self, field: Field) -> None:
        """Link the segments of each group under the number that it has here."""
        size, seals, before = field.env_group, {}, 0
        for piece in self._pieces:
            source, moved = piece.source, before // size - piece.start // size
            theirs = source.seals(field)
            first, count = source.first.copy(), source.count
            outside = np.ones(source.num_envs, bool)
            outside[piece.envs] = False
            first[outside] = count[outside]  # so that they have no segments
            for (number, group), _envs in segments_of(field, first, count):
                here = number, group + moved
                self._link(
                    source, f"{field.name}/{field.chunk_key(number, group)}",
                    f"{field.name}/{field.chunk_key(*here)}",
                )  # fmt: skip
                if (seal := theirs.get(f"{number}/{group}")) is not None:
                    seals["{}/{}".format(*here)] = seal
            before += piece.size
        files.make_dirs(self._build / field.name)
        rows = int(self._count.max())
        document = format.array_document(field, rows, before, {"seals": seals})
        for path in format.write_documents(self._build, field, document):
            self._add(path, plain_file.checksum_of_new(path))

    def _write_priorities(self) -> None:
        """Put the columns of the envs side by side, in each set that some source has."""
        names = {name for piece in self._pieces for name in priorities.sets(piece.source.path)}
        start, stop = int(self._first.min()), int(self._count.max())
        for name in sorted(names):
            found = {piece.source: piece.source.leaves(name) for piece in self._pieces}
            alphas = {saved.alpha for saved in found.values() if saved is not None}
            if len(alphas) > 1:
                raise FormatError(
                    f"{self._pieces[0].source.path / name}: its leaves are powers of "
                    f"{sorted(map(str, alphas))} in the checkpoints; save them with one alpha"
                )
            leaves = np.full((stop - start, len(self._count)), np.nan)
            env = 0
            for piece in self._pieces:
                saved = found[piece.source]
                if saved is not None:
                    low = max(start, saved.start)
                    high = min(stop, saved.start + len(saved.leaves))
                    if low < high:
                        mine = saved.leaves[low - saved.start : high - saved.start, piece.envs]
                        leaves[low - start : high - start, env : env + piece.size] = mine
                env += piece.size
            unsaved = Unsaved(leaves, alphas.pop() if alphas else None)
            for path, seal in priorities.write(self._build / name, unsaved, start).items():
                self._add(path, seal)
