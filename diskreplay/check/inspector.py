"""What is wrong with the files of one segment: of all that hold rows of it."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diskreplay.check import segment_check
from diskreplay.check.segment_check import Checked
from diskreplay.check.snapshot import Snapshot
from diskreplay.store import codec
from diskreplay.store.catalog import SegmentEntry
from diskreplay.store.plain_file import Unreadable
from diskreplay.store.segment import Seal

_SINCE = "it is missing: the shard in its place does not have these rows"


class Fault(NamedTuple):
    """One thing that is wrong with a segment's file, and the rows that cannot be read from it."""

    path: Path
    kind: str
    meaning: str
    lost: np.ndarray


class Inspector:
    """Looks at the files of segments.

    Parameters
    ----------
    note : callable
        Told of each file that could be read, and what was found in it.

    Attributes
    ----------
    bad_tails : set of str
        The packed fields whose tails cannot be read.
    """

    def __init__(self, note: Callable[[Path, Checked], None]) -> None:
        self.bad_tails: set[str] = set()
        self._note = note

    def inspect(self, snapshot: Snapshot, entry: SegmentEntry) -> tuple[list[Fault], np.ndarray]:
        """What is wrong with the files of a segment, and which of its rows are in none of them."""
        field, catalog = entry.field, snapshot.catalog
        chunk = catalog.chunk(*entry[:3])
        if not field.packed:
            faults, checked = self._look(snapshot, chunk, entry, entry.counted)
            return faults, segment_check.nothing(field) | (checked is None or checked.lost)
        in_tail, shards = catalog.in_tail(entry), catalog.shards(entry)
        left, faults = entry.retained & ~in_tail, []
        for path in dict.fromkeys([*shards, chunk]):
            # A shard in its place beside an open one has what was there at the last flush.
            wanted = left if path in shards else segment_check.nothing(field)
            if not wanted.any() and not path.exists():
                continue
            found, checked = self._look(snapshot, path, entry, wanted)
            if checked is not None and not checked.is_foreign and path in shards:
                there = checked.index[:, 0] != codec.MISSING
                rows = segment_check.rows_of_blocks(field, there)
                if path == chunk:
                    since = left & rows & ~checked.has
                    if since.any():
                        begun = catalog.paths(entry.field).open_segment(*entry[1:3])
                        faults.append(Fault(begun, "missing", _SINCE, since))
                        rows &= ~since
                left = left & ~rows
            # After a power cut an open shard may lack blocks that the other one has.
            faults += found * (path == shards[-1] or path == chunk)
        return faults, left | (in_tail & (field.name in self.bad_tails))

    def _look(
        self, snapshot: Snapshot, path: Path, entry: SegmentEntry, wanted: np.ndarray
    ) -> tuple[list[Fault], Checked | None]:
        """What is wrong with one file, and what was found if it can be read."""
        field, chunk = entry.field, snapshot.catalog.chunk(*entry[:3])
        try:
            if field.packed:
                checked = segment_check.check_shard(field, path, wanted, is_open=path != chunk)
            else:
                checked = segment_check.check_raw(field, path, wanted)
        except Unreadable as error:
            everything = ~segment_check.nothing(field)
            return [Fault(path, error.kind, str(error), everything)], None
        if path == chunk and (wanted.any() or not snapshot.catalog.is_live):
            _hold_against_seals(snapshot, entry, path, checked)
        self._note(path, checked)
        return [Fault(path, *fault, checked.lost) for fault in checked.faults], checked


def _hold_against_seals(
    snapshot: Snapshot, entry: SegmentEntry, path: Path, checked: Checked
) -> None:
    """A file that fits neither the seal nor the manifest is another one than was written."""
    found = [_binding(snapshot, entry, path)]
    if snapshot.manifest is not None:
        found.append(snapshot.manifest.get(path.relative_to(snapshot.path).as_posix()))
    known = [seal for seal in found if seal is not None]
    field, seen = entry.field, checked.seal
    is_cut = not field.packed and seen.size < field.segment_bytes
    if not field.packed:  # what is behind its rows is none of them
        seen = replace(seen, size=field.segment_bytes)
    in_pieces = [seal for seal in known if seal.pieces and seal.size == seen.size]
    wrong = segment_check.wrong_pieces(seen, in_pieces[0]) if in_pieces else None
    if is_cut and seen not in known and wrong is None:
        checked.lost |= segment_check.rows_behind(field, checked.seal.size)
    if not known or seen in known:
        if wrong is not None and wrong.any():
            checked.faults.append(("checksum", "it is whole, and the record's checksums of its "
                                   "pieces are rotten"))  # fmt: skip
        return
    if wrong is not None:
        _lose_pieces(entry, path, checked, wrong, in_pieces[0])
        return
    # Rot keeps the length, and of a file that was cut the index says so.
    sizes = [seal.size for seal in known]
    whole = not any(kind in ("index", "length") for kind, _meaning in checked.faults)
    foreign = whole and field.packed and checked.end not in (-1, *sizes)
    if foreign or not checked.faults or seen.size != checked.seal.size:
        checked.is_foreign = True
        checked.lose(
            "checksum", "the checksum of the file is not the recorded one: it is rotten, or "
            "another segment's",
        )  # fmt: skip


def _binding(snapshot: Snapshot, entry: SegmentEntry, path: Path) -> Seal | None:
    """What the file has to be. A raw one that is written to again may be a copy."""
    if snapshot.catalog.is_settled or entry.field.packed or entry.seal is None:
        return entry.seal
    passed = snapshot.catalog.durable_count[snapshot.catalog.envs(entry.group)] >= (
        entry.start + entry.field.segment_rows
    )
    try:
        is_sealed = not os.stat(path).st_mode & 0o200
    except FileNotFoundError:  # it has just been deleted, which is seen when it is looked at again
        is_sealed = False
    return entry.seal if passed.all() or is_sealed else None


def _lose_pieces(
    entry: SegmentEntry, path: Path, checked: Checked, wrong: np.ndarray, seal: Seal
) -> None:
    field = entry.field
    if not wrong.any():
        checked.faults.append(("checksum", "all its pieces are as they were recorded, and the "
                               "record's checksum of the whole is rotten"))  # fmt: skip
        return
    if not entry.is_full:  # behind the rows that count there are zeros, mostly
        rows = segment_check.raw_rows(field, path)
        rows[~entry.counted] = 0
        wrong &= segment_check.wrong_pieces(segment_check.encoded(field, rows, entry.used)[1], seal)
        if not wrong.any():
            checked.faults.append(("rows", "bytes behind the last row are not as they were"))
            return
    checked.lose(
        "checksum", f"{np.count_nonzero(wrong)} of its {len(wrong)} pieces of "
        f"{codec.piece_bytes(field)} bytes do not match their checksums: the file is damaged, "
        "or it belongs to another segment", segment_check.rows_of_pieces(field, wrong),
    )  # fmt: skip
