"""Large columns whose rows repeat each other: each frame is stored once."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diskreplay.compat.cpprb.columns import Arrays, Column
from diskreplay.errors import CorruptSegmentError
from diskreplay.naming import extra_name
from diskreplay.store.store import Store

Take = Callable[..., Any]  # as `ReplayBuffer.take`


class Track:
    """One column, stored by its newest frames, and with `linked` its ``next_`` column too.

    The *head* of a row is what its newest frame belongs to: its ``next_`` value if there is one,
    else its value. A head usually is the row's *tail* (with `linked` the value, else the head of
    the row before) moved on by one frame; a value usually is the head of the row before. Whatever
    is not so is stored whole, in a packed column of zeros that costs nothing elsewhere. So nothing
    depends on a later row, and a row is complete when it is written.

    Parameters
    ----------
    column : Column
    stacked : bool
        Whether the last axis is a stack of frames, else the row is one frame.
    linked : bool
    native : str or None
        A field of the store that takes the frames, if there is one for them.
    taken : set of str
        Names of extras that are in use; those of this track are added.

    Attributes
    ----------
    depth : int
        Frames in a stack.
    slack : int
        Rows that must be retained before the oldest one that is read.
    frames : str
        The field of the frames.
    extras : dict
        Further fields of the store: name to (shape, dtype).
    stores : list of str
        All of its fields, in the order of `encode_row`.
    links : list of str
        Those of one number a row, that are asked for in each batch.
    packed : list of str
        Those that are to be compressed whatever their dtype.
    """

    def __init__(
        self, column: Column, *, stacked: bool, linked: bool, native: str | None, taken: set[str]
    ) -> None:
        self.column, self.stacked, self.linked = column, stacked, linked
        self.depth = column.shape[-1] if stacked else 1
        self.slack = self.depth if linked else self.depth - 1
        self.outputs = [column.name, *([f"next_{column.name}"] if linked else [])]
        self._frame_shape = column.shape[:-1] if stacked else column.shape
        self._stack_shape = (*self._frame_shape, self.depth)
        self.extras: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        newest = f"{self.outputs[-1]}_frame" if stacked else self.outputs[-1]
        self.frames = native or self._field(newest, taken, self._frame_shape, column.dtype)
        # How many of the newest frames of a head, and of a value, are frames of this and the rows
        # before; the older ones are in the stack that is stored whole before them. -1 for a value
        # that is stored whole itself.
        self._run = self._value_run = self._head = self._value = ""  # no such field
        self.packed: list[str] = []
        if self.depth > 1:
            self._run = self._field(f"{column.name}_run", taken, (), np.dtype(np.int32))
            self._head = self._field(
                f"{self.outputs[-1]}_whole", taken, self._stack_shape, column.dtype
            )
            self.packed.append(self._head)
        if linked:
            self._value_run = self._field(f"{column.name}_follows", taken, (), np.dtype(np.int32))
            self._value = self._field(
                f"{column.name}_whole", taken, self._stack_shape, column.dtype
            )
            self.packed.append(self._value)
        fields = self.frames, self._run, self._head, self._value_run, self._value
        self.stores = [field for field in fields if field]
        self.links = [field for field in (self._run, self._value_run) if field]
        # A stack of small numbers is one larger number: many times as fast.
        stack_bytes = self.depth * column.dtype.itemsize
        is_word = self.depth > 1 and stack_bytes in (2, 4, 8) and sys.byteorder == "little"
        self._flat_dtype = np.dtype(f"u{stack_bytes}") if is_word else column.dtype
        self._none = self._flat(np.zeros(self._stack_shape, column.dtype))
        self._compare_row = None
        if is_word:
            from diskreplay.compat.cpprb.kernels import compare

            self._compare_row = compare
            # The newest frame and two heads, the last one and the next; made once.
            self._newest = np.empty(self._frame_shape, column.dtype)
            self._newest_words = self._newest.reshape(-1).view(f"u{column.dtype.itemsize}")
            self._heads = np.empty_like(self._none), np.empty_like(self._none)
        self.forget()

    def _field(self, name: str, taken: set[str], shape: tuple[int, ...], dtype: np.dtype) -> str:
        field = extra_name(name, taken)
        self.extras[field] = shape, dtype
        return field

    # -- writing

    def forget(self) -> None:
        """The next row follows none."""
        self._last: np.ndarray | None = None
        self._last_run = 0

    def encode_row(self, row: Arrays) -> tuple[list[Any], tuple[np.ndarray, int]]:
        """As `encode`, for one row without a leading axis: what goes to each of `stores`, None for
        zeros. Valid until the next call."""
        if self._compare_row is None:
            columns, state = self.encode({name: row[name][None] for name in self.outputs})
            parts: dict[str, Any] = {field: rows[0] for field, rows in columns.items()}
            if self._run and parts[self._run]:
                parts[self._head] = None
            if self.linked and parts[self._value_run] >= 0:
                parts[self._value] = None
            return [parts[field] for field in self.stores], state
        last = self._none if self._last is None else self._last
        head = row[self.outputs[-1]].ravel()
        value = row[self.outputs[0]].ravel() if self.linked else last
        if self.column.dtype != np.uint8:  # Numba does not know all dtypes
            head, value = head.view(np.uint8), value.view(np.uint8)
        if not (head.flags.writeable and value.flags.writeable):  # another type, to be compiled for
            head, value = head.copy(), value.copy()
        kept = self._heads[last is self._heads[0]]
        follows, moved_on = self._compare_row(last, head, value, self._newest_words, kept)
        if self._last is None:
            follows, moved_on = follows and not self.linked, moved_on and self.linked
        before, run = (self._last_run if follows else -1), 0
        if moved_on:
            run = before + 1 if before > 0 else 1
            run = run if run < self.depth else self.depth
        stored: list[Any] = [self._newest, run, None if moved_on else row[self.outputs[-1]]]
        if self.linked:
            stored += before, None if follows else row[self.outputs[0]]
        return stored, (kept, run)

    def _flat(self, stack: np.ndarray) -> np.ndarray:
        return stack.ravel().view(self._flat_dtype)

    def _stack(self, flat: np.ndarray) -> np.ndarray:
        return flat.view(self.column.dtype).reshape(self._stack_shape)

    def encode(self, rows: Arrays) -> tuple[Arrays, tuple[np.ndarray, int]]:
        """What to store for rows that come next, and the state to `keep` once they are stored."""
        values = rows[self.outputs[0]].reshape(-1, *self._stack_shape)
        heads = rows[self.outputs[-1]].reshape(-1, *self._stack_shape)
        follows, moved_on = self._compare(values, heads)
        run, runs, value_runs = self._last_run, [], []
        for follow, move in zip(follows, moved_on, strict=True):
            value_runs.append(run if follow else -1)
            run = min(max(value_runs[-1], 0) + 1, self.depth) if move else 0
            runs.append(run)
        stored = {self.frames: np.ascontiguousarray(heads[..., -1])}
        if self.depth > 1:
            stored[self._run] = np.array(runs, np.int32)
            stored[self._head] = self._whole(heads, moved_on)
        if self.linked:
            stored[self._value_run] = np.array(value_runs, np.int32)
            stored[self._value] = self._whole(values, follows)
        return stored, (self._flat(heads[-1].copy()), run)

    def _compare(self, values: np.ndarray, heads: np.ndarray) -> tuple[list[bool], list[bool]]:
        """Which values are the heads before, and which heads are their tails moved on.

        Without `linked` there are no such values: the first list is true.
        """
        last = self._none if self._last is None else self._last
        before = np.concatenate([self._stack(last)[None], heads[:-1]])  # of the row before
        follows = _same(before, values).tolist() if self.linked else [True] * len(heads)
        moved_on = _moved_on(values if self.linked else before, heads).tolist()
        if self._last is None:
            (follows if self.linked else moved_on)[0] = False
        return follows, moved_on

    def _whole(self, stacks: np.ndarray, known: list[bool]) -> np.ndarray:
        """The stacks to store whole, zeros for those that are known otherwise."""
        kept = np.zeros(stacks.shape, stacks.dtype)
        wanted = ~np.array(known, np.bool_)
        kept[wanted] = stacks[wanted]
        return kept

    def keep(self, state: tuple[np.ndarray, int]) -> None:
        """The rows of which `encode` gave this state are stored."""
        self._last, self._last_run = state

    # -- reading

    def decode(self, take: Take, rows: np.ndarray) -> Arrays:
        """The values at rows, shape ``(n,)``; -1 for rows of zeros."""
        window = rows[:, None] + np.arange(-self.slack, 1)
        # One block for what is read and for the heads, which share no memory with the values: freed
        # as one, it is likely to be there, and in no need of fresh pages, for the next batch.
        room = self.depth if self.linked else 0
        block = np.empty((window.size + len(rows) * room, *self._frame_shape), self.column.dtype)
        frames = block[: window.size].reshape(*window.shape, *self._frame_shape)
        take(self.frames, window, out=frames)
        runs = take(self._run, rows) if self._run else np.full(len(rows), self.depth)
        found = {}
        if self.linked:
            heads = block[window.size :].reshape(len(rows), room, *self._frame_shape)
            heads[:] = frames[:, 1:]
            values, value_runs = frames[:, :-1], take(self._value_run, rows)
            found[self.outputs[0]] = values
            self._fill(
                take, np.concatenate([rows, rows]) >= 0, [heads, values],
                np.concatenate([rows, rows - 1]),
                np.concatenate([runs, np.maximum(value_runs, 0)]),
                np.concatenate([np.zeros(len(rows), np.bool_), value_runs < 0]),
            )  # fmt: skip
        else:
            heads = frames
            self._fill(take, rows >= 0, [heads], rows, runs, np.zeros(len(rows), np.bool_))
        found[self.outputs[-1]] = heads
        if not self.stacked:
            shape = (len(rows), *self.column.shape)
            return {name: stacks.reshape(shape) for name, stacks in found.items()}
        frames_last = 0, *range(2, frames.ndim), 1
        return {name: stacks.transpose(frames_last) for name, stacks in found.items()}

    def _fill(
        self,
        take: Take,
        wanted: np.ndarray,
        parts: list[np.ndarray],
        heads: np.ndarray,
        runs: np.ndarray,
        from_value: np.ndarray,
    ) -> None:
        """Put the frames in that are older than the run, from the stack that was stored whole.

        That is the head of row ``heads - runs``, or the value of the row after it, if that does
        not follow. `parts` are stacks, and all else is of these one after the other.
        """
        short = np.flatnonzero(wanted & (runs < self.depth))
        if not len(short):
            return
        runs, base, from_value = runs[short], heads[short] - runs[short], from_value[short]
        if self.linked:
            later = runs > 0
            from_value[later] = take(self._value_run, base[later] + 1) < 0
        whole = np.empty((len(short), *self._stack_shape), self.column.dtype)
        for field, stored, which in (
            (self._value, base + 1, from_value), (self._head, base, ~from_value),
        ):  # fmt: skip
            if which.any():  # neighbours have it in common: unpacked once
                once, places = np.unique(stored[which], return_inverse=True)
                whole[which] = take(field, once)[places]
        whole = np.moveaxis(whole, -1, 1)
        for at, run, stack in zip(short.tolist(), runs.tolist(), whole, strict=True):
            part, place = divmod(at, len(parts[0]))
            parts[part][place, : self.depth - run] = stack[run:]


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")  # -0.0 is not 0.0, and a NaN is itself


def _same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Which rows are equal to the bit."""
    return (_bits(first) == _bits(second)).reshape(len(first), -1).all(axis=1)


def _moved_on(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which stacks are those before without the oldest frame and with one more."""
    same = _bits(before)[..., 1:] == _bits(after)[..., :-1]
    return same.reshape(len(before), -1).all(axis=1)


def check_links(links: Mapping[str, int], store: Store) -> None:
    """Refuse a store whose frames lead to rows that they cannot be in."""
    first, count = int(store.first[0]), int(store.count[0])
    for field, depth in links.items():
        found = store.columns[field].read(0, first, count)
        bad = (found < -1) | (found > depth)
        if bad.any():
            raise CorruptSegmentError(
                f"{store.path}/{field}: damaged: row {first + int(bad.argmax())} has "
                f"{found[bad.argmax()]}; -1 to {depth} expected"
            )
