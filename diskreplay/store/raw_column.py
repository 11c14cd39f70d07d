"""A field whose rows are in the files as they are in memory."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.errors import StorageError
from diskreplay.locks import Lock
from diskreplay.store import files
from diskreplay.store.catalog import segments_of
from diskreplay.store.column import Column
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import Partial, PartialSegment
from diskreplay.store.place import Place
from diskreplay.store.segment import RawSegment
from diskreplay.store.spare_files import SpareFiles

_LARGE = 1 << 20  # bytes
_WIDE = 1 << 10  # bytes of a row
_MANY = 64  # envs
_PAGE = 4096
_MOST_FILES = 16  # that a column keeps open for its newest rows
_AT_ONCE = 1 << 20  # values of a piece


class RawColumn(Column[RawSegment]):
    """Rows are written in place, into files of their full length."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        field, is_many = self.field, self.num_envs >= _MANY
        can_be_open = not field.mutable and field.groups(self.num_envs) <= _MOST_FILES
        # Of a few envs a kernel is quicker than a copy by NumPy.
        self._by_moment = is_many and field.stride > field.row_bytes
        # Rows that lie env by env are written one by one, but still by a call of the system each.
        self._by_row = is_many and can_be_open and field.env_major and field.segment_bytes >= _LARGE
        self._by_file = self._by_row or (self._by_moment and can_be_open and field.stride >= _PAGE)
        self._is_even = self._by_moment  # the last rows were one of each env, of one moment
        self.most_at_once = self.field.segment_rows
        self.spares = SpareFiles(self.files, self.field.segment_bytes)
        self._making = Lock()

    # -- writing

    def reserve(self, envs: np.ndarray, rows: np.ndarray) -> None:
        """See to it that these rows, one of each of `envs`, can be written."""
        for key, some in _by_segment(self.field, self.num_envs, envs, rows):
            # The maintenance thread may be sealing it, or letting go of it.
            with self.files.changing:
                segment = self.segments.mapped.get(key)
                if segment is None:
                    self.adopt(self._create(*key), envs[some])
                else:
                    self.table.point(self._to_go_on_in(segment), envs[some])

    def _to_go_on_in(self, segment: RawSegment) -> RawSegment:
        """A segment that is there, or a copy of it: one that rows can be written to."""
        if segment.seal is not None:
            (segment,) = self._reopened([segment])
        segment.is_handed_over = False
        return segment

    def _create(self, number: int, group: int) -> RawSegment:
        with self._making:  # it may be about to come to its place
            mapping = self.spares.placed.pop((number, group), None)
        if mapping is None:
            mapping = self.spares.take(self.files.make_way(self.files.paths.chunk(number, group)))
        self.files.place.check()  # moved meanwhile: an opening would not find the rows in this file
        self.files.new.append(mapping.path)
        return RawSegment(self.field, number, group, mapping)

    def adopt(self, segment: RawSegment, envs: np.ndarray) -> None:
        """Take a segment in, for these envs: rows may come to it, unless it is sealed."""
        if self._by_file and segment.seal is None:
            _open_file(segment, self.segments.list_open(), self.files.place)
        self.segments.adopt(segment, envs)

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
        self.files.place.check()  # else a copy may take the place of another store's segment
        copies: list[Mapping] = []
        try:
            for old in sealed:
                beside = self.files.paths.unsealed(len(copies))
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
        if self._by_file:
            _open_file(segment, self.segments.list_open(), self.files.place)
        self.files.new.append(path)
        self.segments.reopen(old, segment)
        return segment

    def hand_over(self, progress: np.ndarray, ready: np.ndarray) -> Iterator[np.ndarray]:
        """Give up segments that the fastest env of their group has left far behind. Envs that may
        come to write to one, or have begun to, are returned and have nothing `ready` any more: they
        ask for it."""
        for segment in self.segments.list_open():
            if not segment.is_handed_over and self.segments.outrun(segment, progress):
                slow = progress[segment.envs] < segment.stop
                envs = segment.envs.start + np.flatnonzero(slow)
                ready[envs] = 0
                yield envs
                with self.files.changing:  # it may have been sealed since, being full, and deleted
                    segment.is_handed_over = self.segments.open.get(segment.key) is segment

    def keep_spares(self, soon: Sequence[tuple[int, int]]) -> None:
        """Have the files of these segments, which are opened soon, in their places: an `add` that
        renamed one would wait for the file system, up to a tenth of a second while the disk is
        busy."""
        there = self.segments.mapped
        wanted = [key for key in soon if key not in there and key not in self.spares.placed]
        by_file = self._by_row or (self._by_file and self._is_even)
        self.spares.keep(len(wanted), prepared=not by_file)
        for key in wanted:
            with self.files.changing:
                if key in there:  # opened meanwhile
                    continue
                path = self.files.make_way(self.files.paths.chunk(*key))
                self._making.acquire()  # before `changing` is let go of: nobody else opens it
            try:
                self.spares.place(key, path)
            finally:
                self._making.release()

    def write(self, env: int, start: int, values: np.ndarray) -> None:
        """Write consecutive rows of one env from `start` on; their segments are open."""
        size, row = self.field.segment_rows, start
        while row < start + len(values):
            number, at = divmod(row, size)
            part = values[row - start : row - start + size - at]
            self.rows(number, env)[at : at + len(part)] = part
            row += len(part)

    def scatter(
        self, envs: np.ndarray, rows: np.ndarray, values: np.ndarray, row: int | None
    ) -> None:
        if self._by_row:
            for key, some in _by_segment(self.field, self.num_envs, envs, rows):
                self.segments.mapped[key].write_rows(envs[some], rows[some], values)
            return
        self._is_even = row is not None
        if row is None or not self._by_moment:
            super().scatter(envs, rows, values, row)
            return
        number, at = divmod(row, self.field.segment_rows)
        size = self.field.env_group
        if size == self.num_envs:
            self.segments.mapped[number, 0].write_moment(at, values)
            return
        for group in range(self.field.groups(self.num_envs)):
            some = values[group * size : (group + 1) * size]
            self.segments.mapped[number, group].write_moment(at, some)

    def rows(self, number: int, env: int) -> np.ndarray:
        """A view of an env's rows in a segment, shape ``(segment_rows, *field.shape)``."""
        group, place = divmod(env, self.field.env_group)
        return self.segments.mapped[number, group].rows(place)

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
        for segment in self.segments.list_open():
            count[segment.envs] = np.minimum(count[segment.envs], segment.start)
        return count

    def unsynced(self) -> list[Path]:
        """What a flush has to sync besides what was sealed."""
        return [segment.path for segment in self.segments.list_open()]

    def seal(self, segment: RawSegment) -> None:
        """Bring a segment that is not written to any more into its final form."""
        segment.mapping.let_go_of_pages()  # those that are in memory come back with the sum
        seal = segment.sum()
        files.seal(segment.path)
        segment.close_file()
        self.segments.seal(segment, seal)

    def seal_handed(self) -> Iterator[Path]:
        """Seal what was handed over, but for what is written to again by now; gives each file when
        it is sealed."""
        for segment in self.segments.list_open():
            if segment.is_handed_over:
                with self.files.changing:
                    is_open = self.segments.open.get(segment.key) is segment
                    if segment.is_handed_over and is_open:
                        self.seal(segment)
                        segment.is_handed_over = False
                        yield segment.path

    # -- opening and leaving

    def delete_pending(self) -> None:
        """Delete files of segments that have left, or keep them for those to come."""
        self.files.delete_pending(self.spares.take_back)
        # Those of one moment may leave after a later record than this.
        self.spares.trim_left(self.field.groups(self.num_envs))

    @property
    def mappings(self) -> list[Mapping]:
        return super().mappings + self.spares.mappings

    def close(self) -> None:
        super().close()
        self.spares.remove()

    # -- reading

    def read(self, env: int, start: int, stop: int) -> np.ndarray:
        field, size = self.field, self.field.segment_rows
        group, place = divmod(env, field.env_group)
        out = np.empty((max(stop - start, 0), *field.shape), field.dtype)
        row = start
        while row < stop:
            number, at = divmod(row, size)
            rows = min(stop - row, size - at)
            segment = self.segments.mapped.get((number, group))
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
            segment = self.segments.mapped.get((number, group))
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
        if len(ids) > 1 and ids[-1] - ids[0] == envs * (len(ids) - 1) and ids[0] >= 0:
            if (ids[1:] - ids[:-1] == envs).all():  # one range, for which Numba is not loaded
                env, row = int(ids[0]) % envs, int(ids[0]) // envs
                out.reshape(-1)[:] = self.read(env, row, row + len(ids)).reshape(-1)
                return
        super().take(ids, out)

    # -- checkpoints

    def partial(self, key: tuple[int, int], count: np.ndarray) -> Partial:
        return PartialSegment(self.segments.mapped[key], count)


def _open_file(segment: RawSegment, beside: Sequence[RawSegment], place: Place) -> None:
    """Have the rows of a segment go by its file, unless too many of those `beside` it have theirs
    open: of a store that was copied without modes all segments are, until they are sealed again."""
    if sum(other.has_file for other in beside) < _MOST_FILES:
        segment.open_file()
        if not place.holds():  # moved meanwhile: it may be another store's file
            segment.close()


def _by_segment(
    field: Field, num_envs: int, envs: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """The segments of these rows, one of each of `envs`, and which of the rows each has."""
    groups = field.groups(num_envs)
    places = rows // field.segment_rows * groups + envs // field.env_group
    for place in np.unique(places).tolist():
        yield divmod(place, groups), places == place
