"""How all Numba kernels are compiled, and where their machine code is kept.

A `kernel` is called from Python, a `part` from kernels only. Numba copies what a function calls
into it and compiles it there again; a part is compiled once, and called by its address. So its
arguments are those of a C function: numbers, and pointers that `pointer` makes of arrays.

Numba's own ``cache=True`` fails while a module is imported where no directory can be written to,
and at the first call where what is kept cannot be read. Here kernels are compiled in such a place,
and one warning says so.
"""

import contextlib
import errno
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import caching, ccallback, cgutils, event, sigutils
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic as numba_intrinsic

from diskreplay import kernel_sources
from diskreplay.compile_lock import alone
from diskreplay.errors import StorageError

void, int64, float64 = types.void, types.int64, types.float64
int32s, int64s, float64s = (
    types.CPointer(kind) for kind in (types.int32, types.int64, types.float64)
)

# Without a check of each division for a divisor of 0, and wrappers that nothing calls.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}

# Where Numba would look that can be there and only read. Before 0.62 they had an underscore.
_READABLE = [
    getattr(caching, name, None) or getattr(caching, f"_{name}")
    for name in ("UserProvidedCacheLocator", "InTreeCacheLocator")
]

_njit: Any = numba.njit  # its types differ from version to version
_warned = False


kernels: dict[Any, tuple[str, ...]] = {}
_LINE = "diskreplay: compiling, once; this takes some seconds ..."


def kernel(*arguments: str) -> Callable[[Callable[..., Any]], Any]:
    """A function that Python calls; it holds no GIL.

    It is compiled when it is called first, and the next process finds it compiled.

    Parameters
    ----------
    *arguments : str
        The types that it is called with, as Numba writes them: one text for each specialisation
        that `warm_up` makes.
    """

    if not all(isinstance(types_, str) for types_ in arguments):
        raise TypeError("kernel: name the types of the arguments, as in @kernel('int64[::1]')")

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = _njit(nogil=True, **_OPTIONS)(function)
        compiled._cache = KernelCache(function)
        compiled.compile = alone(compiled.compile)
        kernels[compiled] = arguments
        return compiled

    return decorate


def inner(function: Callable[..., Any]) -> Any:
    """A function that one kernel or part calls, which takes it in; not to be called from Python."""
    return _njit(no_cpython_wrapper=True, **_OPTIONS)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Code for kernels, which they call without the first of its arguments."""
    return numba_intrinsic(function)


def part(returns: types.Type, *arguments: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """A function that several kernels call, of these types: compiled once, before the first of them
    is."""

    def decorate(function: Callable[..., Any]) -> types.ExternalFunction:
        signature = returns(*arguments)
        symbol = f"{function.__module__}.{function.__qualname__}".replace(".", "_")
        _parts[symbol] = _Part(function, signature, symbol)
        return types.ExternalFunction(symbol, signature)

    return decorate


class _Part:
    def __init__(self, function: Callable[..., Any], signature: Any, symbol: str) -> None:
        self.function, self._signature, self._symbol = function, signature, symbol
        self._compiled: ccallback.CFunc | None = None

    def make(self) -> None:
        """Have its address known under its name."""
        if self._compiled is None:
            signature = self._signature
            compiled: Any = _AnnouncedCFunc(
                self.function, (signature.args, signature.return_type), locals={},
                options={"nopython": True, "error_model": "numpy"},
            )  # fmt: skip
            compiled._cache = KernelCache(self.function)
            compiled.compile()
            llvmlite.binding.add_symbol(self._symbol, compiled.address)
            self._compiled = compiled


_parts: dict[str, _Part] = {}


class _Announcer(event.Listener):
    """Says on a terminal that kernels are being compiled, while they are."""

    depth = 0

    def on_start(self, started: Any) -> None:
        if started.data["dispatcher"] in kernels:
            self.begin()

    def on_end(self, ended: Any) -> None:
        if ended.data["dispatcher"] in kernels:
            self.end()

    def begin(self) -> None:
        self.depth += 1  # parts are compiled within kernels
        if self.depth == 1:
            self._write(_LINE)

    def end(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._write("\r\x1b[K")  # back to the line's beginning, and erase it

    @staticmethod
    def _write(text: str) -> None:
        stream = sys.stderr
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, a closed stream
            if stream is not None and stream.isatty():
                stream.write(text)
                stream.flush()


_announcer = _Announcer()
event.register("numba:compile", _announcer)


class _AnnouncedCFunc(ccallback.CFunc):
    """One that says so while it is compiled, and not where it is found compiled."""

    def _compile_uncached(self) -> Any:
        _announcer.begin()
        try:
            return super()._compile_uncached()  # type: ignore[misc]
        finally:
            _announcer.end()


class Warmth(NamedTuple):
    """What `warm_up` did.

    Attributes
    ----------
    compiled, found : int
        Kernels that were compiled, and that were compiled before.
    seconds : float
        Processor time of this process.
    directories : tuple of str
        Where they are kept.
    """

    compiled: int
    found: int
    seconds: float
    directories: tuple[str, ...]


def warm_up() -> Warmth:
    """Compile all kernels of the modules that are imported, and keep them.

    Raises
    ------
    StorageError
        One cannot be kept.
    """
    begin, compiled, found, directories = time.process_time(), 0, 0, set()
    for each, signatures in kernels.items():
        cache = each._cache
        for arguments in signatures:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # the error says it
                each.compile(f"({arguments},)")
        if cache.kept is False:
            raise StorageError(
                errno.EACCES,
                f"compiled kernels cannot be kept ({cache.trouble}); {_remedy(cache.cache_path)}",
            )
        compiled += bool(cache.kept)
        found += not cache.kept
        directories.add(cache.directory)
    return Warmth(compiled, found, time.process_time() - begin, tuple(sorted(directories - {None})))


def _make_parts(function: Callable[..., Any]) -> None:
    """Make all parts that a function calls, also by way of others."""
    for name in function.__code__.co_names:
        found: Any = function.__globals__.get(name)
        if isinstance(found, types.ExternalFunction) and found.symbol in _parts:
            _parts[found.symbol].make()
        elif hasattr(found, "py_func"):
            _make_parts(found.py_func)


@intrinsic
def pointer(_typing, array):
    """Where an array's numbers begin; one that is not C-contiguous is refused."""
    if not isinstance(array, types.Array) or array.layout != "C":
        return None

    def emit(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), emit


class KernelCache(caching.NullCache):
    """The machine code of one kernel, kept in the directory that Numba chooses.

    Nothing that goes wrong with it reaches the caller: what cannot be read is compiled, and what
    cannot be written is compiled again by the next process. A directory that can only be read, as
    the one that an image was built with, is read.

    Attributes
    ----------
    kept : bool or None
        Whether the last compilation was kept; None while there was none.
    directory : str or None
        Where the kernel was found or kept.
    trouble : object
        Why it was not.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # Now: a process that becomes another user's may not be able to read them later.
        self._sources = kernel_sources.digest(function.__module__)
        self._opened: list[caching.FunctionCache] | None = None
        self._writable: caching.FunctionCache | None = None
        self.trouble: object = None
        self.kept: bool | None = None
        self.directory: str | None = None

    @property
    def cache_path(self) -> str | None:
        """The directory that can be written to, None if there is none."""
        self._places()
        return None if self._writable is None else self._writable.cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for a signature, None if there is nothing that can be read."""
        _make_parts(self._function)
        for place in self._places():
            try:
                found = place.load_overload(self._key(sig), target_context)
            except Exception as error:  # rotten bytes are unpickled into any error
                self.trouble = error
                self._empty(place)
                continue
            if found is not None:
                self.directory = place.cache_path
                return found
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled; where that is not possible, warn once a process."""
        self.kept = False
        if self._writable is not None:
            try:
                self._writable.save_overload(self._key(sig), data)
            except OSError as error:
                self.trouble = error
                # The index may name a file by now that an older version of the kernel has left.
                self._empty(self._writable)
            else:
                self.kept, self.directory = True, self._writable.cache_path
        if not self.kept:
            _warn(self.trouble, _remedy(self.cache_path))

    def _key(self, signature: Any) -> Any:
        """What an entry of an index is found by: the types, the same whether `warm_up` names them
        in a text or a call has them, and what else is in the machine code. Numba itself takes a
        text as it stands, which no call finds."""
        arguments, returns = sigutils.normalize_signature(signature)
        types_ = arguments if returns is None else returns(*arguments)
        return types_, self._sources

    def _places(self) -> list[caching.FunctionCache]:
        if self._opened is None:
            self._opened = []
            try:
                self._writable = _Place(self._function)
                self._opened.append(self._writable)
            except (RuntimeError, OSError):
                self.trouble = "no directory of Numba's choice can be written to"
            for place in _readable(self._function):
                if place.cache_path != (self._writable and self._writable.cache_path):
                    self._opened.append(place)
        return self._opened

    def _empty(self, place: caching.FunctionCache) -> None:
        """Forget all that a place has, so that it can be written to again."""
        if place is self._writable:
            with contextlib.suppress(OSError):  # then writing to it fails as well, and is noted
                place.flush()


class _Place(caching.FunctionCache):
    """A directory where kernels are, read without what only compiling needs.

    Numba makes a context ready for compiling before it reads from its cache: it loads what it
    knows of Python's functions and NumPy's, with SciPy where that is installed. Machine code needs
    its runtime only; whatever is compiled after all makes the context ready by itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None


def _readable(function: Callable[..., Any]) -> Iterator[caching.FunctionCache]:
    """Places that Numba would choose if they could be written to."""
    for locator in _READABLE:
        unasked = type(locator.__name__, (locator,), {"ensure_cache_path": lambda self: None})
        implementation = type(
            "ReadImpl", (caching.CompileResultCacheImpl,), {"_locator_classes": [unasked]}
        )
        with contextlib.suppress(RuntimeError, OSError):  # it has no such place
            yield type("ReadPlace", (_Place,), {"_impl_class": implementation})(function)


@intrinsic
def address(_typing, memory):
    """The address of a C-contiguous array, or of a pointer, as a number."""
    if isinstance(memory, types.Array) and memory.layout != "C":
        return None

    def emit(context, builder, signature, arguments):
        (kind,), (found,) = signature.args, arguments
        if isinstance(kind, types.Array):
            found = context.make_array(kind)(context, builder, found).data
        return builder.ptrtoint(found, cgutils.intp_t)

    return types.intp(memory), emit


def _numbers_at(kind: types.Type) -> Any:
    """The opposite of `address`: the numbers that begin there."""

    @intrinsic
    def numbers_at(_typing, number):
        def emit(context, builder, signature, arguments):
            kind = context.get_value_type(signature.return_type)
            return builder.inttoptr(arguments[0], kind)

        return types.CPointer(kind)(types.intp), emit

    return numbers_at


int64s_at, int32s_at = _numbers_at(types.int64), _numbers_at(types.int32)
float32s_at, float64s_at = _numbers_at(types.float32), _numbers_at(types.float64)
bytes_at = _numbers_at(types.uint8)


@intrinsic
def float32_bits(_typing, number):
    """The bits of a number rounded to float32, as an integer."""

    def emit(_context, builder, _signature, arguments):
        rounded = builder.fptrunc(arguments[0], ir.FloatType())
        return builder.sext(builder.bitcast(rounded, ir.IntType(32)), ir.IntType(64))

    return types.int64(types.float64), emit


def _choice(sign: str) -> Any:
    """One of two integers: the builtin compiles a function for each pair of types."""

    @intrinsic
    def choose(_typing, one, other):
        def emit(_context, builder, _signature, arguments):
            return builder.select(builder.icmp_signed(sign, *arguments), *arguments)

        return types.int64(types.int64, types.int64), emit

    return choose


smaller, larger = _choice("<"), _choice(">")


def _remedy(writable: str | None) -> str:
    """What to do where nothing could be kept in `writable`, or where there is no such directory."""
    asked = getattr(numba.config, "CACHE_DIR", "")
    if asked and writable is None:
        return (
            f"the environment variable NUMBA_CACHE_DIR is {asked!r}, which cannot be written to: "
            "set it to a directory that can"
        )
    return "set the environment variable NUMBA_CACHE_DIR to a directory that can be written to"


def _warn(trouble: object, remedy: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"compiled kernels cannot be kept ({trouble}), so each process spends some seconds on "
            f"compiling them; {remedy}",
            RuntimeWarning,
            stacklevel=1 + _frames_within(),
        )


def _frames_within() -> int:
    """How many of the innermost frames, from the caller's on, are this package's or Numba's."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        frame, count = frame.f_back, count + 1
    return count


_OURS = {"diskreplay", "numba", "contextlib"}
