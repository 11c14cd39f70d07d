"""Sets rotten rows aside, so that a damaged store can be written to and sampled again.

The store is built anew beside its place, from hard links to all that is whole, and the two
directories are exchanged in one step: a crash leaves the old store or the new one. What was
replaced is kept, in ``<store>.repair-<n>``.

A row of which any field is lost becomes a final row, which is never sampled, and reads as zeros.
The rows behind it count their steps from 0, so that no stack and no n-step window reaches across;
of these, as many as a stack shows besides its newest frame become final rows too, so that no stack
is sampled with less in it than was recorded. So do rows of slots that have frames in lost rows.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from diskreplay.check import excused, segment_check
from diskreplay.check.content import Content
from diskreplay.check.lost_rows import lost_rows, showing
from diskreplay.check.report import Loss, Report, Span, spans
from diskreplay.check.restoring import Source, restore_all, saved_priorities
from diskreplay.check.row_check import FIELD_OF, RULES, SmallColumns, faults, set_aside
from diskreplay.check.snapshot import BOOKKEEPING
from diskreplay.check.verify import Check
from diskreplay.errors import FormatError, StorageError, StoreError
from diskreplay.store import (
    codec,
    files,
    format,
    interrupted_repair,
    manifest,
    priorities,
    private,
    tempfiles,
)
from diskreplay.store.catalog import Key, SegmentEntry
from diskreplay.store.commit_page import CommitPage
from diskreplay.store.mapping import Mapping
from diskreplay.store.paths import resolved
from diskreplay.store.plain_file import Unreadable
from diskreplay.store.segment import Seal
from diskreplay.store.store import Store

_ROWS_AT_ONCE = 1 << 24  # of some envs, whose small columns are in memory together
_UNSURE = "no checkpoint has them otherwise"
_UNRECORDED = (
    "the commit page counts them and the record (zarr.json) does not, which may be an older copy: "
    "their files are kept"
)
_BEHIND = "the stack that is shown with them reaches into rows that are lost"


def repair(
    path: Path, *, sources: Sequence[Path] = (), advance: Callable[[int], None] | None = None
) -> Report:
    """Check a store and mend what is found.

    Parameters
    ----------
    path : Path
        A store that nobody writes to.
    sources : sequence of Path
        Checkpoints to take lost rows and priorities from, in this order; see `check.restoring`.
    advance : callable, optional
        As for `verify`.

    Returns
    -------
    Report
        What was found. ``aside`` is the directory that holds what was replaced; None if nothing
        was to be mended. ``losses`` says which rows were set aside, and why.

    Raises
    ------
    FormatError
        A checkpoint, which is never changed; no store; or too little of one.
    LockedError
        A writer has it open.
    StorageError
        The file system refused, or cannot link files. The store is as it was.
    """
    path = resolved(path)
    Store.sweep(path)
    format.read_attributes(path)
    if manifest.is_checkpoint(path):
        raise FormatError(
            f"{path}: a checkpoint, which is never changed; restore its files, or load another one"
        )
    for source in sources:
        format.read_attributes(source)  # said before the long walk, and also if all is sound
    with private.held(path):
        interrupted_repair.finish(path)
        check = Check(path, advance)
        check.run()
        if not check.findings:
            return check.report
        repair = _Repair(check, [Source(source) for source in sources])
        return replace(
            check.report, aside=repair.run(), set_aside=tuple(repair.lost.tolist()),
            losses=tuple(repair.losses),
        )  # fmt: skip


class _Repair:
    """One repair. `build`, in `room`, becomes the store; `lost` are the rows of each env that are
    set aside, `losses` why."""

    def __init__(self, check: Check, sources: list[Source]) -> None:
        self.check, self.snapshot, self.catalog = check, check.snapshot, check.catalog
        self.path = check.path
        # All that was found to be wrong stays, with what the records said of it.
        self.kept = {finding.path for finding in check.findings}
        self.kept.add(self.path / "zarr.json")
        self._rows: dict[int, SmallColumns] = {}
        self._finals = np.zeros(self.catalog.num_envs, np.int64)
        self.lost = np.zeros(self.catalog.num_envs, np.int64)
        self.losses: list[Loss] = []
        self._unrecorded = self.snapshot.unrecorded
        self._sources = sources
        self._find_twins()
        self._salvage()
        self._verdicts = restore_all(check, sources)
        self._refuse_too_little()

    def run(self) -> Path:
        """Build, exchange, tidy up."""
        self._note_losses()
        for group in range(self.catalog.groups):
            for envs in self._batches(group):
                self._set_aside(group, envs)
        room = tempfiles.Workspace(self.path, "repair")
        self.build = room.path / self.path.name
        try:
            self._build()
            interrupted_repair.note(room, self.build, self._findings())
            self._exchange(room)
            files.sync_dirs([self.path.parent])
            self._tidy(room)
            aside = interrupted_repair.aside_of(self.path)
            files.rename(self.build, aside)
            files.sync_dirs([self.path.parent])
        except BaseException:
            room.release()
            with contextlib.suppress(StorageError):  # else the next opening does it
                interrupted_repair.finish(self.path)
            raise
        room.remove()
        return aside

    # -- what can be had

    def _entry(self, key: Key) -> SegmentEntry:
        return self.catalog.segment(self.check.fields[key[0]], *key[1:])

    def _find_twins(self) -> None:
        """Find whole files for rotten segments, by their recorded checksums: segments that were
        exchanged, or that a checkpoint holds a good copy of."""
        chunks = {key: self.catalog.chunk(*self._entry(key)[:3]) for key in self.check.damaged}
        for key in chunks:
            entry, below = self._entry(key), self.path / key[0]
            others = [path for path in self.check.orphans if path.is_relative_to(below)]
            others += [path for other, path in chunks.items() if other[0] == key[0]]
            others += [source.catalog.path / chunks[key].relative_to(self.path)
                       for source in self._sources]  # fmt: skip
            for path in others * (entry.seal is not None):
                with contextlib.suppress(Unreadable, FileNotFoundError):
                    # Of another file system it cannot be linked: its rows are copied later.
                    near = path.stat().st_dev == self.path.stat().st_dev
                    if near and _whole_seal(entry, path) == entry.seal:
                        self.check.sources[key] = path

    def _salvage(self) -> None:
        """Find the blocks that are whole in shards whose index is rotten."""
        rotten = {f.path for f in self.check.findings if f.kind == "index"}
        for key in self.check.damaged.keys() - self.check.sources.keys():
            entry = self._entry(key)
            chunk = self.catalog.chunk(*entry[:3])
            if chunk not in rotten or self.catalog.shards(entry) != [chunk]:
                continue
            wanted = entry.counted & ~self.catalog.in_tail(entry)
            index = segment_check.salvaged(entry.field, chunk, wanted, entry.seal)
            if index is not None:
                there = segment_check.rows_of_blocks(entry.field, index[:, 0] != codec.MISSING)
                self.check.indexes[key] = index
                self.check.damaged[key] = self.check.damaged[key] & ~(there & wanted)

    def _refuse_too_little(self) -> None:
        """A field of which nothing is whole and whose metadata do not fit: then the group's may be
        what is damaged."""
        doubtful = {f.path for f in self.check.findings if f.kind in ("metadata", "missing")}
        for field in self.catalog.fields:
            entries = self.catalog.entries(field)
            nothing = entries and all(
                entry.key in self.check.damaged
                and not (entry.retained & ~self.check.damaged[entry.key]).any()
                for entry in entries
            )
            if nothing and self.path / field.name / "zarr.json" in doubtful:
                source = "a checkpoint (`--repair --from CHECKPOINT`)"
                if self._sources:
                    source = f"another checkpoint ({self._verdicts.get(entries[0].key, '')})"
                raise FormatError(
                    f"{self.path / field.name}: nothing in it is as {self.path / 'zarr.json'} says;"
                    f" restore that, take the rows from {source}, or load one into a new store"
                )

    # -- rows

    def _batches(self, group: int) -> Iterator[list[int]]:
        """The envs of a group, so many at once as have not too many rows."""
        envs, rows = self.catalog.envs(group), 0
        batch: list[int] = []
        for env in range(envs.start, envs.stop):
            own = int(self.catalog.count[env] - self.catalog.first[env])
            if batch and rows + own > _ROWS_AT_ONCE:
                yield batch
                batch, rows = [], 0
            batch.append(env)
            rows += own
        yield batch

    def _read(self, group: int, envs: list[int]) -> dict[int, tuple[SmallColumns, np.ndarray]]:
        """The small columns of some envs, and which rows of them are known."""
        parts: dict[int, list[tuple[SmallColumns, np.ndarray]]] = {env: [] for env in envs}
        begin = self.catalog.envs(group).start
        for low, high in self.check.bookkeeping.windows(self.catalog, group):
            rows, known, counted = self.check.bookkeeping.read(self.catalog, group, low, high)
            for env in envs:
                here = counted[:, env - begin]
                some = SmallColumns(*(column[here, env - begin] for column in rows))
                parts[env].append((some, known[here, env - begin]))
        return {
            env: (
                SmallColumns(*map(np.concatenate, zip(*(r for r, _known in its), strict=True))),
                np.concatenate([known for _rows, known in its]),
            )
            for env, its in parts.items() if its
        }  # fmt: skip

    def _set_aside(self, group: int, envs: list[int]) -> None:
        """Find the rows that are lost, and make the small columns say so."""
        snapshot, catalog = self.snapshot, self.catalog
        wrong: dict[str, list[Span]] = {}
        behind: list[Span] = []
        for env, (rows, known) in self._read(group, envs).items():
            first, bad = int(catalog.first[env]), ~known | lost_rows(self.check, env)
            parts = excused.excused_rows(snapshot.parts, env, rows, known, first)
            for rule, where in faults(rows, known, parts).items():
                wrong.setdefault(rule, []).extend(spans(where[:, None], first, env))
                bad |= where
            shown = showing(self.check, env) & ~bad
            durable = int(catalog.durable_count[env])
            before = np.count_nonzero(rows.is_final[: max(durable - first, 0)])
            evicted = max(durable - int(snapshot.transitions[env]) - int(before), 0)
            if bad.any():
                stack, was_final = snapshot.attributes.get("stack_size", 1), rows.is_final.copy()
                set_aside(rows, bad | shown, stack if isinstance(stack, int) else 1)
                self._rows[env] = rows
                cut_off = (rows.is_final > was_final) & ~bad
                self.lost[env] = np.count_nonzero(bad | cut_off)
                behind += spans(cut_off[:, None], first, env)
            self._finals[env] = min(evicted, first) + int(rows.is_final.sum())
        for rule, rotten in wrong.items():
            self.losses.append(Loss(tuple(rotten), FIELD_OF[rule], f"{RULES[rule]}; {_UNSURE}"))
        if behind:
            self.losses.append(Loss(tuple(behind), None, _BEHIND))

    def _note_losses(self) -> None:
        """Say of each damaged segment why rows of it are set aside."""
        if self._unrecorded:
            self.losses.append(Loss(tuple(self._unrecorded), None, _UNRECORDED))
        meaning = {f.path: f.meaning for f in self.check.findings}
        for key, lost in self.check.damaged.items():
            entry = self._entry(key)
            rows = spans(lost & entry.retained, entry.start, entry.first_env)
            if not rows or key in self.check.sources:
                continue
            paths = self.catalog.paths(entry.field)
            where = {self.catalog.chunk(*entry[:3]), paths.open_segment(*entry[1:3])}
            meanings = [f.meaning for f in self.check.findings if f.path in where and f.rows]
            if (lost & self.catalog.in_tail(entry)).any():
                meanings.append(f"the tail: {meaning[paths.tail]}")
            reason = "; ".join([*dict.fromkeys(meanings), self._verdicts.get(key, "")])
            self.losses.append(Loss(rows, key[0], f"segment {key[1]}: {reason}"))

    # -- the new directory

    def _build(self) -> None:
        catalog, build = self.catalog, self.build
        private.take_place_of(self.path, build)
        packed = sum(field.packed for field in catalog.fields)
        CommitPage.create(private.commit_page(build), catalog.count, packed)
        rows = int(catalog.count.max(initial=0))
        for field in catalog.fields:
            files.make_dirs(build / field.name)
            attributes: dict[str, dict[Any, Any]] = {"seals": {}, "open": {}}
            for entry in catalog.entries(field):
                seal, is_sealed = self._build_segment(entry)
                which = attributes["seals" if is_sealed else "open"]
                which[f"{entry.number}/{entry.group}"] = seal.entry
            made = format.array_document(field, rows, catalog.num_envs, attributes)
            format.write_documents(build, field, made)
        of_group = {
            **self.snapshot.attributes,
            **self.snapshot.parts.attribute(),
            "first": catalog.first.tolist(),
            "count": catalog.count.tolist(),
            "transitions": (catalog.count - self._finals).tolist(),
        }
        if "next_step" in of_group:
            of_group["next_step"] = [0] * catalog.num_envs
        files.write(build / "zarr.json", [format.encode(format.group_document(of_group))])
        for name in {priorities.MAIN, *self.check.bad_priorities, *priorities.sets(self.path)}:
            self._build_priorities(name)
        self._link(private.lock_file(self.path), private.lock_file(build))
        files.sync_tree(build)

    def _link(self, source: Path, target: Path) -> None:
        if not files.link(source, target):
            raise StorageError(
                errno.ENOTSUP, "the file system cannot link files, which a repair needs: copy the "
                "store to one that can", str(source),
            )  # fmt: skip

    def _build_segment(self, entry: SegmentEntry) -> tuple[Seal, bool]:
        """One segment of the new store: its seal, and whether it never changes."""
        field, key, check = entry.field, entry.key, self.check
        chunk = self.catalog.chunk(*entry[:3])
        target = self.build / chunk.relative_to(self.path)
        changed = field.name in BOOKKEEPING and any(
            env in self._rows for env in range(entry.first_env, entry.first_env + field.env_group)
        )
        source = check.sources.get(key, chunk)
        whole = key in check.sources or (key not in check.damaged and key not in check.restored)
        if whole and not changed and self._is_linkable(entry, source):
            self._link(source, target)
            files.seal(target)
            return cast(Seal, check.seals.get(source) or _whole_seal(entry, source)), True
        values = check.restored.get(key)
        if values is None:
            lost = check.damaged.get(key) if key not in check.sources else None
            lost = segment_check.nothing(field) if lost is None else lost
            values = Content(check, entry, lost).values
            values[lost] = 0
        values[~entry.counted] = 0
        if changed:
            self._change(entry, values)
            self.kept.add(chunk)
        if any(
            span.stop > entry.start and entry.start + field.segment_rows > span.start
            for span in self._unrecorded
            if entry.first_env <= span.env < entry.first_env + field.env_group
        ):
            self.kept.add(chunk)
        data, seal = segment_check.encoded(field, values, entry.used)
        if field.packed:
            files.write(target, [data.data])
        else:
            memory = Mapping.create(target, field.segment_bytes)
            memory.array[:] = data
        if entry.is_full:
            files.seal(target)
        return seal, entry.is_full

    def _is_linkable(self, entry: SegmentEntry, source: Path) -> bool:
        """Whether a whole file has all rows of a segment, and will never change."""
        if entry.field.packed and entry.key not in self.check.sources:
            chunk = self.catalog.chunk(*entry[:3])
            if self.catalog.shards(entry) != [chunk] or self.catalog.in_tail(entry).any():
                return False
        return entry.is_full or not source.stat().st_mode & 0o200

    def _change(self, entry: SegmentEntry, values: np.ndarray) -> None:
        """Put the rows of envs that have rows set aside into a small column's segment."""
        for place in np.flatnonzero(entry.low < entry.used).tolist():
            env = entry.first_env + place
            if env in self._rows:
                low, used = int(entry.low[place]), int(entry.used[place])
                start = entry.start - int(self.catalog.first[env])
                column = getattr(self._rows[env], entry.field.name)[start + low : start + used]
                values[low:used, place] = column.view(np.uint8).reshape(used - low, -1)

    def _build_priorities(self, name: str) -> None:
        catalog, found = self.catalog, None
        if name in self.check.bad_priorities:
            self.kept.update((self.path / name).rglob("*"))
        else:
            found = priorities.read(self.path / name, catalog.num_envs)
        if found is None:
            saved = saved_priorities(self._sources, name, catalog.num_envs)
        else:
            saved = [found]
        is_main = name == priorities.MAIN
        if not saved and is_main and self.snapshot.attributes.get("kind") != "prioritized":
            return
        first, stop = int(catalog.first.min()), int(catalog.count.max())
        new = np.full((stop - first, catalog.num_envs), np.nan)  # those rows get the largest
        said = (saved[0].alpha, saved[0].notes) if saved else (None, None)
        for start, leaves, *_ in saved:
            low, high = max(start, first), min(start + len(leaves), stop)
            if low < high:
                part, there = new[low - first : high - first], leaves[low - start : high - start]
                np.copyto(part, there, where=np.isnan(part))
        files.sync(priorities.write(self.build / name, priorities.Unsaved(new, *said), first))
        files.sync_dirs([self.build / name])

    # -- the exchange

    def _exchange(self, room: tempfiles.Workspace) -> None:
        with contextlib.suppress(StoreError, StorageError):  # what is rotten tells no reader
            path = private.commit_page(self.path)
            packed = sum(field.packed for field in self.catalog.fields)
            page = CommitPage(path, self.catalog.num_envs, packed, writable=True)
            page.replaced[0] = 1
            files.sync([path])
        room.exchange(self.build)

    def _findings(self) -> str:
        losses = [f"set aside: {loss}" for loss in self.losses]
        return "".join(f"{line}\n" for line in [*self.check.findings, *losses])

    def _tidy(self, room: tempfiles.Workspace) -> None:
        """Keep what was replaced, and let go of what the new store holds as well."""
        kept = {path.relative_to(self.path) for path in self.kept}
        for base, _dirs, names in os.walk(self.build, topdown=False):
            for name in names:
                if Path(base, name).relative_to(self.build) not in kept:
                    files.remove(Path(base, name))
            files.remove_empty_dir(Path(base))
        files.make_dirs(self.build)
        interrupted_repair.keep_findings(room, self.build)


def _whole_seal(entry: SegmentEntry, path: Path) -> Seal | None:
    """The seal of a file that is whole and has a segment's rows, None of another one."""
    check = segment_check.check_shard if entry.field.packed else segment_check.check_raw
    checked = check(entry.field, path, entry.counted)
    return None if checked.faults else checked.seal
