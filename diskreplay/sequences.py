"""Windows of consecutive rows, for recurrent networks, world models and transformers."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from diskreplay import fork
from diskreplay.errors import (
    ClosedError,
    InvalidInputError,
    ShapeError,
    UsageError,
)
from diskreplay.given_numbers import as_reals, exponent, whole
from diskreplay.handover import handovers_to
from diskreplay.indexed_store import IndexedStore
from diskreplay.naming import checked_view
from diskreplay.prefetch import MOST_DEPTH, MOST_THREADS, Prefetcher
from diskreplay.relabelling import ComputeReward, Relabelling
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.sequence_hindsight import SequenceHindsight
from diskreplay.sequence_options import SequenceOptions
from diskreplay.sequence_reader import DrawnSequences
from diskreplay.sequence_view import SequenceView
from diskreplay.store.rwlock import ReadGuard
from diskreplay.transition_source import TransitionSource
from diskreplay.validation import checked_ids, checked_priorities, generator


class Sequences:
    """A view of a buffer as windows of rows; made by `ReplayBuffer.sequences`.

    It stores no rows of its own: windows are put together when they are drawn. It may be used from
    several threads, beside one that adds.

    Attributes
    ----------
    name : str
        Under which its generator and its priorities are saved.
    options : SequenceOptions

    Parameters
    ----------
    buffer : ReplayBuffer
    view : SequenceView
    """

    def __init__(self, buffer: TransitionSource, view: SequenceView) -> None:
        self.name, self.options = view.name, view.asked
        self._buffer, self._view = buffer, view
        # As a prefetcher wants them of whom it draws for.
        self._lock, self._prefetchers = buffer._lock, view.prefetchers

    @classmethod
    def of(
        cls,
        buffer: TransitionSource,
        name: Any,
        options: SequenceOptions,
        seed: int | np.random.Generator | None,
    ) -> "Sequences":
        """That of a buffer, which has it already or not.

        Parameters
        ----------
        buffer : ReplayBuffer
        name, options, seed
            As for `ReplayBuffer.sequences`, which calls this.
        """
        name = checked_view(name)
        with buffer._turn_when_drawn():  # what the buffer's generator gives next is settled
            buffer._check_open()
            there = buffer._views.get(name)
            if there is not None and there.asked == options and seed is None:
                return cls(buffer, there)
            if there is not None:
                raise InvalidInputError(
                    f"name: a view {name!r} with other options or another seed is open: close() it "
                    "first, or choose another name"
                )
            for other in buffer._views.names(buffer._rows.store):
                if other != name and other.lower() == name.lower():
                    raise InvalidInputError(
                        f"name: {name!r} and the view {other!r} differ in case only, and are one "
                        "directory on some file systems; choose another name"
                    )
            kind = buffer._kind
            own = seed is not None and (isinstance(seed, np.random.Generator) or buffer.mode == "r")
            rng = buffer._rng.derived(name) if seed is None else generator(seed)
            view = SequenceView(
                name, options, kind.schema, kind.options, rng, own, buffer._lock, buffer._views
            )
            buffer._follow()
            view.catch_up(buffer._rows)
            buffer._views.add(view)
            return cls(buffer, view)

    # -- drawing

    def sample(
        self,
        batch_size: int | None = None,
        *,
        beta: float | None = None,
        out: SequenceBatch | None = None,
        threads: int = 1,
    ) -> SequenceBatch:
        """Draw windows, with replacement.

        Parameters
        ----------
        batch_size : int, optional
            Windows; by default as `ReplayBuffer.sequences` was told.
        beta : float, optional
            Exponent of the importance weights; likewise. Without meaning for a view that is not
            prioritized.
        out : SequenceBatch, optional
            An older batch of this view whose memory may be overwritten; it is filled and
            returned. One of another size gets new memory.
        threads : int
            How many read the frames. What is drawn does not depend on it.

        Returns
        -------
        SequenceBatch

        Raises
        ------
        InvalidInputError
            `threads` is not from 1 to 64, `batch_size` no whole number from 1 on, or `beta` no
            finite number from 0 on.
        EmptyBufferError
            There is no window yet.
        CorruptSegmentError
            Stored bytes do not match their checksum.
        ClosedError, ForkedError

        Notes
        -----
        Costs little more than copying the rows; the lock is held while drawing only. Rows that were
        added since the last call are looked at first: 0.2 us each.
        """
        size = self.options.batch_size if batch_size is None else batch_size
        if type(size) is not int or not 0 < size < 1 << 20:  # nearly none is looked at further
            size = whole("batch_size", size)
        if out is not None:
            _check_out(out)
        if type(threads) is not int or threads != 1:
            threads = whole("threads", threads, most=MOST_THREADS)
        lock = self._buffer._turn_when_drawn()

        def attempt(guard: ReadGuard) -> SequenceBatch | None:
            with lock:
                drawn = self._view.draw(self._current(), size, beta, guard)
            batch = drawn.reader.read(drawn, out, threads)
            if batch is None:  # it is drawn again, and its new windows are to come then
                with lock:
                    self._view.undo_new([drawn])
            return batch

        return self._buffer._read_held(attempt)

    def gather(
        self, anchors: np.ndarray, *, out: SequenceBatch | None = None, threads: int = 1
    ) -> SequenceBatch:
        """The windows of these anchors, as `sample` would return them, with weights of 1.

        Parameters
        ----------
        anchors : array_like of int, shape (batch,)
        out, threads
            As for `sample`.

        Raises
        ------
        UnknownIdError
            An id was never handed out.
        NotSampleableError
            It is no anchor, or none any more.
        """
        anchors = checked_ids(anchors).copy()
        _check_out(out)
        threads = whole("threads", threads, most=MOST_THREADS)
        self._buffer._turn()

        def attempt(guard: ReadGuard) -> SequenceBatch | None:
            with self._lock:
                drawn = self._view.choose(self._current(), anchors, guard)
            return drawn.read(out, threads=threads)

        return self._buffer._read_held(attempt)

    def anchors(self) -> np.ndarray:
        """The ids of all windows that can be drawn now, env by env, oldest first. O(rows).

        Returns
        -------
        ndarray of int64
        """
        with self._buffer._turn():
            self._view.catch_up(self._current())
            return self._view.anchors.ids()

    def __len__(self) -> int:
        """Windows that can be drawn now."""
        with self._buffer._turn():
            self._view.catch_up(self._current())
            return self._view.anchors.count

    def prefetch(
        self,
        depth: int = 2,
        batch_size: int | None = None,
        *,
        beta: float | None = None,
        threads: int = 1,
        device: Any = None,
        map: Callable[[SequenceBatch], Any] | None = None,
    ) -> Prefetcher:
        """Batches read ahead on background threads, as `ReplayBuffer.prefetch` does for
        transitions.

        Parameters
        ----------
        depth : int
            How many batches are under way.
        batch_size, beta
            As for `sample`.
        threads : int
            How many threads read, each a batch of its own. What is drawn does not depend on it.
        device, map
            As for `ReplayBuffer.prefetch`. Where `map` raises, or a batch cannot be read, the new
            windows of that batch (`online`) do not come again: the error has a note of their
            anchors, ``prefetcher.lost`` has them, and `gather` reads them.

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
        threads = whole("threads", threads, most=MOST_THREADS)
        size = whole("batch_size", batch_size, optional=True) or self.options.batch_size
        if beta is not None:
            exponent(beta)  # a view has no schedule
        handovers = handovers_to(device, map)
        with self._buffer._turn():
            self._view.catch_up(self._current())
            return self._view.prefetcher(self, depth, size, beta, threads, handovers)

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
        Also on a reader; what it sets is in its memory only. After a `clear` or a `load`, also one
        by the writer that a reader follows, an anchor of before means another window, as soon as
        there are as many rows again. Only the buffer's `generation` tells: compare it with that of
        before the draw.
        """
        if not self.options.prioritized:
            raise UsageError(
                f"the view {self.name!r} draws evenly: make it with prioritized=True to set "
                "priorities"
            )
        anchors = checked_ids(anchors)
        priorities = checked_priorities(anchors, priorities)
        with self._buffer._turn_when_drawn():
            self._view.catch_up(self._current())
            return self._view.anchors.update(anchors, priorities)

    def write(self, field: str, ids: np.ndarray, values: np.ndarray) -> int:
        """Replace the values of a mutable extra, of recurrent states say, in rows of
        ``batch.id[batch.transition]``.

        Parameters
        ----------
        field, ids, values
            As for `ReplayBuffer.write`, which says what is returned and raised, too.
        """
        return self._buffer.write(field, ids, values)

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
        td, learn = np.abs(as_reals("td", td)), as_reals("learn", learn, flags=True) != 0
        if td.ndim != 2 or td.shape != learn.shape:
            raise ShapeError(
                f"td and learn: one shape (windows, length) expected, found {td.shape} and "
                f"{learn.shape}"
            )
        largest = td.max(axis=1, where=learn, initial=0.0)
        total = td.sum(axis=1, where=learn)
        mean = total / np.maximum(learn.sum(axis=1), 1)
        return self.options.eta * largest + (1 - self.options.eta) * mean

    def hindsight(
        self,
        compute_reward: ComputeReward,
        *,
        strategy: Literal["future", "final", "episode"] = "future",
        n_goals: int = 4,
        achieved: str = "achieved_goal",
        desired: str = "desired_goal",
        info: str | Sequence[str] = (),
        finished: bool = True,
        terminated: ComputeReward | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> SequenceHindsight:
        """This view with windows of which most have a goal that their episode reached.

        All positions of a window have one goal; docs/hindsight.md says what is new in one.

        Parameters
        ----------
        compute_reward : function
            As for `ReplayBuffer.hindsight`; called once a batch, for all transitions of the windows
            that are relabelled.
        strategy : {"future", "final", "episode"}
            Whose achieved goal: that of a row behind the anchor, evenly; of the last row of the
            episode; of any retained row of the episode but the first of them.
        n_goals, achieved, desired, info, finished, terminated
            As for `ReplayBuffer.hindsight`, of windows.
        seed : int or numpy.random.Generator, optional
            Of the choice of goals. None: the view's generator, which is saved with it.

        Returns
        -------
        SequenceHindsight
            With ``sample(batch_size, beta=...)``.

        Raises
        ------
        InvalidInputError
            Windows go over the ends of episodes (``ends="cross"``), or have `returns_to_go`; the
            observations have no such goals; an option makes no sense.
        """
        goals = Relabelling(
            self._buffer, compute_reward, strategy=strategy, n_goals=n_goals, achieved=achieved,
            desired=desired, info=info, finished=finished, terminated=terminated,
        )  # fmt: skip
        return SequenceHindsight(self, goals, seed)

    # -- its life

    @property
    def rng(self) -> np.random.Generator:
        """The generator of every draw of this view."""
        return self._view.rng.rng

    def close(self) -> None:
        """Take the view from its buffer. What `flush`, `close` and `save` of the buffer saved of it
        stays; what came since is not saved. Closing twice is fine."""
        if not self._buffer._is_ours():  # a child's copy, and its parent closes it
            return
        self._buffer._turn()
        self._prefetchers.close()
        with self._buffer._turn():
            self._buffer._views.remove(self._view)

    def __repr__(self) -> str:
        window = self.options.window
        return (
            f"Sequences({self.name!r}, {window.burn_in} + {window.length} + {window.ahead} rows, "
            f"ends={window.ends!r}, of {self._buffer!r})"
        )

    # -- inside

    def _current(self) -> IndexedStore:
        """The rows as they are now. Needs the lock."""
        # Calls only where there is something to do: after other work the code of each comes from
        # memory again, which takes as long as reading ten rows.
        buffer = self._buffer
        if buffer._closed or fork.pid != buffer._pid:
            buffer._check_open()
        if buffer._views.get(self.name) is not self._view:
            raise ClosedError(f"the view {self.name!r} is closed; call buffer.sequences() again")
        if buffer._rows.store.mode != "a":
            buffer._follow()
        return buffer._rows

    def _new_guard(self) -> ReadGuard:
        return ReadGuard()

    def _draw(self, size: int, beta: float | None, guard: ReadGuard) -> DrawnSequences:
        with self._lock:
            return self._view.draw(self._current(), size, beta, guard)

    def _draw_pending(self) -> None:
        self._buffer._draw_pending()


def _check_out(out: Any) -> None:
    if out is not None and not isinstance(out, SequenceBatch):
        raise InvalidInputError(f"out: a SequenceBatch expected, found {type(out).__name__}")
