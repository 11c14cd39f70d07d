"""A raw field whose values may be replaced: recurrent states, latents."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diskreplay.store import files
from diskreplay.store.partial import PartialSegment
from diskreplay.store.raw_column import RawColumn
from diskreplay.store.segment import RawSegment


class MutableColumn(RawColumn):
    """Files stay writable when they are full, until a checkpoint shares them: it seals them. The
    first value that changes in a sealed one goes to a copy.

    A copy is among the private files at first, and is put in its place by the next record, when it
    is synced: who writes a value does not wait for the disk, and a power cut before finds the old
    file, whose rows the record counts on.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._written: set[tuple[int, int]] = set()  # segments, since the last flush

    # -- the life of a segment

    def _to_go_on_in(self, segment: RawSegment) -> RawSegment:
        segment = super()._to_go_on_in(segment)
        if segment.key not in self.segments.open:  # rows come again: records have to wait for them
            segment.reopened_at = self.segments.stop(segment.group)
            self.segments.open[segment.key] = segment
        return segment

    def _reopened(self, sealed: Sequence[RawSegment]) -> list[RawSegment]:
        made = []
        for old, copy in zip(sealed, self._copied(sealed), strict=True):
            path = self.files.make_way(self.files.paths.open_segment(*old.key))
            made.append(self._exchanged(old, copy, path))
            made[-1].is_aside = True
        return made

    def place_copies(self) -> None:
        """Put copies in their places, durably."""
        copies = [segment for segment in list(self.segments.mapped.values()) if segment.is_aside]
        files.sync(segment.path for segment in copies)
        for segment in copies:
            path = self.files.paths.chunk(*segment.key)
            files.rename(segment.path, path)
            segment.mapping.path = path
            self.files.new.append(path)
            segment.is_aside = False

    def seal(self, segment: RawSegment) -> None:
        """No row comes to it any more; values may. It is synced once, as one that is sealed."""
        self.segments.open.pop(segment.key, None)

    def freeze(self) -> Iterator[Path]:
        """Seal what a checkpoint can share though it was not sealed so far; gives each file when it
        is sealed."""
        for segment in list(self.segments.mapped.values()):
            if segment.seal is None and segment.key not in self.segments.open:
                super().seal(segment)
                yield segment.path

    def partial(self, key: tuple[int, int], count: np.ndarray) -> PartialSegment:
        made = PartialSegment(self.segments.mapped[key], count)
        made.copy_values()  # now, since they are replaced
        return made

    # -- replacing values

    def own(self, ids: np.ndarray) -> None:
        """See to it that the files with these rows are the store's alone; all or an error.

        A copy is written in full before it is used, and has its space on the disk: to write to
        pages that are shared (reflinks) would kill the process where the disk is full.
        """
        rows, envs = np.divmod(ids, self.num_envs)
        groups = self.field.groups(self.num_envs)
        places = rows // self.field.segment_rows * groups + envs // self.field.env_group
        keys = [divmod(place, groups) for place in np.unique(places).tolist()]
        with self.files.changing:
            mapped = [self.segments.mapped[key] for key in keys]
            sealed = [segment for segment in mapped if segment.seal is not None]
            for copy in self._reopened(sealed):
                # No row comes to it. The keeper may have come by, and have seen that too.
                self.segments.open.pop(copy.key, None)
        self._written.update(keys)

    def put(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Replace the values of these rows, whose files are owned. `rwlock` is held: nobody reads a
        row that is half written."""
        from diskreplay.store import row_kernels

        row_kernels.put(self.table.array, ids, values.reshape(-1).view(np.uint8))

    def unsynced(self) -> list[Path]:
        full = (self._written & self.segments.mapped.keys()) - self.segments.open.keys()
        return [*super().unsynced(), *(self.segments.mapped[key].path for key in full)]

    def flushed(self) -> None:
        """All that `unsynced` named is durable."""
        self._written.clear()
