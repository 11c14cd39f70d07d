"""Batches of all shards, asked for ahead."""

import contextlib
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

import numpy as np

from diskreplay.batch import Batch
from diskreplay.closing import Closing
from diskreplay.errors import ClosedError, DisconnectedError, ReentryError
from diskreplay.locks import LOOK_AGAIN_S, Lock
from diskreplay.ray.client import Client
from diskreplay.ray.coordinator import Ticket
from diskreplay.ray.draw_request import begin

_Ready = tuple[Batch, np.ndarray, str]
"""A batch, the random numbers that it was drawn with, and what `Client.give_back` wants."""


class ShardedPrefetcher(Closing):
    """An endless iterator; made by `ShardedReplayBuffer.prefetch`.

    Its thread asks for `batches` batches at a time, as long as fewer than `depth` requests are
    under way or not taken. It ends soon after nobody has the prefetcher any more, nor the buffer,
    which keeps those that are not closed.
    """

    def __init__(self, client: Client, depth: int, batches: int, size: int) -> None:
        self._client, self._depth, self._batches, self._size = client, depth, batches, size
        self._ready: deque[_Ready] = deque()
        self._ticket = Ticket(secrets.token_hex(8), 0)
        self._lock = Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = self._paused = self._working = False
        self._error: BaseException | None = None
        given = weakref.ref(self), client, self._changed, self._ready, (batches, size)
        self._thread = threading.Thread(
            target=_ask_ahead, args=given, name="diskreplay shards", daemon=True
        )
        self._thread.start()
        client.frames.memory.remember(depth * batches)  # ready, or being made

    def _begun(self) -> Ticket | None:
        """Begin a request, if another one is wanted. Needs the lock."""
        most = (self._depth - 1) * self._batches
        if self._paused or self._error or len(self._ready) > most:
            return None
        self._working = True
        self._ticket = self._ticket._replace(number=self._ticket.number + 1)
        return self._ticket

    def _ended(self, error: BaseException | None) -> None:
        """What was begun has ended; an error is raised where a batch is taken. Needs the lock."""
        self._working, self._error = False, error
        self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises
        ------
        EmptyBufferError, RateLimiterTimeout, ShardsLostError, DisconnectedError
            As `ShardedReplayBuffer.sample`; the next call tries again.
        ClosedError
        ReentryError
            A signal handler, or a ``__del__``, calls this amid a call of the buffer.
        """
        self._check_turn()
        with self._lock:
            while not self._ready and self._error is None:
                if self._closed:
                    raise ClosedError("this prefetcher was closed")
                self._changed.wait(LOOK_AGAIN_S)
            if self._ready:
                batch, _numbers, _epoch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            error, self._error = self._error, None
            self._changed.notify_all()
        assert error is not None
        raise error

    def _check_turn(self) -> None:
        """Refuse to wait for the thread, which needs the client's lock, where this thread has it:
        the call of the buffer below a signal handler does not go on meanwhile."""
        if self._client.lock._is_owned():  # type: ignore[attr-defined]
            raise ReentryError(
                "the prefetcher was called amid a call of its buffer by the same thread, which "
                "goes on: by a signal handler or a __del__. Let a handler set a flag, and call "
                "this when that is done"
            )

    def pause(self) -> list[np.ndarray]:
        """Stop asking, and give up what was not taken: the random numbers of it, in order."""
        self._check_turn()
        with self._lock:
            self._paused, ticket = True, self._ticket if self._working else None
        if ticket is not None:
            # What waits for the limiter would have this wait, too: for a minute, or for ever where
            # it is this thread that adds.
            with contextlib.suppress(DisconnectedError):
                self._client.cancel(ticket)
        with self._lock:
            while self._working:
                self._changed.wait(LOOK_AGAIN_S)
            given_up = list(self._ready)
            self._ready.clear()
        _give_back(self._client, given_up)
        return [numbers for _batch, numbers, _epoch in given_up]

    def resume(self) -> None:
        """Ask again."""
        with self._lock:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread; what was not taken is drawn again by who draws next. Closing twice is
        fine."""
        numbers = self.pause()
        with self._client.lock:
            self._client.rng.put_back(numbers)
        with self._lock:
            if not self._closed:
                self._client.frames.memory.remember(-self._depth * self._batches)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()


def _ask_ahead(
    found: Callable[[], ShardedPrefetcher | None], client: Client, changed: threading.Condition,
    ready: deque[_Ready], what: tuple[int, int],
) -> None:  # fmt: skip
    """Ask for what a prefetcher wants, until it is closed or nobody has it.

    Parameters
    ----------
    found : weakref.ref of ShardedPrefetcher
        While this waits nothing here holds it, nor its buffer.
    client : Client
    changed : Condition
        Of the prefetcher.
    ready : deque
        Its batches. Those that nobody can take any more are given back to the rate limiter.
    what : tuple of int
        How many batches a request has, of which size.
    """
    while True:
        with changed:
            prefetcher = found()
            if prefetcher is None or prefetcher._closed:
                break
            ticket = prefetcher._begun()
            del prefetcher
            if ticket is None:
                changed.wait(LOOK_AGAIN_S)
                continue
        made, error = _asked(client, what, ticket)
        with changed:
            ready.extend(made)
            prefetcher = found()
            if prefetcher is not None:
                prefetcher._ended(error)
            del prefetcher, made, error
    _give_back(client, ready)


def _asked(
    client: Client, what: tuple[int, int], ticket: Ticket
) -> tuple[list[_Ready], BaseException | None]:
    """What a request gave, or why it failed; nothing where `pause` has cancelled it."""
    try:
        request = begin(client, *what, ticket)
        if request is None:
            return [], None
        made = zip(request.finish(), request.uniform, strict=True)
        return [(batch, numbers, request.epoch) for batch, numbers in made], None
    except BaseException as error:
        return [], error


def _give_back(client: Client, batches: Iterable[_Ready]) -> None:
    """Tell the rate limiter of batches that nobody takes."""
    with contextlib.suppress(DisconnectedError):  # the limiter's actor is not reached
        for _batch, numbers, epoch in batches:
            client.give_back(len(numbers), epoch)
