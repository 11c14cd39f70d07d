"""The segments of one field that are mapped: which are open, full, sealed, left."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from diskreplay.store.field import Field
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import UNKNOWN, Seal, Segment
from diskreplay.store.segment_table import SegmentTable

_LAG = 4  # segments that the fastest env of a group is ahead when one is sealed for all

AnySegment = TypeVar("AnySegment", bound=Segment)


class Segments(Generic[AnySegment]):
    """The segments of one field that are mapped.

    Attributes
    ----------
    mapped : dict of (number, group) to Segment
    open : dict of (number, group) to Segment
        Those of them that rows come to.
    seals : dict of (number, group) to Seal
        What the last record, a flush, or the file itself says of files in their places.
    tell_readers : callable
        Called when a segment is read from another file: a reader in another process has to know.
    """

    def __init__(self, field: Field, num_envs: int, table: SegmentTable, rwlock: RWLock) -> None:
        self._field, self._table, self._rwlock = field, table, rwlock
        self._first_envs = np.arange(0, num_envs, field.env_group)  # of the groups
        self.mapped: dict[tuple[int, int], AnySegment] = {}
        self.open: dict[tuple[int, int], AnySegment] = {}
        self.seals: dict[tuple[int, int], Seal] = {}
        self.tell_readers: Callable[[], None] = lambda: None

    def adopt(self, segment: AnySegment, envs: np.ndarray) -> None:
        """Take a segment in, for these envs."""
        self.mapped[segment.key] = segment
        if segment.seal is None:
            self.open[segment.key] = segment
        self._table.point(segment, envs)

    def replace(self, old: AnySegment, new: AnySegment) -> None:
        """Let kernels find the rows of a segment in another file."""
        envs = self._table.pointed(old)
        with self._rwlock:
            self.open.pop(old.key, None)
            self.adopt(new, envs)
        self.tell_readers()

    def reopen(self, old: AnySegment, new: AnySegment) -> None:
        """Go on in a copy of a sealed segment."""
        new.reopened_at = self.stop(old.group)
        self.seals.pop(old.key, None)
        self.replace(old, new)

    def stop(self, group: int) -> int:
        """The first row behind the newest segment of a group."""
        return max(s.stop for s in self.mapped.values() if s.group == group)

    # -- sealing

    def list_open(self) -> list[AnySegment]:
        """A copy of `open`: the adding thread may be opening one."""
        return list(self.open.values())

    def full(self, progress: np.ndarray) -> list[AnySegment]:
        """Open segments that every env has passed, the oldest first."""
        found = [s for s in self.list_open() if progress[s.envs].min() >= s.stop]
        return sorted(found, key=lambda segment: segment.key)

    def outrun(self, segment: AnySegment, progress: np.ndarray) -> bool:
        """Whether the fastest env is so far ahead of an open segment that it is sealed for all. One
        that was opened again for a slow env is given as long again."""
        far = max(segment.stop, segment.reopened_at) + _LAG * self._field.segment_rows
        return bool(progress[segment.envs].max() >= far)

    def seal(self, segment: AnySegment, seal: Seal) -> None:
        """Note that a segment is sealed from now on."""
        segment.seal = self.seals[segment.key] = seal
        self.open.pop(segment.key, None)

    def seal_of(self, segment: Segment) -> Seal:
        """The seal of a segment that is sealed, found out if nobody knew it."""
        if segment.seal is None or segment.seal is UNKNOWN:
            known = self.seals.get(segment.key)
            segment.seal = self.seals[segment.key] = known or segment.sum()
        return segment.seal

    # -- leaving

    def forget(self, first: np.ndarray, count: np.ndarray | None = None) -> list[AnySegment]:
        """Forget entries with none but rows before `first`, and unmap the segments that no env
        finds any more, which are returned. Call it with `rwlock` held.

        With `count`, of a writer, a segment stays that has rows of a slow env in the tail, which
        does not find it yet: a flush has written them to its file. A reader lets go of it, since
        that env may come to another file.
        """
        self._table.forget(first)
        fastest = np.maximum.reduceat(first, self._first_envs).tolist()
        gone = [
            segment
            for segment in list(self.mapped.values())
            if segment.stop <= fastest[segment.group]
            and not len(self._table.pointed(segment))
            and not (count is not None and _has_rows(segment, first, count))
        ]
        for segment in gone:
            self._unmap(segment)
        return gone

    def drop(self, segment: AnySegment) -> None:
        """Forget a segment. Call it with `rwlock` held."""
        self._table.drop(segment)
        self._unmap(segment)

    def drop_unfinished(self, progress: np.ndarray) -> None:
        """Forget segments that some env has not passed, or whose values change. Call it with
        `rwlock` held."""
        for segment in list(self.mapped.values()):
            if progress[segment.envs].min() < segment.stop or self._field.mutable:
                self.drop(segment)

    def _unmap(self, segment: AnySegment) -> None:
        self.mapped.pop(segment.key)
        self.open.pop(segment.key, None)
        self.seals.pop(segment.key, None)
        segment.close()

    def close(self) -> None:
        """Unmap everything."""
        for segment in list(self.mapped.values()):
            self.drop(segment)


def _has_rows(segment: Segment, first: np.ndarray, count: np.ndarray) -> bool:
    """Whether a segment has rows that are retained."""
    envs = segment.envs
    return bool(((first[envs] < segment.stop) & (count[envs] > segment.start)).any())
