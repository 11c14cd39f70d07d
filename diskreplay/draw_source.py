"""Whom a prefetcher draws from."""

import threading
from typing import Any, Protocol

from diskreplay.store.rwlock import ReadGuard


class DrawSource(Protocol):
    """A buffer, a view of one, or a union: what `Prefetcher` asks of them.

    A view has the lock of its buffer, and prefetchers of its own.
    """

    @property
    def _lock(self) -> threading.RLock: ...
    @property
    def _prefetchers(self) -> Any: ...
    def _draw(self, size: int, beta: Any, guard: ReadGuard) -> Any:
        """Draw a batch, which holds `guard` until it is read. Needs the lock."""

    def _draw_pending(self) -> None:
        """Wait until what was asked of all prefetchers is drawn. Without the lock."""
