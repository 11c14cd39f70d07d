"""One view of a buffer's rows as windows, without the buffer; and all views of one."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diskreplay.errors import FormatError, StorageError
from diskreplay.given_numbers import exponent
from diskreplay.indexed_store import IndexedStore
from diskreplay.late_warning import no_error
from diskreplay.locks import Lock
from diskreplay.options import Options
from diskreplay.prefetch import DrawSource, Prefetcher
from diskreplay.prefetchers import OneAtATime
from diskreplay.sampling.anchors import Anchors
from diskreplay.sampling.new_windows import NewWindows
from diskreplay.sampling.returns_to_go import ReturnsToGo
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.schema import Schema
from diskreplay.sequence_options import SequenceOptions
from diskreplay.sequence_reader import DrawnSequences, SequenceMemory, SequenceReader
from diskreplay.sequence_state import SequenceState
from diskreplay.store import generation, priorities
from diskreplay.store.rwlock import ReadGuard
from diskreplay.store.store import Store

_NONE = np.empty(0, np.int64)


class SequenceView:
    """What `Sequences` is to its buffer: which windows there are, how they are drawn, what is
    saved. It refers to no buffer: one that is dropped is to let go of its store at once.

    All methods need the buffer's lock, and those with `rows` bring the view up to them first.
    """

    def __init__(
        self,
        name: str,
        asked: SequenceOptions,
        schema: Schema,
        options: Options,
        rng: np.random.Generator,
        keep_rng: bool,
        lock: Any,
        views: "Views",
    ) -> None:
        self.name, self.asked, self._views = name, asked, views
        self.rng, self._keep_rng = ReplayableRng(rng), keep_rng
        self.anchors = Anchors(
            asked.window, options.stack_padding, prioritized=asked.prioritized, alpha=asked.alpha,
            normalization=asked.normalization, online=asked.online,
        )  # fmt: skip
        self._to_go = None if asked.returns_to_go is None else ReturnsToGo(asked.returns_to_go)
        self._returns = np.empty(0, np.float32)  # to go
        self._powers = options.gamma ** np.arange(asked.window.n_step + 1)
        self._schema, self._stack = schema, options.stack_size
        self._reader: SequenceReader  # of the store that `catch_up` has found
        self._store: Store | None = None
        self._known: tuple[np.ndarray, bytes] | None = None  # of the index, when it was looked at
        self.prefetchers = _ViewPrefetchers(self, lock)
        self._under_way: tuple[int, int, float | None] | None = None

    def catch_up(self, rows: IndexedStore) -> None:
        """Come to know all rows."""
        if rows.index is None:
            rows.make_index()
        if rows.store is not self._store:
            self._take_over(rows)
            return
        index, known = rows.index, self._known
        bounds = index.bounds.tobytes()
        # An index that was made anew, or has grown, has another ring.
        if known is not None and known[0] is index.ring and known[1] == bounds:
            return
        self.anchors.catch_up(index)
        if self._to_go is not None:
            self._to_go.catch_up(index)
            self._returns = self._to_go.column
        self._known = index.ring, bounds  # not before: after Ctrl-C all of it is done again

    def _take_over(self, rows: IndexedStore) -> None:
        """Begin with a store that was opened or loaded: with what was saved of this view in it."""
        saved = SequenceState.of(rows.store, self.name)
        other = None
        if saved is not None and saved.identity != self.asked.identity:
            other, saved = saved.difference(self.asked.identity), None
        anchors, before = self.anchors, None
        if saved is not None:
            anchors.largest = saved.largest
        elif self._store is not None:
            before = generation.current(self._store.meta), anchors.new
        anchors.follow(rows.index)
        if before is not None and before[0] == generation.current(rows.store.meta) and before[1]:
            anchors.restore_new(before[1])  # of a reader, whose writer opened it in another way
        if self._to_go is not None:
            self._to_go.follow(rows.index)
            self._returns = self._to_go.column
        self._under_way = None
        if saved is not None:
            if saved.rng is not None and not (self._store is None and self._keep_rng):
                self.rng.adopt(*saved.rng)
            if saved.new is not None:
                anchors.restore_new(saved.new)
            self._under_way = saved.under_way
            if saved.saved is not None:
                anchors.restore(saved.saved.start, saved.saved.leaves)
        asked, schema = self.asked, self._schema
        self._reader = SequenceReader(
            rows.store.columns, schema, self._stack, asked.window,
            fields=["action", *schema.extras] if asked.fields is None else asked.fields,
            state=asked.state, has_to_go=asked.returns_to_go is not None,
        )  # fmt: skip
        self._store = rows.store  # not before: after Ctrl-C all of it is done again
        if other is not None:  # last: it is raised where warnings are errors
            warnings.warn(
                f"{rows.store.path}: what was saved of the view {self.name!r} is of {other}; it "
                "starts anew",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip

    def draw(
        self, rows: IndexedStore, size: int, beta: float | None, guard: ReadGuard,
        rng: ReplayableRng | None = None,
    ) -> DrawnSequences:  # fmt: skip
        """Draw windows, and say what is to be read of them; `guard` holds it. `rng` is the view's
        own, or that of a union."""
        rng = rng or self.rng
        self.catch_up(rows)
        self._under_way = None
        before = self.anchors.new
        if rng.numbers:  # of a draw that failed
            rng.taken()
        try:
            memory = self._reader.memory_for(size)
            even = beta is None and not self.asked.prioritized
            exponent = 0.0 if even else self.exponent(beta)
            new = self.anchors.draw(memory.plan, rng, exponent, self._powers, self._returns)
            given = memory.plan.anchor[:new].copy() if new else _NONE
            return self._drawn(rows, memory, rng.taken(), given, guard)
        except BaseException:  # nobody gets the new windows that were taken
            self.anchors.new = before
            raise

    def choose(self, rows: IndexedStore, anchors: np.ndarray, guard: ReadGuard) -> DrawnSequences:
        """What is to be read of the windows of these anchors; `guard` holds it."""
        self.catch_up(rows)
        self.anchors.check(anchors)
        memory = self._reader.memory_for(len(anchors), "anchors")
        plan = memory.plan
        plan.anchor[:], plan.weight[:] = anchors, 1.0
        plan.probability[:] = self.anchors.probability(anchors)
        self.anchors.fill(plan, self._powers, self._returns)
        return self._drawn(rows, memory, [], _NONE, guard)

    def _drawn(
        self, rows: IndexedStore, memory: SequenceMemory, numbers: list[np.ndarray],
        new: np.ndarray, guard: ReadGuard,
    ) -> DrawnSequences:  # fmt: skip
        store = rows.store  # under the buffer's lock: what was planned is not evicted
        store.rwlock.acquire_read(guard, store.follower)
        return DrawnSequences(memory, store, guard, numbers, new, self._reader)

    def undo(self, drawn: Sequence[DrawnSequences]) -> None:
        """Undo draws, given in their order, that nobody took."""
        self.rng.put_back([array for each in drawn for array in each.numbers])
        self.undo_new(drawn)

    def undo_new(self, drawn: Sequence[DrawnSequences]) -> None:
        """Hand out again the windows that were new when these were drawn, in their order."""
        self.anchors.new = self._new_without(drawn)

    def _new_without(self, drawn: Sequence[DrawnSequences], behind: int = 0) -> NewWindows | None:
        """What is new where nobody takes what was drawn, given in its order."""
        new, theirs = self.anchors.new, [each.new for each in drawn if each.store is self._store]
        return new.with_back(np.concatenate(theirs), behind) if new is not None and theirs else new

    def exponent(self, beta: float | None) -> float:
        """The exponent of the importance weights."""
        asked = self.asked.beta if beta is None else exponent(beta)
        return asked if self.asked.prioritized else 0.0

    def prefetcher(self, view: DrawSource, depth: int, size: int, *options: Any) -> Prefetcher:
        """A new one, with what is due of the run that was saved. Needs the lock.

        Parameters
        ----------
        view : DrawSource
            Whose this is.
        depth, size, *options
            As for `Prefetcher`.
        """
        before, under_way = [*self.prefetchers.open], self._under_way
        try:
            made = self.prefetchers.get(view, depth, size, *options)
            self.resume_prefetching(made, depth, size)
        except BaseException:  # Ctrl-C: nobody has it, to close it or to take what was drawn
            for each in [one for one in self.prefetchers.open if one not in before]:
                self.prefetchers.put_back([each])
                self.prefetchers.forget(each)
            self._under_way = under_way
            raise
        return made

    def resume_prefetching(self, prefetcher: Prefetcher, depth: int, size: int) -> None:
        """Have drawn what such a prefetcher had under way in the run that was saved, unless
        anything was drawn since."""
        under_way = self._under_way
        if under_way is not None and under_way[:2] == (depth, size):
            self._under_way = None
            prefetcher.redraw(under_way[2])

    def state(self, rows: IndexedStore, paused: Sequence[Prefetcher]) -> SequenceState:
        """What is to be saved; `paused` are the prefetchers whose batches were put back for it."""
        self.catch_up(rows)
        under_way: tuple[int, int, Any] | None = self._under_way
        for each in paused:
            under_way = each._depth, each._size, each._beta
        return SequenceState.now(
            self.asked.identity, self.prefetchers.rng_state(), self.anchors.largest,
            self.new_with(paused), under_way,
            self.anchors.leaves() if self.asked.prioritized else None,
        )  # fmt: skip

    def new_with(self, paused: Sequence[Prefetcher] = ()) -> NewWindows | None:
        """What is new where nobody takes what is under way: first what a prefetcher of this view
        has, or had before it was `paused`; then those of unions. So a resumed run has them drawn
        again."""
        unions = [
            part.drawn
            for prefetcher in self._views.prefetching for job in prefetcher.under_way
            # Of a union, which this layer does not know.
            for part in getattr(job.drawn_batch, "parts", ()) if part.drawn.reader is self._reader
        ]  # fmt: skip
        new = self.anchors.new
        behind = len(new.returned) if new is not None and paused else 0
        return self._new_without([*self.prefetchers.under_way(), *unions], behind)

    def restore_new(self, new: NewWindows) -> None:
        """Hand out these; what is under way is given up."""
        self.prefetchers.put_back(self.prefetchers.open)
        self.anchors.restore_new(new)


class Views:
    """The views of one buffer, by their names. All but `draw_pending` and `close` need its lock.

    Attributes
    ----------
    prefetching : list of Prefetcher
        Those of all views that are open.
    get : function
        The view of a name, or None if none of that name is open.
    """

    def __init__(self) -> None:
        self._views: dict[str, SequenceView] = {}
        self.prefetching: list[Prefetcher] = []
        self.get = self._views.get  # asked by each draw

    def names(self, store: Store) -> list[str]:
        """Of the views that are open, or saved."""
        saved = store.meta.get(priorities.VIEWS, {})
        return [*self._views, *(saved if isinstance(saved, dict) else ())]

    def add(self, view: SequenceView) -> None:
        """It is open now."""
        self._views[view.name] = view

    def remove(self, view: SequenceView) -> None:
        """It is not any more; again is fine."""
        if self._views.get(view.name) is view:
            del self._views[view.name]

    def draw_pending(self) -> None:
        """Have drawn what was asked for, before anything changes. Without the lock."""
        for prefetcher in list(self.prefetching):
            prefetcher.wait_until_drawn()

    def close(self) -> None:
        """Close all prefetchers. Without the lock."""
        for prefetcher in list(self.prefetching):
            prefetcher.close()

    @contextlib.contextmanager
    def drained(self) -> Iterator[dict[str, list[Prefetcher]]]:
        """Put the batches under way back; have them drawn again at the end. Gives whose they were,
        by view."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(view.prefetchers.drained())
                for name, view in self._views.items()
            }

    def take_over(self, rows: IndexedStore, paused: dict[str, list[Prefetcher]]) -> None:
        """Know the rows that were loaded, before any is added to them: windows that come then are
        new. What the prefetchers have under way is what the checkpoint says; `paused` is what
        `drained` gave, with batches of the rows that are gone."""
        for each in paused.values():
            each.clear()
        for view in self._views.values():
            # The rows are exchanged by now: no error may say that they are not. A view whose
            # priorities cannot be read looks again, and raises, when it is used.
            with contextlib.suppress(StorageError):
                with no_error():
                    view.catch_up(rows)
                for prefetcher in view.prefetchers.open:
                    view.resume_prefetching(prefetcher, prefetcher._depth, prefetcher._size)

    def states(
        self, rows: IndexedStore, paused: dict[str, list[Prefetcher]] | None = None
    ) -> dict[str, SequenceState]:
        """What is to be saved of each: of those that are open as they are, of others as it was
        saved before. `paused` is what `drained` gave."""
        saved = rows.store.meta.get(priorities.VIEWS, {})
        states = {}
        for name in saved if isinstance(saved, dict) else ():
            if name not in self._views:
                # What is damaged stays as it is, and is refused when somebody asks for it.
                with contextlib.suppress(FormatError):
                    if (state := SequenceState.of(rows.store, name)) is not None:
                        states[name] = state.at(rows.store)
        for name, view in self._views.items():
            states[name] = view.state(rows, (paused or {}).get(name, ()))
        return states

    def check_saved(self, saved: Store) -> None:
        """Refuse a checkpoint with what no view could take over."""
        views = saved.meta.get(priorities.VIEWS, {})
        for name in views if isinstance(views, dict) else [""]:
            SequenceState.of(saved, name)

    @staticmethod
    def describe(states: dict[str, SequenceState], before: dict[str, Any]) -> dict[str, Any]:
        """The group's attribute, of what it was before, where views stay that are damaged."""
        kept = before.get(priorities.VIEWS, {})
        found = {
            **(kept if isinstance(kept, dict) else {}),
            **{name: state.attributes for name, state in states.items()},
        }
        return {priorities.VIEWS: found} if found else {}

    @staticmethod
    def leaves(states: dict[str, SequenceState]) -> dict[str, priorities.Unsaved]:
        """The priorities, as `Store.record` takes them."""
        return {
            priorities.set_name(name): priorities.Unsaved(
                state.leaves, state.identity.get("alpha")
            )
            for name, state in states.items() if state.leaves is not None
        }  # fmt: skip


class _ViewPrefetchers(OneAtATime):
    """Those of one view."""

    def __init__(self, view: SequenceView, lock: Lock) -> None:
        super().__init__(lock, view.rng, f"the view {view.name!r}", [view._views.prefetching])
        self._view = view

    def _undo(self, drawn: Sequence[Any]) -> None:
        self._view.undo(drawn)
