"""One walk over a store or a checkpoint that checks every file, without the writer's lock.

What is by nature not seen: a flipped bit in rows that have no checksum (yet), unless it makes a row
impossible. Those are, while a store is open and after its writer was killed, raw segments that are
not sealed and rows in tails, and where a field's metadata are lost as well, raw segments whose
checksum is recorded nowhere. Nor, in a store, bits of options, spaces and the generator's state in
the group's attributes, and of priorities, that still make sense; the manifest of a checkpoint has
these too. A rotten checksum in a field's metadata looks like rotten rows, and costs them in a
repair.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.check import priority_check, row_check
from diskreplay.check.bookkeeping import Bookkeeping
from diskreplay.check.inspector import Fault, Inspector
from diskreplay.check.report import Finding, Report, spans
from diskreplay.check.segment_check import Checked
from diskreplay.check.snapshot import Snapshot
from diskreplay.errors import DiskReplayError
from diskreplay.store import manifest, priorities, private
from diskreplay.store.catalog import Catalog, Key, SegmentEntry
from diskreplay.store.field import Field
from diskreplay.store.paths import inode
from diskreplay.store.plain_file import Unreadable, checksum, plain_file
from diskreplay.store.segment import Seal

__all__ = ["verify"]

_TRIES_OF_ROWS = 3
_TRIES = 20  # of a file that the writer seals or deletes while it is read
_LONGEST_WAIT = 3.0  # seconds for metadata that are damaged, and not just being replaced
_LASTING = frozenset(("block", "index", "checksum"))  # of sealed files, which never change
_ASIDE = "`--repair` moves it aside"
_WRITE_ANEW = "`--repair` writes it anew from what is whole"
_SET_ASIDE = "`--repair` sets these rows aside, or load a checkpoint"
_FAILS = "sampling these rows fails; "  # of raw fields it gives what is there
_IMPOSSIBLE = "bytes without a checksum are rotten; `--repair` sets these rows aside"
_PRIORITIES = "`--repair` gives all rows the largest one"
_ATTACHED = f"{manifest.ATTACHMENTS.as_posix()}/"
_LEFT_OVER = re.compile(r".*\.tmp|.*/c(\.\d+)+|priority(\.[^/]+)?/.*")
_OF_ROWS = re.compile(r"tail\.\d+|open\.\d+/\d+\.\d+|spare\..*|unsealed.*|ring\.\d+|taker")


def verify(path: Path, *, advance: Callable[[int], None] | None = None) -> Report:
    """Check every file of a store or a checkpoint.

    Parameters
    ----------
    path : Path
    advance : callable, optional
        Told how many bytes were checked since it was last called.

    Returns
    -------
    Report

    Raises
    ------
    FormatError
        There is no store, it is of a newer format, or its group's metadata are so damaged that
        nothing else can be checked.

    Notes
    -----
    Reads all files once, and writes nothing. A writer may work meanwhile: what looks wrong is
    looked at again after its metadata were read again.
    """
    before: tuple[Finding, ...] | None = None
    for attempt in range(_TRIES):
        check = Check(path, advance)
        check.run()
        findings = check.report.findings
        if not check.holds:
            continue
        if before == findings or all(finding.kind in _LASTING for finding in findings):
            break
        # A store that was closed may be about to be opened: that takes moments, and looks like
        # a store that is damaged.
        before = findings
        time.sleep(0.01 * 2 ** min(attempt, 5))
    return check.report


class Check:
    """One walk.

    Attributes
    ----------
    snapshot : Snapshot
    findings : list of Finding
    damaged : dict of (field name, number, group) to ndarray of bool
        Segments that are not as they should be, with the rows, (segment_rows, env_group), that are
        lost.
    seals : dict of Path to Seal
        Of the files that were read.
    sources : dict of (field name, number, group) to Path
        Whole files to read in the place of damaged ones, where somebody knows of such.
    indexes : dict of (field name, number, group) to ndarray
        Of shards whose own index is rotten, what that was.
    restored : dict of (field name, number, group) to ndarray of uint8
        Rows to take in the place of those of a file, shape (segment_rows, env_group, row_bytes);
        lost ones are zeros.
    bookkeeping : Bookkeeping
        The small columns as far as they can be relied on.
    orphans : list of Path
    bad_priorities : set of str
        The sets that are not sound.
    """

    def __init__(self, path: Path, advance: Callable[[int], None] | None = None) -> None:
        self.began = time.perf_counter()
        self.path = path
        self.snapshot = self._first = self._take_snapshot()
        self.findings = list(self.snapshot.findings)
        self.fields = {field.name: field for field in self.catalog.fields}
        self.damaged: dict[Key, np.ndarray] = {}
        self.seals: dict[Path, Seal] = {}
        self.sources: dict[Key, Path] = {}
        self.indexes: dict[Key, np.ndarray] = {}
        self.restored: dict[Key, np.ndarray] = {}
        self.bookkeeping = Bookkeeping(self.fields, self.damaged, self.sources, self.restored)
        self.orphans: list[Path] = []
        self.bad_priorities: set[str] = set()
        self._inspector = Inspector(self._note_checked)
        self._advance = advance or (lambda _size: None)
        self._expected: set[Path] = set()
        self._files = self._bytes = self._blocks = 0

    @property
    def catalog(self) -> Catalog:
        """Which rows count, and which segments there are."""
        return self.snapshot.catalog

    @property
    def holds(self) -> bool:
        """Whether the store was one and the same all the time."""
        first, last = self._first, self.snapshot
        same = first.identity == last.identity
        same = same and first.catalog.is_settled == last.catalog.is_settled
        return same and first.still_holds() and last.still_holds()

    def _take_snapshot(self) -> Snapshot:
        """A writer that records, loads or closes meanwhile is given time to finish."""
        for attempt in range(_TRIES):
            try:
                snapshot = Snapshot(self.path)
            except DiskReplayError:
                late = time.perf_counter() - self.began > _LONGEST_WAIT
                if attempt == _TRIES - 1 or late or not private.commit_page(self.path).exists():
                    raise
                continue
            if not snapshot.findings and snapshot.still_holds():
                break
        return snapshot

    def run(self) -> None:
        """Do the walk."""
        for field in self.catalog.fields:
            if field.packed and self.catalog.is_live:
                self._check_tail(field)
            for entry in self.catalog.entries(field):
                self._check_segment(entry)
        for group in range(self.catalog.groups):
            self._check_rows(group)
        self._check_priorities()
        self._check_names()

    @property
    def report(self) -> Report:
        """What the walk found."""
        catalog = self.catalog
        return Report(
            path=self.path,
            kind="store" if self.snapshot.manifest is None else "checkpoint",
            findings=tuple(self.findings),
            files=self._files,
            bytes=self._bytes,
            blocks=self._blocks,
            rows=int((catalog.count - catalog.first).sum()),
            seconds=time.perf_counter() - self.began,
        )

    def _finding(self, kind: str, path: Path, meaning: str, remedy: str, **more: Any) -> Finding:
        if self.snapshot.manifest is not None:
            remedy = "a checkpoint is never changed: restore the file, or load another checkpoint"
        return Finding(kind, path, meaning, remedy, **more)

    def _complain(self, *what: Any, **more: Any) -> None:
        self.findings.append(self._finding(*what, **more))

    def _note(self, path: Path, seal: Seal) -> None:
        if path in self.seals:
            return
        self.seals[path] = seal
        self._files += 1
        self._bytes += seal.size
        self._advance(seal.size)

    # -- segments

    def _check_tail(self, field: Field) -> None:
        """Of a tail only the length is known."""
        path, expected = self.catalog.paths(field).tail, field.tail_bytes(self.catalog.num_envs)
        self._expected.add(path)
        try:
            with plain_file(path) as (_fd, size):
                self._note(path, Seal(size, 0))
                if size != expected:
                    raise Unreadable("length", f"{size} bytes found, {expected} expected")
        except Unreadable as error:
            self._inspector.bad_tails.add(field.name)
            lost = tuple(
                span
                for entry in self.catalog.entries(field)
                for span in spans(
                    self.catalog.in_tail(entry) & entry.retained, entry.start, entry.first_env
                )
            )
            remedy = _FAILS + _SET_ASIDE if lost else _WRITE_ANEW
            self._complain(error.kind, path, str(error), remedy, field=field.name, rows=lost)

    def _check_segment(self, entry: SegmentEntry) -> None:
        field, number, group = entry[:3]
        for _ in range(_TRIES):
            before = self._stamp(entry)
            faults, lost = self.inspect(entry)
            if not faults or self.catalog.is_settled:
                break
            self.snapshot = self._take_snapshot()
            now = self.catalog.entry(field, number, group)
            if now is None:
                return  # the writer has deleted it
            entry = now
            if before == self._stamp(entry):
                break
        if lost.any() or faults:
            self.damaged[entry.key] = lost
        for path, kind, meaning, gone in faults:
            remedy = _FAILS * field.packed + _SET_ASIDE if lost.any() else _WRITE_ANEW
            rows = spans(gone & lost & entry.retained, entry.start, entry.first_env)
            self._complain(kind, path, meaning, remedy, field=field.name, rows=rows)

    def _stamp(self, entry: SegmentEntry) -> tuple[Any, ...]:
        """What changes when the writer does something to a segment."""
        begun = self.catalog.paths(entry.field).open_segment(*entry[1:3])
        paths = self.catalog.chunk(*entry[:3]), begun
        return (
            entry.used.tobytes(), entry.seal, self.snapshot.epoch, [inode(path) for path in paths],
            self.catalog.in_tail(entry).tobytes(),
        )  # fmt: skip

    def inspect(self, entry: SegmentEntry) -> tuple[list[Fault], np.ndarray]:
        """What is wrong with the files of a segment, and which of its rows are in none of them."""
        self._expected.add(self.catalog.chunk(*entry[:3]))
        return self._inspector.inspect(self.snapshot, entry)

    def _note_checked(self, path: Path, checked: Checked) -> None:
        self._note(path, checked.seal)
        self._blocks += checked.blocks

    # -- rows

    def _check_rows(self, group: int) -> None:
        for _ in range(1 if self.catalog.is_settled else _TRIES_OF_ROWS):
            findings = self._inspect_rows(group)
            if not findings:
                break
            if not self.catalog.is_settled:
                self.snapshot = self._take_snapshot()
        self.findings += findings

    def _inspect_rows(self, group: int) -> list[Finding]:
        catalog, envs = self.catalog, self.catalog.envs(group)
        walk = self.bookkeeping.walk(catalog, group, self.snapshot.parts)
        found = [self._impossible(rule, number, group, mask)
                 for (rule, number), mask in sorted(walk.wrong.items())]  # fmt: skip
        counted = catalog.durable_count[envs] - self.snapshot.transitions[envs]
        likely = (walk.finals <= counted) & (counted <= walk.finals + catalog.first[envs])
        for env in np.flatnonzero(walk.whole & ~likely).tolist():
            meaning = (
                f"{counted[env]} final rows recorded, {walk.finals[env]} found in the last rows"
            )
            remedy = "the count of transitions is wrong by that; `--repair` counts anew"
            path = self.path / "zarr.json"
            found.append(self._finding("metadata", path, meaning, remedy, env=envs.start + env))
        return found

    def _impossible(self, rule: str, number: int, group: int, mask: np.ndarray) -> Finding:
        field = self.fields[row_check.FIELD_OF[rule]]
        return self._finding(
            "rows", self.catalog.chunk(field, number, group), row_check.RULES[rule], _IMPOSSIBLE,
            field=field.name,
            rows=spans(mask, number * field.segment_rows, self.catalog.envs(group).start),
        )  # fmt: skip

    # -- priorities

    def _check_priorities(self) -> None:
        views = self.snapshot.attributes.get(priorities.VIEWS, {})
        named = set()
        for name, view in views.items() if isinstance(views, dict) else ():
            identity = view.get("identity") if isinstance(view, dict) else None
            if isinstance(identity, dict) and identity.get("prioritized"):
                named.add(priorities.set_name(name))
        for name in sorted({priorities.MAIN, *named, *priorities.sets(self.path)}):
            self._check_set(self.path / name)

    def _check_set(self, directory: Path) -> None:
        for _ in range(1 if self.catalog.is_settled else _TRIES):
            before = inode(directory)
            found = priority_check.check(directory, self.snapshot) if before else None
            if inode(directory) == before:  # else the writer has put new ones in their place
                break
        if found is None:
            self._miss_priorities(directory)
            return
        self._expected |= found.expected
        for path, seal in found.seals.items():
            self._note(path, seal)
        if found.faults:
            self.bad_priorities.add(directory.name)
        for path, meaning in found.faults:
            self._complain("priority", path, meaning, _PRIORITIES)

    def _miss_priorities(self, directory: Path) -> None:
        """Without any, a buffer that was closed would give all rows the largest one, unasked."""
        is_prioritized = self.snapshot.attributes.get("kind") == "prioritized"
        is_prioritized |= directory.name != priorities.MAIN
        is_closed = self.catalog.is_settled and self.snapshot.manifest is None
        if is_prioritized and is_closed and self.catalog.count.any():
            self.bad_priorities.add(directory.name)
            self._complain("missing", directory, "the priorities are missing", _PRIORITIES)

    # -- names

    def _check_names(self) -> None:
        snapshot = self.snapshot
        own = {snapshot.path / "zarr.json"} | self._expected
        for field in self.catalog.fields:
            parts = field.name.split("/")
            own |= {snapshot.path.joinpath(*parts[:n], "zarr.json") for n in range(len(parts) + 1)}
            if self.catalog.is_settled:  # segments that were begun, and have no row yet
                own |= {self.catalog.chunk(field, *key) for key in self.catalog.seals[field.name]}
        if snapshot.manifest is None:
            own |= {private.commit_page(snapshot.path), private.lock_file(snapshot.path)}
        else:
            own.add(snapshot.path / manifest.NAME)
            own |= {snapshot.path / key for key in snapshot.manifest if key.startswith(_ATTACHED)}
        for base, _dirs, names in os.walk(snapshot.path):
            for name in names:
                path = Path(base, name)
                self._files += path in own and path not in self.seals
                if path not in own and not self._is_left_over(path):
                    self.orphans.append(path)
                    top = path.relative_to(snapshot.path).parts[0]
                    if priorities.is_set(top):
                        self.bad_priorities.add(top)
                    self._complain(
                        "orphan", path, "no row that counts is in it, and nothing names it", _ASIDE
                    )
        if snapshot.manifest is not None:
            self._check_manifest(snapshot.manifest)

    def _is_left_over(self, path: Path) -> bool:
        """Whether a writer that is at work, or was killed, may have such a file."""
        if self.snapshot.manifest is None and self.catalog.is_settled:
            place = private.directory(self.path)
            return path.is_relative_to(place) and bool(
                _OF_ROWS.fullmatch(path.relative_to(place).as_posix())
            )
        if path.is_relative_to(private.directory(self.path)):
            return True
        return bool(_LEFT_OVER.fullmatch(path.relative_to(self.path).as_posix()))

    def _check_manifest(self, listed: dict[str, Seal]) -> None:
        listing = self.path / manifest.NAME
        for key, seal in listed.items():
            path = self.path / key
            try:
                if path not in self.seals:
                    self._note(path, checksum(path))
            except Unreadable as error:
                if path not in self._expected:
                    self._complain(error.kind, path, str(error), "")
                continue
            if self.seals[path] != seal and not any(path == f.path for f in self.findings):
                what = "the checksum or length of the file is not the one that is listed"
                self._complain("checksum", path, what, "")
        there = {path.relative_to(self.path).as_posix() for path in self.seals}
        for key in sorted(there - listed.keys()):
            self._complain("manifest", listing, f"{key} is not listed", "")
