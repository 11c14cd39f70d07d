"""What a store's metadata say at one moment: which rows count, and which files should hold them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diskreplay.errors import DiskReplayError, FormatError
from diskreplay.store import format, manifest, private
from diskreplay.store.codec import piece_bytes
from diskreplay.store.column import Seal, parse_seals
from diskreplay.store.finding import Finding
from diskreplay.store.format import Field
from diskreplay.store.state import State, finals_in

BOOKKEEPING = frozenset(("reward", "terminated", "truncated", "step", "is_final"))
RECOUNT = "the next opening goes by the record; `--repair` writes it anew"
_REBUILD = "`--repair` writes it anew from the group's attributes"
_BOOT = re.compile(rb"[0-9A-Fa-f-]{36}\0*")
_HEADER_BYTES, _COUNTS_AT = 80, 4096


class Place(NamedTuple):
    """A segment that should be there: rows ``start`` up to ``stop`` of it count."""

    field: Field
    segment: int
    env: int
    used: int
    sealed: bool


class Survey:
    """The metadata of a store or checkpoint, read once without a lock.

    Attributes
    ----------
    path : Path
    attributes : dict
        Of the group.
    fields : list of Field
    numbers : dict of str to int
        Of each field its place in that list, which names its private files.
    num_envs : int
    count, first : ndarray of int64, shape (num_envs,)
        Which rows count, by the rules that opening follows.
    recorded : ndarray of int64, shape (num_envs,)
    manifest : dict or None
        Of a checkpoint: its files.
    settled : bool
        Nobody writes, and the last writer closed the store: all must fit exactly.
    sealed : dict of str to ndarray of int64, shape (num_envs,)
    seals : dict of str to dict
        For each field ``(segment, env)`` to `Seal`.
    sums : dict of str to dict
        For each raw field ``(segment, env)`` of an open segment to the CRC-32C of each of its
        pieces; of a store that was not closed, or by an older version, nothing.
    findings : list of Finding
        What is wrong with the metadata themselves.

    Raises
    ------
    FormatError
        No store, one of a newer format, or one whose group cannot be read: without that nothing
        is known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.identity = _identity(path)
        self._record = _stamp(path / "zarr.json")
        self.attributes = format.read_attributes(path)
        try:
            self._parse()
        except (KeyError, TypeError, ValueError, OverflowError, DiskReplayError) as error:
            raise FormatError(
                f"{path / 'zarr.json'}: damaged attributes ({error}); restore the file from a "
                "backup, or load a checkpoint into a new store"
            ) from error
        if format.read_document(path / "zarr.json") != format.group_document(self.attributes):
            self._complain("metadata", path / "zarr.json", "not as a group's are", _REBUILD)
        self.manifest = self._read_manifest()
        self.state: State | None = None
        self.settled = True
        self.epoch = 0
        self._live = False
        if self.manifest is None:
            self._read_state()
        self._doubt_counts()
        if self.rows_per_env is not None:
            self.first = np.maximum(self.first, self.count - self.rows_per_env)
        self.sealed: dict[str, np.ndarray] = {}
        self.seals: dict[str, dict[tuple[int, int], Seal]] = {}
        self.sums: dict[str, dict[tuple[int, int], list[int]]] = {}
        for number, field in enumerate(self.fields):
            self._read_field(number, field)
        for name in {name for f in self.fields for name in _parents(f.name)}:
            document = self._document(path / name / "zarr.json")
            if document is not None and document != format.group_document():
                self._complain("metadata", path / name / "zarr.json", "not a plain group", _REBUILD)

    def _parse(self) -> None:
        attributes = self.attributes
        self.num_envs, capacity, self.fields = format.parse_head(attributes)
        self.numbers = {field.name: number for number, field in enumerate(self.fields)}
        self.rows_per_env = None if capacity is None else capacity // self.num_envs
        self.count, self.first = format.parse_rows(attributes, self.num_envs)
        self.recorded = self.count.copy()
        names = {field.name for field in self.fields}
        lacking = BOOKKEEPING - names
        if lacking or len(names) < len(self.fields):
            raise ValueError(f"fields: {', '.join(sorted(lacking)) or 'one twice'}")
        if any(f.packed or f.shape for f in self.fields if f.name in BOOKKEEPING):
            raise ValueError("fields: a small one is not as this format has it")
        try:
            self.transitions = format.parse_transitions(attributes, self.recorded)
        except (KeyError, ValueError) as error:
            self.transitions = self.recorded.copy()
            self._complain(
                "metadata", self.path / "zarr.json", f"transitions cannot be so ({error})",
                "`--repair` counts anew",
            )  # fmt: skip

    def _complain(self, kind: str, path: Path, meaning: str, remedy: str, **more: Any) -> None:
        self.findings.append(Finding(kind, path, meaning, remedy, **more))

    def _document(self, path: Path) -> dict[str, Any] | None:
        try:
            return format.read_document(path)
        except DiskReplayError as error:
            missing = not path.exists()
            self._complain(
                "missing" if missing else "metadata", path,
                "the metadata are missing" if missing else f"the metadata are damaged ({error})",
                _REBUILD,
            )  # fmt: skip
            return None

    # -- the parts

    def _read_manifest(self) -> dict[str, Seal] | None:
        path = self.path / manifest.NAME
        if not path.exists():
            return None
        try:
            return manifest.parse(format.read_document(path)).files
        except (ValueError, DiskReplayError) as error:
            self._complain(
                "manifest", path, f"the list of files is damaged ({error})",
                "`load` refuses this checkpoint; take another one",
            )  # fmt: skip
            return {}

    def _read_state(self) -> None:
        path = private.commit_page(self.path)
        try:
            state = State(path, self.num_envs, len(self.fields), writable=False)
            page = path.read_bytes()
        except (DiskReplayError, OSError) as error:
            kind = "state" if path.exists() else "missing"
            self._complain(kind, path, f"the state page cannot be used ({error})", RECOUNT)
            self.settled = False
            return
        self.epoch, self._replaced = int(state.tail_epoch[0]), bool(state.replaced[0])
        self.settled = state.closed
        # Raised by the writer meanwhile: each is read before what it must not be ahead of.
        sealed, (count, words) = state.sealed.copy(), state.snapshot()
        live = self._live = not state.closed and state.same_boot
        used = _COUNTS_AT + 8 * self.num_envs * (2 + len(self.fields))
        closed, replaced = (int.from_bytes(page[at : at + 8], "little") for at in (8, 72))
        if closed > 1 or replaced > 1 or not _BOOT.fullmatch(page[16:64]):
            self._complain("state", path, "the head of the state page is damaged", RECOUNT)
        if any(page[_HEADER_BYTES:_COUNTS_AT]) or any(page[used:]):
            self._complain(
                "state", path, "the state page holds bytes that should be zero",
                "nothing depends on them; `--repair` writes it anew",
            )  # fmt: skip
        wrong = count != self.recorded if state.closed else live & (count < self.recorded)
        if wrong.any():
            env = int(wrong.argmax())
            self._complain(
                "state", path,
                f"{count[env]} rows of env {env} counted, {self.recorded[env]} recorded",
                RECOUNT, env=env,
            )  # fmt: skip
        if live:
            self.count = np.maximum(count, self.recorded)
            finals = finals_in(words)
            if (finals < 0).any() or (finals > count).any():
                self._complain("state", path, "more final rows than rows counted", RECOUNT)
        elif (
            state.closed
            and not ((words == 0) | (finals_in(words) == self.recorded - self.transitions)).all()
        ):
            self._complain("state", path, "the final rows counted are not those recorded", RECOUNT)
        rows = np.array([f.segment_rows for f in self.fields])[:, None]
        if state.closed or live:
            most = np.maximum(self.count, self.first) // rows
            if (sealed < 0).any() or (sealed > most).any():
                self._complain("state", path, "more segments are sealed than are full", RECOUNT)
                sealed = np.clip(sealed, 0, most)
        self.state = state
        self._state_sealed = sealed if live else np.zeros_like(sealed)

    def _doubt_counts(self) -> None:
        """Refuse counts that no file supports: they would name billions of missing segments."""
        for env, count in enumerate(self.count.tolist()):
            if self._has_row(env, count - 1):
                continue
            seen = int(self.recorded[env])
            if self.state is not None and seen == count:
                seen = int(self.state.count[env])
            if seen == count or not self._has_row(env, seen - 1) or seen < self.first[env]:
                raise FormatError(
                    f"{self.path / 'zarr.json'}: {count} rows of env {env} are counted, and no "
                    "file holds the last of them; restore the files, or load a checkpoint"
                )
            is_page = seen == self.recorded[env]
            self._complain(
                "state", private.commit_page(self.path) if is_page else self.path / "zarr.json",
                f"{count} rows of env {env} are counted, and no file holds the last of them; "
                f"{seen} are taken",
                RECOUNT, env=env,
            )  # fmt: skip
            self.count[env] = seen

    def _has_row(self, env: int, row: int) -> bool:
        return row < 0 or any(
            self.chunk(f, row // f.segment_rows, env).exists()
            for f in self.fields
            if f.name in BOOKKEEPING
        )

    def _read_field(self, number: int, field: Field) -> None:
        path = self.path / field.name / "zarr.json"
        sealed, seals = (0 if self._live else 1) * (self.count // field.segment_rows), {}
        self.sums[field.name] = {}
        document = self._document(path)
        try:
            if document is not None:
                attributes = document["attributes"]["diskreplay"]
                rows = document["shape"][0]
                expected = format.array_document(field, rows, self.num_envs, attributes)
                if type(rows) is not int or document != expected:
                    raise ValueError("it does not describe the field that the group names")
                least = int(self.recorded.max())
                if rows < least or (self.settled and rows != least):
                    raise ValueError(f"{rows} rows found, {least} expected")
                sealed, seals = self._parse_seals(field, attributes)
                full = self.recorded // field.segment_rows
                if self.settled and (sealed != full).any():
                    raise ValueError(f"{sealed.tolist()} sealed segments, {full.tolist()} expected")
                if self.settled and "open" in attributes:
                    self.sums[field.name] = self._parse_sums(field, attributes["open"])
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            self._complain("metadata", path, f"the metadata are damaged ({error})", _REBUILD)
        if self.state is not None:
            sealed = np.maximum(sealed, self._state_sealed[number])
        self.sealed[field.name], self.seals[field.name] = sealed, seals
        if self.settled and document is not None:
            lacking = [p for p in self.places(field) if p.sealed and p[1:3] not in seals]
            if lacking:
                self._complain(
                    "metadata", path,
                    f"{len(lacking)} of the sealed segments without a checksum there, the first is "
                    f"{lacking[0].segment} of env {lacking[0].env}",
                    _REBUILD, field=field.name,
                )  # fmt: skip

    def _parse_seals(
        self, field: Field, attributes: dict
    ) -> tuple[np.ndarray, dict[tuple[int, int], Seal]]:
        if attributes.keys() - {"open"} != {"sealed", "seals"}:
            raise ValueError("sealed and seals expected")
        return parse_seals(field, attributes, self.num_envs)

    def _parse_sums(self, field: Field, entries: dict) -> dict[tuple[int, int], list[int]]:
        """Of a store that was closed: nobody has written to its open segments since."""
        sums = {}
        for env, count in enumerate(self.recorded.tolist()):
            segment, used = divmod(count, field.segment_rows)
            if used and not field.packed:
                found = entries.pop(f"{segment}/{env}")
                pieces = -(-used * field.row_bytes // piece_bytes(field))
                if [type(crc) for crc in found] != [int] * pieces:
                    raise ValueError(f"{pieces} checksums of segment {segment}/{env} expected")
                if count == self.count[env]:  # else another segment is taken for the newest
                    sums[segment, env] = found
        if entries:
            raise ValueError("checksums of segments that are not open")
        return sums

    # -- which files should be there

    def places(self, field: Field) -> Iterator[Place]:
        """The segments that hold rows, env by env, oldest first."""
        rows = field.segment_rows
        for env in range(self.num_envs):
            for segment in range(int(self.first[env]) // rows, -(-int(self.count[env]) // rows)):
                yield self.place(field, segment, env)

    def place(self, field: Field, segment: int, env: int) -> Place | None:
        """One segment, or None if no row that counts is in it."""
        rows = field.segment_rows
        used = min(rows, int(self.count[env]) - segment * rows)
        if used <= 0 or segment < self.first[env] // rows:
            return None
        sealed = used == rows and segment < self.sealed[field.name][env]
        return Place(field, segment, env, used, bool(sealed))

    def chunk(self, field: Field, segment: int, env: int) -> Path:
        """The chunk or shard of a segment."""
        return self.path / field.name / field.chunk_key(segment, env)

    def tail(self, field: Field, segment: int, env: int) -> Path:
        """The tail of a packed segment."""
        return private.tail(self.path, self.numbers[field.name], segment, env)

    def has_tail(self, place: Place) -> bool:
        """Whether the rows of a packed segment are in a tail, not in its shard."""
        field, segment, env = place[:3]
        return (
            not place.sealed
            and segment >= self.sealed[field.name][env]
            and self.tail(field, segment, env).exists()
        )

    def still_holds(self) -> bool:
        """Whether the directory is the one that was surveyed, in the same hands."""
        if _identity(self.path) != self.identity:
            return False
        # A writer may have opened it and closed it again.
        if self.settled and _stamp(self.path / "zarr.json") != self._record:
            return False
        state = self.state
        return state is None or (
            bool(state.replaced[0]) == self._replaced and state.closed == self.settled
        )


def _identity(path: Path) -> list[int | None]:
    """The inodes of the files that no store shares with the one that takes its place."""
    inodes = []
    for one in (private.commit_page(path), path / "manifest.json"):
        try:
            inodes.append(os.stat(one).st_ino)
        except OSError:
            inodes.append(None)
    return inodes


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]
