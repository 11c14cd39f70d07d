"""The prefetchers of one buffer: whose turn it is, and what a checkpoint says of them."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from diskreplay.errors import UsageError
from diskreplay.handover import Handover
from diskreplay.locks import Lock
from diskreplay.options import Beta
from diskreplay.prefetch import MOST_PREFETCHERS, DrawSource, Prefetcher, UnderWay
from diskreplay.prefetch_job import Job
from diskreplay.sampling.rng import ReplayableRng
from diskreplay.signals import undisturbed


class Resumed(NamedTuple):
    """The prefetchers of a buffer after a load."""

    open: list[Prefetcher]
    due: list[tuple[Prefetcher, float | None]]
    """What was under way in the saved run: whose, and with which exponent, in the order of the
    draws."""


class Prefetchers:
    """Those of one buffer, in the order in which they were made.

    All calls but `draw_pending` and `close` need the buffer's lock.

    Refers to no buffer: one that is dropped is to let go of its store at once.

    Attributes
    ----------
    open : list of Prefetcher
    last_asked : tuple of int and Lock
        Of the batch that was asked for last: its number, and what is held until it is drawn.
    """

    def __init__(self, lock: Lock, rng: ReplayableRng) -> None:
        self._lock, self._rng = lock, rng
        self.open: list[Prefetcher] = []
        self._due: list[tuple[Prefetcher, float | None]] = []
        self.last_asked = 0, threading.Lock()

    def get(
        self,
        buffer: DrawSource,
        depth: int,
        batch_size: int,
        beta: Beta | None,
        threads: int,
        handovers: Callable[[], Handover],
        contiguous: bool = False,
    ) -> Prefetcher:
        """A new one, or one that waits since a load for somebody to ask for it."""
        for waiting in self.open:
            if waiting.claim(depth, batch_size, beta, threads, handovers, contiguous):
                return waiting
        if len(self.open) == MOST_PREFETCHERS:
            raise UsageError(
                f"{len(self.open):,} prefetchers of this buffer are open, the most there can be: "
                "close those that are done with"
            )
        made = Prefetcher(
            buffer, depth, batch_size, beta, threads, handovers, contiguous=contiguous
        )
        self.open.append(made)
        return made

    def new_job(self) -> Job:
        """One to be drawn after all that were asked for so far; it is not asked for yet."""
        number, before = self.last_asked
        return Job(number + 1, before)

    def draw_pending(self) -> None:
        """Have drawn what was asked for, before anything changes. Without the lock, which the
        prefetchers need for that."""
        if self._due:
            with self._lock:
                self.draw_resumed()
        for prefetcher in list(self.open):  # another thread may close one
            prefetcher.wait_until_drawn()

    def close(self) -> None:
        """Close all of them. Without the lock."""
        self._due.clear()  # the numbers for these draws are not taken from the generator yet
        for prefetcher in list(self.open):
            prefetcher.close()

    def put_back(self, prefetchers: Sequence[Prefetcher]) -> list[Prefetcher]:
        """Give up batches under way: the numbers that they were drawn with come again.

        In the order of the draws, so that it does not matter which of them were made by now. With
        the lock held: what is not drawn will not be.

        Returns
        -------
        list of Prefetcher
            Those that had batches under way, in the order of their oldest ones: unlike the order in
            which they were made, a resumed run has the same.
        """
        had = [prefetcher for prefetcher in prefetchers if prefetcher._jobs]
        had.sort(key=lambda prefetcher: prefetcher._jobs[0].number)
        for prefetcher in had:  # first: Ctrl-C while this waits leaves all under way
            prefetcher.wait_until_read()
        self._whole(lambda: self._give_up(had))
        return had

    def _give_up(self, prefetchers: Sequence[Prefetcher]) -> None:
        drawn = [each for prefetcher in prefetchers for each in prefetcher._cancel()]
        drawn.sort(key=itemgetter(0))
        self._undo([each for _, each in drawn])

    def undo(self, job: Job) -> None:
        """Undo the draw of a batch that could not be read, which stays under way."""

        def undo() -> None:
            self._undo([job.drawn_batch])
            job.drawn_batch = None

        self._whole(undo)

    def _whole(self, call: Callable[[], None]) -> None:
        """Call what undoes draws. Ctrl-C amid it would leave batches given up whose numbers and
        windows never come again, or come twice."""
        with undisturbed():
            call()

    def put_back_void(self) -> None:
        """Give up batches under way of rows that are gone, where `load` could not."""

    def under_way(self) -> list[Any]:
        """What was drawn and not taken yet, in the order of the draws."""
        jobs = [job for prefetcher in self.open for job in prefetcher.under_way]
        jobs.sort(key=lambda job: job.number)
        return [job.drawn_batch for job in jobs]

    def rng_state(self) -> dict[str, Any]:
        """What the generator gives next where nobody takes what is under way."""
        return self._rng.state([array for each in self.under_way() for array in each.numbers])

    def _undo(self, drawn: Sequence[Any]) -> None:
        """Undo draws, given in their order, that nobody took."""
        self._rng.put_back([array for each in drawn for array in each.numbers])

    def forget(self, prefetcher: Prefetcher) -> None:
        """It was closed."""
        self.open.remove(prefetcher)  # a load goes by who is there

    @contextlib.contextmanager
    def drained(self) -> Iterator[list[Prefetcher]]:
        """Put the batches under way back; have those of the prefetchers that it gives, which are
        all that had some, drawn again at the end, in order."""
        under_way = self.put_back(self.open)
        try:
            yield under_way
        finally:
            waiting = not all(prefetcher._claimed for prefetcher in under_way)
            for prefetcher in under_way:
                if waiting:  # has no thread, and its turn must not come before those which have
                    prefetcher.redraw(prefetcher._beta)
                else:
                    prefetcher.refill()

    def describe(self, under_way: Sequence[Prefetcher]) -> list[UnderWay]:
        """What a checkpoint says, where `put_back` gave these."""
        found = []
        for each in self.open:
            turn = under_way.index(each) if each in under_way else -1
            beta = each._beta
            if beta is not None:
                whose: Any = each._buffer  # a buffer: views have their own exponent
                beta = whose._exponent(beta) if turn >= 0 else 0.0
            found.append(UnderWay(each._depth, each._size, beta, turn))
        return found

    def resumed(self, buffer: Any, saved: Sequence[UnderWay]) -> Resumed:
        """The prefetchers that a buffer will have after a load. Changes nothing of the buffer, and
        draws nothing: `draw_resumed` does that.

        Each of the saved ones becomes a prefetcher of that depth and size that is there, else a new
        one, which waits until `ReplayBuffer.prefetch` is asked for it: what happens before that
        does not change it.
        """
        there = [each for each in self.open if each._claimed]  # others: of an earlier load
        found = []
        for depth, batch_size, beta, _ in saved:
            fits = [each for each in there if (each._depth, each._size) == (depth, batch_size)]
            if fits:
                there.remove(fits[0])
            else:
                fits = [Prefetcher(buffer, depth, batch_size, beta, claimed=False)]
            found.append(fits[0])
        turns = sorted((entry.turn, place) for place, entry in enumerate(saved) if entry.turn >= 0)
        return Resumed(found + there, [(found[place], saved[place].beta) for _, place in turns])

    def take_over(self, resumed: Resumed) -> None:
        """Be these from now on. Cannot fail."""
        self.open[:], self._due = resumed

    def draw_resumed(self) -> None:
        """Draw what was under way in the saved run, unless that is done.

        Called before the first batch is taken, and before anything that these draws depend on
        changes. Not by `load` itself: drawing calls the user's schedule, and takes memory for the
        batches, and no exception may come after the exchange.
        """
        due = self._due
        while due:
            prefetcher, beta = due[0]
            prefetcher.redraw(beta)
            del due[0]


class OneAtATime(Prefetchers):
    """Those of a view or a union, of which one at a time is open.

    Parameters
    ----------
    whose : str
        As messages call it.
    listed : sequence of list of Prefetcher
        Where those buffers look for it whose calls have to wait for its draws.
    """

    def __init__(
        self, lock: Lock, rng: ReplayableRng, whose: str, listed: Sequence[list[Prefetcher]]
    ) -> None:
        super().__init__(lock, rng)
        self._whose, self._listed = whose, listed

    def get(self, buffer: DrawSource, *options: Any) -> Prefetcher:
        if self.open:
            raise UsageError(f"{self._whose} has a prefetcher already: close that")
        made = Prefetcher(buffer, *options)
        for prefetchers in (self.open, *self._listed):
            prefetchers.append(made)
        return made

    def forget(self, prefetcher: Prefetcher) -> None:
        super().forget(prefetcher)
        for prefetchers in self._listed:
            if prefetcher in prefetchers:  # else Ctrl-C came before it was
                prefetchers.remove(prefetcher)
