"""The C functions that kernels call, under names of our own.

numcodecs' Blosc extension carries C-Blosc and LZ4, google-crc32c the CRC-32C that Zarr uses; both
are dependencies of zarr and export their C functions. A kernel calls them without the GIL.
"""

import ctypes
from importlib import util
from importlib.machinery import PathFinder
from typing import Any

import llvmlite.binding
from google_crc32c import _crc32c
from llvmlite import ir
from numba import types
from numba.core import cgutils

from diskreplay.jit import intrinsic


def _register(
    library: ctypes.CDLL, symbol: str, returns: types.Type, *arguments: types.Type
) -> Any:
    """Make a C function callable from kernels; a name, unlike an address, can be cached."""
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError as error:
        raise ImportError(
            f"{library._name} does not export {symbol}; diskreplay needs the builds of numcodecs "
            "and google-crc32c that are on PyPI: pip install --force-reinstall numcodecs "
            "google-crc32c"
        ) from error
    name = f"diskreplay_{symbol}"
    llvmlite.binding.add_symbol(name, address)
    return types.ExternalFunction(name, returns(*arguments))


def _extension(package: str, name: str) -> str:
    """The file of a package's extension. The package is not imported: numcodecs takes a tenth of
    what a process needs to its first batch."""
    found = util.find_spec(package)
    inside = found and PathFinder.find_spec(name, found.submodule_search_locations)
    if not inside or not inside.origin:
        raise ImportError(f"{package}.{name} is not there: pip install --force-reinstall {package}")
    return inside.origin


_pointer, _size, _int = types.intp, types.uintp, types.int32
_libc = ctypes.CDLL(None)
_blosc = ctypes.CDLL(_extension("numcodecs", "blosc"))
# dlsym looks through the extension's own dependencies too, where the function really is.
_crc = ctypes.CDLL(_crc32c.__file__)

memcpy = _register(_libc, "memcpy", _pointer, _pointer, _pointer, _size)
memset = _register(_libc, "memset", _pointer, _pointer, _int, _size)
madvise = _register(_libc, "madvise", _int, _pointer, _size, _int)
pwrite = _register(_libc, "pwrite", _pointer, _int, _pointer, _size, types.int64)
getrusage = _register(_libc, "getrusage", _int, _int, _pointer)
sched_yield = _register(_libc, "sched_yield", _int)
blosc_decode = _register(_blosc, "blosc_decompress_ctx", _int, _pointer, _pointer, _size, _int)
blosc_encode = _register(
    _blosc, "blosc_compress_ctx",
    _int, _int, _int, _size, _size, _pointer, _pointer, _size, _pointer, _size, _int,
)  # fmt: skip
crc32c_extend = _register(_crc, "crc32c_extend", types.uint32, types.uint32, _pointer, _size)


def _loader(kind: types.Type) -> Any:
    @intrinsic
    def load(_typing, address):
        def emit(context, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.PointerType(context.get_value_type(kind)))
            return builder.load(pointer, align=1)

        return kind(types.intp), emit

    return load


load_u8 = _loader(types.uint8)
load_u16 = _loader(types.uint16)
load_u32 = _loader(types.uint32)
load_i64 = _loader(types.int64)


def _storer(kind: types.Type) -> Any:
    @intrinsic
    def store(_typing, address, value):
        def emit(context, builder, _signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.PointerType(context.get_value_type(kind)))
            builder.store(arguments[1], pointer, align=1)
            return cgutils.get_null_value(cgutils.intp_t)

        return types.intp(types.intp, kind), emit

    return store


@intrinsic
def load_acquire(_typing, address):
    """An int64 that another thread, or process, may be storing with `store_release`: what that had
    stored before it is seen by what is loaded after this."""

    def emit(context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.intp), emit


@intrinsic
def fetch_add(_typing, address, value):
    """Add to an aligned int64 that other threads add to as well; returns what it was before. All
    that was stored before is seen by whoever sees the sum."""

    def emit(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), emit


@intrinsic
def fence(_typing):
    """What was loaded or stored before it was so before all that comes after it."""

    def emit(context, builder, _signature, _arguments):
        builder.fence("seq_cst")
        return cgutils.get_null_value(cgutils.intp_t)

    return types.intp(), emit


store_u8 = _storer(types.uint8)
store_u32 = _storer(types.uint32)
store_i64 = _storer(types.int64)
