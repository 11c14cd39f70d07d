"""The one decorator of all Numba kernels, and where their machine code is kept.

Numba's own ``cache=True`` fails while a module is imported where no directory can be written to,
and at the first call where what is kept cannot be read. Here kernels are compiled in such a place,
and one warning says so.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba.core import caching

_warned = False


def kernel(function: Callable) -> Any:
    """Compile a function when it is called first; it holds no GIL, and the next process finds it
    compiled."""
    compiled = numba.njit(nogil=True)(function)
    compiled._cache = KernelCache(function)
    return compiled


class KernelCache(caching.NullCache):
    """The machine code of one kernel, kept in the directory that Numba chooses.

    Nothing that goes wrong with it reaches the caller: what cannot be read is compiled, and what
    cannot be written is compiled again by the next process. A directory that can only be read, as
    the one that an image was built with, is read.

    Attributes
    ----------
    kept : bool or None
        Whether the last compilation was kept; None while there was none.
    """

    def __init__(self, function: Callable) -> None:
        self._function = function
        self._opened: list[caching.FunctionCache] | None = None
        self._writable: caching.FunctionCache | None = None
        self._trouble: object = None
        self.kept: bool | None = None

    @property
    def cache_path(self) -> str | None:
        """The directory that can be written to, None if there is none."""
        self._places()
        return self._writable and self._writable.cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for a signature, None if there is nothing that can be read."""
        target_context.refresh()
        for place in self._places():
            try:
                found = place.load_overload(sig, target_context)
            except Exception as error:  # rotten bytes are unpickled into any error
                self._trouble = error
                self._empty(place)
                continue
            if found is not None:
                return found
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled; where that is not possible, warn once a process."""
        self.kept = False
        if self._writable is not None:
            try:
                self._writable.save_overload(sig, data)
            except OSError as error:
                self._trouble = error
                # The index may name a file by now that an older version of the kernel has left.
                self._empty(self._writable)
            else:
                self.kept = True
        if not self.kept:
            _warn(self._trouble)

    def _places(self) -> list[caching.FunctionCache]:
        if self._opened is None:
            self._opened = []
            try:
                self._writable = caching.FunctionCache(self._function)
                self._opened.append(self._writable)
            except (RuntimeError, OSError):
                self._trouble = "no directory of Numba's choice can be written to"
            for place in _readable(self._function):
                if place.cache_path != (self._writable and self._writable.cache_path):
                    self._opened.append(place)
        return self._opened

    def _empty(self, place: caching.FunctionCache) -> None:
        """Forget all that a place has, so that it can be written to again."""
        if place is self._writable:
            with contextlib.suppress(OSError):  # then writing to it fails as well, and is noted
                place.flush()


def _readable(function: Callable) -> Iterator[caching.FunctionCache]:
    """Places that Numba would choose if they could be written to."""
    for locator in (caching.UserProvidedCacheLocator, caching.InTreeCacheLocator):
        unasked = type(locator.__name__, (locator,), {"ensure_cache_path": lambda self: None})
        implementation = type(
            "ReadImpl", (caching.CompileResultCacheImpl,), {"_locator_classes": [unasked]}
        )
        with contextlib.suppress(RuntimeError, OSError):  # it has no such place
            yield type("ReadCache", (caching.FunctionCache,), {"_impl_class": implementation})(
                function
            )


def _warn(trouble: object) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"compiled kernels cannot be kept ({trouble}), so each process spends some seconds on "
            "compiling them; set the environment variable NUMBA_CACHE_DIR to a directory that can "
            "be written to",
            RuntimeWarning,
            stacklevel=2,
        )
