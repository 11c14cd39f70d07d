"""Rows on their way from a process that acts to the one that has the store: a ring in a file.

One process puts rows in, the actor, and one takes them out, the writer of the store. Both have the
file mapped. Each word of the header is stored by one of them only, but while the other has none:

=============  ===================================================================================
a row is put   all its fields are written to its place; then ``written`` is raised past it. A step
               and the final row behind it are put together, and taken together
rows are       ``first`` is set to the number that the first of them gets in the store, then
taken          ``until`` to the row of the ring that comes behind them; they are added to the store
               and committed there; then ``taken`` is raised to ``until``, and their places are
               used again
=============  ===================================================================================

So what `until` has beyond `taken` after a kill may be in the store, and how much of it is says the
store's count: see `note_committed`. Nothing is taken twice, and nothing is left out.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import CorruptSegmentError, SchemaError
from diskreplay.store import files, private
from diskreplay.store.commit_page import boot_id
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.ordering import barrier

_MAGIC = b"DREPRNG1"
_HEADER = np.dtype(
    [("magic", "S8"), ("boot", "S56"), ("schema", "S64"), ("id", "S32"), ("rows", "<i8")]
)
_DATA_AT = 4096
_ALIGNED = 64  # bytes: rows of no two fields share a line of the caches

MOST_PLACES = 1 << 24

# Words, int64. Of the actor:
WRITTEN, PROCESS, ATTACHED = 64, 65, 66
# Of the writer of the store, in other lines of the caches:
TAKEN, UNTIL, FIRST, BEHIND, GENERATION, CLOSED, BY_ITSELF, FRESH_AT, STEP = range(128, 137)


class ActorRing:
    """One ring, mapped.

    Attributes
    ----------
    rows : int
        For so many there is a place.
    id : str
        No two rings have one.
    words : memoryview of int64
        The header's. ``words[WRITTEN]`` rows were put into the ring ever, ``words[TAKEN]`` of them
        were taken; row `n` has the place ``n % rows``.

        ``ATTACHED`` is the ``GENERATION`` that the actor found when it came. ``BEHIND`` is the
        store's row behind the last one that was taken, -1 if other rows may have come since;
        ``FRESH_AT`` the count of rows at which a new actor begins with ``STEP``, and does not begin
        an episode.
    """

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        self.path, self._mapping = path, Mapping.open(path, writable=True)
        head = self._check(fields)
        self.id, self._boot = (head[name].decode(errors="replace") for name in ("id", "boot"))
        rows = self.rows = int(head["rows"])
        mapping, (starts, _) = self._mapping, _layout(fields, rows)
        self.words = mapping.array[:_DATA_AT].data.cast("q")
        self.columns = [
            mapping.array[start : start + rows * field.row_bytes]
            .view(field.dtype)
            .reshape(rows, *field.shape)
            for field, start in zip(fields, starts, strict=False)
        ]
        self.priorities = mapping.array[starts[-1] : starts[-1] + 8 * rows].view(np.float64)
        # Setting one number takes a memoryview half as long as an array.
        self._places: list[Any] = [
            column.data if column.ndim == 1 and column.dtype != np.float16 else column
            for column in [*self.columns, self.priorities]
        ]

    def _check(self, fields: Sequence[Field]) -> Any:
        path, mapping = self.path, self._mapping
        is_one = mapping.size >= _DATA_AT
        head = mapping.array[: _HEADER.itemsize].view(_HEADER)[0] if is_one else None
        if head is None or head["magic"] != _MAGIC:
            raise CorruptSegmentError(
                f"{path}: no ring of an actor, or one that was not made to its end; remove it: "
                "rows that were in it are lost"
            )
        if head["schema"].decode(errors="replace") != schema_digest(fields):
            raise SchemaError(f"{path}: its rows have another form, of other spaces or extras")
        rows = int(head["rows"])
        if not 0 < rows <= MOST_PLACES or _layout(fields, rows)[1] != mapping.size:
            raise CorruptSegmentError(
                f"{path}: {mapping.size} bytes found, which a ring of {rows} rows does not have; "
                "it was cut or replaced: remove it: rows that were in it are lost"
            )
        words = mapping.array[:_DATA_AT].view("<i8")
        written, taken, until = (int(words[at]) for at in (WRITTEN, TAKEN, UNTIL))
        if not 0 <= written - taken <= rows or not taken >= 0 or until > written:
            raise CorruptSegmentError(
                f"{path}: damaged: {written} rows put in, {taken} taken, with {rows} places; "
                "remove it: rows that were in it are lost"
            )
        return head

    @staticmethod
    def create(
        path: Path, fields: Sequence[Field], rows: int, words: dict[int, int] | None = None
    ) -> "ActorRing":
        """A new one, empty but for these words, in the place of one that is there. It gets its name
        last, when it is whole and open: a kill before that leaves a file that the next opening
        removes, and an error the old ring."""
        made = private.ring_that_is_made(path)
        files.remove(made)  # an earlier call may have been refused amid it
        mapping = Mapping.create(made, _layout(fields, rows)[1])
        head = mapping.array[: _HEADER.itemsize].view(_HEADER)
        head["boot"], head["id"] = boot_id().encode(), os.urandom(16).hex().encode()
        head["schema"], head["rows"] = schema_digest(fields).encode(), rows
        for word, value in ({BEHIND: -1} | (words or {})).items():
            mapping.array[:_DATA_AT].view("<i8")[word] = value
        head["magic"] = _MAGIC
        ring = ActorRing(made, fields)
        files.rename(made, path)
        ring.path = ring._mapping.path = path
        return ring

    @property
    def of_this_boot(self) -> bool:
        """Whether the kernel that saw the last rows still runs, here, and so has all of them."""
        return self._boot == boot_id()

    # -- the actor

    def put(self, number: int, row: Sequence[Any], priority: float) -> None:
        """Write a row to its place, which is free: a value for each field, None for zeros."""
        at = number % self.rows
        for column, value in zip(self._places, row, strict=False):
            column[at] = 0 if value is None else value
        self._places[-1][at] = priority

    def publish(self, written: int) -> None:
        """So many rows were put into the ring; the actor does not touch them any more."""
        barrier()
        self.words[WRITTEN] = written

    # -- the writer of the store

    @property
    def waiting(self) -> int:
        """Rows that are not taken yet."""
        return self.words[WRITTEN] - self.words[TAKEN]

    def run(self, most: int, final_at: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The oldest rows that are not taken yet, as many as lie side by side: views of each field,
        and of their priorities, NaN without one.

        A step comes with the final row behind it, which the field at `final_at` tells: else it
        could be drawn meanwhile, with zeros for what it led to. Where these two lie at both ends of
        the ring, they are copies, and all that comes.
        """
        taken = self.words[TAKEN]
        count = self.words[WRITTEN] - taken
        barrier()  # what lies in the places is looked at after this
        at = taken % self.rows
        stop = at + min(count, most, self.rows - at)
        if stop - at < count and self.columns[final_at][stop % self.rows]:
            stop -= 1
            if stop == at:
                both = [at, (at + 1) % self.rows]
                return [column[both] for column in self.columns], self.priorities[both]
        return [column[at:stop] for column in self.columns], self.priorities[at:stop]

    def begin(self, count: int, rows: int) -> None:
        """So many rows are about to be added to the store, where the env has `count` by now."""
        self.words[FIRST] = count
        barrier()
        self.words[UNTIL] = self.words[TAKEN] + rows

    def note_committed(self, count: int) -> int:
        """Take note of what was committed of the rows that were about to be added, when the env has
        `count` rows; returns how many that is. Nobody else adds to the env from `begin` to here."""
        words = self.words
        taken, until = words[TAKEN], words[UNTIL]
        if until <= taken:
            return 0
        done = min(max(count - words[FIRST], 0), until - taken)
        words[BEHIND] = words[FIRST] + done
        # This before `TAKEN`: a kill in between finds the same again.
        words[UNTIL] = taken + done
        barrier()
        words[TAKEN] = taken + done
        return done

    def drop(self) -> int:
        """Leave out the rows that are not taken yet; returns how many."""
        words = self.words
        stop = words[WRITTEN]
        dropped = stop - words[TAKEN]
        words[BEHIND] = -1
        words[TAKEN] = stop  # first: beyond `UNTIL` it says that nothing is under way
        words[UNTIL] = stop
        return dropped


def lost_by_a_power_cut(path: Path) -> str | None:
    """What a power cut took with a ring, and nothing ("") where that is not worth a word; None of a
    ring of this boot, or a damaged one. Such a file is to be removed.

    Nothing of a ring is synced, so there may be anything of it: its length with zeros, say.
    """
    head = files.read(path, _DATA_AT)[:_DATA_AT]
    if not head.strip(b"\0"):
        return f"{path}: an actor's ring of which a power cut has left nothing; it was removed"
    found = np.frombuffer(head.ljust(_DATA_AT, b"\0"), _HEADER, 1)[0]
    if found["magic"] != _MAGIC or found["boot"] == boot_id().encode():
        return None
    waiting = _waiting(head)
    if waiting == 0:
        return ""
    lost = "an unknown number of rows" if waiting is None else waiting
    return (
        f"{path}: rows that an actor had added are lost ({lost}): they are of before this machine "
        "was started, or of another machine"
    )


def waiting_in(path: Path) -> int:
    """How many rows a file says are not taken yet; 0 of one that is no ring, or is damaged."""
    return _waiting(files.read(path, _DATA_AT)[:_DATA_AT]) or 0


def _waiting(head: bytes) -> int | None:
    """The same of the beginning of a file; None of one that is no ring, or is damaged."""
    if len(head) < _DATA_AT or np.frombuffer(head, _HEADER, 1)[0]["magic"] != _MAGIC:
        return None
    words, rows = np.frombuffer(head, "<i8"), int(np.frombuffer(head, _HEADER, 1)[0]["rows"])
    taken = int(words[TAKEN])
    waiting = int(words[WRITTEN]) - taken
    return waiting if 0 <= waiting <= rows <= MOST_PLACES and taken >= 0 < rows else None


def schema_digest(fields: Sequence[Field]) -> str:
    """What two processes have to agree on to share a ring."""
    said = [*([field.name, list(field.shape), field.dtype.str] for field in fields)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _layout(fields: Sequence[Field], rows: int) -> tuple[list[int], int]:
    """Where the rows of each field begin in the file, then the priorities; and its length."""
    starts, at = [], _DATA_AT
    for row_bytes in [*(field.row_bytes for field in fields), 8]:
        starts.append(at)
        at += -(-rows * row_bytes // _ALIGNED) * _ALIGNED
    return starts, -(-at // 4096) * 4096
