"""For kernels that draw: numbers of one of NumPy's generators."""

from llvmlite import ir
from numba import types

from diskreplay.jit import inner, intrinsic

# Of `bitgen_t`, as NumPy's C API has it: the state, and functions of it that give 64 bits, 32 bits,
# and a number of ``[0, 1)``.
_NEXT_DOUBLE = 3


@intrinsic
def _next_double(_typing, generator):
    def emit(_context, builder, _signature, arguments):
        word = ir.IntType(64)
        fields = builder.inttoptr(arguments[0], ir.PointerType(word))
        address = builder.load(builder.gep(fields, [ir.Constant(word, _NEXT_DOUBLE)]))
        kind = ir.FunctionType(ir.DoubleType(), [word])
        function = builder.inttoptr(address, ir.PointerType(kind))
        return builder.call(function, [builder.load(fields)])

    return types.float64(types.int64), emit


@inner
def draw_uniform(numbers, known, generator):
    """Put the generator's next numbers behind the first `known` ones: those that its `random` would
    give. `generator` is the address of its `bitgen_t`, and its lock is held."""
    for i in range(known, len(numbers)):
        numbers[i] = _next_double(generator)
