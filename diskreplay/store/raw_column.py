"""A field whose rows are in the files as they are in memory."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import StorageError
from diskreplay.store import files, private
from diskreplay.store.catalog import segments_of
from diskreplay.store.column import Column, groups_of
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import Partial, PartialSegment
from diskreplay.store.segment import RawSegment, Segment

_LARGE = 1 << 20  # bytes
_WIDE = 1 << 10  # bytes of a row
_MANY = 64  # envs
_PAGE = 4096
_MOST_FILES = 16  # that a column keeps open for its newest rows
WORTH_A_SPARE = 1 << 20  # bytes of a file that is made ready before it is opened
_AT_ONCE = 1 << 20  # values of a piece


class RawColumn(Column[RawSegment]):
    """Rows are written in place, into files of their full length.

    Attributes
    ----------
    handed : list of RawSegment
        Open segments that the adding thread gives up, so that they are sealed: it opens a copy
        before it writes to one of them again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Of a few envs a kernel is quicker than a copy by NumPy.
        is_strided = self.field.stride > self.field.row_bytes
        self._by_moment = is_strided and self.num_envs >= _MANY
        self._by_file = (
            self._by_moment and not self.field.mutable and self.field.stride >= _PAGE
            and self.field.groups(self.num_envs) <= _MOST_FILES
        )  # fmt: skip
        self._is_even = self._by_moment  # the last rows were one of each env, of one moment
        self._spares: list[Mapping] = []
        self._spares_made = 0
        self.handed: list[RawSegment] = []

    def _addresses(self, segment: RawSegment, places: np.ndarray) -> tuple[Any, Any]:
        return segment.addresses(places), 0

    # -- writing

    def ready(self, rows: np.ndarray) -> np.ndarray:
        """Below which row an env can be written to for which such a row was reserved."""
        size = self.field.segment_rows
        return (rows // size + 1) * size

    def reserve(self, envs: np.ndarray, rows: np.ndarray) -> None:
        """See to it that these rows, one of each of `envs`, can be written."""
        numbers = rows // self.field.segment_rows
        for number in np.unique(numbers).tolist():
            here = envs[numbers == number]
            for group, some in groups_of(self.field, here):
                with self.changing:  # the maintenance thread may be sealing it, or letting go of it
                    segment = self.segments.get((number, group))
                    if segment is None:
                        self.adopt(self._create(number, group), some)
                        continue
                    self.point(self._to_go_on_in(segment), some)

    def _to_go_on_in(self, segment: RawSegment) -> RawSegment:
        """A segment that is there, or a copy of it: one that rows can be written to."""
        if segment in self.handed:
            self.handed.remove(segment)
        elif segment.seal is not None:
            (segment,) = self._reopened([segment])
        return segment

    def _create(self, number: int, group: int) -> RawSegment:
        path = self.new_path(self.path(number, group))
        if self._spares:
            mapping = self._spares.pop()
            try:
                files.rename(mapping.path, path)
            except BaseException:
                self._spares.append(mapping)
                raise
            mapping.path = path
        else:
            size = self.field.segment_bytes
            # Pages of a long file come when they are touched: an `add` does not wait for them all.
            mapping = Mapping.create(path, size, prepared=size < WORTH_A_SPARE)
        self.place.check()  # moved meanwhile: an opening would not find the rows in this file
        self.new_files.append(path)
        return RawSegment(self.field, number, group, mapping)

    def _reopened(self, sealed: Sequence[RawSegment]) -> list[RawSegment]:
        """Copies of sealed segments in their places, to go on in. Call it with `changing` held."""
        copies = self._copied(sealed)
        # Before they are renamed: the record counts on rows that are in the old ones.
        files.sync(copy.path for copy in copies)
        return [
            self._exchanged(old, copy, old.path) for old, copy in zip(sealed, copies, strict=True)
        ]

    def _copied(self, sealed: Sequence[RawSegment]) -> list[Mapping]:
        """Copies of segments, in files of their own that nobody looks at; all or an error."""
        self.place.check()  # else a copy may take the place of another store's segment
        copies: list[Mapping] = []
        try:
            for old in sealed:
                beside = private.unsealed(self.root, self.number, len(copies))
                copies.append(Mapping.copy_of(old.mapping, beside))
        except BaseException:
            for copy in copies:
                with contextlib.suppress(StorageError):  # the next opening removes it
                    files.remove(copy.path)
            raise
        return copies

    def _exchanged(self, old: RawSegment, copy: Mapping, path: Path) -> RawSegment:
        """The segment that is in a copy of a sealed one from now on, at `path`."""
        files.rename(copy.path, path)
        copy.path = path
        segment = RawSegment(self.field, old.number, old.group, copy)
        segment.reopened_at = self._stop(old.group)
        self.new_files.append(path)
        self.seals.pop(old.key, None)
        self.replace(old, segment)
        return segment

    def _stop(self, group: int) -> int:
        """The first row behind the newest segment of a group."""
        return max(s.stop for s in self.segments.values() if s.group == group)

    def hand_over(self, progress: np.ndarray, ready: np.ndarray) -> Iterator[np.ndarray]:
        """Give up segments that the fastest env of their group has left far behind. Envs that may
        come to write to one, or have begun to, are returned and have nothing `ready` any more: they
        ask for it."""
        for segment in self.open_segments():
            if segment not in self.handed and self.outrun(segment, progress):
                slow = progress[segment.envs] < segment.stop
                envs = segment.envs.start + np.flatnonzero(slow)
                ready[envs] = 0
                yield envs
                with self.changing:  # it may have been sealed since, being full, and deleted
                    if self._open.get(segment.key) is segment:
                        self.handed.append(segment)

    def keep_spares(self, wanted: int) -> None:
        """Have that many files ready, so that to open a segment is a rename."""
        while len(self._spares) < wanted:
            self._spares_made += 1
            path = private.spare(self.root, self.number, self._spares_made)
            prepared = not (self._by_file and self._is_even)
            self._spares.append(Mapping.create(path, self.field.segment_bytes, prepared=prepared))

    def write(self, env: int, start: int, values: np.ndarray) -> None:
        """Write consecutive rows of one env from `start` on; their segments are open."""
        size, row = self.field.segment_rows, start
        while row < start + len(values):
            number, at = divmod(row, size)
            part = values[row - start : row - start + size - at]
            self.rows(number, env)[at : at + len(part)] = part
            row += len(part)

    @property
    def most_at_once(self) -> int:
        return self.field.segment_rows

    def scatter(
        self, envs: np.ndarray, rows: np.ndarray, values: np.ndarray, row: int | None
    ) -> None:
        self._is_even = row is not None
        if row is not None and self._by_moment:
            self._write_moment(row, values)  # side by side
        else:
            super().scatter(envs, rows, values, row)

    def _write_moment(self, row: int, values: np.ndarray) -> None:
        number, at = divmod(row, self.field.segment_rows)
        size = self.field.env_group
        if size == self.num_envs:
            self.segments[number, 0].write_moment(at, values)
            return
        for group in range(self.field.groups(self.num_envs)):
            some = values[group * size : (group + 1) * size]
            self.segments[number, group].write_moment(at, some)

    def adopt(self, segment: RawSegment, envs: np.ndarray) -> None:
        if self._by_file and segment.seal is None:
            segment.open_file()
        super().adopt(segment, envs)

    def rows(self, number: int, env: int) -> np.ndarray:
        """A view of an env's rows in a segment, shape ``(segment_rows, *field.shape)``."""
        group, place = divmod(env, self.field.env_group)
        return self.segments[number, group].rows(place)

    # -- sealing

    @property
    def large(self) -> bool:
        """Whether open segments are too large to be synced again and again while they are written
        to. Of narrow rows only a page or two are new each time.

        Never of a column whose segments are longer than what is kept: the rows that are durable, of
        which a record counts none more than are in its sealed segments, would fall behind the rows
        that are retained, and nothing could be deleted.
        """
        if self.kept is not None and self.field.segment_rows > self.kept:
            return False
        return self.field.row_bytes >= _WIDE and self.field.segment_bytes >= _LARGE

    def durable(self, count: np.ndarray) -> np.ndarray:
        """How many rows of each env are in files that are synced when they are sealed."""
        if not self.large:
            return count
        count = count.copy()
        for segment in self.open_segments():
            count[segment.envs] = np.minimum(count[segment.envs], segment.start)
        return count

    def unsynced(self) -> list[Path]:
        """What a flush has to sync besides what was sealed."""
        return [segment.path for segment in self.open_segments()]

    def flushed(self) -> None:
        """All that `unsynced` named is durable."""

    def seal(self, segment: RawSegment) -> None:
        """Bring a segment that is not written to any more into its final form."""
        seal = segment.sum()
        files.seal(segment.path)
        segment.close_file()
        self.note_sealed(segment, seal)

    def seal_handed(self) -> list[RawSegment]:
        """Seal what was handed over, but for what is written to again by now."""
        done = []
        while self.handed:
            with self.changing:
                if not self.handed:
                    continue
                segment = self.handed[-1]
                if segment.seal is None:  # else it was sealed, being full, as it was handed over
                    self.seal(segment)
                    done.append(segment)
                self.handed.pop()
        return done

    def place_copies(self) -> None:
        """Put in their places, durably, files that are kept elsewhere so far."""

    def freeze(self) -> list[Path]:
        """Seal what a checkpoint can share though it was not sealed so far; returns the files."""
        return []

    def _more_seals(self, closing: bool) -> dict[str, Any]:
        if not closing:
            return {}
        sums = {
            f"{segment.number}/{segment.group}": segment.sum().entry
            for segment in sorted(self.segments.values(), key=lambda segment: segment.key)
            if segment.seal is None
        }
        return {"open": sums}

    # -- opening and leaving

    def _drop(self, segment: RawSegment) -> None:
        super()._drop(segment)
        if segment in self.handed:
            self.handed.remove(segment)

    def open_segment(
        self, number: int, group: int, envs: np.ndarray, *, writable: bool, is_live: bool = False
    ) -> None:
        """Map a segment that is on disk; `is_live`: as the writer has it who is at work."""
        path = self.live_path(number, group) if is_live else self.path(number, group)
        self.adopt(RawSegment.open(self.field, number, group, path, writable=writable), envs)

    def live_path(self, number: int, group: int) -> Path:
        """The file of a segment while the store is open."""
        return self.path(number, group)

    def clear_behind(self, count: np.ndarray) -> None:
        """Zeros behind the rows that count: one that was being written when the process died, or
        when Ctrl-C came, was never added."""
        size = self.field.segment_rows
        for segment in self.open_segments():
            used = np.clip(count[segment.envs] - segment.start, 0, size)
            every = segment.every_row
            for place, rows in enumerate(used.tolist()):
                if every[rows:, place].any():
                    every[rows:, place] = 0

    def move(self, root: Path) -> None:
        before = self.root
        super().move(root)
        for mapping in self._spares:
            mapping.path = root / mapping.path.relative_to(before)

    def close(self) -> None:
        super().close()
        for spare in self._spares:
            with contextlib.suppress(StorageError):  # the next opening removes it
                files.remove(spare.path)
        self._spares.clear()

    def abandon(self) -> None:
        self._spares.clear()

    # -- reading

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        field, size = self.field, self.field.segment_rows
        group, place = divmod(env, field.env_group)
        out = np.empty((max(stop - start, 0), *field.shape), field.dtype)
        row = start
        while row < stop:
            number, at = divmod(row, size)
            rows = min(stop - row, size - at)
            segment = self.segments.get((number, group))
            if segment is None:
                raise self.missing(env, row, row + rows)
            out[row - start : row - start + rows] = segment.rows(place)[at : at + rows]
            row += rows
        return out

    def pieces(
        self, start: np.ndarray, stop: np.ndarray
    ) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
        most = max(_AT_ONCE // self.field.env_group, 1)
        for (number, group), some in segments_of(self.field, start, stop):
            segment = self.segments.get((number, group))
            if segment is None:
                raise self.missing(int(some[0]), int(start[some[0]]), int(stop[some[0]]))
            low = max(int(start[some].min()), segment.start)
            high = min(int(stop[some].max()), segment.stop)
            envs = slice(segment.envs.start, min(segment.envs.stop, self.num_envs))
            values = segment.values[:, : envs.stop - envs.start]
            for row in range(low, high, most):
                part = values[row - segment.start : min(row + most, high) - segment.start]
                rows = row + np.arange(len(part))[:, None]
                yield row, envs, part, (rows >= start[envs]) & (rows < stop[envs])

    def take(self, ids: np.ndarray, out: np.ndarray) -> None:
        envs = self.num_envs
        if len(ids) > 1 and ids[1] - ids[0] == envs and ids[0] >= 0:
            if (ids[1:] - ids[:-1] == envs).all():  # one range, for which Numba is not loaded
                env, row = int(ids[0]) % envs, int(ids[0]) // envs
                out[:] = self.read(env, row, row + len(ids)).reshape(-1).view(np.uint8)
                return
        super().take(ids, out)

    # -- checkpoints

    def linkable(self, count: np.ndarray) -> Callable[[Segment], bool]:
        return lambda segment: segment.seal is not None

    def unfinished(self, count: np.ndarray) -> list[tuple[int, int]]:
        """``(number, group)`` of segments that are not sealed and have rows."""
        return sorted(
            segment.key
            for segment in self.open_segments()
            if (count[segment.envs] > segment.start).any()
        )

    def partial(self, key: tuple[int, int], count: np.ndarray) -> Partial:
        return PartialSegment(self.segments[key], count)
