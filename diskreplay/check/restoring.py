"""Rows that a damaged store has lost, and that checkpoints of it still have.

A checkpoint may be of another course of the run: a store that went back to an older one by `load`
has given the same numbers to other rows since. So a row is taken over only where

- what was recorded of the damaged file says that it is the same: the checksum of its piece, or of
  the segment as a whole; or, where nothing is recorded or it cannot be put together,
- all that both still have near it says so: later rows of the segment, up to where they begin to
  differ, or, if none of these are left, all other fields of the same row.
"""

from pathlib import Path

import numpy as np

from diskreplay.check import priority_check, segment_check
from diskreplay.check.content import Content
from diskreplay.check.report import Span
from diskreplay.check.snapshot import BOOKKEEPING
from diskreplay.check.verify import Check
from diskreplay.store import priorities
from diskreplay.store.catalog import Key, SegmentEntry
from diskreplay.store.field import Field


class Source:
    """One checkpoint (or copy of the store) to take rows from.

    Raises
    ------
    FormatError
        It is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.check = Check(path)
        self.catalog = self.check.catalog

    def content(self, field: Field, number: int, group: int) -> Content | str:
        """Its rows of a segment, or why it has none."""
        if self.check.fields.get(field.name) != field:
            return "has no such field, or in another layout"
        entry = self.catalog.entry(field, number, group)
        if entry is None:
            count = self.catalog.count[self.catalog.envs(group)].max(initial=0)
            return f"has none of these rows, but rows up to {count - 1}"
        _faults, lost = self.check.inspect(entry)
        content = Content(self.check, entry, lost)
        return content if content.known.any() else "its own file is damaged"


def restore(
    check: Check, entry: SegmentEntry, own: Content, wanted: np.ndarray, source: Source
) -> tuple[np.ndarray, str]:
    """Take over rows of a segment from a source.

    Parameters
    ----------
    own : Content
        Of the damaged store; the rows that were taken over are known afterwards.
    wanted : ndarray of bool, shape (segment_rows, env_group)

    Returns
    -------
    ndarray of bool, shape (segment_rows, env_group)
        The rows that were taken over.
    str
        Why not all that were wanted, empty if all were.
    """
    found = source.content(*entry[:3])
    if isinstance(found, str):
        return np.zeros_like(wanted), found
    candidates = wanted & found.known
    if not candidates.any():
        return candidates, "has none of these rows whole"
    trial = own.values.copy()
    trial[candidates] = found.values[candidates]
    right, denied = _right_by_checksums(entry, own, trial, candidates)
    taken = wanted & right
    left = candidates & ~taken & ~denied
    if left.any():
        taken |= _agreed(check, entry, own, found, source, left)
    own.values[taken] = trial[taken]
    own.known |= taken
    if (candidates & denied).any():
        return taken, "its rows there are not those that were recorded"
    if (candidates & ~taken).any():
        return taken, "its rows there are not this store's, or nothing tells that they are"
    rest = np.count_nonzero(wanted & ~taken)
    return taken, f"has only {np.count_nonzero(taken)} of them whole" if rest else ""


def _right_by_checksums(
    entry: SegmentEntry, own: Content, trial: np.ndarray, candidates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that recorded checksums say are right in `trial`, and those that they say are not.
    They say nothing of the rest."""
    field, seal = entry.field, entry.seal
    nothing = segment_check.nothing(field)
    here = own.known | candidates | ~entry.counted
    if seal is None or not (seal.pieces or here.all()):
        return nothing, nothing
    found = segment_check.encoded(field, trial, entry.used)[1]
    if not seal.pieces:
        return nothing | (found == seal), nothing
    wrong = segment_check.wrong_pieces(found, seal)
    put_together = ~segment_check.pieces_of_rows(field, ~here)
    right = ~segment_check.rows_of_pieces(field, wrong)
    return right, segment_check.rows_of_pieces(field, wrong & put_together)


def _agreed(
    check: Check,
    entry: SegmentEntry,
    own: Content,
    found: Content,
    source: Source,
    asked: np.ndarray,
) -> np.ndarray:
    """Of the rows that are asked for, those that are of one course by all that both still have: env
    by env."""
    rows = np.arange(len(asked))[:, None]
    common = own.known & found.known
    same = np.all(own.values == found.values, axis=2)
    parting = _first(common & ~same)
    agreeing = common & same & (rows < parting)
    agreed = asked & (rows <= np.where(agreeing, rows, -1).max(axis=0))
    left = asked & ~agreed & (parting == len(asked))  # no row behind them tells
    if left.any():
        common, same = _other_fields(check, entry, source)
        agreed |= left & common & (rows < _first(common & ~same))
    return agreed


def _first(where: np.ndarray) -> np.ndarray:
    """For each env the first of these rows, or how many rows there are if it has none."""
    return np.where(where.any(axis=0), where.argmax(axis=0), len(where))


def _other_fields(
    check: Check, entry: SegmentEntry, source: Source
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of a segment both have in any other field, and where all of these are the same."""
    field, start = entry.field, entry.start
    common = segment_check.nothing(field)
    same = ~common
    for other in check.catalog.fields:
        if other == field:
            continue
        last = (start + int(entry.used.max()) - 1) // other.segment_rows
        for number in range(start // other.segment_rows, last + 1):
            mine = check.catalog.entry(other, number, entry.group)
            theirs = source.content(other, number, entry.group)
            if mine is None or isinstance(theirs, str):
                continue
            lost = check.damaged.get(mine.key, segment_check.nothing(other))
            ours = Content(check, mine, lost)
            row, env = np.nonzero(ours.known & theirs.known)
            equal = (ours.values[row, env] == theirs.values[row, env]).all(axis=1)
            at = row + mine.start - start
            inside = (at >= 0) & (at < field.segment_rows)
            common[at[inside], env[inside]] = True
            same[at[inside], env[inside]] &= equal[inside]
    return common, same


def restore_all(check: Check, sources: list[Source]) -> dict[Key, str]:
    """Take over from the sources, the first one first, what they have of all that a check has found
    lost or impossible. `Check.restored` and `Check.damaged` say afterwards what there is.

    Returns
    -------
    dict of (field name, number, group) to str
        For segments of which rows are still lost, why no source could give them.
    """
    verdicts = {}
    for key, lost in check.damaged.items():
        if key not in check.sources and lost.any():
            verdicts[key] = _restore_one(check, key, lost, lost, sources)
    impossible = {span for f in check.findings if f.kind == "rows" for span in f.rows}
    if impossible and sources:
        _restore_rows(check, impossible, sources)
    return verdicts


def _restore_rows(check: Check, impossible: set[Span], sources: list[Source]) -> None:
    """Rows whose small fields do not fit together: nothing says which of them is rotten."""
    for field in check.catalog.fields:
        if field.name not in BOOKKEEPING:
            continue
        wanted: dict[Key, np.ndarray] = {}
        for env, start, stop in impossible:
            group, place = divmod(env, field.env_group)
            for row in range(start, stop):
                number, at = divmod(row, field.segment_rows)
                key = field.name, number, group
                wanted.setdefault(key, segment_check.nothing(field))[at, place] = True
        for key, rows in wanted.items():
            if key not in check.sources:
                lost = check.damaged.get(key, segment_check.nothing(field))
                _restore_one(check, key, lost, rows, sources)


def _restore_one(
    check: Check, key: Key, lost: np.ndarray, wanted: np.ndarray, sources: list[Source]
) -> str:
    name, number, group = key
    field = check.fields[name]
    entry = check.catalog.segment(field, number, group)
    own = Content(check, entry, lost)
    wanted = wanted & entry.retained
    own.known &= ~wanted
    verdicts, left = [], wanted.copy()
    for source in sources:
        taken, why = restore(check, entry, own, left, source)
        left &= ~taken
        if not left.any():
            break
        if _is_one_file(check.catalog.chunk(field, number, group), source, key):
            why = "has the same file: hard-linked, so the damage is in both"
        verdicts.append(f"{source.path.name}: {why}")
    taken = wanted & ~left
    if taken.any():
        lost = lost & ~taken
        own.values[lost] = 0
        check.restored[key], check.damaged[key] = own.values, lost
    return "; ".join(verdicts) or "no checkpoint was given"


def _is_one_file(path: Path, source: Source, key: Key) -> bool:
    """Whether a source's file of a segment is this very file, under another name."""
    field = source.check.fields.get(key[0])
    try:
        return field is not None and path.samefile(source.catalog.chunk(field, *key[1:]))
    except OSError:  # one of them is missing
        return False


def saved_priorities(sources: list[Source], name: str, num_envs: int) -> list[priorities.Saved]:
    """That set of the sources in which it is sound, as far as one alpha made its leaves."""
    found: list[priorities.Saved] = []
    for source in sources:
        directory = source.path / name
        if source.catalog.num_envs != num_envs or not directory.is_dir():
            continue
        if priority_check.check(directory, source.check.snapshot).faults:
            continue
        saved = priorities.read(directory, num_envs)
        if saved is not None and (not found or saved.made_by == found[0].made_by):
            found.append(saved)
    return found
