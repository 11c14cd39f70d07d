"""How a kernel writes the last columns of a row, which the row index has too, and commits it."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from diskreplay.jit import (
    bytes_at,
    int32s_at,
    int64,
    int64s,
    int64s_at,
    intrinsic,
    part,
    void,
)

# What `RowWriter` hands over: where row 0 of each of these columns would be in memory, and where
# the count of the only env is.
REWARD, TERMINATED, TRUNCATED, STEP, IS_FINAL, COUNT = 0, 1, 2, 3, 4, 5


@intrinsic
def store_release(_typing: Any, address: Any, value: Any) -> Any:
    """Store an aligned int64 after all that was stored before it."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return ir.Constant(cgutils.intp_t, 0)

    return types.intp(types.intp, types.int64), emit


@part(void, int64s, int64, int64, int64, int64)
def commit(columns: Any, step: Any, terminated: Any, truncated: Any, reward: Any) -> None:
    """Write step, ends and float32 bits of the reward of a row that is no final one and whose other
    fields are written, and then count it."""
    row = int64s_at(columns[COUNT])[0]
    int32s_at(columns[REWARD])[row] = reward
    bytes_at(columns[TERMINATED])[row] = terminated
    bytes_at(columns[TRUNCATED])[row] = truncated
    int32s_at(columns[STEP])[row] = step
    bytes_at(columns[IS_FINAL])[row] = 0
    store_release(columns[COUNT], row + 1)
