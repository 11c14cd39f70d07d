"""A fence as a kernel, for processors that reorder stores; see `ordering`."""

from diskreplay.jit import kernel
from diskreplay.store.native import fence


@kernel("int64")
def full(number: int) -> int:
    """What was loaded or stored before is so before all that comes after."""
    fence()
    return number
