"""Where Tianshou's replay buffers have their larger arrays."""

import functools
import os
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from tianshou.data.batch import create_value

from diskreplay.errors import InvalidInputError, SchemaError
from diskreplay.frame_chains import MOST_FRAMES
from diskreplay.given_numbers import whole
from diskreplay.integrations.batch_leaves import NUMBER, field_names, fields_of, leaves, set_leaf
from diskreplay.integrations.disk_batch import DiskBatch, LeafRows
from diskreplay.slot_fields import SlotFields
from diskreplay.slots import Slots
from diskreplay.store import files, tempfiles
from diskreplay.store.format import read_attributes
from diskreplay.store.paths import resolved
from diskreplay.validation import one_of

NOTE = "tianshou"  # among the notes of the slots
_AT_ONCE = 64  # rows that are copied at a time
_LEAST_BYTES = 2  # flags are in memory: compiled code of Tianshou's walks them
OPEN: "weakref.WeakValueDictionary[Path, LeafRows]" = weakref.WeakValueDictionary()
"""Those of this process, by the path of the store."""


class DiskOptions(NamedTuple):
    """What a buffer on disk can be told beside what Tianshou says; `DiskReplayBuffer` says what
    each means."""

    path: str | os.PathLike[str] | None = None
    min_bytes: int = 1024
    compressor: str | Mapping[str, str] = "auto"
    checkpoints: str | os.PathLike[str] | None = None
    keep: int | None = 4
    pickle: str = "reference"
    next_of: bool = False
    stack: "int | Mapping[str, int]" = 1


class LaneOnDisk(ReplayBuffer):
    """Mixin of Tianshou's buffers that have one lane of a store: what they forget is forgotten
    there, too."""

    def reset(self, keep_statistics: bool = False) -> None:
        """As Tianshou's. The transitions are taken out of the store: also a process that opens it
        later does not have them. Checkpoints keep theirs.

        Raises
        ------
        StorageError
            The disk is full, say. They are forgotten here, and may be there when the store is
            opened again; reset it once more.
        ClosedError
        """
        meta: Any = self._meta
        if not isinstance(meta, DiskBatch):
            super().reset(keep_statistics)
            return
        rows = meta._rows
        lane = int(np.searchsorted(rows.slots.offsets, meta._range.start))
        # Before: what cannot be taken out now must not come twice, as episodes of a
        # `DiskCachedReplayBuffer` would, which are in its main buffer by then.
        super().reset(keep_statistics)
        rows.take_out(lane)


class _Part(LaneOnDisk):
    """One of the buffers inside of another one."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # A copy has its arrays in memory, and is Tianshou's alone.
        return object.__new__, (type(self).__bases__[1],), self.__dict__


@functools.cache
def _part_class(kind: type[ReplayBuffer]) -> type[ReplayBuffer]:
    return type(kind.__name__, (_Part, kind), {})


class LeavesOnDisk(ReplayBuffer):
    """Mixin of Tianshou's buffers: where the larger leaves of `_meta` are.

    A class that has it calls `_set_up` when it is constructed.
    """

    _rows: LeafRows | None
    _options: DiskOptions
    _meta: Any

    @property
    def _there(self) -> LeafRows:
        """The rows of a buffer that has some."""
        assert self._rows is not None
        return self._rows

    def _set_up(self, options: DiskOptions) -> None:
        one_of("pickle", options.pickle, ("reference", "embed"))
        one_of("next_of", options.next_of, (False, True))
        frames = options.stack
        for each in frames.values() if isinstance(frames, Mapping) else [frames]:
            whole("stack", each, most=MOST_FRAMES)
        if options.path is not None:
            options = options._replace(path=resolved(options.path, "path"))
        if options.checkpoints is not None:
            options = options._replace(checkpoints=resolved(options.checkpoints, "checkpoints"))
        self._options, self._rows = options, None
        if options.path is not None and files.is_there(Path(options.path, "zarr.json")):
            self._reopen()
            self._found()

    def _found(self) -> None:
        """Know what a store has that was reopened."""

    def _parts(self) -> list[tuple[int, ReplayBuffer]]:
        """The buffers of this one, and the first index of each."""
        buffers = self.__dict__.get("buffers")
        if buffers is None:
            return [(0, self)]
        return list(zip(self._offset.tolist(), buffers, strict=True))

    def _make_slots(
        self, fields: Mapping[str, tuple[Any, ...]], names: Mapping[str, str],
        next_of: Mapping[str, str], stack: Mapping[str, int], path: Path | None = None,
    ) -> Slots:  # fmt: skip
        options = self._options
        compressor = options.compressor
        if isinstance(compressor, Mapping):
            if unknown := sorted(compressor.keys() - names.keys(), key=repr):
                raise InvalidInputError(
                    f"compressor: {unknown[0]!r} is no array of this buffer; there are "
                    f"{list(names)}"
                )
            for led, now in next_of.items():
                pair = [path for path, name in names.items() if name in (led, now)]
                chosen = [compressor[path] for path in pair if path in compressor]
                if len(chosen) == 2 and chosen[0] != chosen[1]:
                    raise InvalidInputError(
                        f"compressor: {' and '.join(pair)} have their frames in common, found "
                        f"{chosen[0]!r:.60} and {chosen[1]!r:.60}; one of the two has to do"
                    )
            compressor = {names[path]: chosen for path, chosen in compressor.items()}
        sizes = [part.maxsize for _, part in self._parts()]
        return Slots(
            path or options.path, fields, sizes, next_of=next_of, stack=stack,
            min_bytes=max(options.min_bytes, _LEAST_BYTES), compressor=compressor,
            weighted=isinstance(self, PrioritizedReplayBuffer),
            notes={NOTE: {"leaves": dict(names)}},
        )  # fmt: skip

    def _allocate(self, template: Batch) -> None:
        """Make the store, for transitions like that of a batch with one row."""
        names = field_names(template)
        slots = self._make_slots(fields_of(template, names), names, *self._shared(template, names))
        self._take(self._leaf_rows(slots, names))
        for path, value in leaves(template):
            if path not in names:
                set_leaf(self._meta, path, create_value(value, self.maxsize, stack=False))
        self._add_empty(self._meta, template)
        self._warn_of_memory()
        self._share()

    def _shared(
        self, template: Batch, names: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Which arrays share frames, as `Slots` is told: large ones of observations."""
        options, there = self._options, dict(leaves(template))
        least, frames = max(options.min_bytes, _LEAST_BYTES), options.stack
        seen = [path for path in names if path.split("/")[0] == "obs"]
        if not isinstance(frames, Mapping):
            frames = dict.fromkeys(seen, frames)
        elif unknown := sorted(frames.keys() - seen, key=repr):
            raise InvalidInputError(
                f"stack: {unknown[0]!r} is no array of observations; there are {seen}"
            )
        next_of, stack = {}, {}
        for path in seen:
            if there[path][0].nbytes < least:
                continue
            led, k = path.replace("obs", "obs_next", 1), frames.get(path, 1)
            for each in [path, led] if led in names else [path]:
                shape = there[each].shape[1:]
                if k > 1 and (not shape or shape[0] % k):
                    raise InvalidInputError(
                        f"stack: {each!r} of shape {shape} cannot be {k} frames; a dict says which "
                        f"arrays are stacks, {{name: frames}}; there are {seen}"
                    )
                if k > 1:
                    stack[names[each]] = k
            if led in names and options.next_of:
                if _form(there[led]) != _form(there[path]):
                    raise InvalidInputError(
                        f"next_of: {led!r} is {_form(there[led])} and {path!r} is "
                        f"{_form(there[path])}; they have to be alike, leave next_of out"
                    )
                next_of[names[led]] = names[path]
        return next_of, stack

    def _warn_of_memory(self) -> None:
        """Name the leaves that are in memory alone, each of them once."""
        said = self._there.in_memory
        new = [path for path in self._memory() if path not in said]
        said.update(new)
        if new:
            warnings.warn(
                f"{', '.join(new)}: no arrays of numbers, or not in the first transition. They "
                "stay in memory, and are gone when the buffer is opened again",
                stacklevel=5,
            )

    def _add_empty(self, batch: Batch, template: Batch) -> None:
        for key, value in template.items():
            if isinstance(value, Batch):
                self._add_empty(batch.__dict__.setdefault(key, Batch()), value)

    def _reopen(self) -> None:
        path = Path(str(self._options.path))
        attributes = read_attributes(path)
        noted = attributes.get("notes", {})
        if not isinstance(noted, dict) or NOTE not in noted:
            raise SchemaError(f"{path}: no replay buffer of Tianshou's; choose another path")
        names = noted[NOTE]["leaves"]
        self._take(self._leaf_rows(self._made_as(attributes, names), names))
        self._close_gaps(attributes)
        self._share()

    def _made_as(
        self, attributes: Mapping[str, Any], names: Mapping[str, str], path: Path | None = None
    ) -> Slots:
        """Slots as those of a store or a checkpoint; at `path` new ones."""
        found = SlotFields.parse(attributes)
        return self._make_slots(found.specs, names, found.next_of, found.stack, path)

    def _close_gaps(self, attributes: Mapping[str, Any]) -> None:
        """Have transitions side by side, as Tianshou takes it, where a repair has set others aside
        between them. All of this is done, or nothing: as a checkpoint is loaded."""
        rows = self._there
        courses = [rows.course(lane) for lane in range(len(self._parts()))]
        if all(course.is_whole for course in courses):
            return
        slots = rows.slots
        with tempfiles.Workspace(slots.path, "load") as room:
            fresh = self._made_as(attributes, rows.names, room.path / "slots")
            try:
                for lane, course in enumerate(courses):
                    first = int(slots.offsets[lane])
                    for start in range(0, len(course.order), _AT_ONCE):
                        part = slice(start, start + _AT_ONCE)
                        at = course.order[part]
                        came_next = start + np.arange(len(at))
                        values = self._cut_rows(slots, at, course.missing[part])
                        fresh.put(first + came_next, {**values, NUMBER: 1 + came_next})
                        if isinstance(self, PrioritizedReplayBuffer):
                            fresh.weights[first + came_next] = slots.weights[at]
                fresh.notes = slots.notes
                fresh.save(room.path, "whole")
            finally:
                fresh.close()
            slots.load(room.path, "whole")
        self._take(self._leaf_rows(rows.hand_over(), rows.names))
        count = sum(len(course.order) for course in courses)
        warnings.warn(
            f"{slots.path}: transitions are missing, as after a repair. The {count} that are "
            "left have moved to other slots, side by side; episodes end where others are missing",
            RuntimeWarning,
            stacklevel=2,
        )

    def _cut_rows(self, slots: Slots, at: np.ndarray, missing: np.ndarray) -> dict[str, np.ndarray]:
        """The rows in these slots. Behind some of them others are missing: no transition goes on
        from these."""
        fields = list(slots.specs)
        values = dict(zip(fields, slots.read(fields, at), strict=True))
        names = self._there.names
        cut = missing & ~values[names["done"]]
        values[names["done"]][cut] = values[names["truncated"]][cut] = True
        return values

    def _leaf_rows(self, slots: Slots, names: Mapping[str, str]) -> LeafRows:
        parts = [part for _, part in self._parts() if part is not self]
        owner = weakref.ref(self)  # rows that knew their buffer would keep it open

        def sizes() -> list[int]:
            mine: list[Any] = [*parts] or [owner()]
            return [part._size for part in mine]

        def take_back() -> None:
            buffer = owner()
            if buffer is not None:
                buffer._restore_originals()

        return LeafRows(slots, names, sizes, take_back)

    def _restore_originals(self) -> None:
        """Take back what was relabelled for a sample."""
        restore = getattr(self, "_restore_cache", None)
        if restore is not None and self._rows is not None:
            restore()

    def _take(self, rows: LeafRows, memory: Mapping[str, Any] | None = None) -> None:
        """Have these rows, and what is in memory alone."""
        self._rows = rows
        OPEN[rows.slots.path] = rows
        self._meta = rows.batch()
        for path, value in (memory or {}).items():
            set_leaf(self._meta, path, value)

    def _memory(self) -> dict[str, Any]:
        """The leaves that are in memory alone."""
        return {path: value for path, value in leaves(self._meta) if path not in self._there.names}

    def _share(self) -> None:
        """Have the buffers of this one see the same rows."""
        if "buffers" in self.__dict__:
            self._set_batch_for_children()
            for _, part in self._parts():
                kind: Any = type(part)
                if not issubclass(kind, _Part):
                    part.__class__ = _part_class(kind)

    @property
    def disk(self) -> Slots | None:
        """The rows, to look into; None while nothing was added."""
        return None if self._rows is None else self._there.slots


def _form(array: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape of one row, and dtype."""
    return array.shape[1:], array.dtype
