"""One walk over a store or a checkpoint that checks every file, without the writer's lock.

What is by nature not seen: a flipped bit in rows that have no checksum (yet), unless it makes a row
impossible. Those are, while a store is open and after its writer was killed, raw segments and tails
that are not full, and where a field's metadata are lost as well, raw segments whose checksum is
recorded nowhere. Nor, in a store, bits of options, spaces and the generator's state in the group's
attributes, and of priorities, that still make sense; the manifest of a checkpoint covers these too.
A rotten checksum in a field's metadata looks like rotten rows, and costs them in a repair.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import DiskReplayError
from diskreplay.store import (
    codec,
    manifest,
    priorities,
    priority_check,
    private,
    row_check,
    segment_check,
)
from diskreplay.store.column import Column, Seal
from diskreplay.store.finding import Finding, Report, ranges
from diskreplay.store.format import Field
from diskreplay.store.gate import Gate
from diskreplay.store.segment_check import Checked, Unreadable
from diskreplay.store.survey import Place, Survey

_TRIES_OF_ROWS = 3
_TRIES = 20  # of a file that the writer seals or deletes while it is read
_LONGEST_WAIT = 3.0  # seconds for metadata that are damaged, and not just being replaced
_ROWS_AT_ONCE = 1 << 20
_LASTING = frozenset(("block", "index", "checksum"))  # of sealed files, which never change
_ASIDE = "`--repair` moves it aside"
_WRITE_ANEW = "`--repair` writes it anew from what is whole"
_SET_ASIDE = "`--repair` sets these rows aside, or load a checkpoint"
_FAILS = "sampling these rows fails; "  # of raw fields it gives what is there
_IMPOSSIBLE = "bytes without a checksum are rotten; `--repair` sets these rows aside"
_PRIORITIES = "`--repair` gives all rows the largest one"
_ATTACHED = f"{manifest.ATTACHMENTS}/"
_LEFT_OVER = re.compile(r".*\.tmp|.*/c(\.\d+)+|priority(\.[^/]+)?/.*")


class Fault(NamedTuple):
    """One thing that is wrong with a segment's file, and the rows that cannot be read from it."""

    path: Path
    kind: str
    meaning: str
    lost: np.ndarray


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
    survey : Survey
    findings : list of Finding
    damaged : dict of (field name, segment, env) to ndarray of bool, shape (segment_rows,)
        Segments that are not as they should be, with the rows that are lost.
    sources : dict of (field name, segment, env) to Path
        Whole files to read in the place of damaged ones, where somebody knows of such.
    restored : dict of (field name, segment, env) to ndarray of uint8
        Rows to take in the place of those of a file, shape (segment_rows, row_bytes); lost ones are
        zeros.
    orphans : list of Path
    bad_priorities : set of str
        The sets that are not sound.
    """

    def __init__(self, path: Path, advance: Callable[[int], None] | None = None) -> None:
        self.began = time.perf_counter()
        self.path = path
        self.survey = self._first = self._surveyed()
        self.findings = list(self.survey.findings)
        self._named = {field.name: field for field in self.survey.fields}
        self.damaged: dict[tuple[str, int, int], np.ndarray] = {}
        self.sources: dict[tuple[str, int, int], Path] = {}
        self.restored: dict[tuple[str, int, int], np.ndarray] = {}
        self.orphans: list[Path] = []
        self.bad_priorities: set[str] = set()
        self._advance = advance or (lambda _size: None)
        self._seen: dict[Path, Seal] = {}
        self._expected: set[Path] = set()
        self._files = self._bytes = self._blocks = 0

    @property
    def holds(self) -> bool:
        """Whether the store was one and the same all the time."""
        first, last = self._first, self.survey
        same = (first.identity, first.settled) == (last.identity, last.settled)
        return same and first.still_holds() and last.still_holds()

    def _surveyed(self) -> Survey:
        """A writer that records, loads or closes meanwhile is given time to finish."""
        for attempt in range(_TRIES):
            try:
                survey = Survey(self.path)
            except DiskReplayError:
                late = time.perf_counter() - self.began > _LONGEST_WAIT
                if attempt == _TRIES - 1 or late or not private.commit_page(self.path).exists():
                    raise
                continue
            if not survey.findings and survey.still_holds():
                break
        return survey

    def run(self) -> None:
        """Do the walk."""
        for field in self.survey.fields:
            for place in list(self.survey.places(field)):
                self._check_place(place)
        for env in range(self.survey.num_envs):
            self._check_rows(env)
        self._check_priorities()
        self._check_names()

    @property
    def report(self) -> Report:
        """What the walk found."""
        survey = self.survey
        return Report(
            path=self.path,
            kind="store" if survey.manifest is None else "checkpoint",
            findings=tuple(self.findings),
            files=self._files,
            bytes=self._bytes,
            blocks=self._blocks,
            rows=int((survey.count - survey.first).sum()),
            seconds=time.perf_counter() - self.began,
        )

    def _complain(self, kind: str, path: Path, meaning: str, remedy: str, **more) -> None:
        if self.survey.manifest is not None:
            remedy = "a checkpoint is never changed: restore the file, or load another checkpoint"
        self.findings.append(Finding(kind, path, meaning, remedy, **more))

    def _note(self, path: Path, seal: Seal) -> None:
        if path in self._seen:
            return
        self._seen[path] = seal
        self._files += 1
        self._bytes += seal.size
        self._advance(seal.size)

    # -- segments

    def _check_place(self, place: Place) -> None:
        field, segment, env = place[:3]
        for _ in range(_TRIES):
            faults, lost = self.inspect(place)
            if not faults or self.survey.settled:
                break
            before = place, self.survey.epoch, self.survey.seals[field.name].get((segment, env))
            self.survey = self._surveyed()
            place = self.survey.place(field, segment, env)
            if place is None:
                return  # the writer has deleted it
            if before == (
                place, self.survey.epoch, self.survey.seals[field.name].get((segment, env))
            ):  # fmt: skip
                break
        if not faults:
            return
        self.damaged[field.name, segment, env] = lost
        start, first = segment * field.segment_rows, int(self.survey.first[env])
        for path, kind, meaning, gone in faults:
            rows = start + np.flatnonzero(gone[: place.used])
            self._complain(
                kind, path, meaning,
                _FAILS * field.packed + _SET_ASIDE if lost.any() else _WRITE_ANEW,
                field=field.name, env=env, rows=ranges(rows[rows >= first]),
            )  # fmt: skip

    def inspect(self, place: Place) -> tuple[list[Fault], np.ndarray]:
        """What is wrong with the files of a segment, and which of its rows are in none of them."""
        field, segment, env = place[:3]
        chunk = self.survey.chunk(field, segment, env)
        tail = self.survey.tail(field, segment, env)
        self._expected.add(chunk)
        if field.packed and not place.sealed:
            self._expected.add(tail)
            if segment >= self.survey.sealed[field.name][env] and tail.exists():
                return self._inspect_pair(place, chunk, tail)
        faults = self._look(place, chunk, self._check_packed if field.packed else self._check_raw)
        return faults, _union(field, faults)

    def _inspect_pair(
        self, place: Place, chunk: Path, tail: Path
    ) -> tuple[list[Fault], np.ndarray]:
        """A tail, and the shard that the last flush wrote of it for other readers."""
        field, settled = place.field, self.survey.settled
        of_tail, of_chunk = (
            self._look(
                place, tail, lambda place, path: segment_check.check_tail(place.field, path)
            ),
            [],
        )
        if settled or chunk.exists():
            of_chunk = self._look(place, chunk, self._check_packed)
        if settled and not of_chunk and not of_tail:
            of_tail = self._look(place, tail, self._compare)
        lost = _union(field, of_tail)
        if settled and not of_chunk:
            lost[:] = False
        nothing = np.zeros(field.segment_rows, np.bool_)
        return of_tail + [fault._replace(lost=nothing) for fault in of_chunk], lost

    def _look(
        self, place: Place, path: Path, check: Callable[[Place, Path], Checked]
    ) -> list[Fault]:
        try:
            checked = check(place, path)
        except Unreadable as error:
            everything = np.ones(place.field.segment_rows, np.bool_)
            return [Fault(path, error.kind, str(error), everything)]
        self._note(path, checked.seal)
        self._blocks += checked.blocks
        return [Fault(path, kind, meaning, checked.lost) for kind, meaning in checked.faults]

    def _check_raw(self, place: Place, path: Path) -> Checked:
        still = self.survey.settled and not place.sealed
        checked = segment_check.check_raw(place.field, path, place.used, still=still)
        self._hold_against_seals(place, path, checked)
        sums = self.survey.sums[place.field.name].get((place.segment, place.env))
        if sums is not None and still and not checked.lost.all():
            segment_check.hold_against_sums(place.field, path, place.used, sums, checked)
        return checked

    def _check_packed(self, place: Place, path: Path) -> Checked:
        # A shard beside a tail of a store that is open holds what was there at the last flush.
        used = place.used
        if not self.survey.settled and place.segment >= self.survey.sealed[place.field.name][
            place.env
        ] and self.survey.tail(place.field, place.segment, place.env).exists():  # fmt: skip
            used = 0
        checked = segment_check.check_packed(place.field, path, used)
        self._hold_against_seals(place, path, checked)
        return checked

    def _hold_against_seals(self, place: Place, path: Path, checked: Checked) -> None:
        """A file that fits neither the seal nor the manifest is another one than was written."""
        seals = self.survey.seals[place.field.name]
        known = [seals.get((place.segment, place.env)) if place.sealed else None]
        if self.survey.manifest is not None:
            known.append(self.survey.manifest.get(path.relative_to(self.path).as_posix()))
        known = [seal for seal in known if seal is not None]
        in_pieces = [seal for seal in known if seal.pieces and seal.size == checked.seal.size]
        wrong = _wrong_pieces(checked.seal, in_pieces[0]) if in_pieces else None
        if not known or checked.seal in known:
            if wrong is not None and wrong.any():
                checked.faults.append(("checksum", "it is whole, and the record's checksums of its "
                                       "pieces are rotten"))  # fmt: skip
            return
        if wrong is not None:
            self._lose_pieces(place.field, checked, wrong)
            return
        # Rot keeps the length, and a cut takes the index: this one has its index, and was whole.
        index = all(kind not in ("index", "length") for kind, _meaning in checked.faults)
        foreign = index and all(checked.seal.size != seal.size for seal in known)
        if foreign or not checked.faults:
            checked.lose(
                "checksum", "the checksum of the file is not the recorded one: it is rotten, or "
                "another segment's",
            )  # fmt: skip

    @staticmethod
    def _lose_pieces(field: Field, checked: Checked, wrong: np.ndarray) -> None:
        if not wrong.any():
            checked.faults.append(("checksum", "all its pieces are as they were recorded, and the "
                                   "record's checksum of the whole is rotten"))  # fmt: skip
            return
        size = codec.piece_bytes(field)
        checked.lose(
            "checksum", f"{np.count_nonzero(wrong)} of its {len(wrong)} pieces of {size} bytes are "
            "not as they were recorded: rotten, or another segment's",
            segment_check.rows_of_pieces(field, wrong),
        )  # fmt: skip

    def _compare(self, place: Place, tail: Path) -> Checked:
        field, segment, env, used = place[:4]
        number = self.survey.numbers[field.name]
        column = Column(self.path, number, field, self.survey.num_envs, None, Gate())
        column.adopt_sealed(segment, env)
        start = segment * field.segment_rows
        packed = column.read(env, start, start + used)
        column.close()
        return segment_check.compare(field, tail, packed)

    # -- rows

    def _check_rows(self, env: int) -> None:
        for _ in range(1 if self.survey.settled else _TRIES_OF_ROWS):
            findings = list(self._inspect_rows(env))
            if not findings:
                break
            if not self.survey.settled:
                self.survey = self._surveyed()
        for more in findings:
            self._complain(**more, env=env)

    def _inspect_rows(self, env: int) -> Iterator[dict[str, Any]]:
        survey = self.survey
        first, stop = int(survey.first[env]), int(survey.count[env])
        recorded, finals, whole = int(survey.recorded[env]), 0, True
        for low in range(first, stop, _ROWS_AT_ONCE):
            begin, end = max(first, low - 2), min(stop, low + _ROWS_AT_ONCE)
            rows, known = self.read_rows(env, begin, end)
            whole = whole and bool(known.all())
            finals += np.count_nonzero(rows.is_final[low - begin : max(recorded - begin, 0)])
            for start, after in ranges(np.flatnonzero(known)):
                part = row_check.Rows(*(column[start:after] for column in rows))
                for rule, places in row_check.faults(part).items():
                    yield from self._by_segment(rule, env, begin + start + places)
        counted = recorded - int(survey.transitions[env])
        if whole and not finals <= counted <= finals + first:
            yield {
                "kind": "metadata",
                "path": survey.path / "zarr.json",
                "meaning": f"{counted} final rows recorded, {finals} found in the last rows",
                "remedy": "the count of transitions is wrong by that; `--repair` counts anew",
            }

    def _by_segment(self, rule: str, env: int, rows: np.ndarray) -> Iterator[dict[str, Any]]:
        field = self._named[row_check.FIELD_OF[rule]]
        segments = rows // field.segment_rows
        for segment in np.unique(segments).tolist():
            yield {
                "kind": "rows",
                "path": self.survey.chunk(field, segment, env),
                "meaning": row_check.RULES[rule],
                "remedy": _IMPOSSIBLE,
                "field": field.name,
                "rows": ranges(rows[segments == segment]),
            }

    def read_rows(self, env: int, start: int, stop: int) -> tuple[row_check.Rows, np.ndarray]:
        """The small columns of some rows as far as their files can be relied on, and which."""
        known = np.ones(stop - start, np.bool_)
        columns = {}
        for field in map(self._named.__getitem__, row_check.Rows._fields):
            kind = np.uint8 if field.dtype == np.bool_ else field.dtype
            values = columns[field.name] = np.zeros(stop - start, kind)
            row = start
            while row < stop:
                segment, at = divmod(row, field.segment_rows)
                rows = min(stop - row, field.segment_rows - at)
                here = slice(row - start, row - start + rows)
                key = field.name, segment, env
                path = self.sources.get(key)  # a whole file that a repair has found
                lost = self.damaged.get(key)
                if lost is not None and path is None:
                    known[here] &= ~lost[at : at + rows]
                row += rows
                if key in self.restored:
                    values[here].view(np.uint8)[:] = self.restored[key][at : at + rows].reshape(-1)
                    continue
                try:
                    path = path or self.survey.chunk(field, segment, env)
                    with segment_check.plain_file(path) as (fd, _):
                        part = values[here].view(np.uint8)
                        segment_check.read_at(fd, at * field.row_bytes, part)
                except Unreadable:
                    known[here] = False
        return row_check.Rows(**columns), known

    # -- priorities

    def _check_priorities(self) -> None:
        views = self.survey.attributes.get(priorities.VIEWS, {})
        named = set()
        for name, view in views.items() if isinstance(views, dict) else ():
            identity = view.get("identity") if isinstance(view, dict) else None
            if isinstance(identity, dict) and identity.get("prioritized"):
                named.add(priorities.set_name(name))
        for name in sorted({priorities.MAIN, *named, *priorities.sets(self.path)}):
            self._check_set(self.path / name)

    def _check_set(self, directory: Path) -> None:
        for _ in range(1 if self.survey.settled else _TRIES):
            before = _inode(directory)
            found = priority_check.check(directory, self.survey) if before else None
            if _inode(directory) == before:  # else the writer has put new ones in their place
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
        survey = self.survey
        is_prioritized = survey.attributes.get("kind") == "prioritized"
        is_prioritized |= directory.name != priorities.MAIN
        if is_prioritized and survey.settled and survey.manifest is None and survey.count.any():
            self.bad_priorities.add(directory.name)
            self._complain("missing", directory, "the priorities are missing", _PRIORITIES)

    # -- names

    def _check_names(self) -> None:
        survey = self.survey
        own = {survey.path / "zarr.json"} | self._expected
        for field in survey.fields:
            parts = field.name.split("/")
            own |= {survey.path.joinpath(*parts[:n], "zarr.json") for n in range(len(parts) + 1)}
        if survey.manifest is None:
            own |= {private.commit_page(survey.path), private.lock_file(survey.path)}
        else:
            own.add(survey.path / manifest.NAME)
            own |= {survey.path / key for key in survey.manifest if key.startswith(_ATTACHED)}
        for base, _dirs, names in os.walk(survey.path):
            for name in names:
                path = Path(base, name)
                self._files += path in own and path not in self._seen
                if path not in own and not self._is_left_over(path):
                    self.orphans.append(path)
                    top = path.relative_to(survey.path).parts[0]
                    if priorities.is_set(top):
                        self.bad_priorities.add(top)
                    self._complain(
                        "orphan", path, "no row that counts is in it, and nothing names it", _ASIDE
                    )
        if survey.manifest is not None:
            self._check_manifest(survey.manifest)

    def _is_left_over(self, path: Path) -> bool:
        """Whether a writer that is at work, or was killed, may have such a file."""
        if self.survey.manifest is None and self.survey.settled:
            return path in private.begun(self.path)
        if path.is_relative_to(private.directory(self.path)):
            return True
        return bool(_LEFT_OVER.fullmatch(path.relative_to(self.path).as_posix()))

    def _check_manifest(self, listed: dict[str, Seal]) -> None:
        listing = self.path / manifest.NAME
        for key, seal in listed.items():
            path = self.path / key
            try:
                if path not in self._seen:
                    self._note(path, segment_check.checksum(path))
            except Unreadable as error:
                if path not in self._expected:
                    self._complain(error.kind, path, str(error), "")
                continue
            if self._seen[path] != seal and not any(path == f.path for f in self.findings):
                what = "the checksum or length of the file is not the one that is listed"
                self._complain("checksum", path, what, "")
        there = {path.relative_to(self.path).as_posix() for path in self._seen}
        for key in sorted(there - listed.keys()):
            self._complain("manifest", listing, f"{key} is not listed", "")


def _wrong_pieces(found: Seal, recorded: Seal) -> np.ndarray:
    return codec.unpacked_sums(found.pieces) != codec.unpacked_sums(recorded.pieces)


def _union(field: Field, faults: list[Fault]) -> np.ndarray:
    lost = np.zeros(field.segment_rows, np.bool_)
    for fault in faults:
        lost |= fault.lost
    return lost


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
