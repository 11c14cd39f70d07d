"""Batches of all shards, asked for ahead."""

import contextlib
import secrets
import threading
from collections import deque
from typing import Self

import numpy as np

from diskreplay.batch import Batch
from diskreplay.closing import Closing
from diskreplay.errors import ClosedError, DisconnectedError
from diskreplay.locks import LOOK_AGAIN_S, Lock
from diskreplay.ray.client import Client
from diskreplay.ray.coordinator import Ticket
from diskreplay.ray.draw_request import begin


class ShardedPrefetcher(Closing):
    """An endless iterator; made by `ShardedReplayBuffer.prefetch`.

    Its thread asks for `batches` batches at a time, as long as fewer than `depth` requests are
    under way or not taken.
    """

    def __init__(self, client: Client, depth: int, batches: int, size: int) -> None:
        self._client, self._depth, self._batches, self._size = client, depth, batches, size
        self._ready: deque[tuple[Batch, np.ndarray, str]] = deque()
        self._ticket = Ticket(secrets.token_hex(8), 0)
        self._lock = Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = self._paused = self._working = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="diskreplay shards", daemon=True)
        self._thread.start()
        client.frames.memory.remember(depth * batches)  # ready, or being made

    def _run(self) -> None:
        most = (self._depth - 1) * self._batches
        while True:
            with self._lock:
                self._working = False
                self._changed.notify_all()
                while not self._closed and (self._paused or self._error or len(self._ready) > most):
                    self._changed.wait(LOOK_AGAIN_S)
                if self._closed:
                    return
                self._working = True
                self._ticket = self._ticket._replace(number=self._ticket.number + 1)
            try:
                request = begin(self._client, self._batches, self._size, self._ticket)
                if request is None:
                    continue  # `pause` has cancelled it
                made = [
                    (batch, numbers, request.epoch)
                    for batch, numbers in zip(request.finish(), request.uniform, strict=True)
                ]
            except BaseException as error:  # raised where a batch is taken
                with self._lock:
                    self._error = error
                    self._changed.notify_all()
                continue
            with self._lock:
                self._ready.extend(made)
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
        """
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

    def pause(self) -> list[np.ndarray]:
        """Stop asking, and give up what was not taken: the random numbers of it, in order."""
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
        with contextlib.suppress(DisconnectedError):  # the limiter's actor is not reached
            for _batch, numbers, epoch in given_up:
                self._client.give_back(len(numbers), epoch)
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
