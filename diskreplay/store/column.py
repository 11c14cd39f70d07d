"""One field's segments: which there are, where they are in memory, how rows are read from them.

`RawColumn` and `PackedColumn` say how rows get in.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from diskreplay.errors import CorruptSegmentError
from diskreplay.store import files
from diskreplay.store.field import Field
from diskreplay.store.format import array_document
from diskreplay.store.partial import Partial
from diskreplay.store.place import Place
from diskreplay.store.read_job import READ, READS
from diskreplay.store.rwlock import RWLock
from diskreplay.store.seals import parse_seals
from diskreplay.store.segment import UNKNOWN, Seal, Segment
from diskreplay.store.segment_table import FIGURES

_FIRST_SLOTS = 16  # of a column that grows

# Segments that may have left and not yet been let go of. While a record is being written none is.
_SPARE_SLOTS = 8
_LAG = 4  # segments that the fastest env of a group is ahead when one is sealed for all


AnySegment = TypeVar("AnySegment", bound=Segment)


class Column(Generic[AnySegment]):
    """The segments of one field, of every env.

    Attributes
    ----------
    number : int
        The field's place in the list of the group's attributes; names its private files.
    field : Field
    table : ndarray of int64
        The segment table, see `segment_table`. One array, replaced as a whole when it grows,
        so that a reader without the lock never mixes two sizes.
    segments : dict of (number, group) to Segment
    seals : dict of (number, group) to Seal
        What the last record, or its file, says of segments.
    changing : threading.Lock
        Held by who makes, closes, puts in its place or deletes the file of a segment: the
        maintenance thread and adding threads. Taken before `rwlock`, never after it.
    tell_readers : callable
        Called when a segment is read from another file: a reader in another process has to know.
    """

    def __init__(
        self,
        place: Place,
        number: int,
        field: Field,
        num_envs: int,
        rows_per_env: int | None,
        rwlock: RWLock,
    ) -> None:
        self.rwlock, self.place, self.root = rwlock, place, place.path
        self.number, self.field, self.num_envs = number, field, num_envs
        self.kept = rows_per_env
        self.directory = self.root / field.name
        self.growing = rows_per_env is None
        self.segments: dict[tuple[int, int], AnySegment] = {}
        self.seals: dict[tuple[int, int], Seal] = {}
        self.new_files: list[Path] = []  # opened segments whose names are not durable yet
        self.pending_deletes: list[Path] = []  # files to be deleted after the next record
        self.changing = threading.Lock()
        self.tell_readers: Callable[[], None] = lambda: None
        self._open: dict[tuple[int, int], AnySegment] = {}
        self._scratch_words = self._words_of_scratch()
        slots = _FIRST_SLOTS
        if rows_per_env is not None:
            slots = -(-rows_per_env // field.segment_rows) + 1
        self._make_table(slots + _SPARE_SLOTS)

    def _words_of_scratch(self) -> int:
        return 0

    # -- the segment table

    def _make_table(self, slots: int) -> None:
        field, envs = self.field, self.num_envs
        figures = slots, field.segment_rows, field.row_bytes, 0, envs, field.stride
        table = np.zeros(FIGURES + 2 * envs * slots, np.int64)
        table[: len(figures)] = figures
        self._fill_figures(table)
        # The segment that each env's entry in a slot is of, -1 if there is none.
        self._at = np.full((envs, slots), -1, np.int64)
        self.slots, self.table = slots, table
        self._entries = table[FIGURES:].reshape(envs, slots, 2)

    def _fill_figures(self, table: np.ndarray) -> None:
        """Write what only some columns have among the figures of the table."""

    def _grow(self) -> None:
        at, entries = self._at, self._entries
        with self.rwlock:  # what the maintenance thread changes is not lost in the old table
            self._make_table(2 * self.slots)
            envs, slots = np.nonzero(at >= 0)
            numbers = at[envs, slots]
            self._entries[envs, numbers % self.slots] = entries[envs, slots]
            self._at[envs, numbers % self.slots] = numbers

    def point(self, segment: AnySegment, envs: np.ndarray) -> None:
        """Let kernels find the rows of these envs of its group in a segment."""
        number = segment.number
        if self.growing:
            while (self._at[envs] >= 0).any() and (
                number - np.where(self._at[envs] >= 0, self._at[envs], number).min() >= self.slots
            ):
                self._grow()
        slot = number % self.slots
        taken = envs[(self._at[envs, slot] >= 0) & (self._at[envs, slot] != number)]
        if len(taken):  # of a segment that these have left, and somebody may still be reading
            with self.rwlock:
                self._at[taken, slot] = -1
        entries = self._addresses(segment, envs - segment.group * self.field.env_group)
        self._entries[envs, slot, 1] = entries[1]
        self._entries[envs, slot, 0] = entries[0]
        self._at[envs, slot] = number

    def _addresses(self, segment: Any, places: np.ndarray) -> tuple[Any, Any]:
        """The two numbers of an entry, of each of some envs by their places in the group."""
        raise NotImplementedError

    def has(self, number: int, envs: np.ndarray | int) -> np.ndarray:
        """Which of these envs find a segment."""
        return self._at[envs, number % self.slots] == number

    def point_new(self, segment: AnySegment, envs: np.ndarray) -> None:
        """`point`, for those of these envs that do not find it yet."""
        new = envs[~self.has(segment.number, envs)]
        if len(new):
            self.point(segment, new)

    def pointed(self, segment: AnySegment) -> np.ndarray:
        """The envs that find a segment."""
        there = self._at[segment.envs, segment.number % self.slots] == segment.number
        return segment.envs.start + np.flatnonzero(there)

    def adopt(self, segment: AnySegment, envs: np.ndarray) -> None:
        """Take a segment in, for these envs."""
        self.segments[segment.key] = segment
        if segment.seal is None:
            self._open[segment.key] = segment
        self.point(segment, envs)

    def replace(self, old: AnySegment, new: AnySegment) -> None:
        """Let kernels find the rows of a segment in another file."""
        envs = self.pointed(old)
        with self.rwlock:
            self._open.pop(old.key, None)
            self.adopt(new, envs)
        self.tell_readers()

    def new_path(self, path: Path) -> Path:
        """See to it that a file can be made at `path`, and is not deleted as one that has left.
        Call it with `changing` held.

        Raises
        ------
        StoreMovedError
            The store's directory was moved: the file would be in a new one, or in another store.
        """
        self.place.check()
        files.make_dirs(path.parent)
        if path in self.pending_deletes:
            self.pending_deletes.remove(path)
        return path

    def delete_pending(self) -> None:
        """Delete files of segments that have left."""
        while self.pending_deletes:
            with self.changing:  # else a file may be deleted that was just made anew
                if self.pending_deletes:
                    files.remove(self.pending_deletes[-1])
                    self.pending_deletes.pop()

    # -- what is open, full, left

    def open_segments(self) -> list[AnySegment]:
        """Those that are not sealed. The adding thread may be opening one."""
        return list(self._open.values())

    def path(self, number: int, group: int) -> Path:
        """The Zarr chunk (or shard) of a segment."""
        return self.directory / self.field.chunk_key(number, group)

    def full(self, progress: np.ndarray) -> list[AnySegment]:
        """Open segments that every env has passed, the oldest first."""
        found = [s for s in self.open_segments() if progress[s.envs].min() >= s.stop]
        return sorted(found, key=lambda segment: segment.key)

    def outrun(self, segment: AnySegment, progress: np.ndarray) -> bool:
        """Whether the fastest env is so far ahead of an open segment that it is sealed for all. One
        that was opened again for a slow env is given as long again."""
        far = max(segment.stop, segment.reopened_at) + _LAG * self.field.segment_rows
        return bool(progress[segment.envs].max() >= far)

    def note_sealed(self, segment: AnySegment, seal: Seal) -> None:
        """A segment is sealed from now on."""
        segment.seal = self.seals[segment.key] = seal
        self._open.pop(segment.key, None)

    def seal_of(self, segment: Segment) -> Seal:
        """The seal of a segment that is sealed, found out if nobody knew it."""
        if segment.seal is None or segment.seal is UNKNOWN:
            known = self.seals.get(segment.key)
            segment.seal = self.seals[segment.key] = known or segment.sum()
        return segment.seal

    def left(self, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``(envs, slots)`` of entries with none but rows before `first`."""
        is_left = self._at < (first // self.field.segment_rows)[:, None]
        envs, slots = np.nonzero((self._at >= 0) & is_left)
        return envs, slots

    def is_crowded(self, first: np.ndarray) -> bool:
        """Whether an env has so many entries that have left that they should go soon."""
        envs, _slots = self.left(first)
        return len(envs) > 0 and int(np.bincount(envs).max()) >= _SPARE_SLOTS // 2

    def forget(self, first: np.ndarray, count: np.ndarray | None = None) -> list[AnySegment]:
        """Forget entries with none but rows before `first`, and unmap the segments that no env
        finds any more, which are returned. Call it with `rwlock` held.

        With `count`, of a writer, a segment stays that has rows of a slow env in the tail, which
        does not find it yet: a flush has written them to its file. A reader lets go of it, since
        that env may come to another file.
        """
        envs, slots = self.left(first)
        self._entries[envs, slots] = 0
        self._at[envs, slots] = -1
        size = self.field.env_group
        fastest = np.maximum.reduceat(first, np.arange(0, self.num_envs, size)).tolist()
        gone = [
            segment
            for segment in list(self.segments.values())
            if segment.stop <= fastest[segment.group]
            and not len(self.pointed(segment))
            and not (count is not None and self._has_rows(segment, first, count))
        ]
        for segment in gone:
            self._drop(segment)
        return gone

    @staticmethod
    def _has_rows(segment: Segment, first: np.ndarray, count: np.ndarray) -> bool:
        envs = segment.envs
        return bool(((first[envs] < segment.stop) & (count[envs] > segment.start)).any())

    def drop(self, segment: AnySegment) -> None:
        """Forget a segment. Call it with `rwlock` held."""
        envs = self.pointed(segment)
        slot = segment.number % self.slots
        self._entries[envs, slot] = 0
        self._at[envs, slot] = -1
        self._drop(segment)

    def drop_unfinished(self, progress: np.ndarray) -> None:
        """Forget segments that some env has not passed, or whose values change. Call it with
        `rwlock` held."""
        for segment in list(self.segments.values()):
            if progress[segment.envs].min() < segment.stop or self.field.mutable:
                self.drop(segment)

    def _drop(self, segment: AnySegment) -> None:
        self.segments.pop(segment.key)
        self._open.pop(segment.key, None)
        self.seals.pop(segment.key, None)
        segment.close()

    def files_of(self, segment: Segment) -> list[Path]:
        """The files that go with a segment that has left."""
        return [self.path(*segment.key)]

    def close(self) -> None:
        """Unmap everything."""
        for segment in list(self.segments.values()):
            self.drop(segment)

    def abandon(self) -> None:
        """Leave private files to whoever removes the directory."""

    def move(self, root: Path) -> None:
        """The store's directory is `root` now: its files have other paths. Cannot fail."""
        before, self.root = self.root, root
        self.directory = root / self.field.name
        for segment in self.segments.values():
            segment.move(before, root)
        self.new_files = [root / path.relative_to(before) for path in self.new_files]

    @property
    def most_at_once(self) -> int:
        """Rows of one env that are written before they are committed, at most."""
        raise NotImplementedError

    def scatter(
        self, envs: np.ndarray, rows: np.ndarray, values: np.ndarray, row: int | None
    ) -> None:
        """Write ``values[envs[i]]`` as row ``rows[i]`` of env ``envs[i]``; there is room for it.

        Parameters
        ----------
        row : int or None
            The row, if it is the same one of all envs.
        values : ndarray of shape (num_envs, *field.shape)
            C-contiguous, of the field's dtype.
        """
        from diskreplay.store import row_kernels

        row_kernels.scatter(self.table, envs, rows, values.reshape(-1).view(np.uint8))

    # -- reading

    def scratch(self, reads: int, threads: int = 1) -> np.ndarray:
        """Memory that kernels want for so many reads of each thread: two a transition, one an
        id."""
        return np.empty(threads * (READ * reads + self._scratch_words), np.int64)

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        """A copy of rows ``start..stop`` of one env, shape ``(stop - start, *field.shape)``."""
        raise NotImplementedError

    def pieces(
        self, start: np.ndarray, stop: np.ndarray
    ) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
        """The rows ``start[e]`` up to ``stop[e]`` of every env `e`, in pieces.

        Yields
        ------
        row : int
            The first row of the piece.
        envs : slice
        values : ndarray of shape (rows, envs, *field.shape)
            Views or copies.
        wanted : ndarray of bool, shape (rows, envs)
            Which of them were asked for.
        """
        for env in np.flatnonzero(start < stop).tolist():
            rows = self.read(env, int(start[env]), int(stop[env]))[:, None]
            yield int(start[env]), slice(env, env + 1), rows, np.ones((len(rows), 1), np.bool_)

    def take(self, ids: np.ndarray, out: np.ndarray) -> None:
        """The row of each id (``row * num_envs + env``) into ``out``, zeros for negative ones.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
            Of rows whose segments are mapped.
        out : ndarray of uint8, shape (n * field.row_bytes,)
        """
        from diskreplay.store import batch_kernels

        scratch = self.scratch(min(len(ids), READS))
        failed = batch_kernels.take(self.table, ids, out, scratch)
        if failed:
            self.complain(*divmod(-(1 + failed), self.num_envs))

    def missing(self, env: int, start: int, stop: int) -> CorruptSegmentError:
        """The error for rows whose segment is not there."""
        number, group = start // self.field.segment_rows, env // self.field.env_group
        return CorruptSegmentError(
            f"{self.path(number, group)}: rows {start} to {stop - 1} of env {env} are needed and "
            "their segment is not there"
        )

    def complain(self, row: int, env: int) -> NoReturn:
        """Raise the error for a row that a kernel could not read."""
        raise self.missing(env, row, row + 1)

    # -- metadata

    def document(self, rows: int, *, closing: bool = False) -> dict:
        """The field's ``zarr.json``, with the seals of what does not change.

        If `closing`, of all that is there, which does not change while the store is closed. Costs
        reading the open segments of raw columns.
        """
        seals = {
            f"{number}/{group}": self.seal_of(segment).entry
            for (number, group), segment in sorted(self.segments.items())
            if segment.seal is not None
        }
        return array_document(
            self.field, rows, self.num_envs, {"seals": seals, **self._more_seals(closing)}
        )

    def _more_seals(self, closing: bool) -> dict[str, Any]:
        return {}

    def linkable(self, count: np.ndarray) -> Callable[[Segment], bool]:
        """What says of a segment whether its file is as it will be for ever, with no row of `count`
        anywhere else. Ask it while nobody adds rows."""
        raise NotImplementedError

    def partial(self, key: tuple[int, int], count: np.ndarray) -> Partial:
        """A copy of a segment that is not sealed, with the first `count` rows of each env, to be
        written later. Call it while nobody adds rows."""
        raise NotImplementedError

    def load_seals(self, document: dict) -> None:
        """Take over what a ``zarr.json`` says of sealed segments."""
        attributes = document["attributes"]["diskreplay"]
        self.seals.update(parse_seals(self.field, attributes["seals"], self.num_envs))


def groups_of(field: Field, envs: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
    """Each group that some of these envs are in, and those."""
    if field.env_group >= envs.max(initial=0) + 1:
        if len(envs):
            yield 0, envs
        return
    groups = envs // field.env_group
    for group in np.unique(groups).tolist():
        yield group, envs[groups == group]
