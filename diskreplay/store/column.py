"""One field's segments: which there are, where they are in memory, how rows are read from them.

`RawColumn` and `PackedColumn` say how rows get in.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NoReturn

import numpy as np

from diskreplay.errors import CorruptSegmentError
from diskreplay.store.column_files import ColumnFiles
from diskreplay.store.field import Field
from diskreplay.store.mapping import Mapping
from diskreplay.store.partial import Partial
from diskreplay.store.place import Place
from diskreplay.store.read_job import READ, READS
from diskreplay.store.rwlock import RWLock
from diskreplay.store.segment import Segment
from diskreplay.store.segment_table import SegmentTable
from diskreplay.store.segments import AnySegment, Segments


class Column(Generic[AnySegment]):
    """The segments of one field, of every env.

    Attributes
    ----------
    table : SegmentTable
        Where kernels find the rows of `segments`.
    segments : Segments
    most_at_once : int
        Rows of one env that are written before they are committed, at most.
    """

    most_at_once: int

    def __init__(
        self,
        place: Place,
        number: int,
        field: Field,
        num_envs: int,
        rows_per_env: int | None,
        rwlock: RWLock,
    ) -> None:
        self.field, self.num_envs, self.rwlock = field, num_envs, rwlock
        self.kept = rows_per_env
        self.files = ColumnFiles(place, number, field)
        self.table = SegmentTable(field, num_envs, rows_per_env, rwlock)
        self.segments: Segments[AnySegment] = Segments(field, num_envs, self.table, rwlock)

    # -- opening and leaving

    def delete_pending(self) -> None:
        """Delete files of segments that have left."""
        self.files.delete_pending()

    def close(self) -> None:
        """Unmap everything."""
        self.segments.close()

    @property
    def mappings(self) -> list[Mapping]:
        return [segment.mapping for segment in list(self.segments.mapped.values())]

    def move(self, before: Path) -> None:
        """The store's directory, which was `before`, has moved. Cannot fail."""
        self.files.move(before)
        for mapping in self.mappings:
            mapping.path = self.files.root / mapping.path.relative_to(before)

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

        row_kernels.scatter(self.table.array, envs, rows, values.reshape(-1).view(np.uint8))

    # -- reading

    def scratch(self, reads: int, threads: int = 1) -> np.ndarray:
        """Memory that kernels want for so many reads of each thread: two a transition, one an
        id."""
        return scratch(self.field, reads, threads)

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
        """The row of each id (``row * num_envs + env``) into `out`, zeros for negative ones. The
        caller holds `rwlock`.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
            Of rows that are retained.
        out : ndarray
            C-contiguous, of the field's dtype, with room for `n` of its values.
        """
        from diskreplay.store import batch_kernels

        scratch = self.scratch(min(len(ids), READS))
        failed = batch_kernels.take(self.table.array, ids, out.reshape(-1).view(np.uint8), scratch)
        if failed:
            self.complain(*divmod(-(1 + failed), self.num_envs))

    def take_both(self, windows: np.ndarray, out: np.ndarray) -> None:
        """As `take`, of windows of ids: all but the last of each into ``out[0]``, all but the first
        into ``out[1]``.

        Parameters
        ----------
        windows : ndarray of int64, shape (n, width)
        out : ndarray
            C-contiguous, of the field's dtype, with room for ``2 * n * (width - 1)`` of its values.
        """
        from diskreplay.store import batch_kernels

        scratch = self.scratch(min(windows.size, READS))
        failed = batch_kernels.take_both(
            self.table.array, windows, out.reshape(-1).view(np.uint8), scratch
        )
        if failed:
            self.complain(*divmod(-(1 + failed), self.num_envs))

    def missing(self, env: int, start: int, stop: int) -> CorruptSegmentError:
        """The error for rows whose segment is not there."""
        number, group = start // self.field.segment_rows, env // self.field.env_group
        return CorruptSegmentError(
            f"{self.files.paths.chunk(number, group)}: rows {start} to {stop - 1} of env {env} are "
            "needed and their segment is not there"
        )

    def complain(self, row: int, env: int) -> NoReturn:
        """Raise the error for a row that a kernel could not read."""
        raise self.missing(env, row, row + 1)

    # -- checkpoints

    def linkable(self, count: np.ndarray) -> Callable[[Segment], bool]:
        """What says of a segment whether its file is as it will be for ever, with no row of `count`
        anywhere else. Ask it while nobody adds rows."""
        return lambda segment: segment.seal is not None

    def partial(self, key: tuple[int, int], count: np.ndarray) -> Partial:
        """A copy of a segment that is not sealed, with the first `count` rows of each env, to be
        written later. Call it while nobody adds rows."""
        raise NotImplementedError


def scratch(field: Field, reads: int, threads: int) -> np.ndarray:
    """As `Column.scratch`."""
    block_words = -(-field.block_bytes // 8) if field.packed else 0
    return np.empty(threads * (READ * reads + block_words), np.int64)
