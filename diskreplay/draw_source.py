"""Whom a prefetcher draws from."""

from typing import Any, Protocol

from diskreplay.locks import Lock


class DrawSource(Protocol):
    """A buffer, a view of one, or a union: what `Prefetcher` asks of them.

    A view has the lock of its buffer, and prefetchers of its own.
    """

    @property
    def _lock(self) -> Lock: ...
    @property
    def _prefetchers(self) -> Any: ...
    def _new_guard(self) -> Any:
        """What `_draw` holds. Whoever asks for it releases it, wherever Ctrl-C comes."""

    def _draw(self, size: int, beta: Any, guard: Any) -> Any:
        """Draw a batch, which holds `guard` until it is read. Needs the lock."""

    def _draw_pending(self) -> None:
        """Wait until what was asked of all prefetchers is drawn. Without the lock."""
