"""Windows of consecutive rows, for recurrent networks, world models and transformers."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from diskreplay.errors import (
    CapacityError,
    ClosedError,
    FormatError,
    InvalidInputError,
    PriorityError,
    ShapeError,
    UsageError,
)
from diskreplay.indexed_store import IndexedStore
from diskreplay.prefetch import MOST_DEPTH, Prefetcher, ask_again, put_back
from diskreplay.sampling.anchors import Anchors
from diskreplay.sampling.returns_to_go import ReturnsToGo
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.sampling.window import ENDS, Window
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.sequence_reader import DrawnSequences, SequenceReader
from diskreplay.sequence_state import SequenceState
from diskreplay.store.gate import Visit
from diskreplay.store.store import Store
from diskreplay.validation import checked_ids, exponent, whole

if TYPE_CHECKING:
    from diskreplay.buffer import ReplayBuffer

_MOST_POSITIONS = 1 << 20  # each has memory in every batch: more is a slip of the finger


class SequenceOptions(NamedTuple):
    """What `ReplayBuffer.sequences` was asked for, checked.

    Attributes
    ----------
    window : Window
    prioritized, online : bool
    alpha : float
        These say which windows there are and how they are drawn: with others, what was saved under
        the view's name is of no use.
    """

    window: Window
    prioritized: bool
    alpha: float
    online: bool
    batch_size: int
    beta: float
    eta: float
    normalization: Literal["batch", "buffer"]
    state: tuple[str, ...]
    fields: tuple[str, ...] | None
    returns_to_go: float | None

    @classmethod
    def checked(
        cls, buffer: "ReplayBuffer", length: Any, *, burn_in: Any, ahead: Any, stride: Any,
        ends: Any, n_step: Any, batch_size: Any, prioritized: Any, alpha: Any, beta: Any, eta: Any,
        weight_normalization: Any, state: Any, fields: Any, arrival: Any, online: Any,
        finished: Any, returns_to_go: Any,
    ) -> "SequenceOptions":  # fmt: skip
        """The options of `ReplayBuffer.sequences`, or an `InvalidInputError`, or a
        `CapacityError`."""
        most = _MOST_POSITIONS
        length, stride = whole("length", length, most=most), whole("stride", stride)
        burn_in = _from_zero("burn_in", burn_in)
        n_step = buffer.update_horizon if n_step is None else whole("n_step", n_step, most=most)
        ahead = n_step if ahead is None else _from_zero("ahead", ahead)
        if ends not in ENDS:
            raise InvalidInputError(f"ends: one of {', '.join(ENDS)} expected, found {ends!r:.60}")
        if ahead < n_step and ends != "cross":
            raise InvalidInputError(
                f"ahead: {ahead} rows behind the learning part, and its last rows are bootstrapped "
                f"from {n_step} rows on; give ahead={n_step} or more, or a smaller n_step"
            )
        if weight_normalization not in ("batch", "buffer"):
            raise InvalidInputError(
                f"weight_normalization: 'batch' or 'buffer' expected, found "
                f"{weight_normalization!r:.60}"
            )
        window = Window(
            length, burn_in, ahead, stride, ends, n_step, bool(arrival), bool(finished)
        )
        kept = None if buffer.capacity is None else buffer.capacity // buffer.num_envs
        if kept is not None and window.positions + buffer.stack_size - 1 > kept:
            raise CapacityError(
                f"a window of {burn_in} + {length} + {ahead} rows and stacks of "
                f"{buffer.stack_size} needs {window.positions + buffer.stack_size - 1} rows, and "
                f"each env keeps {kept}; shorten it, or open the buffer with a larger capacity"
            )
        state, fields = _names(buffer, "state", state), _fields(buffer, fields)
        if returns_to_go is not None:
            returns_to_go = _number("returns_to_go", returns_to_go, most=1)
        return cls(
            window, bool(prioritized), _number("alpha", alpha), bool(online),
            whole("batch_size", batch_size), exponent(beta), _number("eta", eta, most=1),
            weight_normalization, state, fields, returns_to_go,
        )  # fmt: skip

    @property
    def identity(self) -> dict[str, Any]:
        """As JSON, by what two views of one name must agree."""
        return {
            **self.window._asdict(), "prioritized": self.prioritized, "online": self.online,
            "alpha": self.alpha if self.prioritized else None,
        }  # fmt: skip


class Sequences:
    """A view of a buffer as windows of rows; made by `ReplayBuffer.sequences`.

    It stores no rows of its own: windows are put together when they are drawn. It may be used from
    several threads, beside one that adds.

    Attributes
    ----------
    name : str
        Under which its generator and its priorities are saved.
    options : SequenceOptions
    """

    def __init__(
        self,
        buffer: "ReplayBuffer",
        options: SequenceOptions,
        name: str,
        seed: int | np.random.Generator | None,
    ) -> None:
        self.name, self.options, self._buffer = name, options, buffer
        self._rng = ReplayableRng(np.random.default_rng(seed))
        self._has_seed = seed is not None
        self._anchors = Anchors(
            options.window, buffer.stack_padding, prioritized=options.prioritized,
            alpha=options.alpha, normalization=options.normalization, online=options.online,
        )  # fmt: skip
        self._to_go = None if options.returns_to_go is None else ReturnsToGo(options.returns_to_go)
        self._powers = buffer.gamma ** np.arange(options.window.n_step + 1)
        every = ["action", *buffer.extras]
        self._reader = SequenceReader(
            buffer._schema, buffer.stack_size, crosses=options.window.crosses,
            fields=every if options.fields is None else options.fields, state=options.state,
        )  # fmt: skip
        self._store: Store | None = None
        self._closed = False
        # As a prefetcher wants them of whom it draws for.
        self._lock = buffer._lock
        self._prefetchers: list[Prefetcher] = []
        self._due: list[Any] = []
        self._last_asked = 0, _unlocked()
        self._under_way: tuple[int, int, float | None] | None = None  # in the run that was saved

    # -- drawing

    def sample(
        self,
        batch_size: int | None = None,
        *,
        beta: float | None = None,
        out: SequenceBatch | None = None,
    ) -> SequenceBatch:
        """Draw windows, with replacement.

        Parameters
        ----------
        batch_size : int, optional
            Windows; by default as `ReplayBuffer.sequences` was told.
        beta : float, optional
            Exponent of the importance weights; likewise.
        out : SequenceBatch, optional
            A batch of this view and size whose memory may be overwritten; it is filled and
            returned.

        Returns
        -------
        SequenceBatch

        Raises
        ------
        EmptyBufferError
            There is no window yet.
        CorruptSegmentError
            Stored bytes do not match their checksum.
        ClosedError, ForkedError

        Notes
        -----
        Costs little more than copying the rows; the lock is held while drawing only. Rows that were
        added since the last call are looked at first: some ten nanoseconds each.
        """
        size = self.options.batch_size if batch_size is None else whole("batch_size", batch_size)
        _check_out(out)
        self._settle()
        visit = Visit()
        try:
            while True:
                batch = self._draw(size, beta, visit).read(out)
                if batch is not None:
                    return batch
        finally:
            visit.end()

    def gather(
        self, anchors: np.ndarray, *, out: SequenceBatch | None = None
    ) -> SequenceBatch:
        """The windows of these anchors, as `sample` would return them, with weights of 1.

        Parameters
        ----------
        anchors : array_like of int, shape (batch,)

        Raises
        ------
        UnknownIdError
            An id was never handed out.
        NotSampleableError
            It is no anchor, or none any more.
        """
        anchors = checked_ids(anchors).copy()
        _check_out(out)
        visit = Visit()
        try:
            while True:
                with self._lock:
                    rows = self._caught_up()
                    self._anchors.check(anchors)
                    probability = self._anchors.probability(anchors)
                    weight = np.ones(len(anchors), np.float32)
                    drawn = self._drawn(rows, anchors, probability, weight, [], None, visit)
                batch = drawn.read(out)
                if batch is not None:
                    return batch
        finally:
            visit.end()

    def anchors(self) -> np.ndarray:
        """The ids of all windows that can be drawn now, env by env, oldest first; int64. O(rows)."""
        with self._lock:
            self._caught_up()
            return self._anchors.ids()

    def __len__(self) -> int:
        """Windows that can be drawn now."""
        with self._lock:
            self._caught_up()
            return self._anchors.count

    def prefetch(
        self, depth: int = 2, batch_size: int | None = None, *, beta: float | None = None
    ) -> Prefetcher:
        """Batches read ahead on a background thread, as `ReplayBuffer.prefetch` does for
        transitions.

        Parameters
        ----------
        depth : int
            How many batches are under way.
        batch_size, beta
            As for `sample`.

        Returns
        -------
        Prefetcher
            An iterator of `SequenceBatch`; each is valid until the next one is taken. A view has
            one at a time.

        Raises
        ------
        UsageError
            There is one that is not closed.
        InvalidInputError, ClosedError

        Notes
        -----
        What is drawn depends on the order of calls and not on timing. Where a saved run had batches
        under way, one that is resumed gets the same ones if it asks for a prefetcher of the same
        depth and size before it adds a row, draws, or sets a priority.
        """
        depth = whole("depth", depth, most=MOST_DEPTH)
        size = whole("batch_size", batch_size, optional=True) or self.options.batch_size
        with self._lock:
            self._caught_up()
            if self._prefetchers:
                raise UsageError(f"the view {self.name!r} has a prefetcher already: close that")
            made = Prefetcher(self, depth, size, beta)
            self._prefetchers.append(made)
            self._buffer._view_prefetchers.append(made)
            under_way, self._under_way = self._under_way, None
            if under_way is not None and under_way[:2] == (depth, size):
                made.redraw(under_way[2])
        return made

    # -- priorities

    def update_priorities(self, anchors: np.ndarray, priorities: np.ndarray) -> int:
        """Set the priorities of windows.

        Parameters
        ----------
        anchors : array_like of int, shape (batch,)
            As in ``batch.anchor``; of duplicates the last counts.
        priorities : array_like of float, shape (batch,)
            Finite and not negative; 0 is never drawn.

        Returns
        -------
        int
            How many were ignored: those windows have left.

        Raises
        ------
        UsageError
            The view was made without ``prioritized=True``.
        PriorityError, UnknownIdError, ShapeError
            Nothing was changed.

        Notes
        -----
        Also on a reader; what it sets is in its memory only.
        """
        if not self.options.prioritized:
            raise UsageError(
                f"the view {self.name!r} draws evenly: make it with prioritized=True to set "
                "priorities"
            )
        anchors = checked_ids(anchors)
        try:
            priorities = np.ascontiguousarray(priorities, np.float64)
        except (TypeError, ValueError) as error:
            raise PriorityError(f"priorities: numbers expected ({error})") from error
        if priorities.shape != anchors.shape:
            raise ShapeError(
                f"priorities: shape {anchors.shape} expected, found {priorities.shape}"
            )
        self._settle()
        with self._lock:
            self._caught_up()
            return self._anchors.update(anchors, priorities)

    def priority(self, td: np.ndarray, learn: np.ndarray) -> np.ndarray:
        """One priority a window from the errors of its steps: ``eta * max + (1 - eta) * mean`` of
        their absolute values, Kapturowski et al., "Recurrent Experience Replay in Distributed
        Reinforcement Learning", 2019.

        Parameters
        ----------
        td : array_like of float, shape (N, L)
        learn : array_like of bool, shape (N, L)
            Which of them count: ``batch.learn[:, burn_in : burn_in + length]``.

        Returns
        -------
        ndarray of float64, shape (N,)
            0 for a window in which nothing counts.
        """
        td, learn = np.abs(np.asarray(td, np.float64)), np.asarray(learn, np.bool_)
        if td.ndim != 2 or td.shape != learn.shape:
            raise ShapeError(
                f"td and learn: one shape (windows, length) expected, found {td.shape} and "
                f"{learn.shape}"
            )
        largest = td.max(axis=1, where=learn, initial=0.0)
        total = td.sum(axis=1, where=learn)
        mean = total / np.maximum(learn.sum(axis=1), 1)
        return self.options.eta * largest + (1 - self.options.eta) * mean

    # -- its life

    @property
    def rng(self) -> np.random.Generator:
        """The generator of every draw of this view."""
        return self._rng.rng

    def close(self) -> None:
        """Take the view from its buffer. What `flush`, `close` and `save` of the buffer saved of it
        stays; what came since is not saved. Closing twice is fine."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()
        with self._lock:
            self._closed = True
            if self._buffer._views.get(self.name) is self:
                del self._buffer._views[self.name]

    def __repr__(self) -> str:
        window = self.options.window
        return (
            f"Sequences({self.name!r}, {window.burn_in} + {window.length} + {window.ahead} rows, "
            f"ends={window.ends!r}, of {self._buffer!r})"
        )

    # -- inside; these need the lock

    def _caught_up(self) -> IndexedStore:
        """The rows, all of which this view knows of."""
        self._buffer._check_open()
        if self._closed:
            raise ClosedError(f"the view {self.name!r} is closed; call buffer.sequences() again")
        self._buffer._follow()
        rows = self._buffer._indexed()
        if rows.store is not self._store:
            self._take_over(rows)
        else:
            self._anchors.catch_up(rows.index)
            if self._to_go is not None:
                self._to_go.catch_up(rows.index)
        return rows

    def _take_over(self, rows: IndexedStore) -> None:
        """Begin with a store that was opened or loaded: with what was saved of this view in it."""
        saved = SequenceState.of(rows.store, self.name)
        if saved is not None and saved.identity != self.options.identity:
            warnings.warn(
                f"{rows.store.path}: what was saved of the view {self.name!r} is of "
                f"{saved.difference(self.options.identity)}; it starts anew",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip
            saved = None
        anchors = self._anchors
        if saved is not None:
            anchors.largest = saved.largest
        anchors.follow(rows.index)
        if self._to_go is not None:
            self._to_go.follow(rows.index)
        first_time, self._store = self._store is None, rows.store
        if saved is None:
            return
        if not (first_time and self._has_seed):
            self._rng.adopt(*saved.rng)
        if saved.cursor is not None:
            anchors.cursor[:] = np.minimum(saved.cursor, rows.index.count)
        self._under_way = saved.under_way
        leaves = saved.leaves if self.options.prioritized else None
        if leaves is not None:
            anchors.restore(leaves.start, leaves.leaves)

    def _draw(self, size: int, beta: float | None, visit: Visit) -> DrawnSequences:
        with self._lock:
            rows = self._caught_up()
            self._under_way = None
            cursor = None if self._anchors.cursor is None else self._anchors.cursor.copy()
            self._rng.taken()
            anchors, probability, weight = self._anchors.draw(self._rng, size, self._exponent(beta))
            return self._drawn(
                rows, anchors, probability, weight, self._rng.taken(), cursor, visit
            )

    def _drawn(
        self, rows: IndexedStore, anchors: np.ndarray, probability: np.ndarray,
        weight: np.ndarray, numbers: list[np.ndarray], cursor: np.ndarray | None, visit: Visit,
    ) -> DrawnSequences:  # fmt: skip
        plan = self._anchors.plan(anchors, self._powers)
        to_go = None if self._to_go is None else self._to_go.of(plan.ids)
        store = rows.store
        store.gate.enter(visit)  # under the buffer's lock: what was planned is not evicted
        return DrawnSequences(
            anchors, probability, weight, plan, to_go, store, visit, store.mapped_epoch, numbers,
            cursor, self._reader,
        )  # fmt: skip

    def _exponent(self, beta: float | Callable[[int], float] | None) -> float:
        if not self.options.prioritized:
            return 0.0
        return self.options.beta if beta is None else exponent(beta)

    def _settle(self) -> None:
        self._buffer._settle()

    def _give_back(self, drawn: Sequence[DrawnSequences]) -> None:
        """Undo draws, given in their order, that nobody took."""
        self._rng.put_back([array for each in drawn for array in each.numbers])
        if drawn and drawn[0].cursor is not None and drawn[0].store is self._store:
            self._anchors.cursor[:] = drawn[0].cursor

    def _forget(self, prefetcher: Prefetcher) -> None:
        """A prefetcher is closed."""
        self._prefetchers.remove(prefetcher)
        self._buffer._view_prefetchers.remove(prefetcher)

    def _pause(self) -> list[Prefetcher]:
        """Put back what is under way; `_resume` has it drawn again."""
        return put_back(self, self._prefetchers)

    def _resume(self, paused: list[Prefetcher]) -> None:
        ask_again(paused)

    def _state(self, paused: list[Prefetcher]) -> SequenceState:
        """What is to be saved."""
        self._caught_up()
        under_way = self._under_way
        for each in paused:
            beta = None if each._beta is None else exponent(each._beta)
            under_way = each._depth, each._size, beta
        cursor = self._anchors.cursor
        return SequenceState.now(
            self.options.identity, self._rng, self._anchors.largest, cursor, under_way,
            self._anchors.leaves() if self.options.prioritized else None,
        )  # fmt: skip


def _unlocked() -> Any:
    import threading

    return threading.Lock()


def _check_out(out: Any) -> None:
    if out is not None and not isinstance(out, SequenceBatch):
        raise InvalidInputError(f"out: a SequenceBatch expected, found {type(out).__name__}")


def _from_zero(name: str, value: Any) -> int:
    return 0 if value == 0 and value is not False else whole(name, value, most=_MOST_POSITIONS)


def _number(name: str, value: Any, most: float = 1e9) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise InvalidInputError(f"{name}: a number expected, found {value!r:.60}")
    if not 0 <= value <= most:
        raise InvalidInputError(f"{name}: a number from 0 to {most:g} expected, found {value!r}")
    return float(value)


def _names(buffer: "ReplayBuffer", what: str, names: Any) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in buffer.extras:
            there = ", ".join(buffer.extras) or "none at all"
            raise InvalidInputError(f"{what}: there is no extra {name!r:.60}; there are: {there}")
    return names


def _fields(buffer: "ReplayBuffer", fields: Any) -> tuple[str, ...] | None:
    if fields is None:
        return None
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    return (*_names(buffer, "fields", [f for f in fields if f != "action"]),
            *(("action",) if "action" in fields else ()))  # fmt: skip
