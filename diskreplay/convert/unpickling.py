"""Pickles from strangers: numbers, strings, containers, arrays and sum trees, and no code."""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from diskreplay.errors import CorruptCheckpointError

_OPCODES = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
        *("LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"),
        *("TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS"),
        *("FROZENSET", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"),
    )
)
MOST_PICKLED = 1 << 30  # bytes: 64 million leaves and their sums
# Python 2 and protocol 2 spell bytes as text; NumPy 2 moved its modules.
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric",
          "numpy._core.numeric")  # fmt: skip
_SUM_TREES = (
    "reagent.replay_memory.sum_tree", "ml.rl.replay_memory.sum_tree",
    "dopamine.replay_memory.sum_tree", "dopamine.agents.rainbow.sum_tree",
)  # fmt: skip


class PickledSumTree:
    """What a sum tree of ReAgent or Dopamine had inside. There are as many leaves as its capacity,
    rounded up to a power of two."""

    def __init__(self) -> None:
        self.leaves, self.max_recorded_priority = np.zeros(1), 1.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = np.asarray(state["nodes"][-1])
        if leaves.ndim != 1 or leaves.dtype.kind not in "iuf":
            raise ValueError("a level of a sum tree is one row of numbers")
        self.leaves = leaves.astype(np.float64)
        self.max_recorded_priority = float(state["max_recorded_priority"])
        if not (np.isfinite(self.leaves).all() and (self.leaves >= 0).all()):
            raise ValueError("a priority is negative or not finite")
        if not 0 <= self.max_recorded_priority < np.inf:
            raise ValueError("the largest priority is negative or not finite")


class _Dtype:
    """Stands in for ``numpy.dtype``, whose own unpickling trusts what it is given."""

    def __init__(self, text: str, *_flags: object) -> None:
        self.dtype = np.dtype(text)
        if self.dtype.kind not in "biuf":
            raise ValueError(f"arrays of {self.dtype} are not taken")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for ``numpy.ndarray``; `unpickled` replaces it by the array it describes."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, data = state
        data = data.encode("latin-1") if isinstance(data, str) else data
        flat = np.frombuffer(data, dtype.dtype)
        self.array = flat.reshape(shape, order="F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array if dtype is None else self.array.astype(dtype)


def _reconstruct(*_made_up: object) -> _Array:
    return _Array()


def _scalar(dtype: _Dtype, data: bytes | str) -> Any:
    data = data.encode("latin-1") if isinstance(data, str) else data
    return np.frombuffer(data, dtype.dtype, count=1)[0].item()


def _frombuffer(data: bytes, dtype: _Dtype, shape: tuple[Any, ...], order: str) -> np.ndarray:
    return np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes spelled in {encoding!r}")
    return text.encode("latin-1")


def _empty_bytes() -> bytes:
    return b""  # what protocol 2 writes for it; with a size, `bytes` would make room


_KNOWN = {
    **{(module, "SumTree"): PickledSumTree for module in _SUM_TREES},
    **{(module, "_reconstruct"): _reconstruct for module in _NUMPY},
    **{(module, "scalar"): _scalar for module in _NUMPY},
    **{(module, "_frombuffer"): _frombuffer for module in _NUMPY},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not taken from a file") from None


def unpickled(data: bytes, where: str) -> Any:
    """The value in a pickle that may be hostile: numbers, strings, bytes, lists, tuples, dicts,
    sets, arrays of numbers (within a container, something that `numpy.asarray` takes for one) and
    `PickledSumTree`; nothing else. A `CorruptCheckpointError`, which says `where`, if it is damaged
    or asks for anything else; nothing in it was called then.

    The opcodes are walked first, without carrying them out: the C unpickler would make room for a
    memo as large as the file names.
    """
    try:
        for place, (opcode, argument, _position) in enumerate(pickletools.genops(data)):
            if opcode.name not in _OPCODES:
                raise pickle.UnpicklingError(f"the instruction {opcode.name} is not taken")
            if "PUT" in opcode.name and int(argument or 0) > place:
                raise pickle.UnpicklingError(f"memo {argument} as instruction {place}")
        value = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError,
        AttributeError, OverflowError, MemoryError, RecursionError, UnicodeError,
    ) as error:  # fmt: skip
        # What the two unpicklers raise on nonsense; their documentation names the first five.
        raise CorruptCheckpointError(
            f"{where}: not a pickle of numbers, strings or a sum tree ({error}); "
            "it was not carried out"
        ) from error
    return value.array if isinstance(value, _Array) else value


def pickled_sum_tree(
    leaves: np.ndarray, max_recorded_priority: float, *, package: str = "reagent"
) -> bytes:
    """A sum tree as the `package`, ReAgent or Dopamine, would pickle its own, to be read where that
    is installed: in protocol 3, which every Python 3 reads. NumPy's functions go by the names that
    NumPy 1 and 2 both know."""
    state = {"nodes": levels(leaves), "max_recorded_priority": float(max_recorded_priority)}
    body = pickle.dumps(state, protocol=3)[2:-1]  # without its own start and stop
    body = body.replace(b"cnumpy._core.", b"cnumpy.core.")
    # The class cannot be imported here: these are the opcodes that name it and make one.
    name = f"c{package}.replay_memory.sum_tree\nSumTree\n".encode()
    return b"\x80\x03" + name + b")\x81" + body + b"b."


def levels(leaves: np.ndarray) -> list[np.ndarray]:
    """The sums of a binary tree over `leaves`: arrays of length 1, 2, 4, ... to the power of two
    that holds them all."""
    width = 1 << max(len(leaves) - 1, 0).bit_length()
    level = np.zeros(width)
    level[: len(leaves)] = leaves
    found = [level]
    while len(found[-1]) > 1:
        found.append(found[-1][0::2] + found[-1][1::2])
    return found[::-1]


def pickled_set(numbers: list[int]) -> bytes:
    """A set of integers, in a protocol that every Python 3 reads."""
    return pickle.dumps(set(numbers), protocol=3)
