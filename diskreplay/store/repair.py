"""Sets rotten rows aside, so that a damaged store can be written to and sampled again.

The store is built anew beside its place, from hard links to all that is whole, and the two
directories are exchanged in one step: a crash leaves the old store or the new one. What was
replaced is kept, in ``<store>.repair-<n>``.

A row of which any field is lost becomes a final row, which is never sampled, and reads as zeros.
The rows behind it count their steps from 0, so that no stack and no n-step window reaches across;
of these, as many as a stack shows besides its newest frame become final rows too, so that no stack
is sampled with less in it than was recorded.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from diskreplay.errors import FormatError, StorageError, StoreError
from diskreplay.store import (
    codec,
    files,
    format,
    priorities,
    private,
    repair_leftovers,
    segment_check,
    tempfiles,
)
from diskreplay.store.column import Seal
from diskreplay.store.finding import Loss, Report, ranges
from diskreplay.store.format import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.restoring import Source, restore_all, saved_priorities
from diskreplay.store.row_check import FIELD_OF, RULES, Rows, faults, set_aside
from diskreplay.store.segment_check import Unreadable
from diskreplay.store.state import State
from diskreplay.store.store import Store
from diskreplay.store.survey import BOOKKEEPING, Place
from diskreplay.store.verify import Check

_UNSURE = "no checkpoint has them otherwise"
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
        Checkpoints of it, the one to ask first first: rows that are lost, and priorities, are taken
        from there as far as they are whole there and can be told to be the same, see
        `store.restoring`.
    advance : callable, optional
        As for `verify`.

    Returns
    -------
    Report
        What was found, and in ``aside`` the directory that holds what was replaced; None if there
        was nothing to mend, and so nothing was changed. ``losses`` says which rows were set aside,
        and why.

    Raises
    ------
    FormatError
        A checkpoint, which is never changed; no store; or too little of one.
    LockedError
        A writer has it open.
    StorageError
        The file system refused, or cannot link files. The store is as it was.
    """
    path = files.resolved(path)
    Store.settle(path)
    format.read_attributes(path)
    if (path / "manifest.json").exists():
        raise FormatError(
            f"{path}: a checkpoint, which is never changed; restore its files from a copy, or load "
            "another one"
        )
    for source in sources:
        format.read_attributes(source)  # said before the long walk, and also if all is sound
    lock = private.hold(path)
    try:
        repair_leftovers.finish(path)
        check = Check(path, advance)
        check.run()
        if not check.findings:
            return check.report
        repair = _Repair(check, [Source(source) for source in sources])
        return replace(
            check.report, aside=repair.run(), set_aside=tuple(repair.lost.tolist()),
            losses=tuple(repair.losses),
        )  # fmt: skip
    finally:
        files.unlock(lock)


class _Repair:
    """One repair. `build`, in `room`, becomes the store; `lost` are the rows of each env that are
    set aside, `losses` why."""

    def __init__(self, check: Check, sources: list[Source]) -> None:
        self.check, self.survey = check, check.survey
        self.path = check.path
        # All that was found to be wrong stays, with what the records said of it.
        self.kept = {finding.path for finding in check.findings}
        self.kept.add(self.path / "zarr.json")
        self._salvaged: dict[tuple[str, int, int], np.ndarray] = {}
        self._rows: dict[int, Rows] = {}
        self._finals = np.zeros(self.survey.num_envs, np.int64)
        self.lost = np.zeros(self.survey.num_envs, np.int64)
        self.losses: list[Loss] = []
        self._sources = sources
        self._find_twins()
        self._salvage()
        self._verdicts = restore_all(check, sources)
        self._refuse_too_little()

    def run(self) -> Path:
        """Build, exchange, tidy up."""
        survey = self.survey
        for env in range(survey.num_envs):
            self._set_aside(env)
        room = tempfiles.Workspace(self.path, "repair")
        self.build = room.path / self.path.name
        try:
            self._build()
            self._exchange(room)
        except BaseException:
            room.remove()
            raise
        try:
            files.sync_dirs([self.path.parent])
            self._tidy()
            aside = repair_leftovers.aside_of(self.path)
            files.rename(self.build, aside)
            files.sync_dirs([self.path.parent])
        except BaseException:
            room.release()  # what was replaced stays there for the next repair to name
            raise
        room.remove()
        return aside

    # -- what can be had

    def _find_twins(self) -> None:
        """Find whole files for rotten segments, by their recorded checksums: segments that were
        exchanged, or that a checkpoint holds a good copy of."""
        for field in self.survey.fields:
            keys = [key for key in self.check.damaged if key[0] == field.name]
            below = self.path / field.name
            strays = [p for p in self.check.orphans if p.is_relative_to(below)]
            strays += [self.survey.chunk(field, *key[1:]) for key in keys]
            for key in keys:
                others = [source.survey.chunk(field, *key[1:]) for source in self._sources]
                for path in strays + others:
                    with contextlib.suppress(Unreadable, FileNotFoundError):
                        # Of another file system it cannot be linked: its rows are copied later.
                        near = path.stat().st_dev == self.path.stat().st_dev
                        if near and self._is_twin(field, *key[1:], path):
                            self.check.sources[key] = path

    def _is_twin(self, field: Field, segment: int, env: int, path: Path) -> bool:
        """Whether a file holds what was recorded of a segment."""
        seal = self.survey.seals[field.name].get((segment, env))
        sums = self.survey.sums[field.name].get((segment, env))
        if seal is not None:
            return _whole_seal(field, path) == seal
        if sums is None:
            return False
        used = self.survey.place(field, segment, env).used
        return codec.piece_sums(field, segment_check.bytes_of(path, used * field.row_bytes)) == sums

    def _salvage(self) -> None:
        """Find the blocks that are whole in rotten shards, also if the index is lost."""
        foreign = {f.path for f in self.check.findings if f.kind == "checksum"}
        for field in self.survey.fields:
            for place in self.survey.places(field):
                key = field.name, place.segment, place.env
                if not field.packed or key not in self.check.damaged or key in self.check.sources:
                    continue
                path = self.survey.chunk(field, *key[1:])
                if not self.check.damaged[key].any() or path in foreign:
                    continue
                try:
                    shard, lost = segment_check.mended(field, path, place.used)
                except Unreadable:
                    continue
                seal = self.survey.seals[field.name].get(key[1:]) if place.sealed else None
                whole = not lost[: place.used].any()
                if whole and seal not in (None, Seal(len(shard), codec.checksum(field, shard))):
                    continue  # whole, and another segment's
                if self.check.damaged[key].sum() >= lost.sum():
                    self._salvaged[key], self.check.damaged[key] = shard, lost

    def _refuse_too_little(self) -> None:
        """A field of which nothing is whole and whose metadata do not fit: then the group's may be
        what is damaged."""
        doubtful = {f.path for f in self.check.findings if f.kind in ("metadata", "missing")}
        for field in self.survey.fields:
            lost = [
                self.check.damaged.get((field.name, p.segment, p.env)) for p in
                self.survey.places(field)
            ]  # fmt: skip
            nothing = lost and all(one is not None and one.all() for one in lost)
            if nothing and self.path / field.name / "zarr.json" in doubtful:
                raise FormatError(
                    f"{self.path / field.name}: nothing in it is as {self.path / 'zarr.json'} "
                    "says; restore that file, or load a checkpoint into a new store"
                )

    # -- rows

    def _set_aside(self, env: int) -> None:
        """Find the rows that are lost, and make the small columns say so."""
        survey = self.survey
        first, stop = int(survey.first[env]), int(survey.count[env])
        rows, known = self.check.read_rows(env, first, stop)
        bad, wrong = ~known, {}
        for start, after in ranges(np.flatnonzero(known)):
            part = Rows(*(column[start:after] for column in rows))
            for rule, places in faults(part).items():
                wrong.setdefault(rule, []).append(start + places)
                bad[start + places] = True
        for key, lost in self.check.damaged.items():
            if key[2] == env and key not in self.check.sources:
                start = key[1] * self._field(key[0]).segment_rows - first
                low, high = max(start, 0), min(start + len(lost), stop - first)
                bad[low:high] |= lost[low - start : high - start]
                self._note_loss(key, first + low + np.flatnonzero(lost[low - start : high - start]))
        for rule, places in wrong.items():
            where = ranges(first + np.concatenate(places))
            self.losses.append(Loss(env, where, FIELD_OF[rule], f"{RULES[rule]}; {_UNSURE}"))
        before = np.count_nonzero(rows.is_final[: max(int(survey.recorded[env]) - first, 0)])
        evicted = int(survey.recorded[env] - survey.transitions[env]) - before
        if bad.any():
            stack, was_final = self.survey.attributes.get("stack_size", 1), rows.is_final.copy()
            set_aside(rows, bad, stack if isinstance(stack, int) else 1)
            self._rows[env] = rows
            behind = (rows.is_final > was_final) & ~bad
            self.lost[env] = np.count_nonzero(bad | behind)
            if behind.any():
                where = ranges(first + np.flatnonzero(behind))
                self.losses.append(Loss(env, where, None, _BEHIND))
        self._finals[env] = min(max(evicted, 0), first) + np.count_nonzero(rows.is_final)

    def _note_loss(self, key: tuple[str, int, int], rows: np.ndarray) -> None:
        """Say why these rows of a segment are set aside."""
        name, segment, env = key
        field = self._field(name)
        where = {self.survey.chunk(field, segment, env), self.survey.tail(field, segment, env)}
        meanings = [f.meaning for f in self.check.findings if f.path in where and f.rows]
        if len(rows):
            reason = "; ".join([*dict.fromkeys(meanings), self._verdicts.get(key, "")])
            self.losses.append(Loss(env, ranges(rows), name, f"segment {segment}: {reason}"))

    def _field(self, name: str) -> Field:
        return next(field for field in self.survey.fields if field.name == name)

    # -- the new directory

    def _build(self) -> None:
        survey, build = self.survey, self.build
        files.make_dirs(private.directory(build))
        State.create(private.commit_page(build), survey.count, len(survey.fields))
        rows = int(survey.count.max(initial=0))
        documents = {}
        for field in survey.fields:
            files.make_dirs(build / field.name)
            seals, sums = {}, {}
            for place in survey.places(field):
                seal = self._build_segment(place)
                if seal is not None:
                    seals[f"{place.segment}/{place.env}"] = seal.entry
                elif not field.packed:
                    chunk = build / field.name / field.chunk_key(place.segment, place.env)
                    rows_there = segment_check.bytes_of(chunk, place.used * field.row_bytes)
                    sums[f"{place.segment}/{place.env}"] = codec.piece_sums(field, rows_there)
            sealed = np.maximum(survey.count, survey.first) // field.segment_rows
            attributes = {"sealed": sealed.tolist(), "seals": seals}
            if not field.packed:
                attributes["open"] = sums
            document = format.array_document(field, rows, survey.num_envs, attributes)
            documents[build / field.name / "zarr.json"] = document
            for parent in (build / field.name).relative_to(build).parents:
                documents.setdefault(build / parent / "zarr.json", format.group_document())
        attributes = {
            **survey.attributes,
            "first": survey.first.tolist(),
            "count": survey.count.tolist(),
            "transitions": (survey.count - self._finals).tolist(),
        }
        if "next_step" in attributes:
            attributes["next_step"] = [0] * survey.num_envs
        documents[build / "zarr.json"] = format.group_document(attributes)
        for path, document in documents.items():
            files.make_dirs(path.parent)
            files.write(path, [format.encode(document)])
        self._build_priorities()
        self._link(private.lock_file(self.path), private.lock_file(build))
        files.sync([Path(base, name) for base, _dirs, names in os.walk(build) for name in names])
        files.sync_dirs(Path(base) for base, _dirs, _names in os.walk(build))

    def _link(self, source: Path, target: Path) -> None:
        if not files.link(source, target):
            raise StorageError(
                errno.ENOTSUP, "the file system cannot link files, which a repair needs: copy the "
                "store to one that can", str(source),
            )  # fmt: skip

    def _build_segment(self, place: Place) -> Seal | None:
        """One segment of the new store; the seal of a full one."""
        field, segment, env, used, sealed = place
        key = field.name, segment, env
        old = self.survey.chunk(field, segment, env)
        target = self.build / old.relative_to(self.path)
        changed = field.name in BOOKKEEPING and env in self._rows
        full = used == field.segment_rows
        whole = key in self.check.sources or (
            key not in self.check.damaged and key not in self.check.restored
        )
        if whole and full and not changed and (field.packed <= sealed):
            source = self.check.sources.get(key, old)
            self._link(source, target)
            files.seal(target)
            return _whole_seal(field, source)
        if field.packed:
            data = self._shard(place, key)
            files.write(target, [data.data])
        else:
            data = self._raw(place, key, changed)
            memory = Mapping.create(target, field.segment_bytes)
            memory.array[:] = data
        if not full:
            return None
        files.seal(target)
        if field.packed:
            return Seal(len(data), codec.checksum(field, data))
        return Seal(len(data), *codec.raw_sums(field, data))

    def _shard(self, place: Place, key: tuple[str, int, int]) -> np.ndarray:
        """The bytes of a packed segment that cannot be linked."""
        field, segment, env, used, sealed = place
        chunk, tail = self.survey.chunk(field, segment, env), self.survey.tail(field, segment, env)
        if key in self.check.restored:
            return codec.encode(field, self.check.restored[key].reshape(-1), used)
        if key in self._salvaged:
            return self._salvaged[key]
        lost = self.check.damaged.get(key, np.zeros(field.segment_rows, np.bool_))
        from_tail = not sealed and segment >= self.survey.sealed[field.name][env] and tail.exists()
        if from_tail and self.survey.settled and chunk not in self.kept:
            return segment_check.bytes_of(chunk)
        if from_tail or lost.all():
            rows = np.zeros((field.segment_rows, field.row_bytes), np.uint8)
            if not lost.all():
                rows[:used] = segment_check.bytes_of(tail, used * field.row_bytes).reshape(used, -1)
            return codec.encode(field, rows.reshape(-1), used)
        return segment_check.mended(field, chunk, used)[0]

    def _raw(self, place: Place, key: tuple[str, int, int], changed: bool) -> np.ndarray:
        """The bytes of a raw segment: zeros where rows are lost and behind the last."""
        field, segment, env, used, _sealed = place
        data = np.zeros((field.segment_rows, field.row_bytes), np.uint8)
        start = segment * field.segment_rows
        lost = self.check.damaged.get(key)
        if key in self.check.restored:
            data[:used] = self.check.restored[key][:used]
        elif key in self.check.sources or lost is None or not lost.all():
            path = self.check.sources.get(key, self.survey.chunk(field, segment, env))
            data[:used] = segment_check.bytes_of(path, used * field.row_bytes).reshape(used, -1)
            if lost is not None and key not in self.check.sources:
                data[lost] = 0
        if changed:
            first = int(self.survey.first[env])
            low = max(start, first)
            values = getattr(self._rows[env], field.name)[low - first : start + used - first]
            new = values.view(np.uint8).reshape(-1, field.row_bytes)
            data[low - start : used] = new
            self.kept.add(self.survey.chunk(field, segment, env))
        return data.reshape(-1)

    def _build_priorities(self) -> None:
        names = {priorities.MAIN, *self.check.bad_priorities, *priorities.sets(self.path)}
        for name in sorted(names):
            self._build_set(name)

    def _build_set(self, name: str) -> None:
        survey, found, alpha = self.survey, None, None
        if name in self.check.bad_priorities:
            self.kept.update((self.path / name).rglob("*"))
        else:
            found = priorities.read(self.path / name, survey.num_envs)
        saved = [found]
        if found is None:
            saved = saved_priorities(self._sources, name, survey.num_envs)
        is_main = name == priorities.MAIN
        if not saved and is_main and survey.attributes.get("kind") != "prioritized":
            return
        first, stop = int(survey.first.min()), int(survey.count.max())
        new = np.full((stop - first, survey.num_envs), np.nan)  # those rows get the largest
        for start, leaves, of in saved:
            alpha = of
            low, high = max(start, first), min(start + len(leaves), stop)
            if low < high:
                part, there = new[low - first : high - first], leaves[low - start : high - start]
                np.copyto(part, there, where=np.isnan(part))
        priorities.write(self.build / name, new, first, alpha)

    # -- the exchange

    def _exchange(self, room: tempfiles.Workspace) -> None:
        with contextlib.suppress(StoreError, StorageError):  # what is rotten tells no reader
            path = private.commit_page(self.path)
            page = State(path, self.survey.num_envs, len(self.survey.fields), writable=True)
            page.replaced[0] = 1
            files.sync([path])
        room.exchange(self.build)

    def _tidy(self) -> None:
        """Keep what was replaced, and let go of what the new store holds as well."""
        kept = {path.relative_to(self.path) for path in self.kept}
        text = "".join(f"{finding}\n" for finding in self.check.findings)
        for base, _dirs, names in os.walk(self.build, topdown=False):
            for name in names:
                if Path(base, name).relative_to(self.build) not in kept:
                    files.remove(Path(base, name))
            files.remove_empty_dir(Path(base))
        files.make_dirs(self.build)
        files.write(self.build / "findings.txt", [text.encode()])


def _whole_seal(field: Field, path: Path) -> Seal | None:
    """The seal of a full segment's file, None if it is not whole."""
    if field.packed:
        checked = segment_check.check_packed(field, path, field.segment_rows)
    else:
        checked = segment_check.check_raw(field, path, field.segment_rows, still=False)
    return None if checked.faults else checked.seal
