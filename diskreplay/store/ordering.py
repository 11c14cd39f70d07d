"""The order in which two processes see what one of them stores in memory that both have mapped.

A counter that says "this is there" is raised after what it speaks of was stored, and looked at
before that is loaded. On x86-64 this is all. A processor lets others see its stores in the order of
the program, and loads in that order too (Intel SDM, volume 3, "Memory Ordering"; only a load may
pass an earlier store to another place). And what CPython calls to store an aligned int64, an
assignment to a memoryview or to an array, is one store that no compiler moves across such calls.
Other processors (AArch64) may reorder both: there a fence is needed in between. The one that
kernels have is taken, which costs an actor on such a machine the import of Numba.
"""

import platform
from collections.abc import Callable

_ORDERED = ("x86_64", "AMD64", "i686")


def _nothing() -> None:
    """Stores, and loads, keep their order."""


def _fence() -> None:
    from diskreplay.store import ordering_kernels

    ordering_kernels.full(0)


barrier: Callable[[], None] = _nothing if platform.machine() in _ORDERED else _fence
"""What was stored, or loaded, before this is so before all that comes after it."""
