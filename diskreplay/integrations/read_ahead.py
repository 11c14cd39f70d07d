"""The prefetchers of a ring: they end with it."""

import threading
from typing import Any

from diskreplay.errors import ReentryError
from diskreplay.prefetch import Prefetcher


class ReadAhead:
    """A prefetcher for each size of batches that a ring was asked for.

    Knows no ring, which could not be collected as garbage while somebody waits to `drop` this.
    """

    def __init__(self) -> None:
        self._prefetchers: dict[int, Prefetcher] = {}

    def of(self, buffer: Any, depth: int, batch_size: int) -> Prefetcher:
        """That of a size; the same one at each call."""
        if batch_size not in self._prefetchers:
            self._prefetchers[batch_size] = buffer.prefetch(depth, batch_size)
        return self._prefetchers[batch_size]

    def stop(self) -> None:
        """Close all of them."""
        for prefetcher in self._prefetchers.values():
            prefetcher.close()
        self._prefetchers.clear()

    def drop(self) -> None:
        """Close all of them: the ring is gone, and their threads would keep the buffer open.

        Garbage is collected on any thread, amid any call. If that is one of this buffer, which
        another ring has by now, they are closed as soon as it has ended.
        """
        try:
            self.stop()
        except ReentryError:
            threading.Thread(target=self.stop, name="diskreplay end").start()
