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

from diskreplay.store import codec, priorities, priority_check, segment_check
from diskreplay.store.format import Field
from diskreplay.store.segment_check import Unreadable
from diskreplay.store.survey import BOOKKEEPING, Place
from diskreplay.store.verify import Check


class Content:
    """The rows of one segment, as far as they can be relied on.

    Attributes
    ----------
    values : ndarray of uint8, shape (segment_rows, row_bytes)
        Of rows that are not known, what a raw file has there, or zeros.
    known : ndarray of bool, shape (segment_rows,)
        Rows that count and are whole.
    """

    def __init__(self, check: Check, place: Place, lost: np.ndarray) -> None:
        field, segment, env, used = place[:4]
        self.values = np.zeros((field.segment_rows, field.row_bytes), np.uint8)
        self.known = np.arange(field.segment_rows) < used
        start = segment * field.segment_rows
        self.known[: max(int(check.survey.first[env]) - start, 0)] = False
        self.known &= ~lost
        try:
            self._read(check, place)
        except Unreadable:
            self.known[:] = False

    def _read(self, check: Check, place: Place) -> None:
        field, segment, env, used = place[:4]
        tail = check.survey.tail(field, segment, env)
        if field.packed and not check.survey.has_tail(place):
            shard, lost = segment_check.mended(field, check.survey.chunk(field, segment, env), used)
            self.values[:] = segment_check.rows_of_shard(field, shard)
            self.known &= ~lost
            return
        path = tail if field.packed else check.survey.chunk(field, segment, env)
        data = segment_check.bytes_of(path, used * field.row_bytes)
        self.values[:used] = data.reshape(used, -1)


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
        self.survey = self.check.survey
        self._fields = {field.name: field for field in self.survey.fields}

    def content(self, field: Field, segment: int, env: int) -> Content | str:
        """Its rows of a segment, or why it has none."""
        own = self._fields.get(field.name)
        if own != field or env >= self.survey.num_envs:
            return "has no such field, or in another layout"
        place = self.survey.place(field, segment, env)
        if place is None:
            return f"has none of these rows, but rows up to {int(self.survey.count[env]) - 1}"
        _faults, lost = self.check.inspect(place)
        content = Content(self.check, place, lost)
        return content if content.known.any() else "its own file is damaged"


def restore(
    check: Check, place: Place, own: Content, wanted: np.ndarray, source: Source
) -> tuple[np.ndarray, str]:
    """Take over rows of a segment from a source.

    Parameters
    ----------
    own : Content
        Of the damaged store; the rows that were taken over are known afterwards.
    wanted : ndarray of bool, shape (segment_rows,)

    Returns
    -------
    ndarray of bool, shape (segment_rows,)
        The rows that were taken over.
    str
        Why not all that were wanted, empty if all were.
    """
    field, segment, env = place[:3]
    found = source.content(field, segment, env)
    if isinstance(found, str):
        return np.zeros(len(wanted), np.bool_), found
    candidates = wanted & found.known
    if not candidates.any():
        return candidates, "has none of these rows whole"
    trial = own.values.copy()
    trial[candidates] = found.values[candidates]
    right, denied = _recorded(check, place, own, trial, candidates)
    taken = wanted & right
    left = candidates & ~taken & ~denied
    if left.any():
        taken |= _agreed(check, place, own, found, source, left)
    own.values[taken] = trial[taken]
    own.known |= taken
    if (candidates & denied).any():
        return taken, "its rows there are not those that were recorded"
    if (candidates & ~taken).any():
        return taken, "its rows there are not this store's, or nothing tells that they are"
    rest = np.count_nonzero(wanted & ~taken)
    return taken, f"has only {np.count_nonzero(taken)} of them whole" if rest else ""


def _recorded(
    check: Check, place: Place, own: Content, trial: np.ndarray, candidates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that recorded checksums say are right in `trial`, and those that they say are not.
    They say nothing of the rest."""
    field, segment, env, used, sealed = place
    nothing = np.zeros(field.segment_rows, np.bool_)
    here = own.known | candidates
    here[used:] = True
    seal = check.survey.seals[field.name].get((segment, env)) if sealed else None
    data = trial.reshape(-1)
    if field.packed or (seal is not None and not seal.pieces):
        if seal is None or not here.all():
            return nothing, nothing
        if field.packed:
            shard = codec.encode(field, data, used)
            same = (len(shard), codec.checksum(field, shard)) == (seal.size, seal.crc32c)
        else:
            same = codec.crc32c(data) == seal.crc32c
        return nothing | same, nothing
    sums = check.survey.sums[field.name].get((segment, env))
    if seal is not None:
        recorded = codec.unpacked_sums(seal.pieces)
    elif sums is not None:
        recorded, data = np.array(sums), data[: used * field.row_bytes]
    else:
        return nothing, nothing
    wrong = np.array(codec.piece_sums(field, data)) != recorded
    put_together = ~segment_check.pieces_of_rows(field, ~here)[: len(wrong)]
    right = ~segment_check.rows_of_pieces(field, wrong)
    return right, segment_check.rows_of_pieces(field, wrong & put_together)


def _agreed(
    check: Check,
    place: Place,
    own: Content,
    found: Content,
    source: Source,
    asked: np.ndarray,
) -> np.ndarray:
    """Of the rows that are asked for, those that are of one course by all that both still have."""
    rows = np.arange(len(asked))
    common = own.known & found.known
    same = (own.values == found.values).all(axis=1)
    differing = np.flatnonzero(common & ~same)
    agreeing = np.flatnonzero((common & same)[: differing[0] if len(differing) else len(rows)])
    agreed = asked & (rows <= (agreeing[-1] if len(agreeing) else -1))
    if not len(differing) and (asked & ~agreed).any():  # no row behind them tells
        common, same = _other_fields(check, place, source)
        differing = np.flatnonzero(common & ~same)
        agreed |= asked & common & (rows < (differing[0] if len(differing) else len(rows)))
    return agreed


def _other_fields(check: Check, place: Place, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of a segment both have in any other field, and where all of these are the same."""
    field, segment, env, used = place[:4]
    start = segment * field.segment_rows
    common = np.zeros(field.segment_rows, np.bool_)
    same = np.ones(field.segment_rows, np.bool_)
    for other in check.survey.fields:
        if other == field:
            continue
        first = start // other.segment_rows
        for number in range(first, (start + used - 1) // other.segment_rows + 1):
            mine = check.survey.place(other, number, env)
            theirs = source.content(other, number, env)
            if mine is None or isinstance(theirs, str):
                continue
            lost = check.damaged.get((other.name, number, env))
            ours = Content(check, mine, np.zeros_like(theirs.known) if lost is None else lost)
            both = np.flatnonzero(ours.known & theirs.known)
            equal = (ours.values[both] == theirs.values[both]).all(axis=1)
            at = both + number * other.segment_rows - start
            inside = (at >= 0) & (at < field.segment_rows)
            common[at[inside]] = True
            same[at[inside]] &= equal[inside]
    return common, same


def restore_all(check: Check, sources: list[Source]) -> dict[tuple[str, int, int], str]:
    """Take over from the sources, the first one first, what they have of all that a check has found
    lost or impossible. `Check.restored` and `Check.damaged` say afterwards what there is.

    Returns
    -------
    dict of (field name, segment, env) to str
        For segments of which rows are still lost, why no source could give them.
    """
    verdicts = {}
    for (name, segment, env), lost in check.damaged.items():
        key = name, segment, env
        if key not in check.sources and lost.any():
            verdicts[key] = _restore_one(check, key, lost, lost, sources)
    for env in range(check.survey.num_envs):
        found = [f for f in check.findings if f.kind == "rows" and f.env == env]
        impossible = [np.arange(*span) for finding in found for span in finding.rows]
        if impossible and sources:
            _restore_rows(check, env, np.unique(np.concatenate(impossible)), sources)
    return verdicts


def _restore_rows(check: Check, env: int, rows: np.ndarray, sources: list[Source]) -> None:
    """Rows whose small fields do not fit together: nothing says which of them is rotten."""
    for field in check.survey.fields:
        if field.name not in BOOKKEEPING:
            continue
        for segment in np.unique(rows // field.segment_rows).tolist():
            key = field.name, segment, env
            if key in check.sources:
                continue
            wanted = np.zeros(field.segment_rows, np.bool_)
            wanted[rows[rows // field.segment_rows == segment] % field.segment_rows] = True
            _restore_one(check, key, check.damaged.get(key, ~wanted & False), wanted, sources)


def _restore_one(
    check: Check,
    key: tuple[str, int, int],
    lost: np.ndarray,
    wanted: np.ndarray,
    sources: list[Source],
) -> str:
    name, segment, env = key
    field = next(field for field in check.survey.fields if field.name == name)
    place = check.survey.place(field, segment, env)
    own = Content(check, place, lost)
    if key in check.restored:
        own.values = check.restored[key]
    at = segment * field.segment_rows + np.arange(field.segment_rows)
    wanted = wanted & (at >= check.survey.first[env]) & (at < check.survey.count[env])
    own.known &= ~wanted
    verdicts, left = [], wanted.copy()
    for source in sources:
        taken, why = restore(check, place, own, left, source)
        left &= ~taken
        if not left.any():
            break
        if _is_one_file(check.survey.chunk(field, segment, env), source, key):
            why = "has the same file: hard-linked, so the damage is in both"
        verdicts.append(f"{source.path.name}: {why}")
    taken = wanted & ~left
    if taken.any():
        lost = lost & ~taken
        own.values[lost] = 0
        check.restored[key], check.damaged[key] = own.values, lost
    return "; ".join(verdicts) or "no checkpoint was given"


def _is_one_file(path: Path, source: Source, key: tuple[str, int, int]) -> bool:
    """Whether a source's file of a segment is this very file, under another name."""
    name, segment, env = key
    named = (field for field in source.survey.fields if field.name == name)
    try:
        return any(path.samefile(source.survey.chunk(f, segment, env)) for f in named)
    except OSError:  # one of them is missing
        return False


def saved_priorities(sources: list[Source], name: str, num_envs: int) -> list[priorities.Saved]:
    """That set of the sources in which it is sound, as far as it was raised to one alpha."""
    found: list[priorities.Saved] = []
    for source in sources:
        directory = source.path / name
        if source.survey.num_envs != num_envs or not directory.is_dir():
            continue
        if priority_check.check(directory, source.survey).faults:
            continue
        saved = priorities.read(directory, num_envs)
        if saved is not None and (not found or saved.alpha == found[0].alpha):
            found.append(saved)
    return found
