"""A Tianshou `Batch` whose larger leaves are on disk, row by row."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from tianshou.data import Batch

from diskreplay.errors import UsageError
from diskreplay.integrations.batch_leaves import NUMBER, REWARD, leaves, set_leaf
from diskreplay.slot_view import SlotView, slots_at
from diskreplay.slots import Slots

_LARGEST_REWARD = float(np.finfo(np.float32).max)


class Course(NamedTuple):
    """The rows of a lane that count.

    Attributes
    ----------
    order : ndarray of int64
        Their slots, as they were added.
    missing : ndarray of bool, of that shape
        Whether the row that came next is not there.
    is_whole : bool
        Whether they lie as Tianshou takes it: in the first slots one after the other, or in all.
    """

    order: np.ndarray
    missing: np.ndarray
    is_whole: bool


class LeafRows:
    """The rows that a buffer has on disk, and what was set leaf by leaf of one that is to come.

    Parameters
    ----------
    slots : Slots
    names : dict of str to str
        The field of each leaf.
    sizes : callable
        Says how many transitions each lane has, those included that are just being set.
    take_back : callable
        Has the buffer take back what it put aside, see `put_aside`.

    Attributes
    ----------
    slots : Slots
    names : dict of str to str
    has_new_keys : bool
        Whether leaves were set that there was no array for.
    in_memory : set of str
        Leaves that a warning has said are in memory alone.

    Notes
    -----
    The rows of a lane are numbered as they are added, without a gap, but for one where the lane was
    reset. So a store that is opened says which rows count. A repair leaves gaps, too.
    """

    def __init__(
        self, slots: Slots, names: Mapping[str, str], sizes: Callable[[], list[int]],
        take_back: Callable[[], None],
    ) -> None:  # fmt: skip
        self._slots: Slots | None = slots
        self.names, self._sizes, self._take_back = dict(names), sizes, take_back
        self._is_adding = self.has_new_keys = False
        self.in_memory: set[str] = set()
        self._offsets = slots.offsets
        self._next = np.array(
            [np.abs(self._numbers(lane)).max(initial=0) + 1 for lane in range(slots.num_envs)]
        )
        self._staged: dict[str, np.ndarray] | None = None
        self._leaving: list[int] | None = None  # lanes, see `taking_out`
        self._puts_aside = self._drops = self._has_aside = False
        # What a buffer was told to show instead of its rows: slots and values, by field.
        self._aside: list[tuple[str, np.ndarray, np.ndarray]] = []

    @property
    def slots(self) -> Slots:
        """The slots.

        Raises
        ------
        UsageError
            Another buffer of this process has taken them over.
        """
        if self._slots is None:
            raise UsageError(
                "another replay buffer of this process has this store now, unpickled later with "
                "the same path; use that one"
            )
        return self._slots

    def _numbers(self, lane: int) -> np.ndarray:
        """The number of the row in each slot of a lane; 0 for none."""
        first, size = self.slots.offsets[lane], self.slots.sizes[lane]
        return self.slots.read(NUMBER, np.arange(first, first + size))

    def order(self, lane: int) -> np.ndarray:
        """The slots whose rows count, as they were added."""
        return self.course(lane).order

    def course(self, lane: int) -> "Course":
        """The slots whose rows count, as they were added, and what is missing between them."""
        numbers, size = self._numbers(lane), int(self.slots.sizes[lane])
        there = np.flatnonzero(numbers > 0)
        if numbers.max(initial=0) < -numbers.min(initial=0):  # taken out since
            there = there[:0]
        order = there[np.argsort(numbers[there])]
        ahead = np.diff(numbers[order])
        # In the slots between were rows that a repair set aside. Where the last slot is among
        # these, the lane may have been reset, which leaves out one number and goes back to slot 0.
        in_turn = (ahead < size) & (np.diff(order) % size == ahead)
        in_turn &= (order[:-1] + ahead < size) | (order[:-1] == size - 1)
        breaks = np.flatnonzero((ahead != 1) & ~in_turn)
        kept = slice(breaks[-1] + 1 if len(breaks) else 0, None)
        order, ahead = order[kept], ahead[kept]
        missing = np.zeros(len(order), np.bool_)
        missing[:-1] = ahead != 1
        in_place = len(order) == size or (order == np.arange(len(order))).all()
        return Course(self.slots.offsets[lane] + order, missing, in_place and not missing.any())

    def take_out(self, lane: int) -> None:
        """The rows of a lane do not count any more; they are read for as long as nothing else is in
        their slots."""
        if self._leaving is not None:
            self._leaving.append(lane)
        else:
            self._take_out([lane])

    def _take_out(self, lanes: list[int]) -> None:
        orders = [self.order(lane) for lane in lanes]
        newest = np.array([order[-1] for order in orders if len(order)], np.int64)
        if len(newest):
            self.slots.put(newest, {NUMBER: -self.slots.read(NUMBER, newest)})

    @contextlib.contextmanager
    def taking_out(self) -> Iterator[None]:
        """The lanes that are taken out in the block are so when it ends, together."""
        self._leaving = []
        try:
            yield
        finally:
            lanes, self._leaving = self._leaving, None
        self._take_out(lanes)

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """The rows that are set in the block are new ones."""
        self._is_adding = True
        try:
            yield
        finally:
            self._is_adding = False

    @property
    def marks(self) -> np.ndarray:
        """What tells `added` from when on rows are new ones: the next number of each lane."""
        return self._next.copy()

    def added(self, lane: int, first: int, mark: int) -> tuple[int, bool]:
        """How many of the rows of a lane are there that are new since `mark`, one of `marks`, and
        whether these are all that were numbered. The first one was for the place `first` in the
        lane. The numbers of others are free again."""
        if self._slots is None or self._slots.closed:
            return 0, False
        offset, size = int(self._offsets[lane]), int(self._slots.sizes[lane])
        at = (first + np.arange(min(self._next[lane] - mark, size))) % size
        numbers = self._slots.read(NUMBER, offset + at)
        numbers = numbers[np.logical_and.accumulate(numbers >= mark)]
        after = int(numbers[-1]) + 1 if len(numbers) else mark
        is_all, self._next[lane] = mark < after == self._next[lane], after
        return len(numbers), bool(is_all)

    def _numbered(self, slots: np.ndarray) -> np.ndarray:
        lanes = np.searchsorted(self._offsets, slots, side="right") - 1
        sizes = np.array(self._sizes())
        if (lanes[1:] > lanes[:-1]).all():  # a row of each, as several environments add them
            self._next[lanes] += sizes[lanes] == 1  # the lane was reset before
            self._next[lanes] += 1
            return self._next[lanes] - 1
        numbers = np.empty(len(slots), np.int64)
        for lane in dict.fromkeys(lanes.tolist()):
            at = np.flatnonzero(lanes == lane)
            if sizes[lane] == len(at):
                self._next[lane] += 1
            numbers[at] = self._next[lane] + np.arange(len(at))
            self._next[lane] += len(at)
        return numbers

    def hand_over(self) -> Slots:
        """The slots, for another buffer; nobody has them here any more."""
        slots, self._slots = self.slots, None
        return slots

    def batch(self) -> "DiskBatch":
        """All slots as a batch: small leaves are arrays in memory, the others read when asked."""
        slots = self.slots
        columns = slots.memory  # Tianshou sets values there, and then rows
        made = DiskBatch.over(self, range(len(slots)))
        for path, name in self.names.items():
            set_leaf(made, path, columns[name] if name in columns else self._view(name))
        return made

    def _view(self, name: str) -> SlotView:
        shape, dtype = self.slots.specs[name]
        return SlotView(
            range(len(self.slots)), shape, dtype, lambda slots: self._read(name, slots),
            lambda slots, values: self._write(name, slots, values),
        )  # fmt: skip

    def _read(self, name: str, slots: np.ndarray) -> np.ndarray:
        found = self.slots.read(name, slots)
        for field, at, values in self._aside:
            if field == name:
                where = np.searchsorted(at, slots, side="right") - 1
                hits = (where >= 0) & (at[where] == slots)
                found[hits] = values[where[hits]]
        return found

    def _write(self, name: str, slots: np.ndarray, values: np.ndarray) -> None:
        if self._drops:
            return
        if self._puts_aside:
            order = np.argsort(slots, kind="stable")
            self._aside.append((name, slots[order], values[order]))
        elif self._staged is not None:
            self._staged[name] = values
        else:
            self.slots.put(slots, {name: values})

    @contextlib.contextmanager
    def put_aside(self) -> Iterator[None]:
        """What is set in the block is shown, and is not in the rows."""
        self._puts_aside = self._has_aside = True
        try:
            yield
        finally:
            self._puts_aside = False

    @contextlib.contextmanager
    def taken_back(self, slots: range) -> Iterator[None]:
        """What was put aside of these slots is shown no more. What is set in the block is set in
        memory alone: that rows get what they have on disk."""
        self._drops = True
        try:
            yield
        finally:
            self._drops = False
            self._aside = [
                each for each in self._aside if not len(each[1]) or each[1][0] not in slots
            ]

    def whole(self, batch: "DiskBatch", slots: np.ndarray, set_all: Callable[[], None]) -> None:
        """What `set_all` sets are rows, which are there together or not at all.

        Not a context manager: Ctrl-C before its block could leave it open, and rows unwritten, as
        long as somebody keeps the traceback.
        """
        if self._puts_aside or self._drops or self._staged is not None:
            set_all()
            return
        if self._has_aside:  # it would hide these rows, or old values would be set over them later
            self._take_back()
            self._has_aside = False
        kept = _alone(batch, self.in_memory, slots) if self.in_memory else []
        try:
            self._staged = {}
            set_all()
            staged, self._staged = self._staged, None
            if slots.ndim == 1 and (slots[1:] > slots[:-1]).all():
                self.put(slots, staged)
            else:
                self.put(*_once(slots, staged))
        except BaseException:
            for values, at, before in kept:
                values[at] = before
            if not self.slots.closed:
                self.slots.recall(np.unique(slots))
            raise
        finally:
            self._staged = None

    def put(self, slots: np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Put rows into slots, whose small leaves are in memory already."""
        slots = slots.reshape(-1)
        if self._is_adding:
            values = {**values, NUMBER: self._numbered(slots)}
        if REWARD in self.slots.specs and REWARD not in self.names.values():
            rewards = values["rew"] if "rew" in values else self.slots.read("rew", slots)
            if not (np.abs(rewards) <= _LARGEST_REWARD).all():  # or NaN
                rewards = np.nan_to_num(rewards, posinf=0.0, neginf=0.0)
                rewards = np.clip(rewards, -_LARGEST_REWARD, _LARGEST_REWARD)
            values = {**values, REWARD: rewards.astype(np.float32)}
        self.slots.put(slots, values)


def _alone(
    batch: "DiskBatch", paths: set[str], slots: np.ndarray
) -> list[tuple[Any, np.ndarray, Any]]:
    """What leaves that are in memory alone have in these slots: leaf, places and values."""
    at = (slots - batch._range.start) // batch._range.step
    return [(value, at, value[at]) for path, value in leaves(batch) if path in paths]


def _once(
    slots: np.ndarray, staged: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Slots that may be named more than once, each once: of these a leaf has one value, in the
    order of their numbers."""
    # From the end: how many come after the last one of each.
    named, behind = np.unique(slots.reshape(-1)[::-1], return_index=True)
    if len(named) == slots.size:
        return slots, staged
    order = np.argsort(-behind)  # rows are numbered as they were added
    return named[order], {name: values[order] for name, values in staged.items()}


class DiskBatch(Batch):
    """The `_meta` of a buffer, or of a part of it: rows set here are on disk when that returns.

    Its keys are attributes, so that its own are slots of the class.
    """

    __slots__ = ("_range", "_rows")

    @classmethod
    def over(cls, rows: LeafRows, slots: range) -> "DiskBatch":
        """One without leaves."""
        made = cls()
        object.__setattr__(made, "_rows", rows)
        object.__setattr__(made, "_range", slots)
        return made

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) or not self.get_keys():
            return super().__getitem__(index)
        part = self.over(self._rows, self._range[index])
        part.__dict__.update(super().__getitem__(index).__dict__)
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            super().__setitem__(index, value)
            return

        def set_all() -> None:
            try:
                super(DiskBatch, self).__setitem__(index, value)
            except ValueError:  # a key is new: Tianshou makes an array for it, and sets them again
                self._rows.has_new_keys = True
                raise

        self._rows.whole(self, slots_at(self._range, index), set_all)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = {
            path: np.asarray(value) if isinstance(value, SlotView) else value
            for path, value in leaves(self)
        }
        return in_memory, (arrays,)


def in_memory(values: Mapping[str, Any]) -> Batch:
    """A batch of leaves by their paths."""
    made = Batch()
    for path, value in values.items():
        set_leaf(made, path, value)
    return made
