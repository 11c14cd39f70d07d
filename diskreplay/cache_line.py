"""A hint to the processor's caches, for Numba kernels."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from diskreplay.jit import intrinsic


@intrinsic
def prefetch_line(_typing, address):
    """Have the line of memory at an address fetched into the caches, without waiting for it.

    Any address will do: one that is not mapped is left alone.
    """

    def emit(_context, builder, _signature, arguments):
        number, pointer = ir.IntType(32), ir.PointerType(cgutils.int8_t)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep, data])
        return cgutils.get_null_value(cgutils.intp_t)

    return types.intp(types.intp), emit
