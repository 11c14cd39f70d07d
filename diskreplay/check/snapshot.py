"""What a store's metadata say at one moment, read without the writer's lock."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.check.report import Finding, Span
from diskreplay.episode_parts import Parts
from diskreplay.errors import DiskReplayError, FormatError
from diskreplay.frame_chains import reach_in
from diskreplay.store import files, format, manifest, private
from diskreplay.store.catalog import Catalog
from diskreplay.store.commit_page import HEADER_BYTES, CommitPage, finals_in
from diskreplay.store.field import Field
from diskreplay.store.paths import identity, inode
from diskreplay.store.seals import parse_seals
from diskreplay.store.segment import Seal
from diskreplay.store.system_errors import says_lost

BOOKKEEPING = frozenset(("reward", "terminated", "truncated", "step", "is_final"))
RECOUNT = "the next opening goes by the record; `--repair` writes it anew"
_REOPEN = "nothing opens the store until `--repair` writes it anew, by the record"
_REBUILD = "`--repair` writes it anew from the group's attributes"
_UNCHECKED = (
    "; the checksums of its raw files go with them, so what has rotted in these files is not found"
)
_BOOT = re.compile(rb"[0-9A-Fa-f-]{36}\0*")
_COUNTS_AT = 4096


class Snapshot:
    """The metadata of a store or checkpoint, read once without a lock.

    Attributes
    ----------
    path : Path
    catalog : Catalog
        Which rows count, by the rules that opening follows, and which files should hold them.
    attributes : dict
        Of the group.
    transitions : ndarray of int64, shape (num_envs,)
        What the record says of them.
    reach : int
        So many rows before its own one a row of `Slots` may have frames in; 0 in other stores.
    parts : Parts
        What it says of these. All rows where that is damaged.
    manifest : dict or None
        Of a checkpoint: its files.
    findings : list of Finding
        What is wrong with the metadata themselves.

    Raises
    ------
    FormatError
        No store, one of a newer format, or one whose group cannot be read: without that nothing
        is known.
    """

    first: np.ndarray
    count: np.ndarray
    durable_count: np.ndarray

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.identity = _identity(path)
        self._record = identity(path / "zarr.json")
        self.attributes = format.read_attributes(path)
        try:
            self._parse()
        except (KeyError, TypeError, ValueError, OverflowError, DiskReplayError) as error:
            if not says_lost(error):
                raise
            raise FormatError(
                f"{path / 'zarr.json'}: damaged attributes ({error}); restore the file from a "
                "backup, or load a checkpoint into a new store"
            ) from error
        if format.read_document(path / "zarr.json") != format.group_document(self.attributes):
            self._complain("metadata", path / "zarr.json", "not as a group's are", _REBUILD)
        self.manifest = self._read_manifest()
        self.page: CommitPage | None = None
        self.epoch = 0
        self._settled, self._live = True, False
        self._packed: dict[str, np.ndarray] = {}
        if self.manifest is None:
            self._read_page()
        self._doubt_counts()
        if self.rows_per_env is not None:
            self.first = np.maximum(self.first, self.count - self.rows_per_env)
        seals = {field.name: self._read_field(field) for field in self.fields}
        self.catalog = Catalog(
            path, tuple(self.fields), self.first, self.count, self.durable_count, self._settled,
            self._live, self._packed, seals,
        )  # fmt: skip
        if self._settled and self.manifest is None:
            for field in self.fields:
                self._check_lacking(field)
        groups = {path / parent for field in self.fields for parent in Path(field.name).parents}
        for group in groups - {path}:
            document = self._document(group / "zarr.json")
            if document is not None and document != format.group_document():
                self._complain("metadata", group / "zarr.json", "not a plain group", _REBUILD)

    def _parse(self) -> None:
        attributes = self.attributes
        self.num_envs, capacity, self.fields = format.parse_head(attributes)
        self.rows_per_env = None if capacity is None else capacity // self.num_envs
        self.count, self.first = format.parse_rows(attributes, self.num_envs)
        self.durable_count = self.count.copy()
        self.reach = reach_in(attributes)
        names = {field.name for field in self.fields}
        lacking = BOOKKEEPING - names
        if lacking or len(names) < len(self.fields):
            raise ValueError(f"fields: {', '.join(sorted(lacking)) or 'one twice'}")
        if any(f.packed or f.shape for f in self.fields if f.name in BOOKKEEPING):
            raise ValueError("fields: a small one is not as this format has it")
        try:
            self.transitions = format.parse_transitions(attributes, self.durable_count)
        except (KeyError, ValueError) as error:
            self.transitions = self.durable_count.copy()
            self._complain(
                "metadata", self.path / "zarr.json", f"transitions cannot be so ({error})",
                "`--repair` counts anew",
            )  # fmt: skip

        try:
            self.parts = Parts.parse(attributes, self.num_envs)
        except ValueError as error:
            self.parts = Parts.everything(self.num_envs)
            self._complain(
                "metadata", self.path / "zarr.json", f"which rows are parts of episodes: {error}",
                "`--repair` takes it that all rows may be",
            )  # fmt: skip

    def _complain(self, kind: str, path: Path, meaning: str, remedy: str, **more: Any) -> None:
        self.findings.append(Finding(kind, path, meaning, remedy, **more))

    def _miscounted(
        self, wrong: np.ndarray, meaning: str, *figures: np.ndarray, field: str = ""
    ) -> bool:
        """Whether the commit page is wrong for some env. Figures of the first one are told."""
        if wrong.any():
            env, path = int(wrong.argmax()), private.commit_page(self.path)
            told = meaning.format(*(figure[env] for figure in figures), env=env, field=field)
            self._complain("state", path, told, RECOUNT, env=env)
        return bool(wrong.any())

    def _document(self, path: Path, lost: str = "") -> dict[str, Any] | None:
        try:
            return format.read_document(path)
        except DiskReplayError as error:
            if not says_lost(error):
                raise
            missing = not path.exists()
            self._complain(
                "missing" if missing else "metadata", path,
                f"the metadata are {'missing' if missing else f'damaged ({error})'}{lost}",
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
            if not says_lost(error):
                raise
            self._complain(
                "manifest", path, f"the list of files is damaged ({error})",
                "`load` refuses this checkpoint; take another one",
            )  # fmt: skip
            return {}

    def _read_page(self) -> None:
        path = private.commit_page(self.path)
        packed = [field for field in self.fields if field.packed]
        try:
            page = CommitPage(path, self.num_envs, len(packed), writable=False)
            data = files.read(path, page.mapping.size)
        except DiskReplayError as error:
            if not says_lost(error):
                raise
            kind = "state" if path.exists() else "missing"
            self._complain(kind, path, f"the commit page cannot be used ({error})", _REOPEN)
            self._settled = False
            return
        self.epoch, self._replaced = int(page.epoch[0]), bool(page.replaced[0])
        settled = self._settled = page.closed
        live = self._live = not settled and page.same_boot
        # Raised by the writer meanwhile: each is read before what it must not be ahead of.
        in_shards = page.packed.copy()
        count, words, first = page.snapshot()
        later = page.packed.copy()
        used = _COUNTS_AT + 8 * self.num_envs * (3 + len(packed))
        closed, replaced = (int.from_bytes(data[at : at + 8], "little") for at in (8, 72))
        if closed > 1 or replaced > 1 or not _BOOT.fullmatch(data[16:64]):
            self._complain("state", path, "the head of the commit page is damaged", RECOUNT)
        if any(data[HEADER_BYTES:_COUNTS_AT]) or any(data[used:]):
            self._complain(
                "state", path, "the commit page holds bytes that should be zero",
                "nothing depends on them; `--repair` writes it anew",
            )  # fmt: skip
        wrong = count != self.durable_count if settled else live & (count < self.durable_count)
        durable = self.durable_count
        self._miscounted(wrong, "{} rows of env {env} counted, {} recorded", count, durable)
        wrong = (first < 0) | (first > (count if live else self.first))
        if (settled or live) and self._miscounted(
            wrong, "rows of env {env} are said to be kept from {} on, and {} is recorded, of {}",
            first, self.first, count,
        ):  # fmt: skip
            first = self.first
        finals = finals_in(words)
        if live:
            self.count = np.maximum(count, self.durable_count)
            if (finals < 0).any() or (finals > count).any():
                self._complain("state", path, "more final rows than rows counted", RECOUNT)
            self.first = np.maximum(self.first, np.clip(first, 0, self.count))
        elif (
            settled and not ((words == 0) | (finals == self.durable_count - self.transitions)).all()
        ):
            self._complain("state", path, "the final rows counted are not those recorded", RECOUNT)
        for field, before, after in zip(packed, in_shards, later, strict=True):
            size, whole = field.block_rows, self.count // field.block_rows * field.block_rows
            room = field.tail_rows(self.num_envs)
            if settled:
                wrong = (before != 0) & (before != whole)
            else:
                wrong = live & ((before < 0) | (before % size > 0) | (self.count - after > room))
                wrong |= live & (before > whole)
            if self._miscounted(
                wrong, "{} of {} rows of env {env} are said to be in shards of {field!r}",
                before, self.count, field=field.name,
            ):  # fmt: skip
                before = np.clip(before // size * size, 0, whole)
            self._packed[field.name] = before
        self.page = page

    @property
    def unrecorded(self) -> list[Span]:
        """Rows of a closed store that its commit page counts and its record does not: one of the
        two is of another day."""
        if self.page is None or not self._settled:
            return []
        said = self.page.count.tolist()
        more = [(env, count) for env, count in enumerate(self.count.tolist()) if said[env] > count]
        return [Span(env, count, said[env]) for env, count in more]

    def _doubt_counts(self) -> None:
        """Refuse counts that no file supports: they would name billions of missing segments."""
        for env, count in enumerate(self.count.tolist()):
            if self._has_row(env, count - 1):
                continue
            seen = int(self.durable_count[env])
            if self.page is not None and seen == count:
                seen = int(self.page.count[env])
            if seen == count or not self._has_row(env, seen - 1) or seen < self.first[env]:
                raise FormatError(
                    f"{self.path / 'zarr.json'}: {count} rows of env {env} are counted, and no "
                    "file holds the last of them; restore the files, or load a checkpoint"
                )
            is_page = seen == self.durable_count[env]
            self._complain(
                "state", private.commit_page(self.path) if is_page else self.path / "zarr.json",
                f"{count} rows of env {env} are counted, and no file holds the last of them; "
                f"{seen} are taken",
                RECOUNT, env=env,
            )  # fmt: skip
            self.count[env] = seen

    def _has_row(self, env: int, row: int) -> bool:
        return row < 0 or any(
            (self.path / f.name / f.chunk_key(row // f.segment_rows, env // f.env_group)).exists()
            for f in self.fields
            if f.name in BOOKKEEPING
        )

    def _read_field(self, field: Field) -> dict[tuple[int, int], Seal]:
        """What its metadata say of its files."""
        path, seals = self.path / field.name / "zarr.json", {}
        # Blocks of packed fields have checksums in themselves, and a manifest has its own.
        lost = _UNCHECKED if self.manifest is None and not field.packed else ""
        document = self._document(path, lost)
        try:
            if document is not None:
                attributes = document["attributes"]["diskreplay"]
                rows = document["shape"][0]
                expected = format.array_document(field, rows, self.num_envs, attributes)
                if type(rows) is not int or document != expected:
                    raise ValueError("it does not describe the field that the group names")
                most = int(self.durable_count.max())
                if rows < 0 or (self._settled and rows != most):
                    raise ValueError(f"{rows} rows found, {most} expected")
                if attributes.keys() - {"open"} != {"seals"}:
                    raise ValueError("seals expected")
                seals = parse_seals(field, attributes["seals"], self.num_envs)
                if self._settled:  # else these files are written to, or were
                    seals |= parse_seals(field, attributes.get("open", {}), self.num_envs)
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            meaning = f"the metadata are damaged ({error}){lost}"
            self._complain("metadata", path, meaning, _REBUILD)
        return seals

    def _check_lacking(self, field: Field) -> None:
        """In a store that was closed there is a checksum of every file."""
        path = self.path / field.name / "zarr.json"
        lacking = [entry for entry in self.catalog.entries(field) if entry.seal is None]
        if lacking and path not in {finding.path for finding in self.findings}:
            self._complain(
                "metadata", path,
                f"{len(lacking)} of the segments without a checksum there, the first is "
                f"{lacking[0].number} of group {lacking[0].group}",
                _REBUILD, field=field.name,
            )  # fmt: skip

    def still_holds(self) -> bool:
        """Whether the directory is the one that was read, in the same hands."""
        if _identity(self.path) != self.identity:
            return False
        # A writer may have opened it and closed it again.
        if self._settled and identity(self.path / "zarr.json") != self._record:
            return False
        page = self.page
        return page is None or (
            bool(page.replaced[0]) == self._replaced and page.closed == self._settled
        )


def _identity(path: Path) -> list[int | None]:
    """The inodes of the files that no store shares with the one that takes its place."""
    return [inode(private.commit_page(path)), inode(path / manifest.NAME)]
